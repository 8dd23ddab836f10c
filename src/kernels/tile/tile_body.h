// Tiles in the operations of one level: the file that includes this defines F32, I32, kWidth,
// kMaxRadix, Look, WidenBytes, StoreBytes, ToFloat, Sqrt, Max, Min and Step before.
#ifndef VARVE_KERNELS_TILE_TILE_BODY_H_
#define VARVE_KERNELS_TILE_TILE_BODY_H_

#include "kernels/pack/place_body.h"
#include "layout/levels.h"

namespace varve {
namespace {

VARVE_INLINE F32 All(float x) { return F32{} + x; }

VARVE_INLINE void Save(float* at, F32 x) { std::memcpy(at, &x, sizeof x); }

void Load(const TileLoadArgs& args) {
  // Values: [channel][16] bytes, the transpose of lines of [channel][4].
  alignas(64) uint8_t planes[1040 * kTileTokens];
  if (args.side == Side::kValue) {
    for (int first = 0; first < args.n_channels; first += kLanes) {
      const uint8_t* line =
          args.lines + static_cast<size_t>(first / 2 + 4 * args.half) * kLineBytes;
      for (int q = 0; q < 4; ++q, line += kLineBytes) {
        for (int i = 0; i < kLanes; ++i)
          std::memcpy(planes + (first + i) * kTileTokens + 4 * q, line + 4 * i, 4);
      }
    }
  }
  for (int part = 0; part < kTileTokens; part += kWidth) {
    const F32 gain = LoadAs<F32>(args.gain + part);
    for (int i = 0; i < args.n_channels; ++i) {
      I32 level;
      if (args.side == Side::kKey) {
        const uint8_t* line = args.lines + static_cast<size_t>(i / 4 * 2 + args.half) * kLineBytes;
        level = (LoadAs<I32>(line + 4 * part) >> (8 * (i % 4)) & 255) - 128;
      } else {
        level = WidenBytes(planes + i * kTileTokens + part);
      }
      const F32 factor = args.scale != nullptr ? gain * args.scale[i] : gain;
      Save(args.out + i * kTileTokens + part, ToFloat(level) * factor);
    }
  }
}

void Gather(const float* tile, const int16_t* channel, const float* scale, float* out, int n) {
  for (int i = 0; i < n; ++i) {
    for (int part = 0; part < kTileTokens; part += kWidth) {
      const F32 value =
          channel[i] < 0 ? F32{} : LoadAs<F32>(tile + channel[i] * kTileTokens + part) * scale[i];
      Save(out + i * kTileTokens + part, value);
    }
  }
}

/// log2(kRadix) stages of butterflies over channels that are `half`, 2 * half, ... apart.
template <int kRadix>
void Butterflies(float* tile, int n, int half, bool last, float norm) {
  for (int first = 0; first < n; first += kRadix * half) {
    for (int i = first; i < first + half; ++i) {
      for (int part = 0; part < kTileTokens; part += kWidth) {
        float* at = tile + i * kTileTokens + part;
        F32 x[kRadix];
#pragma GCC unroll 16
        for (int k = 0; k < kRadix; ++k) x[k] = LoadAs<F32>(at + k * half * kTileTokens);
#pragma GCC unroll 4
        for (int step = 1; step < kRadix; step *= 2) {
#pragma GCC unroll 16
          for (int k = 0; k < kRadix; ++k) {
            if ((k & step) != 0) continue;
            const F32 sum = x[k] + x[k + step];
            x[k + step] = x[k] - x[k + step];
            x[k] = sum;
          }
        }
#pragma GCC unroll 16
        for (int k = 0; k < kRadix; ++k) {
          Save(at + k * half * kTileTokens, last ? x[k] * norm : x[k]);
        }
      }
    }
  }
}

void RotateTile(float* tile, int n, int size, float factor) {
  const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(size)) * factor;
  int half = 1;
  do {
    const int left = size / half;
    const bool last = left <= kMaxRadix;
    const int radix = last ? left : kMaxRadix;
    switch (radix) {
      case 1:
        Butterflies<1>(tile, n, half, last, norm);
        break;
      case 2:
        Butterflies<2>(tile, n, half, last, norm);
        break;
      case 4:
        Butterflies<4>(tile, n, half, last, norm);
        break;
      case 8:
        Butterflies<8>(tile, n, half, last, norm);
        break;
      default:
        Butterflies<kMaxRadix>(tile, n, half, last, norm);
    }
    half *= radix;
    if (last) break;
  } while (half < size);
}

/// Thresholds and levels of a codebook's positive half; entry 0 of the thresholds is not used.
struct HalfBook {
  alignas(64) float threshold[32];
  alignas(64) float level[32];
};

consteval HalfBook MakeHalfBook(int bits) {
  HalfBook book{};
  const int half = 1 << (bits - 1);
  for (int i = 0; i < half; ++i) {
    book.level[i] = static_cast<float>(HalfLevelAt(bits, i));
    if (i > 0)
      book.threshold[i] =
          0.5f * static_cast<float>(HalfLevelAt(bits, i - 1) + HalfLevelAt(bits, i));
  }
  return book;
}

constexpr HalfBook kBook2 = MakeHalfBook(2);
constexpr HalfBook kBook3 = MakeHalfBook(3);
constexpr HalfBook kBook4 = MakeHalfBook(4);
constexpr HalfBook kBook6 = MakeHalfBook(6);

struct Coded {
  F32 level;
  I32 code;
};

template <int kBits>
VARVE_INLINE Coded Nearest(F32 x) {
  const I32 bits = (I32)(x + 0.0f);
  const I32 negative = bits >> 31;
  const F32 m = (F32)(bits & 0x7fffffff);
  const I32 sign = negative & static_cast<int32_t>(0x80000000u);
  if constexpr (kBits == 8) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
    const I32 whole = (I32)(Min(m, All(127.0f)) + 12582912.0f) - 0x4b400000;
    const I32 level = (whole ^ negative) - negative;
    return {ToFloat(level), level + 128};
  } else {
    constexpr int kHalf = 1 << (kBits - 1);
    constexpr const HalfBook& book = kBits == 2   ? kBook2
                                     : kBits == 3 ? kBook3
                                     : kBits == 4 ? kBook4
                                                  : kBook6;
    I32 index = {};
#pragma GCC unroll 5
    for (int step = kHalf / 2; step > 0; step /= 2) {
      const I32 candidate = index + step;
      const F32 threshold = step == kHalf / 2 ? All(book.threshold[kHalf / 2])
                                              : Look<kHalf>(book.threshold, candidate);
      index = Step(m, threshold, candidate, index);
    }
    return {(F32)((I32)Look<kHalf>(book.level, index) | sign), (index ^ negative) + kHalf};
  }
}

