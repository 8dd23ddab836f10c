// Encode, decode and demote rows of the per-token codecs (kF16, kRotated, kRopePair). The only door
// from the cache to the pack and repack kernels. Every encoder is a fixed point:
// encode(decode(codes)) gives the same codes.
#ifndef VARVE_CODEC_BLOCK_CODEC_H_
#define VARVE_CODEC_BLOCK_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "codec/key_table.h"
#include "layout/block_layout.h"

namespace varve {

/// A block's coding: its layout and, for kRopePair, one table a KV head.
struct BlockCoding {
  const BlockLayout* layout = nullptr;
  const KeyTable* tables = nullptr;  ///< [n_kv_heads], null unless kRopePair
};

/// Widest head that a row may have: the row codecs work on the stack and never allocate, so that a
/// cache can commit after everything that may fail. A key table may pad up to it.
inline constexpr int kMaxHeadDim = 1024;

/// Writes one token's row into slot `token` (0..31) of a block. row: f32 [n_kv_heads][head_dim].
/// A row with a NaN or infinity gets a NaN gain and decodes to NaN.
void EncodeRow(const BlockCoding& coding, int n_kv_heads, const float* row, int token,
               std::byte* block);

/// Reads slot `token` of a block back. row: f32 [n_kv_heads][head_dim].
void DecodeRow(const BlockCoding& coding, int n_kv_heads, const std::byte* block, int token,
               float* row);

/// Decodes the whole payload of KV head `head`. tile: f32 [32][head_dim].
void DecodeHead(const BlockCoding& coding, int head, const std::byte* head_payload, float* tile);

/// True if a block from outside is one that could have been encoded: no gain is infinite, and
/// without `may_be_nan` neither gains nor exact rows are NaN or infinite. Codes may be any bits.
bool BlockIsSound(const BlockLayout& layout, int n_kv_heads, const std::byte* block,
                  bool may_be_nan);

/// Re-encodes all 32 tokens of a block into another coding (demotion or promotion); src and dst do
/// not overlap.
void RepackBlock(const BlockCoding& from, const BlockCoding& to, int n_kv_heads,
                 const std::byte* src, std::byte* dst);

/// The same for the tokens whose bits are set; the others of dst stay as they are. A token's codes
/// do not depend on which others are asked for.
void RepackRows(const BlockCoding& from, const BlockCoding& to, int n_kv_heads, uint32_t tokens,
                const std::byte* src, std::byte* dst);

}  // namespace varve

#endif  // VARVE_CODEC_BLOCK_CODEC_H_
