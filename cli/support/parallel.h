// A loop over a few heavy, independent items on several threads.
#ifndef VARVE_CLI_SUPPORT_PARALLEL_H_
#define VARVE_CLI_SUPPORT_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace varve::cli {

/// Calls body(i) for i in [0, n) from up to n_threads threads; body must not throw.
template <typename Body>
void ParallelFor(int n, int n_threads, const Body& body) {
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i = next++; i < n; i = next++) body(i);
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < std::min(n, n_threads); ++t) helpers.emplace_back(work);
  work();
}

}  // namespace varve::cli

#endif  // VARVE_CLI_SUPPORT_PARALLEL_H_
