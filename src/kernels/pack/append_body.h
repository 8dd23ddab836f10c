// Appending rows in the lanes of one level (kernels/lanes_<level>.h comes first), whole rows in
// registers. Same operations in the same order as PackAppendReference.
#ifndef VARVE_KERNELS_PACK_APPEND_BODY_H_
#define VARVE_KERNELS_PACK_APPEND_BODY_H_

#include "kernels/pack/gain_body.h"
#include "kernels/pack/pack_body.h"

namespace varve {
namespace {

constexpr int kHeadsAtOnce = 8;

// f16 bits: the least gain with all its bits, and the one that stands for all above it.
constexpr uint16_t kLeastNormal = 0x0400;
constexpr uint16_t kMostGain = 0x7bf0;

/// A rotated head and what its codes depend on.
struct AppendHead {
  alignas(64) float x[256];
  float energy;
  uint16_t gain;
  float cross;
  float levels;
};

template <int kN>
VARVE_INLINE void Place(const PackAppendArgs& args, I32 (&level)[kN], uint8_t* payload) {
  if (args.side == Side::kValue) {
    uint8_t* line = payload + static_cast<size_t>(args.token / 4) * kLineBytes;
#pragma GCC unroll 32
    for (int i = 0; i < kN; ++i) {
      PutByte(line + static_cast<size_t>(i / kParts) * 8 * kLineBytes +
                  static_cast<size_t>(i % kParts) * 4 * kWidth,
              args.token % 4, level[i]);
    }
    return;
  }
  uint8_t* at = payload + static_cast<size_t>(args.token / 16) * kLineBytes +
                static_cast<size_t>(args.token % 16) * 4;
  constexpr int kQuads = kWidth / 4;
#pragma GCC unroll 8
  for (int first = 0; first < kN; first += 4) {
    I32 four[4] = {};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (first + i < kN) four[i] = level[first + i];
    }
    alignas(64) uint8_t bytes[4 * kWidth];
    // A code is its level + 128.
    const I32 codes = PackFour(four) ^ static_cast<int32_t>(0x80808080u);
    std::memcpy(bytes, &codes, sizeof codes);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      if (first + i >= kN) continue;
#pragma GCC unroll 4
      for (int lane = 0; lane < kQuads; ++lane) {
        std::memcpy(at + static_cast<size_t>((first + i) * kQuads + lane) * 2 * kLineBytes,
                    bytes + 16 * lane + 4 * i, 4);
      }
    }
  }
}

/// A head of kN registers; the rotation mixes kSize of them at a time.
template <int kN>
VARVE_INLINE void Rotate(const float* row, float norm, float weight, AppendHead& head) {
  constexpr int kSize = kN & -kN;
  F32 x[kN];
#pragma GCC unroll 32
  for (int i = 0; i < kN; ++i) x[i] = Butterflies(LoadAs<F32>(row + i * kWidth));
#pragma GCC unroll 5
  for (int half = 1; half < kSize; half *= 2) {
#pragma GCC unroll 32
    for (int i = 0; i < kN; ++i) {
      if ((i & half) != 0) continue;
      const F32 sum = x[i] + x[i + half];
      x[i + half] = x[i] - x[i + half];
      x[i] = sum;
    }
  }
  F32 energy[kParts] = {};
  F32 peak[kParts] = {};
#pragma GCC unroll 32
  for (int i = 0; i < kN; ++i) {
    const F32 scaled = x[i] * norm;
    std::memcpy(head.x + i * kWidth, &scaled, sizeof scaled);
    energy[i % kParts] += scaled * scaled;
    peak[i % kParts] = MaxMagnitude(scaled, peak[i % kParts]);
  }
  head.energy = FoldLanes(energy) * weight;
  head.gain = RoundGain(FoldMax(peak) / 127.0f);
  if (!(head.energy < __builtin_inff())) head.gain = kNanGain;
}

