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

// A stretch of channels over some tokens, whose lo and hi do not change from token to token.
struct Strip {
  int token = 0;
  int n_tokens = 0;
  int channel = 0;
  int n_channels = 0;
  bool one_group = false;  // all channels share lo[0] and hi[0]
  std::array<float, kStrip> lo;
  std::array<float, kStrip> hi;

  void Scales(int bits, std::array<float, kStrip>& scale) const {
    if (one_group) {
      scale.fill(AffineScale(lo[0], hi[0], bits));
      return;
    }
    for (int i = 0; i < n_channels; ++i) scale[i] = AffineScale(lo[i], hi[i], bits);
  }
};

// Calls visit(strip) for a partition of tokens [first, first+n) x dim into strips.
template <typename Visit>
void ForEachStrip(const GroupShape& shape, const float* lo, const float* hi, int first, int n,
                  Visit&& visit) {
  Strip strip;
  const int last = first + n;
  const int n_groups = shape.n_groups();
  strip.one_group = shape.axis == GroupAxis::kChannels;
  for (int token = first; token < last; token += strip.n_tokens) {
    const int group = token / shape.group_size;
    strip.token = token;
    strip.n_tokens = strip.one_group ? 1 : std::min((group + 1) * shape.group_size, last) - token;
    for (int channel = 0; channel < shape.dim; channel += strip.n_channels) {
      strip.channel = channel;
      strip.n_channels = std::min(kStrip, shape.dim - channel);
      if (strip.one_group) {
        const int channel_group = channel / shape.group_size;
        strip.n_channels =
            std::min(strip.n_channels, (channel_group + 1) * shape.group_size - channel);
        const size_t param = static_cast<size_t>(token) * static_cast<size_t>(n_groups) +
                             static_cast<size_t>(channel_group);
        strip.lo.fill(lo[param]);
        strip.hi[0] = hi[param];
      } else {
        const size_t param = static_cast<size_t>(group) * static_cast<size_t>(shape.dim) +
                             static_cast<size_t>(channel);
        std::copy_n(lo + param, strip.n_channels, strip.lo.data());
        std::copy_n(hi + param, strip.n_channels, strip.hi.data());
      }
      visit(strip);
    }
  }
}

// Ranges of `width` <= kStrip channels over n rows `stride` apart, NaN where a number is not
// finite.
void RangesOfColumns(const float* rows, size_t stride, int n, int width, float* lo, float* hi) {
  std::array<float, kStrip> low, high, poison;
  for (int i = 0; i < width; ++i) {
    low[i] = high[i] = rows[i];
    poison[i] = 0.0f;
  }
  for (int t = 0; t < n; ++t) {
    const float* row = rows + static_cast<size_t>(t) * stride;
    for (int i = 0; i < width; ++i) {
      low[i] = row[i] < low[i] ? row[i] : low[i];
      high[i] = row[i] > high[i] ? row[i] : high[i];
      poison[i] += row[i] - row[i];  // stays 0 unless a NaN or infinity comes by
    }
  }
  for (int i = 0; i < width; ++i) {
    lo[i] = poison[i] == 0.0f ? low[i] : std::numeric_limits<float>::quiet_NaN();
    hi[i] = poison[i] == 0.0f ? high[i] : std::numeric_limits<float>::quiet_NaN();
  }
}

// Range of one run of n numbers.
void RangeOfRun(const float* x, int n, float* lo, float* hi) {
  constexpr int kLanes = 8;
  if (n < kLanes) {
    std::array<float, kLanes> low{}, high{};
    RangesOfColumns(x, 0, 1, n, low.data(), high.data());
    *lo = low[0];
    *hi = high[0];
    for (int i = 1; i < n; ++i) {
      const bool poisoned = std::isnan(*lo) || std::isnan(low[i]);
      *lo = poisoned ? std::numeric_limits<float>::quiet_NaN() : std::min(*lo, low[i]);
      *hi = poisoned ? std::numeric_limits<float>::quiet_NaN() : std::max(*hi, high[i]);
    }
    return;
  }
  // Eight columns, then the columns as a run; numbers that are left over are covered by a last,
  // overlapping row.
  std::array<float, kLanes> low, high, tail_low, tail_high;
  RangesOfColumns(x, kLanes, n / kLanes, kLanes, low.data(), high.data());
  RangesOfColumns(x + n - kLanes, 0, 1, kLanes, tail_low.data(), tail_high.data());
  *lo = low[0];
  *hi = high[0];
  bool poisoned = false;
  for (int i = 0; i < kLanes; ++i) {
    poisoned = poisoned || std::isnan(low[i]) || std::isnan(tail_low[i]);
    *lo = std::min({*lo, low[i], tail_low[i]});
    *hi = std::max({*hi, high[i], tail_high[i]});
  }
  if (poisoned) *lo = *hi = std::numeric_limits<float>::quiet_NaN();
}

