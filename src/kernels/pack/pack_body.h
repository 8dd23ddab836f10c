// Coding a row in plain loops of 16 lanes, one body for the portable and the AVX2 level. All levels
// do the same operations in the same order, so they agree to the bit.
#ifndef VARVE_KERNELS_PACK_PACK_BODY_H_
#define VARVE_KERNELS_PACK_PACK_BODY_H_

#include "kernels/pack/place_body.h"
#include "layout/levels.h"

namespace varve {
namespace {

/// A codebook by magnitude: entry min(floor(2|x|), 255) holds the nearest code's index in the
/// positive half and its level. Decision thresholds are means of two integers, so floor(2|x|)
/// decides exactly.
struct MagnitudeBook {
  uint8_t index[256];
  uint8_t level[256];
};

consteval MagnitudeBook MakeMagnitudeBook(int bits) {
  MagnitudeBook book{};
  const int half = 1 << (bits - 1);
  int at = 0;
  for (int twice = 0; twice < 256; ++twice) {
    while (at + 1 < half && twice >= HalfLevelAt(bits, at) + HalfLevelAt(bits, at + 1)) ++at;
    book.index[twice] = static_cast<uint8_t>(at);
    book.level[twice] = static_cast<uint8_t>(HalfLevelAt(bits, at));
  }
  return book;
}

constexpr MagnitudeBook kBook2 = MakeMagnitudeBook(2);
constexpr MagnitudeBook kBook3 = MakeMagnitudeBook(3);
constexpr MagnitudeBook kBook4 = MakeMagnitudeBook(4);
constexpr MagnitudeBook kBook6 = MakeMagnitudeBook(6);

struct Coded {
  int level;
  int code;
};

/// Without branches: signs are as good as random.
template <int kBits>
VARVE_INLINE Coded Nearest(float x) {
  int32_t bits;
  const float signed_zero_free = x + 0.0f;
  std::memcpy(&bits, &signed_zero_free, sizeof bits);
  const int32_t negative = bits >> 31;
  bits &= 0x7fffffff;
  float m;
  std::memcpy(&m, &bits, sizeof m);
  if constexpr (kBits == 8) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
    const float shifted = (m < 127.0f ? m : 127.0f) + 12582912.0f;
    int32_t whole;
    std::memcpy(&whole, &shifted, sizeof whole);
    whole -= 0x4b400000;
    const int level = (whole ^ negative) - negative;
    return {level, level + 128};
  } else {
    constexpr const MagnitudeBook& book = kBits == 2   ? kBook2
                                          : kBits == 3 ? kBook3
                                          : kBits == 4 ? kBook4
                                                       : kBook6;
    const float twice = 2 * m;
    const int at = static_cast<int>(twice < 255.0f ? twice : 255.0f);
    const int level = book.level[at];
    return {(level ^ negative) - negative, (book.index[at] ^ negative) + (1 << (kBits - 1))};
  }
}

struct Lanes {
  float lane[kLanes] = {};

  /// Lanes folded by halves.
  VARVE_INLINE float Fold() {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    return lane[0];
  }
};

template <int kBits, bool kStore>
void CodeRun(const PackCodeArgs& args, const PackRun& run, float inverse, bool coarse,
             PackSums& sums) {
  const float* y = args.y + run.first_channel;
  uint8_t* codes = args.codes + run.first_channel;
  Lanes row;
  Lanes cross;
  int32_t squares = 0;
  for (int i = 0; i < run.n_channels; i += kLanes) {
    const int n = run.n_channels - i < kLanes ? run.n_channels - i : kLanes;
    for (int k = 0; k < n; ++k) {
      const float v = y[i + k];
      const Coded coded = Nearest<kBits>(v * inverse);
      squares += coded.level * coded.level;
      cross.lane[k] += v * static_cast<float>(coded.level);
      row.lane[k] += v * v;
      if constexpr (kStore) codes[i + k] = static_cast<uint8_t>(coded.code);
    }
  }
  const float weighted_cross = cross.Fold() * run.weight;
  const float weighted_levels = static_cast<float>(squares) * run.weight;
  sums.cross += weighted_cross;
  sums.levels += weighted_levels;
  if (coarse) {
    sums.coarse_row += row.Fold() * run.weight;
    sums.coarse_cross += weighted_cross;
    sums.coarse_levels += weighted_levels;
  }
}

template <bool kStore, bool kResidual>
VARVE_INLINE PackSums CodeAll(const PackCodeArgs& args, float inverse) {
  PackSums sums;
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    const bool coarse = kResidual && (run.bits <= 4 || !args.has_coarse);
    switch (run.bits) {
      case 2:
        CodeRun<2, kStore>(args, run, inverse, coarse, sums);
        break;
      case 3:
        CodeRun<3, kStore>(args, run, inverse, coarse, sums);
        break;
      case 4:
        CodeRun<4, kStore>(args, run, inverse, coarse, sums);
        break;
      case 6:
        CodeRun<6, kStore>(args, run, inverse, coarse, sums);
        break;
      default:
        CodeRun<8, kStore>(args, run, inverse, coarse, sums);
    }
  }
  return sums;
}

VARVE_INLINE void PackCode(PackCodeArgs& args) {
  args.settled = false;
  float energy = 0;
  float peak = 0;
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    Lanes sum;
    for (int i = 0; i < run.n_channels; i += kLanes) {
      const int n = run.n_channels - i < kLanes ? run.n_channels - i : kLanes;
      for (int k = 0; k < n; ++k) {
        const float v = args.y[run.first_channel + i + k];
        const float m = v < 0 ? -v : v;
        sum.lane[k] += v * v;
        peak = m > peak ? m : peak;
      }
    }
    energy += sum.Fold() * run.weight;
  }
  if (!(energy < __builtin_inff())) return Clear(args, kNanGain);
  const float first = args.has_coarse ? __builtin_sqrtf(energy / args.nominal) : peak / 127.0f;
  if (RoundGain(first) == 0) return Clear(args, 0);
  const PackSums guess = CodeAll<false, true>(args, 1.0f / first);
  const float lattice = guess.coarse_cross / guess.coarse_levels;
  const float residual = guess.coarse_row - lattice * guess.coarse_cross;
  const float fresh = args.has_coarse ? guess.cross / guess.levels : first;
  const float least = (args.has_coarse ? kOnLattice : kOnFineLattice) * guess.coarse_row;
  // The least squares gain first; the root mean square's own if that one leaves the window.
  const bool decoded = residual <= least;
  const float gains[2] = {decoded ? lattice : fresh, first};
  for (int attempt = 0; attempt < 2 && !args.settled; ++attempt) {
    args.gain = RoundGain(gains[attempt]);
    if (args.gain == 0) return Clear(args, 0);
    const float gain = GainValue(args.gain);
    const PackSums coded = CodeAll<true, false>(args, 1.0f / gain);
    if (!args.has_coarse) {
      args.settled = true;
      return;
    }
    const float ratio = __builtin_sqrtf(coded.levels / args.nominal);
    const float error = energy + gain * (gain * coded.levels - 2 * coded.cross);
    args.settled = ratio >= args.window_low && ratio <= args.window_high &&
                   error <= args.allowed_error * energy;
    if (args.settled && args.keep_norm && !decoded)
      args.gain = RoundGain(__builtin_sqrtf(energy / coded.levels));
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_PACK_PACK_BODY_H_
