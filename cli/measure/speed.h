// Speed of prefill and of decoding with a full cache.
#ifndef VARVE_CLI_MEASURE_SPEED_H_
#define VARVE_CLI_MEASURE_SPEED_H_

#include <functional>
#include <span>

#include "llm/cache_context.h"

namespace varve::cli {

struct Speed {
  double prefill_tokens_per_second = 0;
  double decode_tokens_per_second = 0;  ///< one token at a time, behind n_prefill tokens
  int n_prefill = 0;
  int n_decode = 0;
};

/// The best of `runs` runs on a fresh cache each; the last n_decode tokens are decoded singly.
/// `on_run` may throw.
Speed MeasureSpeed(llama_model* model, const CacheSpec& cache, Plugin* plugin,
                   std::span<const llama_token> tokens, int n_decode, int runs, int n_threads,
                   const std::function<void()>& on_run);

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_SPEED_H_