/// Sixteen sums, one a lane of the row kernels, folded by halves as those are.
struct Lanes {
  F32 lane[kLanes];

  VARVE_INLINE F32 Fold() {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    return lane[0];
  }
};

struct Sums {
  F32 cross = {};
  F32 levels = {};
  F32 coarse_row = {};
  F32 coarse_cross = {};
  F32 coarse_levels = {};
};

template <int kBits, bool kStore>
void CodeRun(const PackCodeArgs& args, int part, const PackRun& run, F32 inverse, bool coarse,
             Sums& sums) {
  const float* y = args.y + run.first_channel * kTileTokens + part;
  uint8_t* codes = args.codes + run.first_channel * kBlockTokens + part;
  Lanes row;
  Lanes cross;
  F32 squares = {};  // exact: at most 1,024 * 127^2
  for (int lane = 0; lane < kLanes; ++lane) {
    F32 row_sum = {};
    F32 cross_sum = {};
    for (int i = lane; i < run.n_channels; i += kLanes) {
      const F32 v = LoadAs<F32>(y + i * kTileTokens);
      const Coded coded = Nearest<kBits>(v * inverse);
      squares += coded.level * coded.level;
      cross_sum += v * coded.level;
      if constexpr (kStore) {
        StoreBytes(codes + i * kBlockTokens, coded.code);
      } else {
        row_sum += v * v;
      }
    }
    row.lane[lane] = row_sum;
    cross.lane[lane] = cross_sum;
  }
  const F32 weighted_cross = cross.Fold() * run.weight;
  const F32 weighted_levels = squares * run.weight;
  sums.cross += weighted_cross;
  sums.levels += weighted_levels;
  if (coarse) {
    sums.coarse_row += row.Fold() * run.weight;
    sums.coarse_cross += weighted_cross;
    sums.coarse_levels += weighted_levels;
  }
}

