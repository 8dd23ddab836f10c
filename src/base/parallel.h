// The one place that starts threads: OpenMP, so that inside llama.cpp the pool is the host's own
// libgomp.
#ifndef VARVE_BASE_PARALLEL_H_
#define VARVE_BASE_PARALLEL_H_

#include <functional>
#include <span>

namespace varve {

/// body(task, thread) for task = 0 .. n_tasks - 1. A body must not throw.
struct Stage {
  int n_tasks = 0;
  std::function<void(int task, int thread)> body;
};

/// Runs the stages one after another, each when all tasks of the one before are done, on one team:
/// a stage costs a barrier where a call would cost a team. Tasks are handed out dynamically, in
/// order; thread is in 0 .. min(n_threads, tasks of the largest stage) - 1. n_threads <= 1 runs in
/// the caller.
void ParallelStages(int n_threads, std::span<const Stage> stages);

/// One stage alone.
void ParallelFor(int n_threads, int n_tasks, const std::function<void(int task, int thread)>& body);

}  // namespace varve

#endif  // VARVE_BASE_PARALLEL_H_
