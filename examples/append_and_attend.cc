// Fills a tiered cache token by token and attends to it: what a decode loop does for one layer.
#include <cstdio>
#include <random>
#include <vector>

#include "varve/varve.hpp"

int main() {
  constexpr int64_t kHeads = 8, kHeadDim = 128, kTokens = 4096;
  varve::CacheConfig config;
  if (!config.set_list("age_recent_boundary=128,age_mid_boundary=1024").ok()) return 1;
  auto cache = varve::AgeTieredKVCache::create(config);
  if (!cache.ok()) return std::puts(cache.status().text().c_str()), 1;

  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> k(kHeads * kHeadDim), v(k.size()), q(k.size());
  for (int64_t token = 0; token < kTokens; ++token) {
    for (auto* row : {&k, &v, &q}) {
      for (float& x : *row) x = normal(random);
    }
    const auto status = cache->append(varve::Tensor::of(k, {1, kHeads, 1, kHeadDim}),
                                      varve::Tensor::of(v, {1, kHeads, 1, kHeadDim}));
    if (!status.ok()) return std::puts(status.text().c_str()), 1;
  }
  const auto out = cache->attend(q, {.n_heads = kHeads, .scale = 0.0884f});
  if (!out.ok()) return std::puts(out.status().text().c_str()), 1;

  const auto stats = cache->stats();
  const auto held = static_cast<double>(stats.stored_bytes);
  std::printf("%lld tokens, %.1f MiB held, %.1fx below f16\n",
              static_cast<long long>(stats.n_tokens), held / (1 << 20),
              static_cast<double>(stats.full_seq_bytes) / held);
  return stats.n_tokens == kTokens && out->size() == q.size() ? 0 : 1;
}
