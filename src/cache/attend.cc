// Splits an attention call into tasks whose bounds depend on the problem alone, so the result does
// not depend on the number of threads. Few query rows: tasks run along the tokens, and their
// partial results are merged by a fixed tree. Many rows: a task is one KV head and a tile of rows
// over all blocks.
#include "cache/attend.h"

#include <algorithm>
#include <atomic>

#include "base/parallel.h"
#include "cache/attend_plan.h"
#include "cache/attend_query.h"
#include "cache/attend_task.h"

namespace varve {
namespace {

// Queries of a KV head that a task holds at a time: accumulators, queries and an unpacked block
// stay in L1.
constexpr int kTileQueries = 32;

// Blocks of a chunk: long enough that merging its result costs little.
constexpr int kChunkBlocks = 32;

// Below this many (query head, token) products with a channel each a second thread costs more than
// it brings.
constexpr double kMinThreadWork = 2e6;

std::byte* Aligned(std::vector<std::byte>& scratch, size_t bytes) {
  if (scratch.size() < bytes + kLineBytes) scratch.resize(bytes + kLineBytes);
  return reinterpret_cast<std::byte*>(  // NOLINT(performance-no-int-to-ptr): rounded up
      RoundUp(reinterpret_cast<uintptr_t>(scratch.data()), static_cast<uintptr_t>(kLineBytes)));
}

/// Tasks along the tokens: all heads and rows over a chunk of blocks each.
class TokenTasks {
  using Counters = std::vector<std::atomic<int>>;

 public:
  TokenTasks(const AttendPlan& plan, int n_threads) : plan_(plan), n_threads_(n_threads) {
    const AttendProblem& problem = *plan.problem;
    n_queries_ = problem.n_rows * plan.n_rep;
    n_items_ = problem.n_kv_heads * n_queries_;
    const int n_blocks = static_cast<int>(problem.blocks.size());
    n_chunks_ = std::max(n_blocks < kChunkBlocks ? 1 : 2, CeilDiv(n_blocks, kChunkBlocks));
    n_prepared_ = problem.n_kv_heads * static_cast<int>(plan.views.size());
    n_workers_ = std::max(1, std::min(n_threads, std::max(n_chunks_, n_prepared_)));
    whole_ = {0, problem.n_kv_heads, 0, problem.n_rows, 0, n_blocks, false};
  }

  void Take(Bump& memory) {
    queries_.Take(plan_, whole_.n_kv_heads, n_queries_, memory);
    prepare_.resize(static_cast<size_t>(n_workers_));
    scratch_.resize(static_cast<size_t>(n_workers_));
    results_.resize(static_cast<size_t>(n_chunks_));
    for (PrepareScratch& s : prepare_) s.Take(plan_, n_queries_, memory);
    for (TaskScratch& s : scratch_) s.Take(plan_, whole_.n_kv_heads, whole_.n_rows, memory);
    for (PartialResult& r : results_) r.Take(plan_, n_items_, memory);
  }

  void Run() {
    const int n_views = static_cast<int>(plan_.views.size());
    Counters next(static_cast<size_t>(n_workers_));
    Counters arrived(static_cast<size_t>(n_chunks_));
    const Stage stages[] = {
        {n_workers_,
         [&](int share, int thread) {
           const int end = (share + 1) * n_prepared_ / n_workers_;
           for (int i = share * n_prepared_ / n_workers_; i < end; ++i) {
             PrepareHead(plan_, whole_, i % n_views, i / n_views,
                         prepare_[static_cast<size_t>(thread)], queries_);
           }
         }},
        {n_workers_, [&](int, int thread) { RunChunks(next, arrived, thread); }},
    };
    ParallelStages(n_threads_, stages);
  }

 private:
  /// A thread begins with the chunks it had in the step before, which its cache may hold still, and
  /// goes on with what others have not come to.
  void RunChunks(Counters& next, Counters& arrived, int thread) const {
    for (int i = 0; i < n_workers_; ++i) {
      const int share = (thread + i) % n_workers_;
      const int first = share * n_chunks_ / n_workers_;
      const int n = (share + 1) * n_chunks_ / n_workers_ - first;
      auto& taken = next[static_cast<size_t>(share)];
      for (int k; (k = taken.fetch_add(1, std::memory_order_relaxed)) < n;) {
        RunChunk(first + k, thread);
        if (MergeUp(first + k, arrived)) WriteOutputs();
      }
    }
  }

  void RunChunk(int chunk, int thread) const {
    TaskRange range = whole_;
    range.first_block = chunk * whole_.end_block / n_chunks_;
    range.end_block = (chunk + 1) * whole_.end_block / n_chunks_;
    range.exact_rows = chunk == 0;
    RunTask(plan_, range, queries_, scratch_[static_cast<size_t>(thread)],
            results_[static_cast<size_t>(chunk)]);
  }

