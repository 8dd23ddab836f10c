#include "codec/codebooks.h"

#include <cmath>
#include <cstddef>
#include <cstdlib>

#include "layout/levels.h"

namespace varve {
namespace {

template <size_t kHalf>
constexpr Codebook GaussianBook(int bits, const int8_t (&half)[kHalf], float unit, float rms_level,
                                float distortion) {
  Codebook book;
  book.bits = bits;
  book.unit = unit;
  book.rms_level = rms_level;
  book.distortion = distortion;
  book.max_level = half[kHalf - 1];
  for (size_t i = 0; i < kHalf; ++i) {
    book.level[kHalf + i] = half[i];
    book.level[kHalf - 1 - i] = static_cast<int8_t>(-half[i]);
  }
  size_t code = 0;
  for (size_t twice = 0; twice < book.magnitude_code.size(); ++twice) {
    while (code + 1 < kHalf && static_cast<int>(twice) >= half[code] + half[code + 1]) ++code;
    book.magnitude_code[twice] = static_cast<uint8_t>(code);
  }
  return book;
}

constexpr Codebook UniformBook() {
  Codebook book;
  book.bits = 8;
  book.unit = 24.0f;
  book.rms_level = 24.0f;
  book.distortion = 1.0f / (12.0f * 24.0f * 24.0f);
  book.max_level = 127;
  return book;
}

constexpr Codebook kBook2 = GaussianBook(2, kHalfLevels2, 72.832969f, 68.420190f, 0.11748191f);
constexpr Codebook kBook3 = GaussianBook(3, kHalfLevels3, 52.933490f, 52.012469f, 0.03454896f);
constexpr Codebook kBook4 = GaussianBook(4, kHalfLevels4, 38.157951f, 37.975405f, 0.009506224f);
constexpr Codebook kBook6 = GaussianBook(6, kHalfLevels6, 28.862587f, 28.853139f, 0.00066242868f);
constexpr Codebook kBook8 = UniformBook();

}  // namespace

const Codebook& CodebookOf(int bits) {
  switch (bits) {
    case 2:
      return kBook2;
    case 3:
      return kBook3;
    case 4:
      return kBook4;
    case 6:
      return kBook6;
    default:
      return kBook8;
  }
}

unsigned CodeOf(const Codebook& book, float x) {
  const float magnitude = std::fabs(x);
  if (book.bits == 8) {
    // Ties to even, as the vector conversions round.
    const int level = static_cast<int>(std::nearbyint(std::fmin(magnitude, 127.0f)));
    return static_cast<unsigned>(128 + (x < 0 ? -level : level));
  }
  const unsigned half = 1u << (book.bits - 1);
  const unsigned code =
      book.magnitude_code[static_cast<size_t>(std::fmin(2.0f * magnitude, 255.0f))];
  return x < 0 ? half - 1 - code : half + code;
}

}  // namespace varve
