// Coding a row in the lanes of one level (kernels/lanes_<level>.h comes first). Sums are kept in 16
// lanes and folded by halves, as the reference does, so all levels agree to the bit.
#ifndef VARVE_KERNELS_PACK_PACK_BODY_H_
#define VARVE_KERNELS_PACK_PACK_BODY_H_

#include "kernels/nearest_body.h"
#include "kernels/pack/place_body.h"

namespace varve {
namespace {

constexpr int kParts = kLanes / kWidth;

/// -1 in the lanes below n.
VARVE_INLINE I32 LanesBelow(int n) {
  I32 lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane < n;
}

/// Calls visit(first element, elements left in this register, lane part) for all registers of n
/// elements; the count is a constant kWidth but in the last ones.
template <typename Visit>
VARVE_INLINE void EachPart(int n, const Visit& visit) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) visit(i + p * kWidth, kWidth, p);
  }
  for (int p = 0; i + p * kWidth < n; ++p) visit(i + p * kWidth, n - i - p * kWidth, p);
}

VARVE_INLINE F32 LoadRow(const float* y, int left) {
  const F32 v = LoadAs<F32>(y);
  return left >= kWidth ? v : (F32)((I32)v & LanesBelow(left));
}

template <int kBits, bool kStore>
void CodeRun(const PackCodeArgs& args, const PackRun& run, float inverse, PackSums& sums) {
  const float* y = args.y + run.first_channel;
  uint8_t* codes = args.codes + run.first_channel;
  F32 cross[kParts] = {};
  F32 squares[kParts] = {};  // exact: at most 1,024 * 127^2
  inverse *= kNearestScale<kBits>;
  EachPart(
      run.n_channels, [&](int i, int left, int p) __attribute__((always_inline)) {
        const F32 v = LoadRow(y + i, left);
        Coded coded = Nearest<kBits>(v * inverse);
        if (left < kWidth) coded.level = (F32)((I32)coded.level & LanesBelow(left));
        squares[p] += coded.level * coded.level;
        cross[p] += v * coded.level;
        if constexpr (kStore) StoreBytes(codes + i, coded.code);
      });
  const float weighted_cross = FoldLanes(cross) * run.weight;
  const float weighted_levels = FoldLanes(squares) * run.weight;
  sums.cross += weighted_cross;
  sums.levels += weighted_levels;
  if (run.bits > 4) return;
  sums.coarse_cross += weighted_cross;
  sums.coarse_levels += weighted_levels;
}

template <bool kStore>
PackSums CodeAll(const PackCodeArgs& args, float inverse, bool coarse_only) {
  PackSums sums;
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    if (coarse_only && run.bits > 4) continue;
    switch (run.bits) {
      case 2:
        CodeRun<2, kStore>(args, run, inverse, sums);
        break;
      case 3:
        CodeRun<3, kStore>(args, run, inverse, sums);
        break;
      case 4:
        CodeRun<4, kStore>(args, run, inverse, sums);
        break;
      case 6:
        CodeRun<6, kStore>(args, run, inverse, sums);
        break;
      default:
        CodeRun<8, kStore>(args, run, inverse, sums);
    }
  }
  return sums;
}

void PackCode(PackCodeArgs& args) {
  float energy = 0;
  F32 peak[kParts] = {};
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    F32 sum[kParts] = {};
    EachPart(
        run.n_channels, [&](int i, int left, int p) __attribute__((always_inline)) {
          const F32 v = LoadRow(args.y + run.first_channel + i, left);
          sum[p] += v * v;
          peak[p] = Max(Magnitude(v), peak[p]);
        });
    energy += FoldLanes(sum) * run.weight;
  }
  CodeByGain(
      args, energy, FoldMax(peak),
      [&](float inverse, bool store, bool coarse_only) __attribute__((always_inline)) {
        return store ? CodeAll<true>(args, inverse, coarse_only)
                     : CodeAll<false>(args, inverse, coarse_only);
      });
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_PACK_PACK_BODY_H_
