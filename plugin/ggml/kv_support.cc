#include "kv_support.h"

#include <algorithm>
#include <cstring>

#include "host_cpu.h"
#include "op_shapes.h"

namespace varve::plugin {
namespace {

struct Operands {
  bool output_is_ours = false;  ///< the output already lives in one of our buffers
  bool input_is_ours = false;
  bool reads_foreign = false;  ///< an input lies where neither we nor the CPU backend can read it
};

// A tensor of a cache: not compute memory, not a weight. A memory fit puts caches and asks about
// weights in empty buffers of ours, so there the name tells.
bool IsOurs(const ggml_tensor* tensor) {
  ggml_backend_buffer_t buffer = BufferOf(tensor);
  if (buffer == nullptr || !IsKvBufferType(buffer->buft)) return false;
  if (buffer->context == nullptr) {
    const ggml_tensor* root = tensor->view_src != nullptr ? tensor->view_src : tensor;
    return std::strncmp(root->name, kCachePrefix, std::strlen(kCachePrefix)) == 0;
  }
  return buffer->usage == GGML_BACKEND_BUFFER_USAGE_ANY;
}

Operands Classify(const ggml_tensor* op) {
  Operands operands;
  operands.output_is_ours = IsOurs(op);
  for (const ggml_tensor* src : op->src) {
    if (src == nullptr) continue;
    ggml_backend_buffer_t buffer = BufferOf(src);
    if (IsOurs(src)) operands.input_is_ours = true;
    if (buffer != nullptr && !IsKvBufferType(buffer->buft) &&
        !ggml_backend_buffer_is_host(buffer)) {
      operands.reads_foreign = true;
    }
  }
  return operands;
}

void Learn(const ggml_tensor* op) {
  const auto match = MatchSetRows(op);
  if (!match) return;
  const ggml_tensor* rows = op->src[0];
  match->to.layer().LearnWrite(match->to.tensor->side,
                               TraceHeads(rows, match->to.tensor->row_elements));
  if (match->to.tensor->side != VARVE_KEY) return;
  if (const ggml_tensor* rope = TraceRope(rows)) match->to.layer().LearnRope(RopeShapeOf(rope));
}

}  // namespace

bool IsViewOp(ggml_op op) {
  return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE ||
         op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

std::vector<KvRef> HeldOperands(const ggml_tensor* op) {
  std::vector<KvRef> held;
  auto add = [&held](const ggml_tensor* tensor) {
    if (tensor == nullptr) return;
    if (const auto ref = FindKv(tensor); ref && ref->held()) held.push_back(*ref);
  };
  add(op);
  for (const ggml_tensor* src : op->src) add(src);
  return held;
}

bool SupportsOp(const ggml_tensor* op) {
  if (IsViewOp(op->op)) {
    ggml_backend_buffer_t buffer = BufferOf(op);
    return buffer != nullptr && IsKvBufferType(buffer->buft);
  }
  const Operands operands = Classify(op);
  if (!operands.output_is_ours && !operands.input_is_ours) return false;
  if (operands.reads_foreign) return operands.output_is_ours && HostCpuSupports(op);

  const std::vector<KvRef> held = HeldOperands(op);
  if (!held.empty()) {
    if (MatchesAny(op)) {
      Learn(op);
      return true;
    }
    const bool unwritten = std::all_of(held.begin(), held.end(), [](const KvRef& ref) {
      return ref.layer().form() == KvForm::kUndecided;
    });
    if (unwritten) {
      const std::string reason = std::string("the host computes ") + ggml_op_name(op->op) +
                                 " on it (flash attention is off, or a shape that is not packed)";
      for (const KvRef& ref : held) ref.layer().MakePlain(reason, false);
    } else if (!operands.output_is_ours) {
      return false;  // the scheduler copies what it needs through get_tensor
    }
  }
  return HostCpuSupports(op);
}

}  // namespace varve::plugin
