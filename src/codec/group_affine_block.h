// One head's group of tokens as it is stored: lo and hi of every min/max group, then the codes.
//
//   [lo: n_params][hi: n_params]    f16, bf16 or f32, as the inputs were; absent when no width has
//   codes [codes of widths[0]]            ceil(n_tokens * dim * bits / 8) bytes, token-major bit
//   string; or exact rows [codes of widths[1..]]          widths that are carried along because
//   they cannot be derived later
#ifndef VARVE_CODEC_GROUP_AFFINE_BLOCK_H_
#define VARVE_CODEC_GROUP_AFFINE_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/group_affine.h"

namespace varve {

/// How exact numbers (rows, lo and hi) are stored.
enum class ExactFormat : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

constexpr size_t ExactBytes(ExactFormat format) { return format == ExactFormat::kF32 ? 4 : 2; }

float LoadExact(ExactFormat format, const std::byte* from, size_t index);
void StoreExact(ExactFormat format, float x, std::byte* to, size_t index);

struct AffineBlockLayout {
  static constexpr int kMaxWidths = 3;

  GroupShape shape;
  ExactFormat format = ExactFormat::kF16;
  bool exact_at_16 = true;  ///< 16 bits are exact rows (age_tiered, amc), not 16-bit codes (kivi)
  int n_widths = 0;
  std::array<int, kMaxWidths> widths{};  ///< bits; the first one is decoded

  bool is_exact(int index) const { return exact_at_16 && widths[static_cast<size_t>(index)] == 16; }
  bool has_params() const;
  size_t param_bytes() const;  ///< of lo and hi together
  size_t stream_bytes(int index) const;
  size_t stream_offset(int index) const;
  size_t bytes() const { return stream_offset(n_widths); }
  int find(int bits) const;  ///< index of a width, -1 if absent
};

/// Work space of encoding; grows to one group and stays.
struct AffineScratch {
  std::vector<float> lo, hi, tile;
  std::vector<uint16_t> codes;

  void Fit(const GroupShape& shape);
  size_t held_bytes() const;
};

/// tile f32 [n_tokens][dim] -> block. Exact where `format` holds the inputs.
void EncodeAffineBlock(const AffineBlockLayout& layout, const float* tile, AffineScratch& scratch,
                       std::byte* block);

/// Tokens [first, first + n): tile f32 [n][dim]. Allocates nothing.
void DecodeAffineBlock(const AffineBlockLayout& layout, const std::byte* block, int first, int n,
                       float* tile);

/// A block in another layout of the same shape: carried codes are copied, nested widths follow by
/// integers, all else is decoded and encoded.
void StepAffineBlock(const AffineBlockLayout& from, const AffineBlockLayout& to,
                     const std::byte* src, AffineScratch& scratch, std::byte* dst);

/// True if all n exact numbers are finite.
bool ExactAreFinite(ExactFormat format, const std::byte* from, size_t n);

/// True if a block from outside is one that could have been encoded: lo <= hi, both finite, or with
/// `may_be_nan` both NaN; exact rows finite unless `may_be_nan`. Codes may be any bits.
bool AffineBlockIsSound(const AffineBlockLayout& layout, const std::byte* block, bool may_be_nan);

/// What encoding rows [n_tokens][dim] (stored exactly) at `bits` and decoding them would give, for
/// tokens [first, first + n). Allocates nothing.
void RoundTripRows(const GroupShape& shape, int bits, ExactFormat format, const std::byte* rows,
                   int first, int n, float* tile);

}  // namespace varve

#endif  // VARVE_CODEC_GROUP_AFFINE_BLOCK_H_
