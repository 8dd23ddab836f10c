// A llama.cpp context whose KV cache is a CacheSpec, and the figures of that cache.
#ifndef VARVE_CLI_LLM_CACHE_CONTEXT_H_
#define VARVE_CLI_LLM_CACHE_CONTEXT_H_

#include <cstdint>
#include <vector>

#include "llm/model.h"
#include "llm/plugin.h"
#include "support/methods.h"

namespace varve::cli {

/// Figures of one layer held by the plugin; sums over streams.
struct LayerFigures {
  int layer = 0;
  int64_t n_tokens = 0;
  int64_t tier_tokens[VARVE_MAX_TIERS] = {};  ///< recent, mid, old, sink
  uint64_t packed_bytes = 0;
  uint64_t f16_bytes = 0;
  double append_seconds = 0;
  double retier_seconds = 0;
  double attend_seconds = 0;
  int last_key_bits = 0;  ///< width that the keys end at
};

class CacheContext {
 public:
  /// `plugin` may be null when the cache is a stock one. Fails when the plugin would not pack every
  /// layer.
  CacheContext(llama_model* model, const CacheSpec& cache, Plugin* plugin, ContextOptions options);

  llama_context* get() const { return context_.get(); }

  /// Layers in order; empty for stock caches.
  std::vector<LayerFigures> Figures() const;

 private:
  Plugin* plugin_ = nullptr;
  int64_t first_cache_ = 0;  ///< identifiers of the plugin's caches that belong to this context
  int64_t end_cache_ = 0;
  ContextPtr context_;
};

/// Bytes held by all layers together.
uint64_t HeldBytes(const std::vector<LayerFigures>& layers);

}  // namespace varve::cli

#endif  // VARVE_CLI_LLM_CACHE_CONTEXT_H_
