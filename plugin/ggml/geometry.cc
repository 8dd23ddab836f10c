#include "geometry.h"

#include <cstring>

#include "ggml-backend.h"

namespace varve::plugin {
namespace {

constexpr int kMaxTraceSteps = 16;
// Places in ggml's ROPE op_params.
constexpr int kRopeDims = 1, kRopeMode = 2, kRopeCtxOrig = 4, kRopeFreqBase = 5, kRopeFreqScale = 6,
              kRopeExtFactor = 7, kRopeAttnFactor = 8, kRopeBetaFast = 9, kRopeBetaSlow = 10,
              kRopeOffset = 15;

bool KeepsChannels(ggml_op op) {
  switch (op) {
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_CONT:
    case GGML_OP_DUP:
    case GGML_OP_CPY:
    case GGML_OP_SCALE:
    case GGML_OP_RMS_NORM:
    case GGML_OP_L2_NORM:
      return true;
    default:
      return false;
  }
}

float FloatParam(const ggml_tensor* rope, int place) {
  float value;
  std::memcpy(&value, rope->op_params + place, sizeof(value));
  return value;
}

}  // namespace

const ggml_tensor* TraceRope(const ggml_tensor* rows) {
  const ggml_tensor* tensor = rows;
  for (int step = 0; tensor != nullptr && step < kMaxTraceSteps; ++step) {
    if (tensor->op == GGML_OP_ROPE) return tensor;
    if (!KeepsChannels(tensor->op)) return nullptr;
    tensor = tensor->src[0];
  }
  return nullptr;
}

RopeShape RopeShapeOf(const ggml_tensor* rope) {
  if (rope == nullptr || RopeOffset(rope) != 0) return {};
  const int mode = rope->op_params[kRopeMode];
  const int n_dims = rope->op_params[kRopeDims];
  if (mode == GGML_ROPE_TYPE_VISION) return {};
  const bool neox = (mode & (GGML_ROPE_TYPE_NEOX | GGML_ROPE_TYPE_MROPE)) != 0;
  return {neox ? VARVE_ROPE_NEOX : VARVE_ROPE_NORMAL, n_dims};
}

std::vector<int32_t> RopePositions(const ggml_tensor* rope, int64_t n_tokens) {
  const ggml_tensor* positions = rope != nullptr ? rope->src[1] : nullptr;
  if (positions == nullptr || positions->type != GGML_TYPE_I32 || positions->data == nullptr ||
      rope->ne[2] != n_tokens || positions->ne[0] < n_tokens || !ggml_is_contiguous(positions)) {
    return {};
  }
  ggml_backend_buffer_t buffer =
      positions->view_src != nullptr ? positions->view_src->buffer : positions->buffer;
  if (buffer == nullptr || !ggml_backend_buffer_is_host(buffer)) return {};
  const auto* first = static_cast<const int32_t*>(positions->data);
  return {first, first + n_tokens};
}

HeadShape TraceHeads(const ggml_tensor* rows, int64_t row_elements) {
  const ggml_tensor* tensor = rows;
  for (int step = 0; tensor != nullptr && step < kMaxTraceSteps; ++step) {
    if (tensor->ne[0] < row_elements && tensor->ne[0] * tensor->ne[1] == row_elements) {
      return {static_cast<int>(tensor->ne[0]), static_cast<int>(tensor->ne[1])};
    }
    if (tensor->op != GGML_OP_VIEW && tensor->op != GGML_OP_RESHAPE) return {};
    tensor = tensor->src[0];
  }
  return {};
}

varve_rope_params RopeParams(const ggml_tensor* rope, int first_channel) {
  varve_rope_params params = {};
  params.struct_size = sizeof(params);
  params.n_dims = rope->op_params[kRopeDims];
  params.kind =
      rope->op_params[kRopeMode] == GGML_ROPE_TYPE_NORMAL ? VARVE_ROPE_NORMAL : VARVE_ROPE_NEOX;
  params.first_dim = first_channel;
  params.n_ctx_orig = rope->op_params[kRopeCtxOrig];
  params.freq_base = FloatParam(rope, kRopeFreqBase);
  params.freq_scale = FloatParam(rope, kRopeFreqScale);
  params.ext_factor = FloatParam(rope, kRopeExtFactor);
  params.attn_factor = FloatParam(rope, kRopeAttnFactor);
  params.beta_fast = FloatParam(rope, kRopeBetaFast);
  params.beta_slow = FloatParam(rope, kRopeBetaSlow);
  params.freq_factors =
      rope->src[2] != nullptr ? static_cast<const float*>(rope->src[2]->data) : nullptr;
  return params;
}

int RopeOffset(const ggml_tensor* rope) { return rope->op_params[kRopeOffset]; }

}  // namespace varve::plugin
