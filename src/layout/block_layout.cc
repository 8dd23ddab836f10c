#include "layout/block_layout.h"

#include "base/checked_math.h"

namespace varve {

BlockLayout MakeBlockLayout(Scheme scheme, Side side, int head_dim) {
  BlockLayout layout;
  layout.scheme = scheme;
  layout.side = side;
  layout.head_dim = head_dim;
  layout.padded_dim = head_dim;
  const size_t block = kBlockTokens;
  if (scheme.codec == Codec::kF16) {
    layout.code_bytes = RoundUp(block * static_cast<size_t>(head_dim) * 2, kLineBytes);
    return layout;
  }
  if (scheme.codec == Codec::kRotated)
    layout.padded_dim = RoundUp(head_dim, Granule(side, scheme.bits));
  layout.code_bytes = RoundUp(SegmentBytes(scheme.bits, layout.padded_dim), kLineBytes);
  layout.gain_bytes = block * 2;
  return layout;
}

}  // namespace varve
