// The scalar codebooks of the per-token codecs. A code stands for an integer level, the operand
// that the kernels multiply; level / unit is the value in standard deviations, and a row's gain
// multiplies that.
#ifndef VARVE_CODEC_CODEBOOKS_H_
#define VARVE_CODEC_CODEBOOKS_H_

#include <array>
#include <cstdint>

namespace varve {

inline constexpr int kMaxLevels = 64;

/// 2, 3, 4 and 6 bits: the Lloyd-Max quantizer of a unit Gaussian, its levels rounded to the
/// integers that keep its distortion best (Max, "Quantizing for minimum distortion", 1960; excess
/// over the real-valued optimum 0.0 %, 0.0 %, 0.1 %, 2.8 %). 8 bits: uniform, levels -127 .. 127.
/// Codes ascend with their levels, and levels are symmetric.
struct Codebook {
  int bits = 0;
  float unit = 0;        ///< levels in one standard deviation
  float rms_level = 0;   ///< root mean square level of a coded unit Gaussian, in levels
  float distortion = 0;  ///< mean squared error on a unit Gaussian
  int max_level = 0;
  std::array<int8_t, kMaxLevels>
      level{};  ///< [2^bits]; unused for 8 bits, where level = code - 128
  /// Code of magnitude x >= 0 (in levels) inside the positive half: magnitude_code[min(floor(2x),
  /// 255)]. Every decision threshold is a mean of two integers, so floor(2x) decides exactly.
  std::array<uint8_t, 256> magnitude_code{};
};

/// The codebook of a width in {2, 3, 4, 6, 8}.
const Codebook& CodebookOf(int bits);

/// Nearest code of x levels (finite).
unsigned CodeOf(const Codebook& book, float x);

/// Level of a code.
inline int LevelOf(const Codebook& book, unsigned code) {
  return book.bits == 8 ? static_cast<int>(code) - 128 : book.level[code];
}

}  // namespace varve

#endif  // VARVE_CODEC_CODEBOOKS_H_
