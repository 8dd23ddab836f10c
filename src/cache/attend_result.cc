#include "cache/attend_result.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/rotation.h"

namespace varve {
namespace {

float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

size_t Size(int a, int b = 1) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

void Scale(float* x, int n, float factor) {
  for (int i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

void PartialResult::Take(const AttendPlan& plan, int items, Bump& memory) {
  n_items = items;
  value_channels = 16 * plan.value_vectors;
  plain_channels = plan.plain_values ? plan.problem->head_dim_v : 0;
  exponent = memory.Take<int32_t>(Size(items));
  sum = memory.Take<float>(Size(items));
  skipped = memory.Take<float>(Size(items));
  rotated = memory.Take<float>(Size(items, value_channels));
  plain = memory.Take<float>(Size(items, plain_channels));
  has_plain = memory.Take<int32_t>(1);
}

void PartialResult::Clear() const {
  std::fill_n(exponent, n_items, kNoExponent);
  std::fill_n(sum, n_items, 0.0f);
  std::fill_n(skipped, n_items, 0.0f);
  std::fill_n(rotated, Size(n_items, value_channels), 0.0f);
  *has_plain = 0;
}

void PartialResult::UsePlain() const {
  if (*has_plain != 0) return;
  *has_plain = 1;
  std::fill_n(plain, Size(n_items, plain_channels), 0.0f);
}

void PartialResult::AddShares(const float* share) const {
  for (int i = 0; i < n_items; ++i) sum[i] += share[i];
}

float PartialResult::AddOne(int item, const BlockWeights& weights) const {
  const int32_t e = weights.exponent[item];
  if (e == kNoExponent) {
    if (std::isnan(weights.sum[item])) sum[item] = weights.sum[item];
    weights.factors[item] = 0.0f;
    return 1.0f;
  }
  int32_t& base = exponent[item];
  if (base == kNoExponent) base = e;
  float shrink = 1.0f;
  if (e - base > kMaxOctaves) {
    const int drop = base - e;
    shrink = drop < kMinOctaves ? 0.0f : PowerOfTwo(drop);
    sum[item] *= shrink;
    skipped[item] *= shrink;
    Scale(rotated + Size(item, value_channels), value_channels, shrink);
    if (*has_plain != 0) Scale(plain + Size(item, plain_channels), plain_channels, shrink);
    base = e;
  }
  const int octaves = e - base;
  const float factor = octaves < kMinOctaves ? 0.0f : PowerOfTwo(octaves);
  sum[item] += weights.sum[item] * factor;
  weights.factors[item] = factor * weights.unit[item];
  return shrink;
}

void PartialResult::PassOver(float share, const BlockWeights& weights) const {
  for (int item = 0; item < n_items; ++item) {
    if (weights.factors[item] == 0) continue;
    const float added = weights.sum[item] * PowerOfTwo(weights.exponent[item] - exponent[item]);
    if (skipped[item] + added > share * sum[item]) continue;
    skipped[item] += added;
    weights.factors[item] = 0.0f;
  }
}

void MergePartial(const PartialResult& from, const PartialResult& to) {
  // Only the first chunk has sinks, so plain values are mostly there alone.
  const bool from_plain = *from.has_plain != 0;
  if (from_plain) to.UsePlain();
  for (int item = 0; item < to.n_items; ++item) {
    if (std::isnan(from.sum[item])) to.sum[item] = from.sum[item];
    if (from.exponent[item] == kNoExponent) continue;
    const int32_t top = std::max(from.exponent[item], to.exponent[item]);
    const auto share = [&](int32_t exponent) {
      return exponent == kNoExponent || exponent - top < kMinOctaves ? 0.0f
                                                                     : PowerOfTwo(exponent - top);
    };
    const float keep = share(to.exponent[item]);
    const float add = share(from.exponent[item]);
    to.exponent[item] = top;
    to.sum[item] = to.sum[item] * keep + from.sum[item] * add;
    const auto merge = [&](const float* source, float* target, int n) {
      source += Size(item, n);
      target += Size(item, n);
      for (int i = 0; i < n; ++i) target[i] = target[i] * keep + source[i] * add;
    };
    merge(from.rotated, to.rotated, to.value_channels);
    if (from_plain) {
      merge(from.plain, to.plain, to.plain_channels);
    } else if (*to.has_plain != 0) {
      Scale(to.plain + Size(item, to.plain_channels), to.plain_channels, keep);
    }
  }
}

void WriteOutput(const AttendPlan& plan, const TaskRange& range, const PartialResult& result,
                 int kv_head, int query) {
  const AttendProblem& problem = *plan.problem;
  const int item = kv_head * range.n_rows * plan.n_rep + query;
  const int head = (range.first_kv_head + kv_head) * plan.n_rep + query % plan.n_rep;
  float* out = problem.out + (range.first_row + query / plan.n_rep) * problem.out_row_stride +
               head * problem.out_head_stride;
  double sum = static_cast<double>(result.sum[item]);
  const int32_t exponent = result.exponent[item];
  if (problem.sinks != nullptr && exponent != kNoExponent) {
    sum += std::exp2(static_cast<double>(problem.sinks[head]) * 1.4426950408889634 -
                     static_cast<double>(exponent));
  }
  const float inverse = sum == 0 ? 0.0f : static_cast<float>(1.0 / sum);
  float* rotated = result.rotated + Size(item, result.value_channels);
  if (result.value_channels > 0) {
    plan.kernels->rows->rotate(rotated, problem.head_dim_v, HadamardSize(problem.head_dim_v), 1.0f);
  }
  const float* plain = result.plain + Size(item, result.plain_channels);
  const bool has_plain = *result.has_plain != 0;
  for (int i = 0; i < problem.head_dim_v; ++i) {
    float value = 0;
    if (result.value_channels > 0) value += rotated[i];
    if (has_plain) value += plain[i];
    out[i] = value * inverse;
  }
}

}  // namespace varve
