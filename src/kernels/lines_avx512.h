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

// Far enough that memory answers in time, near enough that a line is not lost from L1 again.
constexpr int kHeadsAhead = 2;

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

/// Lines of codes that will be read some heads later: of this block, then of what is read next.
struct Ahead {
  const uint8_t* at;
  const uint8_t* end;

  VARVE_INLINE Ahead(const uint8_t* codes, size_t head_stride, int n_heads, int head,
                     const uint8_t* next, size_t next_stride) {
    const int later = head + (n_heads > 1 ? kHeadsAhead : 1);
    if (later < n_heads) {
      at = codes + later * head_stride;
      end = at + head_stride;
    } else {
      at = next + (later - n_heads) * next_stride;
      end = at + next_stride;
    }
  }

  VARVE_INLINE void Fetch(int n_lines) {
    for (int i = 0; i < n_lines && at < end; ++i, at += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
};

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_LINES_AVX512_H_
