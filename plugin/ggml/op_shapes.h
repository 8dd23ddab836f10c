// Which operations on packed KV tensors can run on the codes: each Match* reads a node's shapes and
// strides and says where it reaches into the cache, or nothing when the node does not have the form
// that the codes can serve.
#ifndef VARVE_PLUGIN_GGML_OP_SHAPES_H_
#define VARVE_PLUGIN_GGML_OP_SHAPES_H_

#include <cstdint>
#include <optional>

#include "kv_buffer.h"

namespace varve::plugin {

/// SET_ROWS of whole rows.
struct SetRowsMatch {
  KvRef to;
};
std::optional<SetRowsMatch> MatchSetRows(const ggml_tensor* op);

/// FLASH_ATTN_EXT over cells [0, n_cells) of streams [first_stream, first_stream + ne[3]) of one
/// layer.
struct AttentionMatch {
  KvLayer* layer = nullptr;
  HeadShape key_heads;
  int head_dim_v = 0;  ///< of the value tensor; 0 when V is a part of K
  int first_stream = 0;
  int first_channel = 0;  ///< where in a key head V starts, when V is a part of K
};
std::optional<AttentionMatch> MatchAttention(const ggml_tensor* op);

/// ROPE in place over cells of K, every head of each: a shift.
struct ShiftMatch {
  KvRef keys;
  int64_t first_cell = 0;
  int first_channel = 0;  ///< of a head, where the turn begins
};
std::optional<ShiftMatch> MatchShift(const ggml_tensor* op);

/// GET_ROWS from a view whose rows are contiguous.
struct GetRowsMatch {
  KvRef from;
};
std::optional<GetRowsMatch> MatchGetRows(const ggml_tensor* op);

/// CPY, DUP or CONT from or to a view whose rows are contiguous, between f32, f16 and bf16.
struct CopyMatch {
  std::optional<KvRef> from;
  std::optional<KvRef> to;
};
std::optional<CopyMatch> MatchCopy(const ggml_tensor* op);

/// Whether one of the Match functions takes the operation.
bool MatchesAny(const ggml_tensor* op);

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_OP_SHAPES_H_
