// One task of an attention call: some KV heads x query rows x blocks, from prepared queries to
// partial sums. Internal to src/cache/attend*.
#ifndef VARVE_CACHE_ATTEND_TASK_H_
#define VARVE_CACHE_ATTEND_TASK_H_

#include "cache/attend_plan.h"
#include "cache/attend_query.h"
#include "cache/attend_result.h"

namespace varve {

/// Buffers a thread works in.
struct TaskScratch {
  int n_tile_blocks = 0;
  float* logits = nullptr;          ///< [items of a tile][32]
  std::byte* weights = nullptr;     ///< [items of a tile][64]
  float* bias = nullptr;            ///< [tile blocks][mask planes][rows][32]
  const float** bias_of = nullptr;  ///< [tile blocks][mask planes][rows]
  int32_t* bias_slot = nullptr;     ///< [items] index into a block's bias_of
  float* slopes = nullptr;          ///< [items of a tile] as SoftmaxArgs has them, and what follows
  const float** item_bias = nullptr;
  const uint16_t** item_gains = nullptr;
  int32_t* exponents = nullptr;
  float* sums = nullptr;
  float* units = nullptr;
  int32_t* bases = nullptr;
  float* shares = nullptr;
  float* factors = nullptr;
  float* softmax_room = nullptr;
  size_t* gain_offset = nullptr;   ///< [items] from the first head's gains
  int32_t* batch_start = nullptr;  ///< [batches + 1] first query of each
  uint8_t* key_lines = nullptr;
  uint8_t* value_lines = nullptr;
  float* key_tile = nullptr;
  float* value_tile = nullptr;

  void Take(const AttendPlan& plan, int kv_heads, int rows, Bump& memory);
};

/// The range's exact rows and blocks, into `result`, whatever it held.
void RunTask(const AttendPlan& plan, const TaskRange& range, const PreparedQueries& queries,
             const TaskScratch& scratch, const PartialResult& result);

}  // namespace varve

#endif  // VARVE_CACHE_ATTEND_TASK_H_
