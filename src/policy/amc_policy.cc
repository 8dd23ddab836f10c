#include "policy/amc_policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace varve {
namespace {

constexpr int kReferenceDim = 128;
constexpr double kMinVariance = 1e-8;
constexpr std::array<AmcTierShape, kAmcTiers> kReferenceShapes = {{{128, 16}, {43, 8}, {8, 4}}};

double RoundHalfEven(double x) {
  const double low = std::floor(x);
  const double fraction = x - low;
  if (fraction != 0.5) return fraction < 0.5 ? low : low + 1;
  return std::fmod(low, 2.0) == 0.0 ? low : low + 1;
}

}  // namespace

AmcTierShape AmcShapeOf(AmcTier tier, int head_dim) {
  AmcTierShape shape = kReferenceShapes[static_cast<size_t>(tier)];
  if (head_dim == kReferenceDim) return shape;
  const double share = static_cast<double>(shape.rank) / kReferenceDim;
  const int rank = static_cast<int>(RoundHalfEven(head_dim * share));
  shape.rank = std::max(1, std::min(head_dim, rank));
  return shape;
}

std::array<int64_t, kAmcTiers> AmcTierCounts(int64_t n, double k_high, double k_mid) {
  if (n <= 0) return {0, 0, 0};
  const double tokens = static_cast<double>(n);
  const int64_t high =
      std::min(std::max<int64_t>(1, static_cast<int64_t>(std::ceil(k_high * tokens))), n);
  const int64_t wanted =
      n > 1 ? std::max<int64_t>(1, static_cast<int64_t>(std::ceil(k_mid * tokens))) : 0;
  const int64_t mid = std::min(wanted, n - high);
  return {high, mid, n - high - mid};
}

void AssignAmcTiers(std::span<const float> saliency, double k_high, double k_mid,
                    std::vector<uint32_t>& order, AmcTier* tiers) {
  order.resize(saliency.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return saliency[a] != saliency[b] ? saliency[a] > saliency[b] : a < b;
  });
  const auto counts = AmcTierCounts(static_cast<int64_t>(saliency.size()), k_high, k_mid);
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const int64_t place = static_cast<int64_t>(rank);
    tiers[order[rank]] = place < counts[0]               ? AmcTier::kHigh
                         : place < counts[0] + counts[1] ? AmcTier::kMid
                                                         : AmcTier::kLow;
  }
}

int64_t AmcKeptBytes(const std::array<int64_t, kAmcTiers>& tokens, int head_dim) {
  int64_t bytes = 0;
  for (int tier = 0; tier < kAmcTiers; ++tier) {
    const AmcTierShape shape = AmcShapeOf(static_cast<AmcTier>(tier), head_dim);
    bytes += tokens[tier] * ((static_cast<int64_t>(shape.rank) * shape.bits + 7) / 8) * 2;
  }
  return bytes;
}

RingBuffer::RingBuffer(int capacity) : capacity_(static_cast<size_t>(std::max(1, capacity))) {
  values_.reserve(capacity_);
}

void RingBuffer::Push(float value) {
  if (values_.size() < capacity_) {
    values_.push_back(value);
    return;
  }
  values_[oldest_] = value;
  oldest_ = (oldest_ + 1) % capacity_;
}

void RingBuffer::Clear() {
  values_.clear();
  oldest_ = 0;
}

float RingBuffer::operator[](int index) const {
  return values_[(oldest_ + static_cast<size_t>(index)) % values_.size()];
}

AmcThresholds AdaptAmcThresholds(const RingBuffer& window, AmcThresholds base,
                                 double calib_variance, double gamma) {
  const int n = window.size();
  if (n < 2) return base;
  double mean = 0;
  for (int i = 0; i < n; ++i) mean += static_cast<double>(window[i]);
  mean /= n;
  double variance = 0;
  for (int i = 0; i < n; ++i) {
    const double deviation = static_cast<double>(window[i]) - mean;
    variance += deviation * deviation;
  }
  variance /= n;
  const double ratio = std::max(variance, kMinVariance) / std::max(calib_variance, kMinVariance);
  const double adjustment = 1.0 - gamma * std::log(ratio);
  return {base.high * adjustment, base.low * adjustment};
}

AmcTier TierByRank(const RingBuffer& window, AmcThresholds thresholds) {
  const int n = window.size();
  if (n < 2) return AmcTier::kHigh;
  const float newest = window[n - 1];
  int below = 0;
  for (int i = 0; i + 1 < n; ++i) below += window[i] < newest ? 1 : 0;
  const double share = static_cast<double>(below) / (n - 1);
  if (share >= thresholds.high) return AmcTier::kHigh;
  return share >= thresholds.low ? AmcTier::kMid : AmcTier::kLow;
}

}  // namespace varve