template <bool kStore>
VARVE_INLINE Sums CodeAll(const PackCodeArgs& args, int part, F32 inverse) {
  Sums sums;
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    const bool coarse = !kStore && (run.bits <= 4 || !args.has_coarse);
    switch (run.bits) {
      case 2:
        CodeRun<2, kStore>(args, part, run, inverse, coarse, sums);
        break;
      case 3:
        CodeRun<3, kStore>(args, part, run, inverse, coarse, sums);
        break;
      case 4:
        CodeRun<4, kStore>(args, part, run, inverse, coarse, sums);
        break;
      case 6:
        CodeRun<6, kStore>(args, part, run, inverse, coarse, sums);
        break;
      default:
        CodeRun<8, kStore>(args, part, run, inverse, coarse, sums);
    }
  }
  return sums;
}

/// PackCode's first attempt, for kWidth tokens; returns the bits of those that it settles.
VARVE_INLINE uint32_t CodePart(const PackCodeArgs& args, int part, uint16_t* gains) {
  F32 energy = {};
  F32 peak = {};
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    Lanes sum;
    for (int lane = 0; lane < kLanes; ++lane) {
      F32 lane_sum = {};
      for (int i = lane; i < run.n_channels; i += kLanes) {
        const F32 v = LoadAs<F32>(args.y + (run.first_channel + i) * kTileTokens + part);
        lane_sum += v * v;
        peak = Max((F32)((I32)v & 0x7fffffff), peak);
      }
      sum.lane[lane] = lane_sum;
    }
    energy += sum.Fold() * run.weight;
  }
  const F32 first = args.has_coarse ? Sqrt(energy / args.nominal) : peak / 127.0f;
  const Sums guess = CodeAll<false>(args, part, 1.0f / first);
  const F32 lattice = guess.coarse_cross / guess.coarse_levels;
  const F32 residual = guess.coarse_row - lattice * guess.coarse_cross;
  const F32 fresh = args.has_coarse ? guess.cross / guess.levels : first;
  const F32 least = (args.has_coarse ? kOnLattice : kOnFineLattice) * guess.coarse_row;
  const I32 decoded = residual <= least;
  const F32 wanted = (F32)(((I32)lattice & decoded) | ((I32)fresh & ~decoded));
  F32 gain;
  for (int t = 0; t < kWidth; ++t) {
    // A gain of 0, and sums that are not finite, are for the row coder.
    const bool usable = energy[t] < __builtin_inff() && RoundGain(first[t]) != 0;
    gains[t] = usable ? RoundGain(wanted[t]) : static_cast<uint16_t>(0);
    gain[t] = GainValue(gains[t]);
  }
  const Sums coded = CodeAll<true>(args, part, 1.0f / gain);
  const F32 ratio = Sqrt(coded.levels / args.nominal);
  const F32 error = energy + gain * (gain * coded.levels - 2 * coded.cross);
  const F32 allowed = args.allowed_error * energy;
  const F32 norm = Sqrt(energy / coded.levels);
  uint32_t settled = 0;
  for (int t = 0; t < kWidth; ++t) {
    if (gains[t] == 0) continue;
    if (args.has_coarse) {
      if (!(ratio[t] >= args.window_low && ratio[t] <= args.window_high && error[t] <= allowed[t]))
        continue;
      if (args.keep_norm && decoded[t] == 0) gains[t] = RoundGain(norm[t]);
    }
    settled |= 1u << (part + t);
  }
  return settled;
}

