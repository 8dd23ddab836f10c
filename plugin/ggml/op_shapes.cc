#include "op_shapes.h"

namespace varve::plugin {
namespace {

bool IsFloat(ggml_type type) {
  varve_type ignored;
  return ToVarveType(type, &ignored);
}

std::optional<KvRef> FindHeld(const ggml_tensor* tensor) {
  if (tensor == nullptr) return std::nullopt;
  auto ref = FindKv(tensor);
  if (!ref || !ref->held() || tensor->type != ref->tensor->type) return std::nullopt;
  return ref;
}

// A stride matters only where there is more than one step of it.
bool HasStride(const ggml_tensor* tensor, int dim, size_t bytes) {
  return tensor->ne[dim] == 1 || tensor->nb[dim] == bytes;
}

bool HasContiguousRows(const ggml_tensor* tensor) {
  return tensor->nb[0] == ggml_type_size(tensor->type);
}

// A view [head_dim, n_cells, n_heads, n_streams] on a KV tensor that starts at cell 0 of a stream.
bool IsCellView(const ggml_tensor* view, const KvTensor& kv, int64_t head_dim) {
  const size_t stream_bytes = kv.row_bytes * static_cast<size_t>(kv.n_cells);
  return HasContiguousRows(view) && HasStride(view, 1, kv.row_bytes) &&
         HasStride(view, 2, ggml_row_size(kv.type, head_dim)) && HasStride(view, 3, stream_bytes) &&
         view->ne[2] * head_dim == kv.row_elements && view->ne[1] <= kv.n_cells;
}

bool IsWithin(const ggml_tensor* outer, const KvRef& ref) {
  // Upper end of the strided view, from its own first byte.
  size_t last = ggml_type_size(outer->type);
  for (int dim = 0; dim < GGML_MAX_DIMS; ++dim)
    last += static_cast<size_t>(outer->ne[dim] - 1) * outer->nb[dim];
  return ref.offset + last <= ref.tensor->bytes;
}

}  // namespace

std::optional<SetRowsMatch> MatchSetRows(const ggml_tensor* op) {
  if (op->op != GGML_OP_SET_ROWS) return std::nullopt;
  const auto to = FindHeld(op);
  const ggml_tensor* rows = op->src[0];
  const ggml_tensor* index = op->src[1];
  if (!to) return std::nullopt;
  const size_t row_bytes = to->tensor->row_bytes;
  const bool whole_rows = op->ne[0] == to->tensor->row_elements && HasContiguousRows(op) &&
                          HasStride(op, 1, row_bytes) && to->offset % row_bytes == 0 &&
                          op->nb[2] % row_bytes == 0 && op->nb[3] % row_bytes == 0;
  const bool readable = (rows->type == GGML_TYPE_F32 || rows->type == GGML_TYPE_F16) &&
                        HasContiguousRows(rows) &&
                        (index->type == GGML_TYPE_I64 || index->type == GGML_TYPE_I32);
  if (!whole_rows || !readable) return std::nullopt;
  return SetRowsMatch{*to};
}

std::optional<AttentionMatch> MatchAttention(const ggml_tensor* op) {
  if (op->op != GGML_OP_FLASH_ATTN_EXT) return std::nullopt;
  const ggml_tensor* q = op->src[0];
  const ggml_tensor* k = op->src[1];
  const ggml_tensor* v = op->src[2];
  const ggml_tensor* mask = op->src[3];
  const ggml_tensor* sinks = op->src[4];
  const auto keys = FindHeld(k);
  const auto values = FindHeld(v);
  if (!keys || !values || keys->tensor->side != VARVE_KEY || &keys->layer() != &values->layer())
    return std::nullopt;

  const KvTensor& kv = *keys->tensor;
  const int64_t head_dim = k->ne[0];
  const size_t stream_bytes = kv.row_bytes * static_cast<size_t>(kv.n_cells);
  if (!IsCellView(k, kv, head_dim) || keys->offset % stream_bytes != 0 || !IsWithin(k, *keys))
    return std::nullopt;
  if (v->ne[1] != k->ne[1] || v->ne[2] != k->ne[2] || v->ne[3] != k->ne[3]) return std::nullopt;

  AttentionMatch match;
  match.layer = &keys->layer();
  match.key_heads = {static_cast<int>(head_dim), static_cast<int>(k->ne[2])};
  match.first_stream = static_cast<int>(keys->offset / stream_bytes);
  if (values->tensor->side == VARVE_VALUE) {
    const KvTensor& own = *values->tensor;
    const size_t value_stream_bytes = own.row_bytes * static_cast<size_t>(own.n_cells);
    if (!IsCellView(v, own, v->ne[0]) || !IsWithin(v, *values) ||
        values->offset != value_stream_bytes * static_cast<size_t>(match.first_stream)) {
      return std::nullopt;
    }
    match.head_dim_v = static_cast<int>(v->ne[0]);
  } else {
    const bool after = values->offset >= keys->offset;
    const size_t skip = after ? (values->offset - keys->offset) / ggml_type_size(v->type) : 0;
    if (match.layer->has_value() || !after || !IsCellView(v, kv, head_dim) ||
        static_cast<int64_t>(skip) + v->ne[0] > head_dim) {
      return std::nullopt;
    }
    match.first_channel = static_cast<int>(skip);
  }

  const bool query_fits = q->type == GGML_TYPE_F32 && HasContiguousRows(q) &&
                          q->ne[0] == head_dim && q->ne[2] % k->ne[2] == 0 && q->ne[3] == k->ne[3];
  const bool mask_fits =
      mask == nullptr || (mask->type == GGML_TYPE_F16 && HasContiguousRows(mask) &&
                          mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1]);
  const bool sinks_fit =
      sinks == nullptr || (sinks->type == GGML_TYPE_F32 && ggml_is_contiguous(sinks));
  const bool output_fits = op->type == GGML_TYPE_F32 && ggml_is_contiguous(op);
  if (!query_fits || !mask_fits || !sinks_fit || !output_fits) return std::nullopt;
  if (!match.layer->LearnAttention(match.key_heads, match.head_dim_v)) return std::nullopt;
  return match;
}

