#include "measure/estimate.h"

#include <algorithm>

#include "support/failure.h"

namespace varve::cli {

CacheEstimate EstimateCache(const CacheSpec& cache, const ModelShape& shape, int64_t n_tokens) {
  CacheEstimate estimate;
  estimate.label = cache.label;
  if (cache.stock) {
    estimate.bytes = shape.StockBytes(cache.type_k, cache.type_v);
    estimate.bits = 8.0 * static_cast<double>(estimate.bytes) /
                    static_cast<double>(shape.Elements(shape.n_ctx));
    return estimate;
  }
  for (const LayerShape& layer : shape.layers) {
    const varve_cells_params params = layer.CellsParams(shape.n_layers);
    uint64_t bytes = 0;
    const varve_status status = varve_cells_estimate(
        cache.config.get(), &params, std::min<int64_t>(n_tokens, layer.n_cells), &bytes);
    if (status == VARVE_ERROR_UNSUPPORTED) {
      estimate.reason = varve_last_error();
      return estimate;
    }
    if (status != VARVE_OK) Fail(ExitCode::kUsage, "{}: {}", cache.label, varve_last_error());
    estimate.bytes += bytes;
  }
  estimate.bits =
      8.0 * static_cast<double>(estimate.bytes) / static_cast<double>(shape.Elements(n_tokens));
  return estimate;
}

std::vector<CacheSpec> UsualCaches() {
  return ParseCaches("f16,q8_0,q4_0,safe,balanced,small,fp16,uniform,age_tiered,kivi,amc", {});
}

}  // namespace varve::cli
