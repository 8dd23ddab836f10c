#include "measure/estimate.h"

#include <algorithm>

#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr int kNotHeldBack = 0;
constexpr int kHeldBack = 16;

/// Bytes of one layer; false when the plugin cannot hold the cache.
bool LayerBytes(const CacheSpec& cache, const varve_cells_params& params, varve_cells_workload work,
                int last_key_bits, uint64_t* bytes) {
  work.last_key_bits = last_key_bits;
  const varve_status status = varve_cells_estimate(cache.config.get(), &params, &work, bytes);
  if (status == VARVE_ERROR_UNSUPPORTED) return false;
  if (status != VARVE_OK) Fail(ExitCode::kUsage, "{}: {}", cache.label, varve_last_error());
  return true;
}

}  // namespace

CacheEstimate EstimateCache(const CacheSpec& cache, const ModelShape& shape, int64_t n_tokens,
                            const KeyBits* key_bits, int64_t n_decoded) {
  CacheEstimate estimate;
  estimate.label = cache.label;
  if (cache.stock) {
    estimate.bytes = estimate.most_bytes = shape.StockBytes(cache.type_k, cache.type_v);
    n_tokens = shape.n_ctx;
  }
  varve_cells_workload work = {};
  work.struct_size = sizeof(work);
  work.n_tokens = n_tokens;
  work.n_batch = shape.n_batch;
  work.n_decoded = static_cast<int32_t>(n_decoded);
  for (const LayerShape& layer : shape.layers) {
    if (cache.stock) break;
    const varve_cells_params params = layer.CellsParams(shape.n_layers);
    int least = kNotHeldBack;
    int most = kHeldBack;
    if (key_bits) {
      const auto known = key_bits->find(layer.layer);
      least = most = known == key_bits->end() ? kNotHeldBack : known->second;
    }
    uint64_t bytes = 0;
    uint64_t most_bytes = 0;
    bool held = LayerBytes(cache, params, work, least, &bytes);
    most_bytes = bytes;
    if (held && most != least) held = LayerBytes(cache, params, work, most, &most_bytes);
    if (!held) {
      estimate.reason = varve_last_error();
      return estimate;
    }
    estimate.bytes += bytes;
    estimate.most_bytes += most_bytes;
  }
  const auto elements = static_cast<double>(shape.Elements(n_tokens));
  estimate.bits = 8.0 * static_cast<double>(estimate.bytes) / elements;
  estimate.most_bits = 8.0 * static_cast<double>(estimate.most_bytes) / elements;
  return estimate;
}

std::vector<CacheSpec> UsualCaches() {
  return ParseCaches("f16,q8_0,q4_0,safe,balanced,small,fp16,uniform,age_tiered,kivi,amc", {});
}

}  // namespace varve::cli
