#include "codec/group_affine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/checked_math.h"

namespace varve {
namespace {

constexpr int kStrip = 64;  // channels handled together; keeps scales in registers and L1

float Levels(int bits) { return static_cast<float>((1u << bits) - 1); }

// Round half to even of 0 <= x < 2^22 without a library call (there is no SSE2 instruction):
// adding 1.5 * 2^23 leaves no fraction bits, and the addition rounds for us.
float RoundHalfEven(float x) {
  constexpr float kMagic = 12582912.0f;
  return (x + kMagic) - kMagic;
}

// One strip of channels over tokens [first, first+n) that share lo/hi/scale a channel.
struct Strip {
  int token = 0;
  int n_tokens = 0;
  int channel = 0;
  int n_channels = 0;
  std::array<float, kStrip> lo;
  std::array<float, kStrip> hi;
};

// Calls visit(strip) for a partition of tokens [first, first+n) x dim into strips whose lo and hi
// do not change from token to token.
template <typename Visit>
void ForEachStrip(const GroupShape& shape, const float* lo, const float* hi, int first, int n,
                  Visit&& visit) {
  Strip strip;
  const int last = first + n;
  const bool along_tokens = shape.axis == GroupAxis::kTokens;
  const int n_groups = shape.n_groups();
  for (int token = first; token < last; token += strip.n_tokens) {
    const int group_end =
        along_tokens ? (token / shape.group_size + 1) * shape.group_size : token + 1;
    strip.token = token;
    strip.n_tokens = std::min(group_end, last) - token;
    for (int channel = 0; channel < shape.dim; channel += strip.n_channels) {
      strip.channel = channel;
      strip.n_channels = std::min(kStrip, shape.dim - channel);
      for (int i = 0; i < strip.n_channels; ++i) {
        const size_t param =
            along_tokens ? static_cast<size_t>(token / shape.group_size) * shape.dim + channel + i
                         : static_cast<size_t>(token) * n_groups + (channel + i) / shape.group_size;
        strip.lo[i] = lo[param];
        strip.hi[i] = hi[param];
      }
      visit(strip);
    }
  }
}

void Widen(float x, float* lo, float* hi, bool* finite) {
  *lo = x < *lo ? x : *lo;
  *hi = x > *hi ? x : *hi;
  *finite &= x - x == 0.0f;
}

}  // namespace

int GroupShape::n_groups() const {
  return CeilDiv(axis == GroupAxis::kTokens ? n_tokens : dim, group_size);
}

size_t GroupShape::n_params() const {
  return static_cast<size_t>(n_groups()) *
         static_cast<size_t>(axis == GroupAxis::kTokens ? dim : n_tokens);
}

float AffineScale(float lo, float hi, int bits) {
  return std::max((hi - lo) / Levels(bits), kMinScale);
}

void FitGroups(const GroupShape& shape, const float* tile, float* lo, float* hi) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const int n_groups = shape.n_groups();
  const bool along_tokens = shape.axis == GroupAxis::kTokens;
  const int n_lines = along_tokens ? n_groups : shape.n_tokens;
  for (int line = 0; line < n_lines; ++line) {
    const int first = along_tokens ? line * shape.group_size : line;
    const int n = along_tokens ? std::min(shape.group_size, shape.n_tokens - first) : 1;
    for (int channel = 0; channel < shape.dim; channel += kStrip) {
      const int width = std::min(kStrip, shape.dim - channel);
      std::array<float, kStrip> low, high, poison;
      for (int i = 0; i < width; ++i) {
        low[i] = high[i] = tile[static_cast<size_t>(first) * shape.dim + channel + i];
        poison[i] = 0.0f;
      }
      for (int t = 0; t < n; ++t) {
        const float* row = tile + static_cast<size_t>(first + t) * shape.dim + channel;
        for (int i = 0; i < width; ++i) {
          low[i] = row[i] < low[i] ? row[i] : low[i];
          high[i] = row[i] > high[i] ? row[i] : high[i];
          poison[i] += row[i] - row[i];  // stays 0 unless a NaN or infinity comes by
        }
      }
      for (int i = 0; i < width; ++i) {
        if (poison[i] != 0.0f) low[i] = high[i] = kNan;
      }
      if (along_tokens) {
        std::copy_n(low.data(), width, lo + static_cast<size_t>(line) * shape.dim + channel);
        std::copy_n(high.data(), width, hi + static_cast<size_t>(line) * shape.dim + channel);
        continue;
      }
      for (int i = 0; i < width; ++i) {
        const size_t param =
            static_cast<size_t>(line) * n_groups + (channel + i) / shape.group_size;
        const bool opens = (channel + i) % shape.group_size == 0;
        bool finite = !std::isnan(low[i]) && (opens || !std::isnan(lo[param]));
        if (opens) {
          lo[param] = hi[param] = low[i];
        } else {
          Widen(low[i], &lo[param], &hi[param], &finite);
        }
        if (!finite) lo[param] = hi[param] = kNan;
      }
    }
  }
}

