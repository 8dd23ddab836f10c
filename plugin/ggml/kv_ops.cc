#include "kv_ops.h"

#include <algorithm>
#include <cstring>

#include "kv_support.h"
#include "log.h"
#include "op_shapes.h"
#include "statistics.h"

namespace varve::plugin {
namespace {

constexpr int64_t kCopyElements = 1 << 16;

std::byte* At(const ggml_tensor* tensor, int64_t i1, int64_t i2, int64_t i3) {
  return static_cast<std::byte*>(tensor->data) + static_cast<size_t>(i1) * tensor->nb[1] +
         static_cast<size_t>(i2) * tensor->nb[2] + static_cast<size_t>(i3) * tensor->nb[3];
}

void ToF32(ggml_type type, const void* from, float* to, int64_t n) {
  if (type == GGML_TYPE_F16) {
    ggml_fp16_to_fp32_row(static_cast<const ggml_fp16_t*>(from), to, n);
  } else if (type == GGML_TYPE_BF16) {
    ggml_bf16_to_fp32_row(static_cast<const ggml_bf16_t*>(from), to, n);
  } else {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  }
}

void FromF32(ggml_type type, const float* from, void* to, int64_t n) {
  if (type == GGML_TYPE_F16) {
    ggml_fp32_to_fp16_row(from, static_cast<ggml_fp16_t*>(to), n);
  } else if (type == GGML_TYPE_BF16) {
    ggml_fp32_to_bf16_row(from, static_cast<ggml_bf16_t*>(to), n);
  } else {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  }
}

// The elements of a tensor in logical order, as runs that are contiguous in memory.
class ElementRuns {
 public:
  explicit ElementRuns(const ggml_tensor* tensor)
      : tensor_(tensor),
        run_(ggml_is_contiguous(tensor) ? ggml_nelements(tensor) : tensor->ne[0]) {}

  // Calls visit(byte offset from the tensor's start, elements) over [first, first + n).
  template <typename Visit>
  bool ForEach(int64_t first, int64_t n, Visit&& visit) const {
    const size_t element = ggml_type_size(tensor_->type);
    while (n > 0) {
      const int64_t in_run = first % run_;
      const int64_t n_taken = std::min(n, run_ - in_run);
      int64_t row = first / run_;
      size_t offset = static_cast<size_t>(in_run) * element;
      for (int dim = 1; dim < GGML_MAX_DIMS && row > 0; ++dim) {
        offset += static_cast<size_t>(row % tensor_->ne[dim]) * tensor_->nb[dim];
        row /= tensor_->ne[dim];
      }
      if (!visit(offset, n_taken)) return false;
      first += n_taken;
      n -= n_taken;
    }
    return true;
  }

