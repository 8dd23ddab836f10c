// Queries on their way into a key coding's coordinates: turned back by pending rotations, rotated
// or permuted and scaled as the keys were, and rounded to the integers that qk multiplies. Internal
// to src/cache/attend*.
#ifndef VARVE_CACHE_ATTEND_QUERY_H_
#define VARVE_CACHE_ATTEND_QUERY_H_

#include <array>

#include "cache/attend_plan.h"

namespace varve {

/// A task's queries for one key view, KV head after KV head. Query g of a head is row g / n_rep of
/// the task, query head g % n_rep of the KV head.
struct PreparedView {
  const QkRuns* runs = nullptr;           ///< [n_kv_heads]
  const QkRuns* unpacked_runs = nullptr;  ///< the same channels as product lines of bytes
  const QkQueries* batches = nullptr;     ///< [n_kv_heads][batches]
  const float* rows =
      nullptr;  ///< float views, else null: [n_kv_heads][queries][head_dim_k], scaled
};

/// Queries are worked on in batches of 1 to 7, as equal as can be, the same by qk and by pv.
static_assert(kMaxQkQueries == kMaxPvQueries);
constexpr int BatchCount(int n_queries) { return (n_queries + kMaxQkQueries - 1) / kMaxQkQueries; }
constexpr int BatchStart(int n_queries, int batch) {
  return batch * n_queries / BatchCount(n_queries);
}

/// Prepared queries of a task; all arrays begin with [views][n_kv_heads].
struct PreparedQueries {
  int n_kv_heads = 0;
  int n_queries = 0;  ///< a KV head
  QkRuns* runs = nullptr;
  QkRuns* unpacked_runs = nullptr;
  QkQueries* batches = nullptr;
  std::byte* operands = nullptr;
  float* rows = nullptr;

  void Take(const AttendPlan& plan, int kv_heads, int queries, Bump& memory);
  PreparedView At(const AttendPlan& plan, int view) const;
};

/// Largest magnitude of a query in each run.
using RunPeaks = std::array<float, kMaxQkRuns>;

/// What PrepareHead() needs beside.
struct PrepareScratch {
  RunPeaks* peaks = nullptr;  ///< [queries]
  float* turned = nullptr;
  float* stored = nullptr;
  int16_t* integers = nullptr;

  void Take(const AttendPlan& plan, int queries, Bump& memory);
};

/// Prepares one head's queries (kv_head counts from the range's first); logits come out in octaves
/// (log2 e folded in), or in units of the soft-cap if there is one.
void PrepareHead(const AttendPlan& plan, const TaskRange& range, int view, int kv_head,
                 const PrepareScratch& scratch, PreparedQueries& prepared);

}  // namespace varve

#endif  // VARVE_CACHE_ATTEND_QUERY_H_
