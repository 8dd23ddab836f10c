// Gains in the lanes of one level (kernels/lanes_<level>.h comes first): RoundGain() and
// GainValue() of kernels/pack/gain_body.h, to the bit.
#ifndef VARVE_KERNELS_GAIN_LANES_H_
#define VARVE_KERNELS_GAIN_LANES_H_

#include "kernels/pack/gain_body.h"

namespace varve {
namespace {

struct Rounded {
  F32 value;
  I32 f16;
};

/// x where the mask is -1, 0 where it is 0.
VARVE_INLINE F32 Keep(F32 x, I32 mask) { return (F32)((I32)x & mask); }

VARVE_INLINE F32 Choose(I32 mask, F32 a, F32 b) {
  return (F32)(((I32)a & mask) | ((I32)b & ~mask));
}

VARVE_INLINE Rounded RoundGains(F32 gain) {
  constexpr int kDropped = 24 - 10;
  const F32 clamped = Min(gain, F32{} + kMaxGain);
  // Unsigned, as there: gains of what is no cache's own row may be negative.
  U32 bits = (U32)clamped;
  bits = (bits + ((1u << (kDropped - 1)) - 1) + (bits >> kDropped & 1)) & -(1u << kDropped);
  // Subnormal: adding 0.5 aligns the ulp, so the addition rounds.
  const F32 aligned = (F32)bits + 0.5f;
  const I32 normal = bits >= 0x38800000u;
  const U32 f16 =
      ((bits - 0x38000000u) >> 13 & (U32)normal) | (((U32)aligned - 0x3f000000u) & ~(U32)normal);
  return {Choose(normal, (F32)bits, aligned - 0.5f), (I32)(f16 & 0xffff)};
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_GAIN_LANES_H_
