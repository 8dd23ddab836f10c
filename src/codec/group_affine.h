// The seeds' and KIVI's quantizer: asymmetric min/max groups (spec sections 3 and 13).
//
//   L = 2^bits - 1;  scale = max((hi - lo) / L, 1e-8);  code = clamp(rint((x - lo) / scale), 0, L);
//   x' = code*scale + lo
//
// All in f32, one rounding an operation. What is stored of a group is lo and hi, which are inputs
// and so are exact in their own 16 (or 32) bits: scale and zero follow from them at every width,
// and codes of a width that divides the present one follow from the codes.
#ifndef VARVE_CODEC_GROUP_AFFINE_H_
#define VARVE_CODEC_GROUP_AFFINE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace varve {

/// What the elements of one group have in common.
enum class GroupAxis : uint8_t {
  kTokens,    ///< one channel, consecutive tokens
  kChannels,  ///< one token, consecutive channels
};

/// A tile [n_tokens][dim] cut into groups of `group_size` along `axis`; the last group of a line
/// may be short.
struct GroupShape {
  GroupAxis axis = GroupAxis::kTokens;
  int n_tokens = 0;
  int dim = 0;
  int group_size = 0;

  size_t n_elements() const { return static_cast<size_t>(n_tokens) * static_cast<size_t>(dim); }

  /// Groups along the axis.
  int n_groups() const;

  /// (lo, hi) pairs: [n_groups][dim] for kTokens, [n_tokens][n_groups] for kChannels.
  size_t n_params() const;
};

inline constexpr float kMinScale = 1e-8f;

/// scale of a group.
float AffineScale(float lo, float hi, int bits);

/// True if b1-bit codes give b2-bit codes by integer arithmetic: b2 <= b1 and b2 divides b1.
constexpr bool WidthsNest(int from_bits, int to_bits) {
  return to_bits <= from_bits && from_bits % to_bits == 0;
}

/// lo and hi of every group. tile [n_tokens][dim]; lo, hi [n_params]. A group with a NaN or
/// infinity gets NaN for both.
void FitGroups(const GroupShape& shape, const float* tile, float* lo, float* hi);

/// Codes [n_tokens][dim] of a tile; 0 in groups whose lo is NaN. bits 1..16.
void QuantizeGroups(const GroupShape& shape, int bits, const float* tile, const float* lo,
                    const float* hi, uint16_t* codes);

/// x' of tokens [first, first + n): codes and tile are [n][dim], lo and hi those of the whole
/// shape.
void DequantizeGroups(const GroupShape& shape, int bits, const float* lo, const float* hi,
                      int first, int n, const uint16_t* codes, float* tile);

/// Codes at from_bits to codes at to_bits, in place. Where the widths nest: (code + r/2) / r with r
/// = L1/L2, which is what the raw values would give, exact midpoints aside. Elsewhere, and in
/// groups so narrow that their scale is kMinScale: the code of the decoded value, a second
/// rounding.
void RecodeGroups(const GroupShape& shape, int from_bits, int to_bits, const float* lo,
                  const float* hi, uint16_t* codes);

}  // namespace varve

#endif  // VARVE_CODEC_GROUP_AFFINE_H_
