#include "base/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>
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

TEST(ParallelStages, AStageBeginsWhenTheOneBeforeIsDone) {
  for (const int n_threads : {1, 2, 3, 8}) {
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> first{0};
      std::atomic<int> second{0};
      std::atomic<bool> in_order{true};
      std::atomic<bool> in_range{true};
      const auto count = [&](std::atomic<int>& done, int expected_before,
                             std::atomic<int>* before) {
        return [&, expected_before, before](int task, int thread) {
          // The last one handed out: others are idle by then.
          if (before == nullptr && task == 6)
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          if (before != nullptr && *before != expected_before) in_order = false;
          if (thread < 0 || thread >= n_threads) in_range = false;
          ++done;
        };
      };
      const Stage stages[] = {
          {7, count(first, 0, nullptr)}, {3, count(second, 7, &first)}, {0, nullptr}};
      ParallelStages(n_threads, stages);
      EXPECT_EQ(first, 7);
      EXPECT_EQ(second, 3);
      EXPECT_TRUE(in_order);
      EXPECT_TRUE(in_range);
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
