#include "measure/capture.h"

#include <ggml.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "llm/model.h"
#include "support/failure.h"

namespace varve::cli {
namespace {

/// The layer of "cache_k_l7" and its side; layer -1 for other tensors. Tagged caches
/// ("cache_dsa_k_l7") are left alone.
struct CacheName {
  int layer = -1;
  bool is_key = false;
};
CacheName ParseCacheName(const ggml_tensor* tensor) {
  while (tensor->view_src) tensor = tensor->view_src;
  CacheName name;
  char side = 0;
  int layer = 0;
  // NOLINTNEXTLINE(cert-err34-c): llama.cpp numbers them.
  if (std::sscanf(tensor->name, "cache_%c_l%d", &side, &layer) == 2 &&
      (side == 'k' || side == 'v')) {
    name.layer = layer;
    name.is_key = side == 'k';
  }
  return name;
}

/// Contiguous f32 copy of a host tensor's rows [ne1*ne2*ne3][ne0].
std::vector<float> CopyF32(const ggml_tensor* tensor) {
  std::vector<float> out(static_cast<size_t>(ggml_nelements(tensor)));
  float* to = out.data();
  for (int64_t i3 = 0; i3 < tensor->ne[3]; ++i3) {
    for (int64_t i2 = 0; i2 < tensor->ne[2]; ++i2) {
      for (int64_t i1 = 0; i1 < tensor->ne[1]; ++i1) {
        const auto* row = static_cast<const char*>(tensor->data) + i1 * tensor->nb[1] +
                          i2 * tensor->nb[2] + i3 * tensor->nb[3];
        std::memcpy(to, row, static_cast<size_t>(tensor->ne[0]) * sizeof(float));
        to += tensor->ne[0];
      }
    }
  }
  return out;
}

class Recorder {
 public:
  explicit Recorder(std::span<const int> layers) {
    for (int layer : layers) captured_[layer];
  }

  void BeginStep(int first, int n) {
    for (auto& [layer, captured] : captured_) {
      captured.steps.emplace_back();
      captured.steps.back().first = first;
      captured.steps.back().n = n;
    }
  }

  /// ggml_backend_sched_eval_callback: asked for every node, then called with those it wanted,
  /// computed.
  static bool OnNode(ggml_tensor* node, bool ask, void* self) {
    auto* recorder = static_cast<Recorder*>(self);
    const bool wanted = recorder->Wants(node);
    if (!ask && wanted) recorder->Take(node);
    return !ask || wanted;
  }

  std::map<int, CapturedLayer>& captured() { return captured_; }

 private:
  bool Wants(const ggml_tensor* node) const {
    if (node->op == GGML_OP_SET_ROWS) return captured_.count(ParseCacheName(node).layer) > 0;
    return node->op == GGML_OP_FLASH_ATTN_EXT && captured_.count(AttentionLayer(node)) > 0;
  }

  static int AttentionLayer(const ggml_tensor* node) { return ParseCacheName(node->src[1]).layer; }

  void Take(const ggml_tensor* node) {
    if (node->op == GGML_OP_SET_ROWS) {
      TakeRows(node);
    } else {
      TakeAttention(node);
    }
  }

  void TakeRows(const ggml_tensor* node) {
    const CacheName name = ParseCacheName(node);
    const ggml_tensor* rows = node->src[0];
    const ggml_tensor* cells = node->src[1];
    if (rows->type != GGML_TYPE_F32) return;
    CapturedStep& step = captured_[name.layer].steps.back();
    (name.is_key ? step.k : step.v) = CopyF32(rows);
    if (cells->type == GGML_TYPE_I64) {
      const auto* index = static_cast<const int64_t*>(cells->data);
      step.cells.assign(index, index + step.n);
    } else {
      const auto* index = static_cast<const int32_t*>(cells->data);
      step.cells.assign(index, index + step.n);
    }
  }

  void TakeAttention(const ggml_tensor* node) {
    CapturedLayer& layer = captured_[AttentionLayer(node)];
    CapturedStep& step = layer.steps.back();
    if (!step.q.empty()) return;          // a later layer that reads this one's cache
    const ggml_tensor* q = node->src[0];  // [head_dim, n, n_heads]
    const ggml_tensor* mask = node->src[3];
    const auto n = static_cast<size_t>(step.n);
    const auto head_dim = static_cast<size_t>(q->ne[0]);
    const auto n_heads = static_cast<size_t>(q->ne[2]);
    const auto columns = static_cast<size_t>(node->src[1]->ne[1]);
    step.n_cells = static_cast<int>(columns);
    step.q.resize(n * n_heads * head_dim);
    step.mask.assign(n * columns, 0);
    for (size_t row = 0; row < n; ++row) {
      for (size_t head = 0; head < n_heads; ++head) {
        const auto* from = static_cast<const char*>(q->data) + row * q->nb[1] + head * q->nb[2];
        std::memcpy(&step.q[(row * n_heads + head) * head_dim], from, head_dim * sizeof(float));
      }
      if (!mask) continue;
      const auto* from = static_cast<const char*>(mask->data) + row * mask->nb[1];
      std::memcpy(&step.mask[row * columns], from, columns * sizeof(uint16_t));
    }
    float params[3];  // scale, max_bias, logit_softcap
    std::memcpy(params, node->op_params, sizeof(params));
    layer.scale = params[0];
    layer.logit_softcap = params[2];
  }

  std::map<int, CapturedLayer> captured_;
};

}  // namespace

std::map<int, CapturedLayer> CaptureLayers(llama_model* model, const ModelShape& shape,
                                           std::span<const int> layers,
                                           std::span<const llama_token> tokens, int n_ctx, int step,
                                           int n_threads, const std::function<void(int)>& on_step) {
  Recorder recorder(layers);
  ContextOptions options;
  options.n_ctx = n_ctx;
  options.n_batch = step;
  options.n_threads = n_threads;
  options.on_node = Recorder::OnNode;
  options.on_node_data = &recorder;
  const ContextPtr context = MakeContext(model, options);
  const int n_tokens = static_cast<int>(tokens.size());
  for (int first = 0; first < n_tokens; first += step) {
    const int n = std::min(step, n_tokens - first);
    recorder.BeginStep(first, n);
    Decode(context.get(), tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(n)), first,
           false);
    on_step(first + n);
  }
  for (const LayerShape& layer : shape.layers) {
    const auto found = recorder.captured().find(layer.layer);
    if (found == recorder.captured().end()) continue;
    const CapturedStep& step0 = found->second.steps.front();
    if (step0.k.empty() || step0.q.empty() || (step0.v.empty() && !layer.is_mla)) {
      Fail(ExitCode::kFailed,
           "layer {}: llama.cpp's graph for this model does not show its keys and values",
           layer.layer);
    }
  }
  return std::move(recorder.captured());
}

}  // namespace varve::cli
