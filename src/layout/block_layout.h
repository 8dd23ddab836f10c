// Geometry of one KV head's payload in a block of the per-token codecs. The smallest unit that has
// a tier is one block: 32 consecutive cells of one layer and side, all KV heads, memory order
// [head][payload].
#ifndef VARVE_LAYOUT_BLOCK_LAYOUT_H_
#define VARVE_LAYOUT_BLOCK_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "layout/code_lines.h"
#include "layout/scheme.h"

namespace varve {

/// Byte geometry of one head's payload: codes first, then 32 f16 gains (none for kF16).
///
/// kF16: rows [32][head_dim] of f16.
/// kRotated: one segment of `padded_dim` channels (head_dim rounded up to the granule), placed as
/// code_lines.h says. kRopePair: a run of segments of equal width, widest first, as the head's
/// KeyTable says; the payload is always head_dim * bits * 4 bytes rounded up to whole lines,
/// whatever the table, so that one size class serves every head.
struct BlockLayout {
  Scheme scheme;
  Side side = Side::kKey;
  int head_dim = 0;
  int padded_dim = 0;
  size_t code_bytes = 0;  ///< multiple of 64
  size_t gain_bytes = 0;  ///< 64, or 0 for kF16

  size_t head_bytes() const { return code_bytes + gain_bytes; }
  size_t block_bytes(int n_kv_heads) const {
    return head_bytes() * static_cast<size_t>(n_kv_heads);
  }
};

/// Layout for one scheme, side and head_dim >= 1; kGroupAffine has a layout of its own and is not
/// accepted here.
BlockLayout MakeBlockLayout(Scheme scheme, Side side, int head_dim);

}  // namespace varve

#endif  // VARVE_LAYOUT_BLOCK_LAYOUT_H_
