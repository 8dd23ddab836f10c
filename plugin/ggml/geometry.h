// What a graph tells about a KV layer before anything is written: head sizes from the attention
// node, the pairing of RoPE and the tokens' positions from the ROPE node behind a K write.
#ifndef VARVE_PLUGIN_GGML_GEOMETRY_H_
#define VARVE_PLUGIN_GGML_GEOMETRY_H_

#include <cstdint>
#include <vector>

#include "ggml.h"
#include "varve/varve.h"

namespace varve::plugin {

struct HeadShape {
  int head_dim = 0;
  int n_heads = 0;

  bool known() const { return head_dim > 0 && n_heads > 0; }
  bool operator==(const HeadShape&) const = default;
};

struct RopeShape {
  varve_rope_kind kind = VARVE_ROPE_NONE;
  int n_dims = 0;

  bool operator==(const RopeShape&) const = default;
};

/// The ROPE node that made the rows, found through operations that keep channels in place; null if
/// there is none.
const ggml_tensor* TraceRope(const ggml_tensor* rows);

/// Pairing of a ROPE node. M-RoPE pairs channels as NeoX does.
RopeShape RopeShapeOf(const ggml_tensor* rope);

/// Positions of the n_tokens rows behind a ROPE node (M-RoPE: of the temporal section); empty when
/// they cannot be read.
std::vector<int32_t> RopePositions(const ggml_tensor* rope, int64_t n_tokens);

/// Heads of a row of `row_elements` that a graph flattened from [n_tokens][n_heads][head_dim];
/// unknown if it did not.
HeadShape TraceHeads(const ggml_tensor* rows, int64_t row_elements);

/// Fields of a ROPE node of mode normal or NeoX for varve_cells_shift; the turn begins at
/// first_channel of a head.
varve_rope_params RopeParams(const ggml_tensor* rope, int first_channel);

/// Channel of its input's rows at which a ROPE node starts to turn.
int RopeOffset(const ggml_tensor* rope);

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_GEOMETRY_H_
