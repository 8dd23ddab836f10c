// Decoding product lines on AVX2, for the kernel files of that level alone: everything here is
// internal to each. A line is two registers; `piece` says which half.
#ifndef VARVE_KERNELS_LINES_AVX2_H_
#define VARVE_KERNELS_LINES_AVX2_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "layout/levels.h"

#define VARVE_INLINE __attribute__((always_inline)) inline

namespace varve {
namespace {

constexpr int kLine = 64;

constexpr int kPiece = 32;

constexpr LevelTable kTable2 = MakeLevelTable(2, 0, 128);
constexpr LevelTable kTable3 = MakeLevelTable(3, 0, 128);
constexpr LevelTable kTable4 = MakeLevelTable(4, 0, 128);

VARVE_INLINE __m256i Load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

/// 16 entries of a table from entry 16 * part on, in both lanes.
VARVE_INLINE __m256i Sixteen(const LevelTable& table, int part) {
  return _mm256_broadcastsi128_si256(
      _mm_load_si128(reinterpret_cast<const __m128i*>(table.entry + 16 * part)));
}

VARVE_INLINE __m256i Field(__m256i x, int shift, int mask) {
  return _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi8(static_cast<char>(mask)));
}

/// The 64 entries of a 6-bit table as sums: entry 16k + i = part[0][i] + .. + part[3 - k][i],
/// modulo 256.
struct SumTable {
  alignas(16) uint8_t part[4][16];
};

consteval SumTable MakeSumTable(const LevelTable& table) {
  SumTable sums{};
  for (int i = 0; i < 16; ++i) {
    sums.part[0][i] = table.entry[48 + i];
    for (int k = 1; k < 4; ++k)
      sums.part[k][i] =
          static_cast<uint8_t>(table.entry[48 - 16 * k + i] - table.entry[64 - 16 * k + i]);
  }
  return sums;
}

constexpr SumTable kSums6 = MakeSumTable(MakeLevelTable(6, 0, 128));

/// Part kPart of the sum, which codes from 64 - 16 * kPart on leave out: VPSHUFB gives 0 where bit
/// 7 of an index is set.
template <int kPart>
VARVE_INLINE __m256i Part6(__m256i code) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_load_si128(reinterpret_cast<const __m128i*>(kSums6.part[kPart])));
  return _mm256_shuffle_epi8(table, _mm256_add_epi8(code, _mm256_set1_epi8(64 + 16 * kPart)));
}

/// level + 128 of 6-bit codes.
VARVE_INLINE __m256i Look6(__m256i field) {
  const __m256i code = _mm256_and_si256(field, _mm256_set1_epi8(63));
  return _mm256_add_epi8(_mm256_add_epi8(Part6<0>(code), Part6<1>(code)),
                         _mm256_add_epi8(Part6<2>(code), Part6<3>(code)));
}

/// The fourth 6-bit field of three lines: their top two bits.
VARVE_INLINE __m256i Spare(__m256i a, __m256i b, __m256i c) {
  const __m256i low = _mm256_or_si256(Field(a, 6, 3), Field(b, 4, 12));
  return _mm256_or_si256(low, Field(c, 2, 48));
}

/// One half of product line kSlot of the group at `group`, as level + 128. 8-bit lines come as they
/// are stored.
template <int kBits, int kSlot>
VARVE_INLINE __m256i Decode(const uint8_t* group, int piece) {
  const uint8_t* at = group + kPiece * piece;
  if constexpr (kBits == 8) {
    return Load(at);
  } else if constexpr (kBits == 4) {
    return _mm256_shuffle_epi8(Sixteen(kTable4, 0), Field(Load(at), 4 * kSlot, 15));
  } else if constexpr (kBits == 2) {
    return _mm256_shuffle_epi8(Sixteen(kTable2, 0), Field(Load(at), 2 * kSlot, 3));
  } else {
    constexpr int kField = kBits == 6 ? kSlot : kSlot / 2;
    __m256i six;
    if constexpr (kField == 3) {
      six = Spare(Load(at), Load(at + kLine), Load(at + 2 * kLine));
    } else {
      six = Load(at + kField * kLine);
    }
    if constexpr (kBits == 6) return Look6(six);
    return _mm256_shuffle_epi8(Sixteen(kTable3, 0), Field(six, 3 * (kSlot % 2), 7));
  }
}

/// Sums of four products of the unsigned bytes of `x` and 16-bit factors, in each dword: `even`
/// holds factors 0 and 2, `odd` 1 and 3.
VARVE_INLINE __m256i DotWords(__m256i low_bytes, __m256i high_bytes, __m256i even, __m256i odd) {
  return _mm256_add_epi32(_mm256_madd_epi16(low_bytes, even), _mm256_madd_epi16(high_bytes, odd));
}

/// acc += x.
// Why the assembly: g++ 12 orders sums anew, all products first, and spills them.
VARVE_INLINE void Accumulate(__m256i& acc, __m256i x) {
  acc = _mm256_add_epi32(acc, x);
  asm("" : "+x"(acc));
}

VARVE_INLINE __m256i EvenBytes(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi16(255)); }
VARVE_INLINE __m256i OddBytes(__m256i x) { return _mm256_srli_epi16(x, 8); }

VARVE_INLINE int32_t Total(__m256i x) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

// Queries whose sums have room in registers.
constexpr int kMaxTogether = 4;

/// How many of a batch's n queries go first; the others, if any, go after them.
VARVE_INLINE int FirstQueries(int n) { return n <= kMaxTogether ? n : (n + 1) / 2; }

}  // namespace
}  // namespace varve

#include "kernels/ahead.h"

#endif  // VARVE_KERNELS_LINES_AVX2_H_
