// One cache a layer of a model: four bits throughout, but the first and the last layer in eight, as
// some models want. Rolls back three tokens, as speculative decoding does when drafts are refused,
// and saves all layers into one file.
#include <cstdio>
#include <string>
#include <vector>

#include "varve/varve.hpp"

int main() {
  const varve::ModelShape shape = {.n_layers = 30, .n_heads = 9, .n_kv_heads = 3, .head_dim_k = 64};
  const auto config = varve::CacheBuilder()
                          .with_method("age_tiered")
                          .with_age_boundaries(64, 256)
                          .with_age_bits(8, 4, 4)
                          .with("first1.age_bits_old", "8")
                          .with("first1.age_bits_mid", "8")
                          .with("last1.age_bits_old", "8")
                          .with("last1.age_bits_mid", "8")
                          .config();
  if (!config.ok()) return std::puts(config.status().text().c_str()), 1;
  auto caches = varve::CacheBuilder::for_model(shape, *config);
  if (!caches.ok()) return std::puts(caches.status().text().c_str()), 1;

  // A prompt of 1,000 tokens, then 8 drafts of which 3 are refused.
  std::vector<float> rows(3 * 1000 * 64);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 97) / 97.0F - 0.5F;
  unsigned long long held = 0;
  for (varve::KVCache& cache : *caches) {
    for (const int64_t n_tokens : {1000, 8}) {
      const std::vector<float> call(rows.begin(), rows.begin() + 3 * n_tokens * 64);
      const auto tensor = varve::Tensor::of(call, {1, 3, n_tokens, 64});
      const auto status = cache.append(tensor, tensor);
      if (!status.ok()) return std::puts(status.text().c_str()), 1;
    }
    const auto removed = cache.trim(3);
    if (!removed.ok() || *removed != 3 || cache.size() != 1005) return 1;
    held += cache.stored_bytes();
  }

  // The conversation goes to disk and comes back, packed as it is. A program that starts anew makes
  // caches with the same settings and loads into them.
  const std::string path = "model_caches.varve";
  auto status = varve::save_session(*caches, path, "my-model-135m");
  if (status.ok()) status = varve::load_session(*caches, path, "my-model-135m");
  std::remove(path.c_str());
  if (!status.ok()) return std::puts(status.text().c_str()), 1;

  std::printf("%zu layers, %lld tokens each, %.1f MiB held\n", caches->size(),
              static_cast<long long>(caches->front().size()),
              static_cast<double>(held) / (1 << 20));
  return caches->front().stored_bytes() > (*caches)[1].stored_bytes() ? 0 : 1;
}