// (code + ratio/2) / ratio of n codes, the division as a multiplication. Exact: with codes of at
// most 8 bits code + ratio/2 < 2^9 and the rounded-up reciprocal is off by less than 2^9 / 2^22 <
// 1/255; else by 2^17 / 2^40.
void DivideCodes(int from_bits, uint32_t ratio, uint16_t* codes, int n) {
  if (from_bits <= 8) {
    const uint32_t reciprocal = ((1u << 22) + ratio - 1) / ratio;
    for (int i = 0; i < n; ++i)
      codes[i] = static_cast<uint16_t>(((codes[i] + ratio / 2) * reciprocal) >> 22);
    return;
  }
  const uint64_t reciprocal = ((uint64_t{1} << 40) + ratio - 1) / ratio;
  for (int i = 0; i < n; ++i)
    codes[i] = static_cast<uint16_t>(((codes[i] + ratio / 2) * reciprocal) >> 40);
}

uint16_t CodeOf(float x, float lo, float scale, float levels) {
  const float steps = RoundHalfEven((x - lo) / scale);
  const float floored = steps > 0.0f ? steps : 0.0f;  // a NaN becomes 0
  return static_cast<uint16_t>(static_cast<int>(floored < levels ? floored : levels));
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
  const size_t dim = static_cast<size_t>(shape.dim);
  const int n_groups = shape.n_groups();
  if (shape.axis == GroupAxis::kTokens) {
    for (int group = 0; group < n_groups; ++group) {
      const int first = group * shape.group_size;
      const int n = std::min(shape.group_size, shape.n_tokens - first);
      for (int channel = 0; channel < shape.dim; channel += kStrip) {
        const size_t param = static_cast<size_t>(group) * dim + static_cast<size_t>(channel);
        const float* rows = tile + static_cast<size_t>(first) * dim + channel;
        RangesOfColumns(rows, dim, n, std::min(kStrip, shape.dim - channel), lo + param,
                        hi + param);
      }
    }
    return;
  }
  for (int token = 0; token < shape.n_tokens; ++token) {
    for (int group = 0; group < n_groups; ++group) {
      const int first = group * shape.group_size;
      const int n = std::min(shape.group_size, shape.dim - first);
      const size_t param =
          static_cast<size_t>(token) * static_cast<size_t>(n_groups) + static_cast<size_t>(group);
      RangeOfRun(tile + static_cast<size_t>(token) * dim + first, n, lo + param, hi + param);
    }
  }
}

void QuantizeGroups(const GroupShape& shape, int bits, const float* tile, const float* lo,
                    const float* hi, uint16_t* codes) {
  const float levels = Levels(bits);
  ForEachStrip(shape, lo, hi, 0, shape.n_tokens, [&](const Strip& strip) {
    std::array<float, kStrip> scale;
    strip.Scales(bits, scale);
    for (int t = 0; t < strip.n_tokens; ++t) {
      const size_t at = static_cast<size_t>(strip.token + t) * static_cast<size_t>(shape.dim) +
                        static_cast<size_t>(strip.channel);
      for (int i = 0; i < strip.n_channels; ++i)
        codes[at + i] = CodeOf(tile[at + i], strip.lo[i], scale[i], levels);
    }
  });
}

void DequantizeGroups(const GroupShape& shape, int bits, const float* lo, const float* hi,
                      int first, int n, const uint16_t* codes, float* tile) {
  ForEachStrip(shape, lo, hi, first, n, [&](const Strip& strip) {
    std::array<float, kStrip> scale;
    strip.Scales(bits, scale);
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
  const float levels = Levels(to_bits);
  ForEachStrip(shape, lo, hi, 0, shape.n_tokens, [&](const Strip& strip) {
    std::array<float, kStrip> from_scale, to_scale;
    strip.Scales(from_bits, from_scale);
    // A group whose scale is at its floor has not used its codes up to L, so they do not nest.
    bool by_integers = nest;
    for (int i = 0; i < (strip.one_group ? 1 : strip.n_channels); ++i) {
      by_integers = by_integers && (from_scale[i] > kMinScale || strip.lo[i] == strip.hi[i]);
    }
    if (!by_integers) strip.Scales(to_bits, to_scale);
    for (int t = 0; t < strip.n_tokens; ++t) {
      uint16_t* row = codes +
                      static_cast<size_t>(strip.token + t) * static_cast<size_t>(shape.dim) +
                      strip.channel;
      if (by_integers) {
        DivideCodes(from_bits, ratio, row, strip.n_channels);
        continue;
      }
      for (int i = 0; i < strip.n_channels; ++i) {
        if (nest && from_scale[i] > kMinScale) {
          DivideCodes(from_bits, ratio, row + i, 1);
        } else {
          row[i] = CodeOf(static_cast<float>(row[i]) * from_scale[i] + strip.lo[i], strip.lo[i],
                          to_scale[i], levels);
        }
      }
    }
  });
}

}  // namespace varve