std::optional<ShiftMatch> MatchShift(const ggml_tensor* op) {
  if (op->op != GGML_OP_ROPE || op->view_src == nullptr) return std::nullopt;
  const auto keys = FindHeld(op);
  const auto input = FindHeld(op->src[0]);
  const ggml_tensor* delta = op->src[1];
  const ggml_tensor* factors = op->src[2];
  if (!keys || !input || keys->tensor != input->tensor || keys->offset != input->offset ||
      keys->tensor->side != VARVE_KEY || !ggml_are_same_stride(op, op->src[0])) {
    return std::nullopt;
  }
  const KvTensor& kv = *keys->tensor;
  const int mode = op->op_params[2];
  const int n_dims = op->op_params[1];
  if (op->ne[3] != 1 || !HasContiguousRows(op) || !HasStride(op, 2, kv.row_bytes) ||
      kv.row_elements % op->ne[1] != 0 || !IsWithin(op, *keys)) {
    return std::nullopt;
  }
  const int64_t head_dim = kv.row_elements / op->ne[1];
  const size_t head_bytes = ggml_row_size(kv.type, head_dim);
  const auto first_channel =
      static_cast<int>(keys->offset % kv.row_bytes / ggml_type_size(kv.type)) + RopeOffset(op);
  const bool every_head = HasStride(op, 1, head_bytes) && first_channel + n_dims <= head_dim;
  const bool known_turn = (mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX) &&
                          RopeOffset(op) + n_dims <= op->ne[0];
  const bool factors_fit =
      factors == nullptr || (factors->type == GGML_TYPE_F32 && ggml_is_contiguous(factors));
  if (!every_head || !known_turn || !factors_fit || delta->type != GGML_TYPE_I32 ||
      delta->ne[0] != op->ne[2]) {
    return std::nullopt;
  }
  return ShiftMatch{*keys, static_cast<int64_t>(keys->offset / kv.row_bytes), first_channel};
}

std::optional<GetRowsMatch> MatchGetRows(const ggml_tensor* op) {
  if (op->op != GGML_OP_GET_ROWS || op->type != GGML_TYPE_F32 || !ggml_is_contiguous(op))
    return std::nullopt;
  const auto from = FindHeld(op->src[0]);
  if (!from || FindHeld(op) || !HasContiguousRows(op->src[0]) || !IsWithin(op->src[0], *from) ||
      op->src[1]->type != GGML_TYPE_I32) {
    return std::nullopt;
  }
  return GetRowsMatch{*from};
}

std::optional<CopyMatch> MatchCopy(const ggml_tensor* op) {
  if (op->op != GGML_OP_CPY && op->op != GGML_OP_DUP && op->op != GGML_OP_CONT) return std::nullopt;
  const ggml_tensor* src = op->src[0];
  CopyMatch match = {FindHeld(src), FindHeld(op)};
  if (!match.from && !match.to) return std::nullopt;
  if (!IsFloat(src->type) || !IsFloat(op->type) || !HasContiguousRows(src) ||
      !HasContiguousRows(op)) {
    return std::nullopt;
  }
  if ((match.from && !IsWithin(src, *match.from)) || (match.to && !IsWithin(op, *match.to)))
    return std::nullopt;
  return match;
}

bool MatchesAny(const ggml_tensor* op) {
  return MatchSetRows(op) || MatchAttention(op) || MatchShift(op) || MatchGetRows(op) ||
         MatchCopy(op);
}

}  // namespace varve::plugin
