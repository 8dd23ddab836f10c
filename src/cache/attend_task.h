// One task of an attention call: some KV heads x query rows x blocks, from prepared queries to
// partial sums. Internal to src/cache/attend*.
#ifndef VARVE_CACHE_ATTEND_TASK_H_
#define VARVE_CACHE_ATTEND_TASK_H_

#include "cache/attend_plan.h"
#include "cache/attend_query.h"

namespace varve {

/// Unnormalised result of a task, for each (KV head, query): sums relative to 2^exponent.
struct PartialResult {
  int n_items = 0;         ///< KV heads x queries
  int value_channels = 0;  ///< rotated channels, padded
  int plain_channels = 0;
  int32_t* exponent = nullptr;  ///< [n_items]; kNoExponent: nothing seen yet
  float* sum = nullptr;         ///< [n_items] of the weights; NaN once a NaN took part
  float* rotated = nullptr;     ///< [n_items][value_channels]
  float* plain = nullptr;       ///< [n_items][plain_channels]

  void Take(const AttendPlan& plan, int items, Bump& memory);
  void Clear() const;
};

/// Buffers a thread works in.
struct TaskScratch {
  int n_tile_blocks = 0;
  float* logits = nullptr;          ///< [items of a tile][32]
  std::byte* weights = nullptr;     ///< [items of a tile][64]
  float* factors = nullptr;         ///< [items of a tile]
  float* bias = nullptr;            ///< [tile blocks][mask planes][rows][32]
  const float** bias_of = nullptr;  ///< [tile blocks][mask planes][rows]
  int32_t* bias_slot = nullptr;     ///< [items] index into a block's bias_of
  float* slopes = nullptr;          ///< [items]
  uint8_t* key_lines = nullptr;
  uint8_t* value_lines = nullptr;
  float* key_tile = nullptr;
  float* value_tile = nullptr;

  void Take(const AttendPlan& plan, int kv_heads, int rows, Bump& memory);
};

/// Adds the range's exact rows and blocks to `result`.
void RunTask(const AttendPlan& plan, const TaskRange& range, const PreparedQueries& queries,
             const TaskScratch& scratch, const PartialResult& result);

/// Adds partial result `from` to `to`.
void MergePartial(const PartialResult& from, const PartialResult& to);

/// Adds the attention sinks, normalises, rotates back, writes the outputs of item (kv_head, query)
/// of a range.
void WriteOutput(const AttendPlan& plan, const TaskRange& range, const PartialResult& result,
                 int kv_head, int query);

}  // namespace varve

#endif  // VARVE_CACHE_ATTEND_TASK_H_