void Code(TileCodeArgs& args) {
  args.settled = 0;
  for (int part = 0; part < kTileTokens; part += kWidth)
    args.settled |= CodePart(args.row, part, args.gain + part);
}

/// Product line `line` of a run's codes; channels past the last are 0.
VARVE_INLINE void ProductLine(const TileStoreArgs& args, int line, uint8_t* out) {
  if (args.side == Side::kKey) {
    const int first = line / 2 * 4;
    __m128i row[4];
    for (int k = 0; k < 4; ++k) {
      row[k] = first + k < args.n_channels
                   ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(
                         args.codes + (first + k) * kBlockTokens + line % 2 * kTileTokens))
                   : _mm_setzero_si128();
    }
    const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]);
    const __m128i high01 = _mm_unpackhi_epi8(row[0], row[1]);
    const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]);
    const __m128i high23 = _mm_unpackhi_epi8(row[2], row[3]);
    auto* at = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(at, _mm_unpacklo_epi16(low01, low23));
    _mm_storeu_si128(at + 1, _mm_unpackhi_epi16(low01, low23));
    _mm_storeu_si128(at + 2, _mm_unpacklo_epi16(high01, high23));
    _mm_storeu_si128(at + 3, _mm_unpackhi_epi16(high01, high23));
    return;
  }
  const int first = line / 8 * kLanes;
  const uint32_t flip = args.bits == 8 ? 0x80808080u : 0;
  for (int i = 0; i < kLanes; ++i) {
    uint32_t four = 0;
    if (first + i < args.n_channels) {
      std::memcpy(&four, args.codes + (first + i) * kBlockTokens + line % 8 * 4, sizeof four);
      four ^= flip;
    }
    std::memcpy(out + 4 * i, &four, sizeof four);
  }
}

void Store(const TileStoreArgs& args) {
  const int per_group = kLinesPerGroup[args.bits];
  const int granule = args.side == Side::kValue ? 16 : per_group <= 2 ? 4 : 2 * per_group;
  const int n_lines = (args.n_channels + granule - 1) / granule * granule / 2;
  uint8_t* group = args.segment;
  for (int line = 0; line < n_lines; line += per_group, group += kGroupBytes[args.bits]) {
    if (args.bits == 8) {
      ProductLine(args, line, group);
      continue;
    }
    alignas(64) uint8_t product[8 * kLineBytes];
    for (int k = 0; k < per_group; ++k) ProductLine(args, line + k, product + k * kLineBytes);
    for (size_t at = 0; at < kLineBytes; at += sizeof(I32)) {
      const auto codes = [&](int k) __attribute__((always_inline)) {
        return LoadAs<I32>(product + k * kLineBytes + at);
      };
      if (args.bits == 4) {
        const I32 packed = codes(0) | codes(1) << 4;
        std::memcpy(group + at, &packed, sizeof packed);
        continue;
      }
      if (args.bits == 2) {
        const I32 packed = codes(0) | codes(1) << 2 | codes(2) << 4 | codes(3) << 6;
        std::memcpy(group + at, &packed, sizeof packed);
        continue;
      }
      const auto six = [&](int field) __attribute__((always_inline)) {
        return args.bits == 6 ? codes(field) : codes(2 * field) | codes(2 * field + 1) << 3;
      };
      const I32 spread = six(3);
      for (int field = 0; field < 3; ++field) {
        const I32 two = spread >> (2 * field) & 0x03030303;
        const I32 packed = six(field) | two << 6;
        std::memcpy(group + static_cast<size_t>(field) * kLineBytes + at, &packed, sizeof packed);
      }
    }
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_TILE_TILE_BODY_H_