  /// Merges a finished chunk into the tree of chunks: at stride s those from first to first + s - 1
  /// with those after them, by whoever comes second. Neighbours mostly share a thread. True once
  /// all chunks are in results_[0].
  bool MergeUp(int chunk, Counters& arrived) const {
    for (int stride = 1; stride < n_chunks_; stride *= 2) {
      const int first = chunk / (2 * stride) * (2 * stride);
      const int second = first + stride;
      if (second >= n_chunks_) continue;
      const auto right = static_cast<size_t>(second);
      if (arrived[right].fetch_add(1, std::memory_order_acq_rel) == 0) return false;
      MergePartial(results_[right], results_[static_cast<size_t>(first)]);
    }
    return true;
  }

  void WriteOutputs() const {
    for (int kv_head = 0; kv_head < whole_.n_kv_heads; ++kv_head) {
      for (int query = 0; query < n_queries_; ++query)
        WriteOutput(plan_, whole_, results_[0], kv_head, query);
    }
  }

  const AttendPlan& plan_;
  int n_threads_;
  int n_queries_ = 0;
  int n_items_ = 0;
  int n_chunks_ = 0;
  int n_prepared_ = 0;  ///< KV heads x views of the queries
  int n_workers_ = 0;
  TaskRange whole_;
  PreparedQueries queries_;
  std::vector<PrepareScratch> prepare_;
  std::vector<TaskScratch> scratch_;
  std::vector<PartialResult> results_;
};

/// Tasks over (KV head, tile of rows).
class RowTasks {
 public:
  RowTasks(const AttendPlan& plan, int n_threads) : plan_(plan), n_threads_(n_threads) {
    const AttendProblem& problem = *plan.problem;
    tile_rows_ = std::max(1, kTileQueries / plan.n_rep);
    n_tiles_ = CeilDiv(problem.n_rows, tile_rows_);
    workers_.resize(
        static_cast<size_t>(std::max(1, std::min(n_threads, n_tiles_ * problem.n_kv_heads))));
  }

  void Take(Bump& memory) {
    const int n_queries = tile_rows_ * plan_.n_rep;
    for (Worker& worker : workers_) {
      worker.queries.Take(plan_, 1, n_queries, memory);
      worker.prepare.Take(plan_, n_queries, memory);
      worker.scratch.Take(plan_, 1, tile_rows_, memory);
      worker.result.Take(plan_, n_queries, memory);
    }
  }

  void Run() {
    const AttendProblem& problem = *plan_.problem;
    // The last rows first: under a causal mask they are the longest.
    ParallelFor(n_threads_, n_tiles_ * problem.n_kv_heads, [&](int task, int thread) {
      RunTile(n_tiles_ - 1 - task / problem.n_kv_heads, task % problem.n_kv_heads,
              workers_[static_cast<size_t>(thread)]);
    });
  }

 private:
  struct Worker {
    PreparedQueries queries;
    PrepareScratch prepare;
    TaskScratch scratch;
    PartialResult result;
  };

  void RunTile(int tile, int kv_head, Worker& worker) const {
    const AttendProblem& problem = *plan_.problem;
    const int first_row = tile * tile_rows_;
    const int n_rows = std::min(tile_rows_, problem.n_rows - first_row);
    const TaskRange range = {
        kv_head, 1, first_row, n_rows, 0, static_cast<int>(problem.blocks.size()), true};
    worker.queries.n_queries = n_rows * plan_.n_rep;
    worker.result.n_items = n_rows * plan_.n_rep;
    for (size_t view = 0; view < plan_.views.size(); ++view) {
      PrepareHead(plan_, range, static_cast<int>(view), 0, worker.prepare, worker.queries);
    }
    RunTask(plan_, range, worker.queries, worker.scratch, worker.result);
    for (int query = 0; query < worker.queries.n_queries; ++query)
      WriteOutput(plan_, range, worker.result, 0, query);
  }

  const AttendPlan& plan_;
  int n_threads_;
  int tile_rows_ = 1;
  int n_tiles_ = 0;
  std::vector<Worker> workers_;
};

template <typename Tasks>
void RunIn(Tasks tasks, std::vector<std::byte>& scratch) {
  Bump measure(0);
  tasks.Take(measure);
  Bump memory(reinterpret_cast<uintptr_t>(Aligned(scratch, measure.at())));
  tasks.Take(memory);
  tasks.Run();
}

}  // namespace

void Attend(const AttendProblem& problem, int n_threads, std::vector<std::byte>& scratch) {
  if (problem.n_rows <= 0 || problem.n_heads <= 0) return;
  const AttendPlan plan = MakePlan(problem, ActiveKernels());
  const double work = static_cast<double>(problem.blocks.size()) * kBlockTokens * problem.n_rows *
                      problem.n_heads * (problem.head_dim_k + problem.head_dim_v);
  if (work < kMinThreadWork) n_threads = 1;
  if (problem.n_rows * plan.n_rep <= kTileQueries) {
    RunIn(TokenTasks(plan, n_threads), scratch);
  } else {
    RunIn(RowTasks(plan, n_threads), scratch);
  }
}

}  // namespace varve
