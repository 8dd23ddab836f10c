// The one place that starts threads: OpenMP, so that inside llama.cpp the pool is the host's own
// libgomp.
#ifndef VARVE_BASE_PARALLEL_H_
#define VARVE_BASE_PARALLEL_H_

#include <functional>

namespace varve {

/// Runs body(task, thread) for task = 0 .. n_tasks - 1, thread in 0 .. min(n_threads, n_tasks) - 1,
/// and returns when all are done. Tasks are handed out dynamically, in order; a body must not
/// throw. n_threads <= 1 runs in the caller.
void ParallelFor(int n_threads, int n_tasks, const std::function<void(int task, int thread)>& body);

}  // namespace varve

#endif  // VARVE_BASE_PARALLEL_H_
