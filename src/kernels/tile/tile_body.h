// Tiles in the lanes of one level (kernels/lanes_<level>.h comes first).
#ifndef VARVE_KERNELS_TILE_TILE_BODY_H_
#define VARVE_KERNELS_TILE_TILE_BODY_H_

#include "kernels/gain_lanes.h"
#include "kernels/nearest_body.h"
#include "kernels/pack/place_body.h"

namespace varve {
namespace {

constexpr int kWordParts = 2 * kBlockTokens / static_cast<int>(sizeof(I16));  // registers a channel

void Load(const TileLoadArgs& args) {
  for (int quad = 0; 4 * quad < args.n_channels; ++quad) {
    const uint8_t* line = args.lines + static_cast<size_t>(2 * quad) * kLineBytes;
    LoadQuad(line, args.tile + static_cast<ptrdiff_t>(4 * quad) * kBlockTokens);
  }
}

/// log2(kRadix) stages of butterflies over channels that are `half`, 2 * half, ... apart.
template <int kRadix>
void RotateStages(int16_t* tile, int n, int half) {
  for (int first = 0; first < n; first += kRadix * half) {
    for (int i = first; i < first + half; ++i) {
      for (int part = 0; part < kWordParts; ++part) {
        int16_t* at = tile + i * kBlockTokens + part * (kBlockTokens / kWordParts);
        I16 x[kRadix];
#pragma GCC unroll 16
        for (int k = 0; k < kRadix; ++k) x[k] = LoadAs<I16>(at + k * half * kBlockTokens);
#pragma GCC unroll 4
        for (int step = 1; step < kRadix; step *= 2) {
#pragma GCC unroll 16
          for (int k = 0; k < kRadix; ++k) {
            if ((k & step) != 0) continue;
            const I16 sum = x[k] + x[k + step];
            x[k + step] = x[k] - x[k + step];
            x[k] = sum;
          }
        }
#pragma GCC unroll 16
        for (int k = 0; k < kRadix; ++k)
          std::memcpy(at + k * half * kBlockTokens, &x[k], sizeof x[k]);
      }
    }
  }
}

void RotateTile(int16_t* tile, int n, int size) {
  for (int half = 1; half < size;) {
    const int radix = size / half < kMaxRadix ? size / half : kMaxRadix;
    switch (radix) {
      case 2:
        RotateStages<2>(tile, n, half);
        break;
      case 4:
        RotateStages<4>(tile, n, half);
        break;
      case 8:
        RotateStages<8>(tile, n, half);
        break;
      default:
        RotateStages<kMaxRadix>(tile, n, half);
    }
    half *= radix;
  }
}

struct Sums {
  F32 cross = {};
  F32 levels = {};
};

/// kWidth tokens of all channels: y of a token is gain_in times it.
struct Rows {
  alignas(64) float y[kMaxTileChannels * kWidth];
};

/// Sums over kChannels channels of a run, whose codes nobody wants: v * level = |v| * |level|.
template <int kBits, int kChannels>
VARVE_INLINE void SumQuad(const float* y, F32 inverse, Sums& sums) {
#pragma GCC unroll 4
  for (int k = 0; k < kChannels; ++k) {
    const F32 v = Magnitude(LoadFloats(y + k * kWidth));
    const F32 level = FindMagnitude<kBits>(v * inverse).level;
    sums.levels = FusedAdd(level, level, sums.levels);  // exact
    sums.cross = FusedAdd(v, level, sums.cross);
  }
}

/// Channels i .. i + kChannels - 1 of a run, at most a quad, as dwords of their codes.
template <int kBits, int kChannels>
VARVE_INLINE I32 CodeQuad(const float* y, F32 inverse, Sums& sums) {
  I32 codes[4] = {};
#pragma GCC unroll 4
  for (int k = 0; k < kChannels; ++k) {
    const F32 v = LoadFloats(y + k * kWidth);
    const Coded coded = Nearest<kBits>(v * inverse);
    sums.levels = FusedAdd(coded.level, coded.level, sums.levels);  // exact
    sums.cross = FusedAdd(v, coded.level, sums.cross);
    codes[k] = coded.code;
  }
  return JoinBytes(codes);
}

template <int>
struct Channels {};

/// Codes a run of kWidth tokens.
template <int kBits, bool kStore>
void CodeRun(const Rows& rows, const TileRun& run, uint8_t* line, F32 inverse, Sums& total) {
  const float* y = rows.y + run.first_channel * kWidth;
  inverse = inverse * kNearestScale<kBits>;
  Sums sums;
  const auto quad = [&]<int kChannels>(Channels<kChannels>) __attribute__((always_inline)) {
    if constexpr (kStore) {
      const I32 codes = CodeQuad<kBits, kChannels>(y, inverse, sums);
      std::memcpy(line, &codes, sizeof codes);
      line += 2 * kLineBytes;
    } else {
      SumQuad<kBits, kChannels>(y, inverse, sums);
    }
  };
  int left = run.n_channels;
  for (; left >= 4; left -= 4, y += 4 * kWidth) quad(Channels<4>());
  if (left == 1) quad(Channels<1>());
  if (left == 2) quad(Channels<2>());
  if (left == 3) quad(Channels<3>());
  total.cross += sums.cross * run.weight;
  total.levels += sums.levels * run.weight;
}

template <bool kStore>
VARVE_INLINE Sums CodeAll(const TileCodeArgs& args, const Rows& rows, int part, F32 inverse) {
  Sums sums;
  const int place = part / 16 * 64 + part % 16 * 4;
  for (int r = 0; r < args.n_runs; ++r) {
    const int bits = args.run[r].bits;
    if (!kStore && bits > 4) continue;
    switch (bits) {
      case 2:
        CodeRun<2, kStore>(rows, args.run[r], args.lines[r] + place, inverse, sums);
        break;
      case 3:
        CodeRun<3, kStore>(rows, args.run[r], args.lines[r] + place, inverse, sums);
        break;
      case 4:
        CodeRun<4, kStore>(rows, args.run[r], args.lines[r] + place, inverse, sums);
        break;
      case 6:
        if constexpr (kStore)
          CodeRun<6, kStore>(rows, args.run[r], args.lines[r] + place, inverse, sums);
        break;
      default:
        if constexpr (kStore)
          CodeRun<8, kStore>(rows, args.run[r], args.lines[r] + place, inverse, sums);
    }
  }
  return sums;
}

/// Fills the rows, and returns their energies.
VARVE_INLINE F32 LoadRows(const TileCodeArgs& args, int part, Rows& rows) {
  F32 energy = {};
  for (int r = 0; r < args.n_runs; ++r) {
    const TileRun& run = args.run[r];
    const int16_t* source = args.source + run.first_channel;
    const float* factor = args.factor + run.first_channel;
    const int16_t* tile = args.tile + part;
    float* out = rows.y + run.first_channel * kWidth;
    F32 even = {};
    F32 odd = {};
    const auto load = [&](int i) __attribute__((always_inline)) {
      const F32 y = ToFloat(WidenWords(tile + source[i] * kBlockTokens)) * factor[i];
      std::memcpy(out + i * kWidth, &y, sizeof y);
      return y;
    };
    int i = 0;
    for (; i + 2 <= run.n_channels; i += 2) {
      const F32 a = load(i);
      const F32 b = load(i + 1);
      even = FusedAdd(a, a, even);
      odd = FusedAdd(b, b, odd);
    }
    if (i < run.n_channels) {
      const F32 a = load(i);
      even = FusedAdd(a, a, even);
    }
    energy += (even + odd) * run.weight;
  }
  return energy;
}

/// Returns the bits of the tokens that are settled.
VARVE_INLINE uint32_t CodePart(TileCodeArgs& args, int part) {
  Rows rows;
  const F32 gain_in = LoadFloats(args.gain_in + part);
  const F32 energy = LoadRows(args, part, rows);
  const F32 first = Sqrt(energy / args.nominal);
  const I32 usable = (gain_in > 0) & (gain_in < __builtin_inff()) & (energy > 0);
  const Sums guess = CodeAll<false>(args, rows, part, Keep(1.0f / first, usable));
  Rounded gain = RoundGains(Keep(gain_in * (guess.cross / guess.levels), usable));
  I32 settled = {};
  for (int attempt = 0; attempt < 2; ++attempt) {
    const I32 alive = gain.value > 0;
    const F32 scale = gain.value / gain_in;
    const Sums coded = CodeAll<true>(args, rows, part, Keep(1.0f / scale, alive));
    const F32 ratio = Sqrt(coded.levels / args.nominal);
    const F32 error = energy + scale * (scale * coded.levels - 2 * coded.cross);
    settled = ~alive | ((ratio >= args.window_low) & (ratio <= args.window_high) &
                        (error <= args.allowed_error * energy));
    if (attempt == 1 || LaneBits(~settled) == 0) break;
    // The root mean square's own gain where the least squares one leaves the window.
    const Rounded own = RoundGains(Keep(gain_in * first, usable));
    gain.value = Choose(settled, gain.value, own.value);
    gain.f16 = (gain.f16 & settled) | (own.f16 & ~settled);
  }
  const I32 not_finite = ~((gain_in >= 0) & (gain_in < __builtin_inff()));
  StoreWords(args.gain + part, (gain.f16 & ~not_finite) | (kNanGain & not_finite));
  return LaneBits(settled) << part;
}

void Code(TileCodeArgs& args) {
  args.settled = 0;
  for (int part = 0; part < kBlockTokens; part += kWidth) {
    if ((args.tokens >> part & ((1u << kWidth) - 1)) != 0) args.settled |= CodePart(args, part);
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_TILE_TILE_BODY_H_
