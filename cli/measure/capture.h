// What attention works on: keys, values and queries of a model on a text, caught from llama.cpp's
// graph as it runs with an f16 cache. Every cache is then judged on these same inputs.
#ifndef VARVE_CLI_MEASURE_CAPTURE_H_
#define VARVE_CLI_MEASURE_CAPTURE_H_

#include <llama.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "llm/model_shape.h"

namespace varve::cli {

/// What one step wrote into one layer's cache, and its attention call.
struct CapturedStep {
  int first = 0;  ///< position of the first row
  int n = 0;
  std::vector<int64_t> cells;  ///< [n]
  std::vector<float> k;        ///< [n][n_kv_heads * head_dim_k]
  std::vector<float> v;        ///< [n][n_kv_heads * head_dim_v], empty with MLA
  std::vector<float> q;        ///< [n][n_heads][head_dim_k]
  int n_cells = 0;             ///< columns of the mask
  std::vector<uint16_t> mask;  ///< f16 [n][n_cells]
};

struct CapturedLayer {
  std::vector<CapturedStep> steps;
  float scale = 1;
  float logit_softcap = 0;
};

/// Captures the given layers over a chunk decoded `step` tokens at a time. Result keyed by layer.
std::map<int, CapturedLayer> CaptureLayers(llama_model* model, const ModelShape& shape,
                                           std::span<const int> layers,
                                           std::span<const llama_token> tokens, int n_ctx, int step,
                                           int n_threads, const std::function<void(int)>& on_step);

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_CAPTURE_H_
