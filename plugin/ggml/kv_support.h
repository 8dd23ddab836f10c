// What the device answers when the scheduler asks whether it can run an operation.
#ifndef VARVE_PLUGIN_GGML_KV_SUPPORT_H_
#define VARVE_PLUGIN_GGML_KV_SUPPORT_H_

#include <vector>

#include "kv_buffer.h"

namespace varve::plugin {

/// Yes to operations on tensors that live in our buffers and that we can run; no to everything
/// else, so weights and all other work stay where they are. Learns the geometry of layers on the
/// way. A layer that nothing has been written to and that meets an operation its codes cannot serve
/// goes to plain storage, where the host's CPU backend can serve it.
bool SupportsOp(const ggml_tensor* op);

/// VIEW, RESHAPE, PERMUTE, TRANSPOSE or NONE: nothing to compute.
bool IsViewOp(ggml_op op);

/// KV tensors among an operation's output and inputs that are not in plain storage.
std::vector<KvRef> HeldOperands(const ggml_tensor* op);

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_KV_SUPPORT_H_