void QuantizeGroups(const GroupShape& shape, int bits, const float* tile, const float* lo,
                    const float* hi, uint16_t* codes) {
  const float levels = Levels(bits);
  ForEachStrip(shape, lo, hi, 0, shape.n_tokens, [&](const Strip& strip) {
    std::array<float, kStrip> scale;
    for (int i = 0; i < strip.n_channels; ++i)
      scale[i] = AffineScale(strip.lo[i], strip.hi[i], bits);
    for (int t = 0; t < strip.n_tokens; ++t) {
      const size_t at = static_cast<size_t>(strip.token + t) * shape.dim + strip.channel;
      for (int i = 0; i < strip.n_channels; ++i) {
        const float steps = RoundHalfEven((tile[at + i] - strip.lo[i]) / scale[i]);
        const float floored = steps > 0.0f ? steps : 0.0f;  // a NaN becomes 0
        codes[at + i] =
            static_cast<uint16_t>(static_cast<int>(floored < levels ? floored : levels));
      }
    }
  });
}

void DequantizeGroups(const GroupShape& shape, int bits, const float* lo, const float* hi,
                      int first, int n, const uint16_t* codes, float* tile) {
  ForEachStrip(shape, lo, hi, first, n, [&](const Strip& strip) {
    std::array<float, kStrip> scale;
    for (int i = 0; i < strip.n_channels; ++i)
      scale[i] = AffineScale(strip.lo[i], strip.hi[i], bits);
    for (int t = 0; t < strip.n_tokens; ++t) {
      const size_t at = static_cast<size_t>(strip.token + t - first) * shape.dim + strip.channel;
      for (int i = 0; i < strip.n_channels; ++i) {
        tile[at + i] = static_cast<float>(static_cast<int>(codes[at + i])) * scale[i] + strip.lo[i];
      }
    }
  });
}

void RecodeGroups(const GroupShape& shape, int from_bits, int to_bits, const float* lo,
                  const float* hi, uint16_t* codes) {
  if (from_bits == to_bits) return;
  const bool nest = WidthsNest(from_bits, to_bits);
  const uint32_t ratio = nest ? ((1u << from_bits) - 1) / ((1u << to_bits) - 1) : 1;
  // (code + ratio/2) / ratio as a multiplication: exact because code + ratio/2 < 2^17 and ratio is
  // odd and < 2^16.
  const uint64_t reciprocal = ((uint64_t{1} << 40) + ratio - 1) / ratio;
  const float levels = Levels(to_bits);
  ForEachStrip(shape, lo, hi, 0, shape.n_tokens, [&](const Strip& strip) {
    std::array<float, kStrip> from_scale, to_scale;
    bool by_integers = nest;
    for (int i = 0; i < strip.n_channels; ++i) {
      from_scale[i] = AffineScale(strip.lo[i], strip.hi[i], from_bits);
      to_scale[i] = AffineScale(strip.lo[i], strip.hi[i], to_bits);
      by_integers = by_integers && (from_scale[i] > kMinScale || strip.lo[i] == strip.hi[i]);
    }
    for (int t = 0; t < strip.n_tokens; ++t) {
      uint16_t* row = codes + static_cast<size_t>(strip.token + t) * shape.dim + strip.channel;
      if (by_integers) {
        for (int i = 0; i < strip.n_channels; ++i) {
          row[i] = static_cast<uint16_t>(((row[i] + ratio / 2) * reciprocal) >> 40);
        }
        continue;
      }
      for (int i = 0; i < strip.n_channels; ++i) {
        const bool narrow = !(from_scale[i] > kMinScale) && strip.lo[i] != strip.hi[i];
        if (nest && !narrow) {
          row[i] = static_cast<uint16_t>(((row[i] + ratio / 2) * reciprocal) >> 40);
          continue;
        }
        const float x = static_cast<float>(row[i]) * from_scale[i] + strip.lo[i];
        const float steps = RoundHalfEven((x - strip.lo[i]) / to_scale[i]);
        const float floored = steps > 0.0f ? steps : 0.0f;
        row[i] = static_cast<uint16_t>(static_cast<int>(floored < levels ? floored : levels));
      }
    }
  });
}

}  // namespace varve