/// Levels of a rotated head at its gain, and their sums. A gain that has its ten bits puts no
/// element past level 127.1, and no clamp is needed.
template <int kN, bool kClamp>
VARVE_INLINE void LevelsAt(float weight, AppendHead& head, I32 (&level)[kN]) {
  const F32 inverse = All(1.0f / GainValue(head.gain));
  F32 cross[kParts] = {};
  F32 squares[kParts] = {};  // exact: at most 256 * 127^2
#pragma GCC unroll 32
  for (int i = 0; i < kN; ++i) {
    const F32 x = LoadAs<F32>(head.x + i * kWidth);
    F32 scaled = x * inverse;
    if constexpr (kClamp) scaled = Max(Min(scaled, All(127.0f)), All(-127.0f));
    level[i] = ToNearest(scaled);
    const F32 value = ToFloat(level[i]);
    squares[i % kParts] = FusedAdd(value, value, squares[i % kParts]);
    cross[i % kParts] += x * value;
  }
  head.cross = FoldLanes(cross) * weight;
  head.levels = FoldLanes(squares) * weight;
}

/// Codes and stores a rotated head at its gain.
template <int kN>
VARVE_INLINE void CodeHead(const PackAppendArgs& args, float weight, bool clamp, AppendHead& head,
                           uint8_t* payload) {
  I32 level[kN] = {};
  if (clamp) {
    if (head.gain != 0 && head.gain != kNanGain) LevelsAt<kN, true>(weight, head, level);
  } else {
    LevelsAt<kN, false>(weight, head, level);
  }
  Place<kN>(args, level, payload);
  std::memcpy(payload + args.gain_offset + 2 * static_cast<size_t>(args.token), &head.gain,
              sizeof head.gain);
}

/// Step by step over some heads rather than head by head: a head's steps wait for each other, those
/// of different heads do not.
template <int kHeadDim>
bool AppendHeads(const PackAppendArgs& args) {
  constexpr int kN = kHeadDim / kWidth;
  const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(kHeadDim & -kHeadDim)) * args.unit;
  const float weight = 1.0f / (args.unit * args.unit);
  AppendHead heads[kHeadsAtOnce];
  for (int first = 0; first < args.n_heads; first += kHeadsAtOnce) {
    const int n = args.n_heads - first < kHeadsAtOnce ? args.n_heads - first : kHeadsAtOnce;
    const float* rows = args.rows + static_cast<ptrdiff_t>(first) * kHeadDim;
    uint8_t* payload = args.block + static_cast<size_t>(first) * args.head_bytes;
    for (int h = 0; h < n; ++h) Rotate<kN>(rows + h * kHeadDim, norm, weight, heads[h]);
    for (int h = 0; h < n; ++h) {
      const uint16_t gain = heads[h].gain;
      CodeHead<kN>(args, weight, gain < kLeastNormal || gain >= kMostGain, heads[h],
                   payload + static_cast<size_t>(h) * args.head_bytes);
    }
    for (int h = 0; h < n; ++h) {
      AppendHead& head = heads[h];
      if (head.gain == 0 || head.gain == kNanGain) continue;
      const uint16_t own = OwnGain(head.gain, head.energy, head.cross, head.levels);
      if (own == head.gain) continue;
      head.gain = own;
      CodeHead<kN>(args, weight, true, head, payload + static_cast<size_t>(h) * args.head_bytes);
    }
  }
  return true;
}

bool PackAppend(const PackAppendArgs& args) {
  switch (args.head_dim) {
    case 64:
      return AppendHeads<64>(args);
    case 80:
      return AppendHeads<80>(args);
    case 96:
      return AppendHeads<96>(args);
    case 112:
      return AppendHeads<112>(args);
    case 128:
      return AppendHeads<128>(args);
    case 192:
      return AppendHeads<192>(args);
    case 256:
      return AppendHeads<256>(args);
    default:
      return false;
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_PACK_APPEND_BODY_H_
