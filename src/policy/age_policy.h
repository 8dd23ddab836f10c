// Tiers by age (spec section 4): pure functions of the number of tokens.
#ifndef VARVE_POLICY_AGE_POLICY_H_
#define VARVE_POLICY_AGE_POLICY_H_

#include <array>
#include <cstdint>

#include "policy/settings.h"

namespace varve {

/// Tier of a token: recent if age < recent_boundary, mid if age < mid_boundary, else old. The
/// newest token has age 0.
constexpr AgeTier TierOfAge(int64_t age, int64_t recent_boundary, int64_t mid_boundary) {
  if (age < recent_boundary) return AgeTier::kRecent;
  return age < mid_boundary ? AgeTier::kMid : AgeTier::kOld;
}

/// Tokens whose own age is in each tier, of n held.
constexpr std::array<int64_t, kAgeTiers> TokensByAge(int64_t n, int64_t recent_boundary,
                                                     int64_t mid_boundary) {
  const int64_t recent = n < recent_boundary ? n : recent_boundary;
  const int64_t not_old = n < mid_boundary ? n : mid_boundary;
  return {recent, not_old - recent, n - not_old};
}

/// The seeds' nominal bytes of K and V: sum over tiers of tokens * ceil(head_dim * bits / 8) * 2.
/// No parameters, no tail.
constexpr int64_t AgeTieredBytes(const std::array<int64_t, kAgeTiers>& tokens,
                                 const std::array<int, kAgeTiers>& bits, int64_t head_dim) {
  int64_t bytes = 0;
  for (int tier = 0; tier < kAgeTiers; ++tier)
    bytes += tokens[tier] * ((head_dim * bits[tier] + 7) / 8) * 2;
  return bytes;
}

/// K and V of n tokens at f16.
constexpr int64_t FullF16Bytes(int64_t n_tokens, int64_t head_dim) {
  return n_tokens * head_dim * 4;
}

}  // namespace varve

#endif  // VARVE_POLICY_AGE_POLICY_H_
