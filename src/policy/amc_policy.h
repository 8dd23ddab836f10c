// AMC's tiers by saliency (spec sections 5 and 6): shares of a call, ranks in a trailing window,
// adaptive thresholds.
#ifndef VARVE_POLICY_AMC_POLICY_H_
#define VARVE_POLICY_AMC_POLICY_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace varve {

enum class AmcTier : uint8_t { kHigh = 0, kMid = 1, kLow = 2 };
inline constexpr int kAmcTiers = 3;

/// What is kept of one head of a token: the first `rank` channels at `bits` bits (16: as stored).
struct AmcTierShape {
  int rank = 0;
  int bits = 0;
};

/// 128/16, 43/8 and 8/4 at head_dim 128; rank = max(1, min(d, round_half_even(d * (r / 128))))
/// elsewhere.
AmcTierShape AmcShapeOf(AmcTier tier, int head_dim);

/// Tokens a tier of a call of n: high = min(max(1, ceil(k_high*n)), n), mid = max(1, ceil(k_mid*n))
/// (0 for n = 1) capped at n - high, low the rest. n = 0 gives zeros.
std::array<int64_t, kAmcTiers> AmcTierCounts(int64_t n, double k_high, double k_mid);

/// Tiers of one call by descending saliency, ties by lower index. saliency, tiers: [n].
void AssignAmcTiers(std::span<const float> saliency, double k_high, double k_mid,
                    std::vector<uint32_t>& order, AmcTier* tiers);

/// sum over tiers of tokens * ceil(rank * bits / 8) * 2: the seeds' nominal bytes of K and V.
int64_t AmcKeptBytes(const std::array<int64_t, kAmcTiers>& tokens, int head_dim);

/// The last `capacity` numbers pushed, oldest first.
class RingBuffer {
 public:
  explicit RingBuffer(int capacity);

  void Push(float value);
  void Clear();
  int size() const { return static_cast<int>(values_.size()); }
  float operator[](int index) const;  ///< 0 is the oldest
  size_t capacity_bytes() const { return values_.capacity() * sizeof(float); }

 private:
  size_t capacity_;
  size_t oldest_ = 0;
  std::vector<float> values_;
};

struct AmcThresholds {
  double high = 0;
  double low = 0;
};

/// Eq. 4-5: with fewer than 2 entries the bases; else base * (1 - gamma * ln(max(v, 1e-8) /
/// max(calib_variance, 1e-8))) with v the population variance of the window, in double.
AmcThresholds AdaptAmcThresholds(const RingBuffer& window, AmcThresholds base,
                                 double calib_variance, double gamma);

/// Tier of the window's newest entry by its rank: the share of entries below it (of two equal ones
/// the older counts as above) against the thresholds 1 - k_high and 1 - k_high - k_mid, adapted or
/// not. The first entry is high.
AmcTier TierByRank(const RingBuffer& window, AmcThresholds thresholds);

}  // namespace varve

#endif  // VARVE_POLICY_AMC_POLICY_H_
