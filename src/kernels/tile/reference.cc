// Portable tiles: plain loops, a token at a time.
#include <cstring>

#include "kernels/pack/gain_body.h"
#include "kernels/tile/tile.h"
#include "layout/levels.h"

namespace varve {
namespace {

void Load(const TileLoadArgs& args) {
  for (int i = 0; i < (args.n_channels + 3) / 4 * 4; ++i) {
    for (int t = 0; t < kBlockTokens; ++t) {
      const CodePosition at = PositionOf(Side::kKey, i, t);
      args.tile[i * kBlockTokens + t] = static_cast<int16_t>(
          args.lines[static_cast<size_t>(at.line) * kLineBytes + static_cast<size_t>(at.byte)] -
          128);
    }
  }
}

void RotateTile(int16_t* tile, int n, int size) {
  for (int half = 1; half < size; half *= 2) {
    for (int i = 0; i < n; ++i) {
      if ((i & half) != 0) continue;
      for (int t = 0; t < kBlockTokens; ++t) {
        const int a = tile[i * kBlockTokens + t];
        const int b = tile[(i + half) * kBlockTokens + t];
        tile[i * kBlockTokens + t] = static_cast<int16_t>(a + b);
        tile[(i + half) * kBlockTokens + t] = static_cast<int16_t>(a - b);
      }
    }
  }
}

struct Coded {
  float level;
  unsigned code;
};

Coded Nearest(int bits, float x) {
  const bool negative = x < 0;
  const float m = negative ? -x : x;
  if (bits == 8) {
    const float whole = (m < 127.0f ? m : 127.0f) + 12582912.0f - 12582912.0f;
    const float level = negative ? -whole : whole;
    return {level, static_cast<unsigned>(static_cast<int>(level) + 128)};
  }
  const auto level_at = [&](unsigned i) {
    return static_cast<int>(bits == 2   ? kHalfLevels2[i]
                            : bits == 3 ? kHalfLevels3[i]
                            : bits == 4 ? kHalfLevels4[i]
                                        : kHalfLevels6[i]);
  };
  const unsigned half = 1u << (bits - 1);
  unsigned index = 0;
  while (index + 1 < half && m >= 0.5f * static_cast<float>(level_at(index) + level_at(index + 1)))
    ++index;
  const auto level = static_cast<float>(level_at(index));
  return negative ? Coded{-level, half - 1 - index} : Coded{level, half + index};
}

struct Sums {
  float cross = 0;
  float levels = 0;
};

class Token {
 public:
  Token(TileCodeArgs& args, int token) : args_(args), token_(token) {}

  bool Code() {
    const float gain_in = args_.gain_in[token_];
    uint16_t& gain = args_.gain[token_];
    const float energy = Energy();
    if (!(gain_in >= 0 && gain_in < __builtin_inff())) return Give(kNanGain);
    if (gain_in == 0 || energy == 0) return Give(0);
    const float first = __builtin_sqrtf(energy / args_.nominal);
    const Sums guess = CodeAll(1.0f / first, false);
    const float gains[2] = {guess.cross / guess.levels, first};
    for (const float wanted : gains) {
      gain = RoundGain(gain_in * wanted);
      if (gain == 0) return Give(0);
      const float scale = GainValue(gain) / gain_in;
      const Sums coded = CodeAll(1.0f / scale, true);
      const float ratio = __builtin_sqrtf(coded.levels / args_.nominal);
      const float error = energy + scale * (scale * coded.levels - 2 * coded.cross);
      if (ratio >= args_.window_low && ratio <= args_.window_high &&
          error <= args_.allowed_error * energy)
        return true;
    }
    return false;
  }

 private:
  bool Give(uint16_t gain) {
    args_.gain[token_] = gain;
    CodeAll(0, true);
    return true;
  }

  /// Without gain_in.
  float Y(int channel) const {
    const int16_t level = args_.tile[args_.source[channel] * kBlockTokens + token_];
    return static_cast<float>(level) * args_.factor[channel];
  }

  float Energy() const {
    float energy = 0;
    for (int r = 0; r < args_.n_runs; ++r) {
      const TileRun& run = args_.run[r];
      float sum[2] = {};
      for (int i = 0; i < run.n_channels; ++i) {
        const float y = Y(run.first_channel + i);
        sum[i % 2] = __builtin_fmaf(y, y, sum[i % 2]);
      }
      energy += (sum[0] + sum[1]) * run.weight;
    }
    return energy;
  }

  Sums CodeAll(float inverse, bool store) {
    Sums sums;
    for (int r = 0; r < args_.n_runs; ++r) {
      const TileRun& run = args_.run[r];
      if (!store && run.bits > 4) continue;
      float cross = 0;
      float squares = 0;
      for (int i = 0; i < (run.n_channels + 3) / 4 * 4; ++i) {
        const CodePosition at = PositionOf(Side::kKey, i, token_);
        uint8_t* byte = args_.lines[r] + static_cast<size_t>(at.line) * kLineBytes +
                        static_cast<size_t>(at.byte);
        if (i >= run.n_channels) {
          if (store) *byte = 0;
          continue;
        }
        const float y = Y(run.first_channel + i);
        const Coded coded = Nearest(run.bits, y * inverse);
        squares += coded.level * coded.level;
        cross = __builtin_fmaf(y, coded.level, cross);
        if (store) *byte = static_cast<uint8_t>(coded.code);
      }
      sums.cross += cross * run.weight;
      sums.levels += squares * run.weight;
    }
    return sums;
  }

  TileCodeArgs& args_;
  int token_;
};

void Code(TileCodeArgs& args) {
  args.settled = 0;
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((args.tokens >> t & 1u) != 0 && Token(args, t).Code()) args.settled |= 1u << t;
  }
}

}  // namespace

constinit const TileKernels kTileReference = {Load, RotateTile, Code};

}  // namespace varve
