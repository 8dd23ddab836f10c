// The nearest code of a number, in the lanes of one level (kernels/lanes_<level>.h comes first).
#ifndef VARVE_KERNELS_NEAREST_BODY_H_
#define VARVE_KERNELS_NEAREST_BODY_H_

namespace varve {
namespace {

VARVE_INLINE F32 All(float x) { return F32{} + x; }

VARVE_INLINE F32 Magnitude(F32 x) { return (F32)((I32)x & 0x7fffffff); }

struct Coded {
  F32 level;
  I32 code;
};

/// The low bytes of four registers as the bytes of one.
VARVE_INLINE I32 JoinBytes(const I32* x) { return Or3(x[0], x[1] << 8, (x[2] | x[3] << 8) << 16); }

/// A power of two.
template <int kBits>
constexpr float kNearestScale = kBits == 8 ? 1.0f : kSearchScale<kBits>;

/// Code and level nearest to x / kNearestScale. Without branches: signs are as good as random.
template <int kBits>
VARVE_INLINE Coded Nearest(F32 x) {
  if constexpr (kBits == 8) {
    const I32 whole = ToNearest(Max(Min(x, All(127.0f)), All(-127.0f)));
    return {ToFloat(whole), whole + 128};
  } else {
    const Found found = FindMagnitude<kBits>(Magnitude(x));
    const Negative negative = IsNegative(x);
    return {WithSign(found.level, negative), SignedCode(found.index, negative, 1 << (kBits - 1))};
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_NEAREST_BODY_H_
