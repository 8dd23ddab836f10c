#include "measure/speed.h"

#include <algorithm>
#include <chrono>

namespace varve::cli {
namespace {

constexpr int kPrefillBatch = 512;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Speed MeasureSpeed(llama_model* model, const CacheSpec& cache, Plugin* plugin,
                   std::span<const llama_token> tokens, int n_decode, int runs, int n_threads,
                   const std::function<void()>& on_run) {
  const int n_tokens = static_cast<int>(tokens.size());
  Speed speed;
  speed.n_decode = std::min(n_decode, n_tokens / 2);
  speed.n_prefill = n_tokens - speed.n_decode;
  ContextOptions options;
  options.n_ctx = n_tokens;
  options.n_batch = std::min(kPrefillBatch, n_tokens);
  options.n_threads = n_threads;
  for (int run = 0; run < runs; ++run) {
    const CacheContext context(model, cache, plugin, options);
    auto start = std::chrono::steady_clock::now();
    for (int first = 0; first < speed.n_prefill; first += options.n_batch) {
      const int n = std::min(options.n_batch, speed.n_prefill - first);
      Decode(context.get(), tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
             first, false);
    }
    speed.prefill_tokens_per_second =
        std::max(speed.prefill_tokens_per_second, speed.n_prefill / SecondsSince(start));
    start = std::chrono::steady_clock::now();
    for (int i = speed.n_prefill; i < n_tokens; ++i) {
      Decode(context.get(), tokens.subspan(static_cast<size_t>(i), 1), i, false);
    }
    speed.decode_tokens_per_second =
        std::max(speed.decode_tokens_per_second, speed.n_decode / SecondsSince(start));
    on_run();
  }
  return speed;
}

}  // namespace varve::cli
