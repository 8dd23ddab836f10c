// The geometry of a model's KV cache, read off the graph that llama.cpp itself would run. No table
// of architectures: grouped queries, sliding windows, MLA and shared layers come out as llama.cpp
// lays them down.
#ifndef VARVE_CLI_LLM_MODEL_SHAPE_H_
#define VARVE_CLI_LLM_MODEL_SHAPE_H_

#include <ggml.h>
#include <llama.h>
#include <varve/varve.h>

#include <cstdint>
#include <string>
#include <vector>

namespace varve::cli {

struct LayerShape {
  int layer = 0;
  int n_cells = 0;  ///< cells a stream that llama.cpp allots for this context
  int n_streams = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;  ///< width of an output row; with MLA the first channels of the keys
  bool is_mla = false;
  bool is_sliding = false;  ///< fewer cells than the context
  varve_rope_kind rope_kind = VARVE_ROPE_NONE;
  int n_rope_dims = 0;

  int64_t ElementsPerToken() const {
    return int64_t{n_kv_heads} * (head_dim_k + (is_mla ? 0 : head_dim_v));
  }
  varve_cells_params CellsParams(int n_layers) const;
};

struct ModelShape {
  std::string path;
  std::string description;  ///< llama.cpp's, e.g. "llama ?B Q4_1"
  int n_layers = 0;
  int n_ctx_train = 0;
  int n_swa = 0;
  uint64_t weight_bytes = 0;
  uint64_t compute_bytes = 0;  ///< llama.cpp's scratch for one batch
  int n_ctx = 0;               ///< context that the shape was read for (rounded up by llama.cpp)
  int n_batch = 0;             ///< and its physical batch
  std::vector<LayerShape>
      layers;  ///< one for each KV cache; layers that read another's are not listed

  /// Elements of K and V that n_tokens of one sequence leave in the caches.
  int64_t Elements(int64_t n_tokens) const;
  /// Bytes of a stock cache of this type, as llama.cpp allots them.
  uint64_t StockBytes(ggml_type type_k, ggml_type type_v) const;
};

/// Reads the shape for a context of n_ctx tokens (0: the model's own) and physical batches of
/// n_batch. No weights are loaded. Fails when the model has no KV cache or llama.cpp cannot build
/// its graph with flash attention.
ModelShape ReadModelShape(const std::string& path, int n_ctx, int n_batch);

/// The same, of a model that LoadModelWithoutWeights gave.
ModelShape ReadModelShape(llama_model* model, const std::string& path, int n_ctx, int n_batch);

}  // namespace varve::cli

#endif  // VARVE_CLI_LLM_MODEL_SHAPE_H_
