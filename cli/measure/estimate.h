// Bytes that a cache will hold: the library's own estimate over llama.cpp's own tensor shapes.
#ifndef VARVE_CLI_MEASURE_ESTIMATE_H_
#define VARVE_CLI_MEASURE_ESTIMATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "llm/model_shape.h"
#include "measure/key_bits.h"
#include "support/methods.h"

namespace varve::cli {

struct CacheEstimate {
  std::string label;
  uint64_t bytes = 0;
  double bits = 0;          ///< bits an element of K and V, all in
  uint64_t most_bytes = 0;  ///< if key_error_limit held back the keys of every layer
  double most_bits = 0;
  std::string reason;  ///< why the cache cannot be held by the plugin; "" if it can
};

/// Bytes after n_tokens of one sequence, in the shape's batches but for the last n_decoded, which
/// came one by one. A stock cache is allotted whole at the start, a cache of varve grows. With
/// key_bits, which a run has told, bytes and most_bytes are the same.
CacheEstimate EstimateCache(const CacheSpec& cache, const ModelShape& shape, int64_t n_tokens,
                            const KeyBits* key_bits = nullptr, int64_t n_decoded = 0);

/// f16, q8_0, q4_0, the presets and the methods that the plugin takes.
std::vector<CacheSpec> UsualCaches();

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_ESTIMATE_H_
