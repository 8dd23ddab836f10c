// Decoding product lines on AVX-512 VBMI, for the kernel files of that level alone: everything here
// is internal to each.
#ifndef VARVE_KERNELS_LINES_AVX512_H_
#define VARVE_KERNELS_LINES_AVX512_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "layout/levels.h"

#define VARVE_INLINE __attribute__((always_inline)) inline

namespace varve {
namespace {

constexpr int kLine = 64;

/// Lookup tables of one operand form: bias 128 for keys (unsigned operand), 0 for values (signed).
/// The letter says at which of its bits a packed byte's field starts; VPERMB ignores bits 6 and 7,
/// and the tables the rest.
template <int kBias>
struct Tables {
  static constexpr LevelTable k2a = MakeLevelTable(2, 0, kBias);
  static constexpr LevelTable k2b = MakeLevelTable(2, 2, kBias);
  static constexpr LevelTable k2c = MakeLevelTable(2, 4, kBias);
  static constexpr LevelTable k3a = MakeLevelTable(3, 0, kBias);
  static constexpr LevelTable k3b = MakeLevelTable(3, 3, kBias);
  static constexpr LevelTable k4 = MakeLevelTable(4, 0, kBias);
  static constexpr LevelTable k6 = MakeLevelTable(6, 0, kBias);
};

VARVE_INLINE __m512i Load(const uint8_t* p) { return _mm512_loadu_si512(p); }

VARVE_INLINE __m512i Look(const LevelTable& table, __m512i index) {
  return _mm512_permutexvar_epi8(index, _mm512_load_si512(table.entry));
}

/// The fourth 6-bit field of three lines: their top two bits.
VARVE_INLINE __m512i Spare(__m512i a, __m512i b, __m512i c) {
  const __m512i low = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), _mm512_srli_epi16(a, 6),
                                                _mm512_srli_epi16(b, 4), 0xca);
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), low, _mm512_srli_epi16(c, 2), 0xca);
}

}  // namespace
}  // namespace varve

#include "kernels/ahead.h"

#endif  // VARVE_KERNELS_LINES_AVX512_H_
