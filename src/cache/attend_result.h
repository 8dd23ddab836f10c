// Unnormalised results of attention: how blocks enter them, how those of two tasks are merged, how
// they become outputs. Internal to src/cache/attend*.
#ifndef VARVE_CACHE_ATTEND_RESULT_H_
#define VARVE_CACHE_ATTEND_RESULT_H_

#include "cache/attend_plan.h"

namespace varve {

/// What softmax found of one block's items, and where the factors go that their values enter a
/// result with; all [n_items].
struct BlockWeights {
  const int32_t* exponent = nullptr;
  const float* sum = nullptr;
  const float* unit = nullptr;  ///< worth of a weight times a level
  float* factors = nullptr;
};

/// Result of a task, for each (KV head, query): sums relative to 2^exponent.
struct PartialResult {
  int n_items = 0;         ///< KV heads x queries
  int value_channels = 0;  ///< rotated channels, padded
  int plain_channels = 0;
  int32_t* exponent = nullptr;  ///< [n_items]; kNoExponent: nothing seen yet
  float* sum = nullptr;         ///< [n_items] of the weights; NaN once a NaN took part
  float* skipped = nullptr;     ///< [n_items] of the weights whose values were passed over
  float* rotated = nullptr;     ///< [n_items][value_channels]
  float* plain = nullptr;       ///< [n_items][plain_channels], nothing before UsePlain()
  int32_t* has_plain = nullptr;

  void Take(const AttendPlan& plan, int items, Bump& memory);
  void Clear() const;

  /// To be called before something is added to `plain`.
  void UsePlain() const;

  /// Adds a block's weights, as shares of the result's powers of two.
  void AddShares(const float* share) const;

  /// Adds the weights of one item, whatever its exponent, and sets its factor. Returns what the
  /// result was multiplied by to make room, 1 mostly.
  float AddOne(int item, const BlockWeights& weights) const;

  /// Takes back the factors of a block just added, where it and all that were passed over before
  /// hold at most `share` of the weights so far. Those only grow, so they do at the end as well.
  void PassOver(float share, const BlockWeights& weights) const;
};

/// Adds partial result `from` to `to`.
void MergePartial(const PartialResult& from, const PartialResult& to);

/// Adds the attention sinks, normalises, rotates back, writes the outputs of item (kv_head, query)
/// of a range.
void WriteOutput(const AttendPlan& plan, const TaskRange& range, const PartialResult& result,
                 int kv_head, int query);

}  // namespace varve

#endif  // VARVE_CACHE_ATTEND_RESULT_H_
