// Portable softmax. Weights: int16 [32] in token order.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/f16.h"
#include "kernels/softmax/softmax.h"

namespace varve {
namespace {

constexpr int kTokens = 32;
constexpr int kLanes = 16;

/// 2^x for x <= 126, at least 2^-126.
float Exp2(float x) {
  x = std::max(x, -126.0f);
  const float whole = std::floor(x);
  const float r = x - whole;
  float p = kExp2Coefficient[kExp2Degree];
  for (int i = kExp2Degree - 1; i >= 0; --i) p = std::fma(p, r, kExp2Coefficient[i]);
  return p * std::bit_cast<float>(static_cast<uint32_t>(static_cast<int>(whole) + 127) << 23);
}

/// tanh by exponentials of the magnitude: 1 - 2 / (1 + e^(2|x|)).
float Tanh(float x) {
  const float e = Exp2(std::min(std::fabs(x) * 2.8853900817779268f, 60.0f));
  return std::copysign(1.0f - 2.0f / (1.0f + e), x);
}

float LaneTotal(const float* x) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = x[i] + x[i + kLanes];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

/// The item's share and factor in a result at its base.
void Enter(SoftmaxArgs& args, int item) {
  // Unsigned, so that kNoExponent on one side is out of range.
  const uint32_t octaves =
      static_cast<uint32_t>(args.exponent[item]) - static_cast<uint32_t>(args.base[item]);
  const bool near = octaves - static_cast<uint32_t>(kMinOctaves) <=
                    static_cast<uint32_t>(kMaxOctaves - kMinOctaves);
  const float power = near ? std::bit_cast<float>((octaves + 127) << 23) : 0.0f;
  args.share[item] = args.sum[item] * power;
  args.factor[item] = args.unit[item] * power;
  args.near = args.near && near;
}

}  // namespace

void SoftmaxReference(SoftmaxArgs& args) {
  args.near = true;
  for (int item = 0; item < args.n_items; ++item) {
    float* x = args.logits + item * kTokens;
    const float* bias = args.open ? nullptr : args.bias[item];
    bool takes_part[kTokens];
    bool bad = false;
    float max = -INFINITY;
    float gain_max = 1e-30f;
    float gain[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      takes_part[t] = bias == nullptr || bias[t] != -INFINITY;
      gain[t] = args.v_gains[item] != nullptr ? F16ToF32(args.v_gains[item][t]) : 0.0f;
      if (!takes_part[t]) continue;
      if (args.cap != 0) x[t] = args.cap * Tanh(x[t]);
      if (bias != nullptr) x[t] = std::fma(args.slope[item], bias[t], x[t]);
      bad = bad || std::isnan(x[t]) || x[t] == INFINITY || std::isnan(gain[t]);
      max = std::max(max, x[t]);
      gain_max = std::max(gain_max, gain[t]);
    }
    auto* weights = static_cast<int16_t*>(args.weights) + item * kTokens;
    std::fill_n(weights, kTokens, static_cast<int16_t>(0));
    args.exponent[item] = kNoExponent;
    args.sum[item] = bad ? NAN : 0.0f;
    const float level = args.unit[item];
    args.unit[item] = 0;
    if (bad || max == -INFINITY) {
      std::fill_n(x, kTokens, 0.0f);
      Enter(args, item);
      continue;
    }
    const float exponent = std::ceil(max);
    const float per_unit = 32767.0f / gain_max;
    for (int t = 0; t < kTokens; ++t) {
      x[t] = takes_part[t] ? Exp2(x[t] - exponent) : 0.0f;
      if (takes_part[t])
        weights[t] = static_cast<int16_t>(std::nearbyint(x[t] * (gain[t] * per_unit)));
    }
    args.exponent[item] = static_cast<int32_t>(exponent);
    args.sum[item] = LaneTotal(x);
    args.unit[item] =
        args.v_gains[item] != nullptr ? level * (gain_max * (1.0f / 32767.0f)) : level;
    Enter(args, item);
  }
}

}  // namespace varve
