// Cost of appending one token to a cache that holds 1k, 16k or 128k of them: the same at every
// length, since only the groups that cross a boundary are touched.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/f16.h"
#include "varve/varve.hpp"

namespace {

constexpr int64_t kHeads = 8;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kStep = 2048;

std::vector<uint16_t> RandomTokens(int64_t n) {
  std::mt19937 random(1);
  std::normal_distribution<float> gauss;
  std::vector<uint16_t> tokens(static_cast<size_t>(kHeads * n * kHeadDim));
  for (uint16_t& x : tokens) x = varve::F32ToF16(gauss(random));
  return tokens;
}

varve::Tensor View(const std::vector<uint16_t>& tokens, int64_t first, int64_t n) {
  return varve::Tensor(VARVE_F16, tokens.data() + first * kHeadDim, {1, kHeads, n, kHeadDim},
                       {0, kStep * kHeadDim, kHeadDim, 1});
}

void Append(benchmark::State& state, const char* method) {
  const std::vector<uint16_t> tokens = RandomTokens(kStep);
  varve::CacheConfig config;
  if (!config.set("method", method).ok()) return state.SkipWithError("method");
  varve::Result<varve::KVCache> cache = varve::KVCache::create(config);
  if (!cache.ok()) return state.SkipWithError(cache.status().text().c_str());
  for (int64_t n = 0; n < state.range(0);) {
    const int64_t step = std::min(kStep, state.range(0) - n);
    if (!cache->append(View(tokens, 0, step), View(tokens, 0, step)).ok())
      return state.SkipWithError("append");
    n += step;
  }
  int64_t at = 0;
  for (auto _ : state) {
    if (!cache->append(View(tokens, at, 1), View(tokens, at, 1)).ok())
      return state.SkipWithError("append");
    at = (at + 1) % kStep;
  }
  const varve_cache_stats stats = cache->stats();
  state.counters["bits"] = 8.0 * static_cast<double>(stats.stored_bytes) /
                           static_cast<double>(stats.n_tokens * kHeads * kHeadDim * 2);
}

}  // namespace

// The least of three runs is what the machine allows; the others show its other work.
void AtEveryLength(benchmark::internal::Benchmark* bench) {
  for (const int64_t n : {1 << 10, 16 << 10, 128 << 10}) bench->Arg(n);
  bench->Iterations(2048)->Repetitions(3)->ComputeStatistics(
      "min",
      [](const std::vector<double>& runs) { return *std::min_element(runs.begin(), runs.end()); });
}

BENCHMARK_CAPTURE(Append, age_tiered, "age_tiered")->Apply(AtEveryLength);
BENCHMARK_CAPTURE(Append, kivi, "kivi")->Apply(AtEveryLength);
BENCHMARK_CAPTURE(Append, amc, "amc")->Apply(AtEveryLength);
BENCHMARK_CAPTURE(Append, fp16, "fp16")->Apply(AtEveryLength);

BENCHMARK_MAIN();
