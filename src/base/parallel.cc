#include "base/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

namespace varve {

namespace {

void TakeTasks(const Stage& stage, std::atomic<int>& next, int thread) {
  for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < stage.n_tasks;)
    stage.body(task, thread);
}

}  // namespace

void ParallelStages(int n_threads, std::span<const Stage> stages) {
  int most_tasks = 0;
  for (const Stage& stage : stages) most_tasks = std::max(most_tasks, stage.n_tasks);
  const int n = std::min(n_threads, most_tasks);
  if (n <= 1) {
    for (const Stage& stage : stages) {
      for (int task = 0; task < stage.n_tasks; ++task) stage.body(task, 0);
    }
    return;
  }
  std::vector<std::atomic<int>> next(stages.size());
  // Why: a team smaller than the one before makes libgomp end the threads that are left over, and
  // the host's next operation starts them anew. The team is always as large as the host's own.
#pragma omp parallel num_threads(n_threads)
  {
    const int thread = omp_get_thread_num();
    for (size_t s = 0; s < stages.size(); ++s) {
      if (thread < n) TakeTasks(stages[s], next[s], thread);
      if (s + 1 < stages.size()) {
#pragma omp barrier
      }
    }
  }
}

void ParallelFor(int n_threads, int n_tasks, const std::function<void(int, int)>& body) {
  const Stage stage{n_tasks, std::cref(body)};  // a copy of it would be allocated
  ParallelStages(n_threads, {&stage, 1});
}

}  // namespace varve
