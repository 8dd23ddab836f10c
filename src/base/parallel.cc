#include "base/parallel.h"

#include <omp.h>

#include <algorithm>

namespace varve {

void ParallelFor(int n_threads, int n_tasks, const std::function<void(int, int)>& body) {
  const int n = std::min(n_threads, n_tasks);
  if (n <= 1) {
    for (int task = 0; task < n_tasks; ++task) body(task, 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(n)
  for (int task = 0; task < n_tasks; ++task) body(task, omp_get_thread_num());
}

}  // namespace varve
