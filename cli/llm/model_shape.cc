#include "llm/model_shape.h"

#include <llama-ext.h>  // llama_graph_reserve, llama_get_memory_breakdown: a staging API, used here only
#include <llama.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "llm/model.h"
#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr int kGgmlRopeNeox = GGML_ROPE_TYPE_NEOX;

const ggml_tensor* Root(const ggml_tensor* tensor) {
  while (tensor->view_src) tensor = tensor->view_src;
  return tensor;
}

/// The cache tensor that attention reads through views (and a cast of a quantised or f32 cache).
const ggml_tensor* CacheOf(const ggml_tensor* tensor) {
  for (int depth = 0; depth < 8 && tensor; ++depth) {
    const ggml_tensor* root = Root(tensor);
    if (std::strncmp(root->name, "cache_", 6) == 0) return root;
    tensor = root->src[0];
  }
  return nullptr;
}

/// Follows what is written into a key cache back to its ROPE node.
const ggml_tensor* FindRope(const ggml_tensor* rows) {
  for (int depth = 0; depth < 12 && rows; ++depth) {
    if (rows->op == GGML_OP_ROPE) return rows;
    if (rows->op == GGML_OP_CONCAT) {
      for (const ggml_tensor* part : {rows->src[0], rows->src[1]}) {
        if (const ggml_tensor* rope = FindRope(part)) return rope;
      }
      return nullptr;
    }
    rows = rows->src[0];
  }
  return nullptr;
}

int LayerOfName(const char* name) {
  const char* number = std::strrchr(name, 'l');
  return number ? static_cast<int>(std::strtol(number + 1, nullptr, 10)) : 0;
}

}  // namespace

varve_cells_params LayerShape::CellsParams(int n_layers) const {
  varve_cells_params params{};
  params.struct_size = sizeof(params);
  params.n_cells = n_cells;
  params.n_streams = n_streams;
  params.n_kv_heads = n_kv_heads;
  params.head_dim_k = head_dim_k;
  params.head_dim_v = is_mla ? 0 : head_dim_v;
  params.layer = layer;
  params.n_layers = n_layers;
  params.rope_kind = rope_kind;
  params.n_rope_dims = n_rope_dims;
  return params;
}

int64_t ModelShape::Elements(int64_t n_tokens) const {
  int64_t elements = 0;
  for (const LayerShape& layer : layers) {
    elements += std::min<int64_t>(n_tokens, layer.n_cells) * layer.ElementsPerToken();
  }
  return elements;
}

uint64_t ModelShape::StockBytes(ggml_type type_k, ggml_type type_v) const {
  uint64_t bytes = 0;
  for (const LayerShape& layer : layers) {
    const int64_t cells = int64_t{layer.n_cells} * layer.n_streams;
    bytes += static_cast<uint64_t>(cells) *
             ggml_row_size(type_k, int64_t{layer.n_kv_heads} * layer.head_dim_k);
    if (!layer.is_mla) {
      bytes += static_cast<uint64_t>(cells) *
               ggml_row_size(type_v, int64_t{layer.n_kv_heads} * layer.head_dim_v);
    }
  }
  return bytes;
}

ModelShape ReadModelShape(const std::string& path, int n_ctx, int n_batch) {
  return ReadModelShape(LoadModelWithoutWeights(path).get(), path, n_ctx, n_batch);
}

ModelShape ReadModelShape(llama_model* model, const std::string& path, int n_ctx, int n_batch) {
  ContextOptions options;
  options.n_ctx = n_ctx;
  options.n_batch = n_batch;
  options.n_threads = 1;
  const ContextPtr context = MakeContext(model, options);

  ModelShape shape;
  shape.path = path;
  std::array<char, 128> text{};
  llama_model_desc(model, text.data(), text.size());
  shape.description = text.data();
  shape.n_layers = llama_model_n_layer(model);
  shape.n_ctx_train = llama_model_n_ctx_train(model);
  shape.n_swa = llama_model_n_swa(model);
  shape.weight_bytes = llama_model_size(model);
  shape.n_ctx = static_cast<int>(llama_n_ctx(context.get()));
  shape.n_batch = static_cast<int>(llama_n_ubatch(context.get()));

  for (const auto& [type, memory] : llama_get_memory_breakdown(context.get()))
    shape.compute_bytes += memory.compute;

  ggml_cgraph* graph = llama_graph_reserve(context.get(), 1, 1, 1);
  if (!graph) Fail(ExitCode::kFailed, "{}: llama.cpp cannot build this model's graph", path);
  std::map<const ggml_tensor*, const ggml_tensor*> rope_of_cache;
  std::set<const ggml_tensor*> seen;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    if (node->op == GGML_OP_SET_ROWS) rope_of_cache[Root(node)] = FindRope(node->src[0]);
    if (node->op != GGML_OP_FLASH_ATTN_EXT) continue;
    const ggml_tensor* q = node->src[0];
    const ggml_tensor* k = node->src[1];
    const ggml_tensor* v = node->src[2];
    const ggml_tensor* k_cache = CacheOf(k);
    const ggml_tensor* v_cache = CacheOf(v);
    if (!k_cache || !v_cache || !seen.insert(k_cache).second) continue;
    LayerShape layer;
    layer.layer = LayerOfName(k_cache->name);
    layer.n_cells = static_cast<int>(k_cache->ne[1]);
    layer.n_streams = static_cast<int>(k_cache->ne[2]);
    layer.n_heads = static_cast<int>(q->ne[2]);
    layer.n_kv_heads = static_cast<int>(k->ne[2]);
    layer.head_dim_k = static_cast<int>(k->ne[0]);
    layer.head_dim_v = static_cast<int>(v->ne[0]);
    layer.is_mla = v_cache == k_cache;
    layer.is_sliding = layer.n_cells < shape.n_ctx;
    const auto rope = rope_of_cache.find(k_cache);
    if (rope != rope_of_cache.end() && rope->second) {
      const int32_t* params = rope->second->op_params;
      layer.n_rope_dims = params[1];
      layer.rope_kind = (params[2] & kGgmlRopeNeox) ? VARVE_ROPE_NEOX : VARVE_ROPE_NORMAL;
    }
    shape.layers.push_back(layer);
  }
  if (shape.layers.empty()) {
    Fail(ExitCode::kFailed, "{}: the model keeps no KV cache, so there is nothing to compress",
         path);
  }
  std::sort(shape.layers.begin(), shape.layers.end(),
            [](const LayerShape& a, const LayerShape& b) { return a.layer < b.layer; });
  return shape;
}

}  // namespace varve::cli
