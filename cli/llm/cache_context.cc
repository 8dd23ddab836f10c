#include "llm/cache_context.h"

#include <algorithm>

#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr const char* kTierNames[VARVE_MAX_TIERS] = {"recent", "mid", "old", "sink"};

}  // namespace

CacheContext::CacheContext(llama_model* model, const CacheSpec& cache, Plugin* plugin,
                           ContextOptions options)
    : plugin_(cache.stock ? nullptr : plugin) {
  options.type_k = cache.type_k;
  options.type_v = cache.type_v;
  options.kv_on_device = !cache.stock;
  if (plugin_) {
    plugin_->Configure(cache.method, cache.settings);
    first_cache_ = plugin_->Stats().value("next_id", int64_t{0});
  }
  context_ = MakeContext(model, options);
  if (plugin_) end_cache_ = plugin_->Stats().value("next_id", int64_t{0});
}

std::vector<LayerFigures> CacheContext::Figures() const {
  std::vector<LayerFigures> layers;
  if (!plugin_) return layers;
  const Json stats = plugin_->Stats();
  for (const Json& held : stats.at("caches")) {
    const int64_t id = held.value("id", int64_t{-1});
    if (id < first_cache_ || id >= end_cache_) continue;
    if (held.value("plain_layers", 0) > 0) {
      Fail(ExitCode::kFailed, "the plugin does not pack all layers: {}",
           held.value("plain_reason", ""));
    }
    for (const Json& entry : held.at("layer_figures")) {
      LayerFigures figures;
      figures.layer = entry.at("layer");
      figures.n_tokens = entry.at("tokens");
      for (int tier = 0; tier < VARVE_MAX_TIERS; ++tier) {
        figures.tier_tokens[tier] = entry.at("tier_tokens").value(kTierNames[tier], int64_t{0});
      }
      figures.packed_bytes = entry.at("packed_bytes");
      figures.f16_bytes = entry.at("f16_bytes");
      figures.append_seconds = entry.at("append_seconds");
      figures.retier_seconds = entry.at("retier_seconds");
      figures.attend_seconds = entry.at("attend_seconds");
      figures.last_key_bits = entry.at("last_key_bits");
      layers.push_back(figures);
    }
  }
  std::sort(layers.begin(), layers.end(),
            [](const LayerFigures& a, const LayerFigures& b) { return a.layer < b.layer; });
  return layers;
}

uint64_t HeldBytes(const std::vector<LayerFigures>& layers) {
  uint64_t bytes = 0;
  for (const LayerFigures& layer : layers) bytes += layer.packed_bytes;
  return bytes;
}

}  // namespace varve::cli
