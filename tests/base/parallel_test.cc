#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <vector>

namespace varve {
namespace {

TEST(ParallelFor, RunsEachTaskOnceOnThreadsInRange) {
  for (const int n_threads : {0, 1, 2, 3, 8}) {
    for (const int n_tasks : {0, 1, 2, 3, 7, 100}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n_tasks));
      std::atomic<bool> in_range{true};
      ParallelFor(n_threads, n_tasks, [&](int task, int thread) {
        ++runs[static_cast<size_t>(task)];
        if (thread < 0 || thread >= std::max(1, std::min(n_threads, n_tasks))) in_range = false;
      });
      EXPECT_TRUE(in_range) << n_threads << " threads, " << n_tasks << " tasks";
      EXPECT_TRUE(std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; }))
          << n_threads << " threads, " << n_tasks << " tasks";
    }
  }
}

thread_local int thread_number = 0;
std::atomic<int> n_threads_seen{0};

// Each of n_threads tasks waits for all others, so that each runs on a thread of its own.
void NumberThreads(int n_threads) {
  std::barrier all(n_threads);
  ParallelFor(n_threads, n_threads, [&](int, int) {
    if (thread_number == 0) thread_number = ++n_threads_seen;
    all.arrive_and_wait();
  });
}

TEST(ParallelFor, FewTasksDoNotEndThreadsOfThePool) {
  NumberThreads(4);
  for (int i = 0; i < 10; ++i) ParallelFor(4, 2, [](int, int) {});
  NumberThreads(4);
  EXPECT_EQ(n_threads_seen, 4);
}

}  // namespace
}  // namespace varve
