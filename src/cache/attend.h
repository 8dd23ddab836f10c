// softmax(q K^T * scale + mask) V over packed blocks: tile loop, online softmax, qk and pv kernels,
// no decoded copy. Semantics are those of ggml's FLASH_ATTN_EXT (scale, soft-cap, ALiBi slopes,
// sinks, f16 mask, GQA).
#ifndef VARVE_CACHE_ATTEND_H_
#define VARVE_CACHE_ATTEND_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/block_codec.h"

namespace varve {

/// 32 cells of K and V. A block with cells of several pending rotations appears once for each, with
/// disjoint `live`.
struct AttendBlock {
  const std::byte* k = nullptr;
  const std::byte* v =
      nullptr;  ///< null when values are the first head_dim_v channels of the keys (MLA)
  BlockCoding k_coding;
  BlockCoding v_coding;
  uint32_t live = 0;       ///< bit t: cell t takes part (written, not a sink kept as an exact row)
  int32_t first_cell = 0;  ///< mask column of cell 0 of the block
  int32_t rotation = 0;    ///< index into AttendProblem::rotations
};

/// A sink token kept as exact f16 rows.
struct ExactRow {
  const uint16_t* k = nullptr;  ///< f16 [n_kv_heads][head_dim_k]
  const uint16_t* v = nullptr;  ///< f16 [n_kv_heads][head_dim_v], null as in AttendBlock
  int32_t cell = 0;             ///< mask column
  int32_t rotation = 0;
};

/// A pending RoPE shift: keys stand `angle` short, so q is turned back by it. cos/sin: [n_dims/2]
/// of the shift angles.
struct PendingRotation {
  RopePairing pairing = RopePairing::kNone;
  int n_dims = 0;
  std::vector<float> cos;  ///< empty: no rotation
  std::vector<float> sin;
};

/// One attention call. Strides are in elements. n_heads is a multiple of n_kv_heads.
struct AttendProblem {
  int n_rows = 0;  ///< query rows (tokens)
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  const float* q = nullptr;  ///< [n_rows][n_heads][head_dim_k] by the strides
  ptrdiff_t q_row_stride = 0;
  ptrdiff_t q_head_stride = 0;
  const uint16_t* mask = nullptr;  ///< f16 [n_rows][cells], null: nothing masked
  ptrdiff_t mask_row_stride = 0;
  ptrdiff_t mask_head_stride = 0;  ///< 0 when all heads share one mask (ggml: ne[2] == 1)
  int mask_heads = 1;              ///< head h uses mask plane h % mask_heads
  int n_cells = 0;                 ///< columns that take part; cells at and past it are ignored
  float scale = 1.0f;
  float logit_softcap = 0.0f;     ///< 0: none; else cap * tanh(scale*qk / cap)
  const float* slopes = nullptr;  ///< ALiBi slope [n_heads] that multiplies the mask, null: all 1
  const float* sinks = nullptr;   ///< attention-sink logit [n_heads], null: none
  float* out = nullptr;           ///< [n_rows][n_heads][head_dim_v] by the strides
  ptrdiff_t out_row_stride = 0;
  ptrdiff_t out_head_stride = 0;
  /// Values of a block are passed over while all that are hold at most this share of a query's
  /// weights: an output moves by at most this times the largest value. 0: none are.
  float value_skip_share = 0;
  std::span<const AttendBlock> blocks;
  std::span<const ExactRow> exact_rows;
  std::span<const PendingRotation> rotations;  ///< at least one; entry 0 is usually "none"
};

/// Computes the problem on up to n_threads threads. The result does not depend on n_threads.
/// A row with nothing to attend to gives zeros (as ggml). Scratch grows to what the largest call
/// needed.
void Attend(const AttendProblem& problem, int n_threads, std::vector<std::byte>& scratch);

}  // namespace varve

#endif  // VARVE_CACHE_ATTEND_H_