 private:
  const ggml_tensor* tensor_;
  int64_t run_;
};

int64_t IndexAt(const ggml_tensor* index, int64_t i0, int64_t i1, int64_t i2) {
  const std::byte* at =
      static_cast<const std::byte*>(index->data) + static_cast<size_t>(i0) * index->nb[0] +
      static_cast<size_t>(i1) * index->nb[1] + static_cast<size_t>(i2) * index->nb[2];
  if (index->type == GGML_TYPE_I64) {
    int64_t value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  int32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

bool OutOfRange(const ggml_tensor* op, int64_t row, int64_t n_rows) {
  if (row >= 0 && row < n_rows) return false;
  Say("%s: row %lld is outside 0..%lld", op->name, static_cast<long long>(row),
      static_cast<long long>(n_rows - 1));
  return true;
}

varve_status Shift(const ggml_tensor* op) {
  const auto match = MatchShift(op);
  const auto* delta = static_cast<const int32_t*>(op->src[1]->data);
  return match->keys.layer().Shift(match->first_cell, {delta, delta + op->ne[2]},
                                   RopeParams(op, match->first_channel));
}

}  // namespace

bool GraphRunner::SetRows(const ggml_tensor* op) {
  const auto match = MatchSetRows(op);
  const ggml_tensor* rows = op->src[0];
  const ggml_tensor* index = op->src[1];
  const size_t row_bytes = match->to.tensor->row_bytes;
  const bool is_key = match->to.tensor->side == VARVE_KEY;
  const ggml_tensor* rope = is_key ? TraceRope(rows) : nullptr;
  if (rope != nullptr) match->to.layer().LearnRope(RopeShapeOf(rope));
  const bool one_plane = rows->ne[2] * rows->ne[3] == 1;
  const std::vector<int32_t> positions =
      one_plane ? RopePositions(rope, rows->ne[1]) : std::vector<int32_t>();
  varve_type type;
  ToVarveType(rows->type, &type);

  std::vector<int64_t> cells(static_cast<size_t>(rows->ne[1]));
  for (int64_t i3 = 0; i3 < rows->ne[3]; ++i3) {
    for (int64_t i2 = 0; i2 < rows->ne[2]; ++i2) {
      const size_t plane = match->to.offset + static_cast<size_t>(i2) * op->nb[2] +
                           static_cast<size_t>(i3) * op->nb[3];
      for (int64_t i1 = 0; i1 < rows->ne[1]; ++i1) {
        const int64_t row = IndexAt(index, i1, i2 % index->ne[1], i3 % index->ne[2]);
        if (OutOfRange(op, row, op->ne[1])) return false;
        cells[static_cast<size_t>(i1)] = static_cast<int64_t>(plane / row_bytes) + row;
      }
      if (!match->to.layer().WriteRows(match->to.tensor->side, cells, positions,
                                       At(rows, 0, i2, i3), type, rows->nb[1], n_threads_)) {
        return false;
      }
    }
  }
  return true;
}

bool GraphRunner::Attention(const ggml_tensor* op) {
  const auto match = MatchAttention(op);
  const ggml_tensor* q = op->src[0];
  const ggml_tensor* k = op->src[1];
  const ggml_tensor* mask = op->src[3];
  const ggml_tensor* sinks = op->src[4];
  const int64_t head_dim_v = op->ne[0];
  const bool slices = match->first_channel > 0;
  const int64_t width = match->first_channel + head_dim_v;

  varve_attend_args args = {};
  args.struct_size = sizeof(args);
  args.n_cells = static_cast<int32_t>(k->ne[1]);
  args.n_rows = static_cast<int32_t>(q->ne[1]);
  args.n_heads = static_cast<int32_t>(q->ne[2]);
  args.head_dim_v = static_cast<int32_t>(width);
  args.q_row_stride = q->nb[1];
  args.q_head_stride = q->nb[2];
  if (mask != nullptr) {
    args.mask_row_stride = mask->nb[1];
    args.mask_head_stride = mask->nb[2];
  }
  args.mask_heads = mask != nullptr ? static_cast<int32_t>(mask->ne[2]) : 1;
  std::memcpy(&args.scale, op->op_params + 0, sizeof(float));
  std::memcpy(&args.max_bias, op->op_params + 1, sizeof(float));
  std::memcpy(&args.logit_softcap, op->op_params + 2, sizeof(float));
  args.sinks = sinks != nullptr ? static_cast<const float*>(sinks->data) : nullptr;
  args.out_row_stride = op->nb[2];
  args.out_head_stride = op->nb[1];
  args.n_threads = n_threads_;
  if (slices) {
    partial_output_.resize(static_cast<size_t>(width * q->ne[1] * q->ne[2]));
    args.out_head_stride = static_cast<size_t>(width) * sizeof(float);
    args.out_row_stride = args.out_head_stride * static_cast<size_t>(q->ne[2]);
  }
  for (int64_t stream = 0; stream < q->ne[3]; ++stream) {
    args.stream = match->first_stream + static_cast<int32_t>(stream);
    args.q = reinterpret_cast<const float*>(At(q, 0, 0, stream));
    args.mask = mask != nullptr ? At(mask, 0, 0, stream % mask->ne[3]) : nullptr;
    auto* out = reinterpret_cast<float*>(At(op, 0, 0, stream));
    args.out = slices ? partial_output_.data() : out;
    if (!match->layer->Attend(args)) return false;
    if (!slices) continue;
    for (int64_t i = 0; i < q->ne[1] * q->ne[2]; ++i) {
      std::copy_n(partial_output_.data() + i * width + match->first_channel, head_dim_v,
                  out + i * head_dim_v);
    }
  }
  return true;
}

bool GraphRunner::GetRows(const ggml_tensor* op) {
  const auto match = MatchGetRows(op);
  const ggml_tensor* table = op->src[0];
  const ggml_tensor* index = op->src[1];
  std::vector<std::byte> row(ggml_row_size(table->type, table->ne[0]));
  for (int64_t i2 = 0; i2 < index->ne[2]; ++i2) {
    for (int64_t i1 = 0; i1 < index->ne[1]; ++i1) {
      for (int64_t i0 = 0; i0 < index->ne[0]; ++i0) {
        const int64_t wanted = IndexAt(index, i0, i1, i2);
        if (OutOfRange(op, wanted, table->ne[1])) return false;
        const size_t offset = match->from.offset + static_cast<size_t>(wanted) * table->nb[1] +
                              static_cast<size_t>(i1) * table->nb[2] +
                              static_cast<size_t>(i2) * table->nb[3];
        if (!match->from.layer().ReadBytes(match->from.tensor->side, offset, row.data(),
                                           row.size()))
          return false;
        ToF32(table->type, row.data(), reinterpret_cast<float*>(At(op, i0, i1, i2)), table->ne[0]);
      }
    }
  }
  return true;
}

bool GraphRunner::Copy(const ggml_tensor* op) {
  const auto match = MatchCopy(op);
  const ggml_tensor* src = op->src[0];
  const ElementRuns source(src);
  const ElementRuns target(op);
  const size_t source_element = ggml_type_size(src->type);
  const size_t target_element = ggml_type_size(op->type);
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (int64_t first = 0; first < ggml_nelements(src); first += kCopyElements) {
    const int64_t n = std::min(kCopyElements, ggml_nelements(src) - first);
    values.resize(static_cast<size_t>(n));
    float* at = values.data();
    const bool read = source.ForEach(first, n, [&](size_t offset, int64_t n_run) {
      const void* from = static_cast<const std::byte*>(src->data) + offset;
      if (match->from) {
        bytes.resize(static_cast<size_t>(n_run) * source_element);
        if (!match->from->layer().ReadBytes(match->from->tensor->side, match->from->offset + offset,
                                            bytes.data(), bytes.size())) {
          return false;
        }
        from = bytes.data();
      }
      ToF32(src->type, from, at, n_run);
      at += n_run;
      return true;
    });
    at = values.data();
    const bool written = read && target.ForEach(first, n, [&](size_t offset, int64_t n_run) {
      void* to = static_cast<std::byte*>(op->data) + offset;
      if (match->to) {
        bytes.resize(static_cast<size_t>(n_run) * target_element);
        to = bytes.data();
      }
      FromF32(op->type, at, to, n_run);
      at += n_run;
      return !match->to ||
             match->to->layer().WriteBytes(match->to->tensor->side, match->to->offset + offset,
                                           bytes.data(), bytes.size(), n_threads_);
    });
    if (!written) return false;
  }
  return true;
}

GraphRunner::Outcome GraphRunner::RunOnCodes(const ggml_tensor* node) {
  const auto done = [](bool ok) { return ok ? Outcome::kDone : Outcome::kFailed; };
  if (!MatchesAny(node)) return Outcome::kNotOnCodes;
  switch (node->op) {
    case GGML_OP_SET_ROWS:
      return done(SetRows(node));
    case GGML_OP_FLASH_ATTN_EXT:
      return done(Attention(node));
    case GGML_OP_GET_ROWS:
      return done(GetRows(node));
    case GGML_OP_ROPE: {
      const varve_status status = Shift(node);
      return status == VARVE_ERROR_UNSUPPORTED ? Outcome::kNotOnCodes : done(status == VARVE_OK);
    }
    default:
      return done(Copy(node));
  }
}

ggml_status GraphRunner::Run(ggml_cgraph* graph) {
  std::vector<ggml_tensor*> on_host_cpu;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* node = ggml_graph_node(graph, i);
    if (IsViewOp(node->op) || ggml_is_empty(node) || (node->flags & GGML_TENSOR_FLAG_COMPUTE) == 0)
      continue;
    if (KvBuffer* buffer = KvBufferOf(node)) buffer->Announce();
    for (const KvRef& ref : HeldOperands(node)) {
      if (!ref.layer().Settle()) return GGML_STATUS_FAILED;
    }
    const std::vector<KvRef> held = HeldOperands(node);
    if (!held.empty()) {
      // Nodes before this one may have written what it reads.
      if (const ggml_status status = host_cpu_.Run(on_host_cpu, n_threads_);
          status != GGML_STATUS_SUCCESS) {
        return status;
      }
      on_host_cpu.clear();
      const Outcome outcome = RunOnCodes(node);
      if (outcome == Outcome::kFailed) return GGML_STATUS_FAILED;
      if (outcome == Outcome::kDone) {
        CountOp(node->op, OpPath::kOnCodes);
        continue;
      }
    }
    for (const KvRef& ref : held) {
      const std::string reason =
          std::string("the host computes ") + ggml_op_name(node->op) + " on it";
      if (!ref.layer().MakePlain(reason, true)) return GGML_STATUS_FAILED;
    }
    CountOp(node->op, OpPath::kOnHostCpu);
    on_host_cpu.push_back(node);
  }
  return host_cpu_.Run(on_host_cpu, n_threads_);
}

}  // namespace varve::plugin
