#include "base/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>

namespace varve {

void ParallelFor(int n_threads, int n_tasks, const std::function<void(int, int)>& body) {
  const int n = std::min(n_threads, n_tasks);
  if (n <= 1) {
    for (int task = 0; task < n_tasks; ++task) body(task, 0);
    return;
  }
  std::atomic<int> next{0};
  // Why: a team smaller than the one before makes libgomp end the threads that are left over, and
  // the host's next operation starts them anew. The team is always as large as the host's own.
#pragma omp parallel num_threads(n_threads)
  {
    const int thread = omp_get_thread_num();
    if (thread < n) {
      for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) {
        body(task, thread);
      }
    }
  }
}

}  // namespace varve
