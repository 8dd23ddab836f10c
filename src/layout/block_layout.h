// Geometry of one KV head's payload in a block of the per-token codecs. The smallest unit that has a tier is one
// block: 32 consecutive cells of one layer and side, all KV heads, memory order [head][payload].
#ifndef VARVE_LAYOUT_BLOCK_LAYOUT_H_
#define VARVE_LAYOUT_BLOCK_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "layout/scheme.h"

namespace varve {

inline constexpr int kBlockTokens = 32;
inline constexpr size_t kLineBytes = 64;

/// Byte geometry of one head's payload: codes first, then 32 f16 gains (none for kF16).
///
/// kF16: rows [32][head_dim] of f16.
/// Keys: 64-byte lines of 16 tokens x 4 channels, dword lane = token; a rope_pair payload is a run of segments of equal
/// width, widest first, always `head_dim * bits / 8 * 32` bytes rounded up to whole lines whatever the table says, so
/// that one size class serves every head.
/// Values: dword lane = channel, 4 tokens a dword, 16 channels a line; `padded_dim` is head_dim rounded up to 16.
struct BlockLayout {
  Scheme scheme;
  Side side = Side::kKey;
  int head_dim = 0;
  int padded_dim = 0;
  size_t code_bytes = 0;  ///< multiple of 64
  size_t gain_bytes = 0;  ///< 64, or 0 for kF16

  size_t head_bytes() const { return code_bytes + gain_bytes; }
  size_t block_bytes(int n_kv_heads) const { return head_bytes() * static_cast<size_t>(n_kv_heads); }
};

/// Layout for one scheme, side and head_dim >= 1; kGroupAffine has a layout of its own and is not accepted here.
BlockLayout MakeBlockLayout(Scheme scheme, Side side, int head_dim);

}  // namespace varve

#endif  // VARVE_LAYOUT_BLOCK_LAYOUT_H_
