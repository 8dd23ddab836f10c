// Vectors of numbers on AVX-512 for the bodies that both levels share (kernels/*/..._body.h), for
// the kernel files of that level alone: everything here is internal to each.
#ifndef VARVE_KERNELS_LANES_AVX512_H_
#define VARVE_KERNELS_LANES_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/half_book.h"

#define VARVE_INLINE __attribute__((always_inline)) inline

namespace varve {
namespace {

constexpr int kWidth = 16;
constexpr int kMaxRadix = 16;

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));
typedef uint32_t U32 __attribute__((vector_size(64)));
typedef int16_t I16 __attribute__((vector_size(64)));

VARVE_INLINE F32 ToFloat(I32 x) { return (F32)_mm512_cvtepi32_ps((__m512i)x); }

/// Nearest integers, ties to even.
VARVE_INLINE I32 ToNearest(F32 x) { return (I32)_mm512_cvtps_epi32((__m512)x); }

/// kWidth 16-bit integers.
VARVE_INLINE I32 WidenWords(const int16_t* p) {
  return (I32)_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

/// The low byte of each lane.
VARVE_INLINE void StoreBytes(uint8_t* p, I32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)x));
}

VARVE_INLINE F32 Sqrt(F32 x) { return (F32)_mm512_sqrt_ps((__m512)x); }

/// The second operand wins where the first is a NaN.
VARVE_INLINE F32 Max(F32 a, F32 b) { return (F32)_mm512_max_ps((__m512)a, (__m512)b); }
VARVE_INLINE F32 Min(F32 a, F32 b) { return (F32)_mm512_min_ps((__m512)a, (__m512)b); }

struct Found {
  F32 level;
  I32 index;
};

/// What FindMagnitude() takes its magnitudes times: it looks for them in bins.
template <int kBits>
constexpr float kSearchScale = 1.0f / kHalfBook<kBits>.bin_width;

/// Nearest level to a magnitude (times kSearchScale), and its index in the positive half.
template <int kBits>
VARVE_INLINE Found FindMagnitude(F32 m) {
  constexpr const HalfBook& book = kHalfBook<kBits>;
  const auto reached = [&](__m512 threshold) __attribute__((always_inline)) {
    return _mm512_cmp_ps_mask((__m512)m, threshold, _CMP_GE_OQ);
  };
  if constexpr (kBits == 2) {
    const __mmask16 high = reached(_mm512_set1_ps(book.threshold[1]));
    return {
        (F32)_mm512_mask_mov_ps(_mm512_set1_ps(book.level[0]), high, _mm512_set1_ps(book.level[1])),
        (I32)_mm512_maskz_set1_epi32(high, 1)};
  } else {
    const __m512i bin =
        _mm512_min_epu32(_mm512_cvttps_epi32((__m512)m), _mm512_set1_epi32(kBits == 6 ? 63 : 15));
    if constexpr (kBits == 6) {
      const __m512i first = _mm512_permutexvar_epi8(bin, _mm512_load_si512(book.bin_first));
      const __m512i next = _mm512_add_epi32(first, _mm512_set1_epi32(1));
      const __mmask16 high = reached(_mm512_permutex2var_ps(_mm512_load_ps(book.threshold), next,
                                                            _mm512_load_ps(book.threshold + 16)));
      const __m512i index = _mm512_mask_mov_epi32(first, high, next);
      return {(F32)_mm512_permutex2var_ps(_mm512_load_ps(book.level), index,
                                          _mm512_load_ps(book.level + 16)),
              (I32)index};
    } else {
      const __mmask16 high =
          reached(_mm512_permutexvar_ps(bin, _mm512_load_ps(book.bin_threshold)));
      const __m512i at = _mm512_mask_or_epi32(bin, high, bin, _mm512_set1_epi32(16));
      return {(F32)_mm512_permutex2var_ps(_mm512_load_ps(book.bin_level), at,
                                          _mm512_load_ps(book.bin_level + 16)),
              (I32)_mm512_permutex2var_epi32(_mm512_load_si512(book.bin_index), at,
                                             _mm512_load_si512(book.bin_index + 16))};
    }
  }
}

/// Lanes below 0; -0 is not.
struct Negative {
  __mmask16 lanes;
};

VARVE_INLINE Negative IsNegative(F32 x) {
  return {_mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_LT_OQ)};
}

VARVE_INLINE F32 WithSign(F32 magnitude, Negative negative) {
  return (F32)_mm512_mask_sub_ps((__m512)magnitude, negative.lanes, _mm512_setzero_ps(),
                                 (__m512)magnitude);
}

/// half + index, or half - 1 - index.
VARVE_INLINE I32 SignedCode(I32 index, Negative negative, int half) {
  return (I32)_mm512_mask_sub_epi32(_mm512_add_epi32((__m512i)index, _mm512_set1_epi32(half)),
                                    negative.lanes, _mm512_set1_epi32(half - 1), (__m512i)index);
}

VARVE_INLINE I32 Or3(I32 a, I32 b, I32 c) {
  return (I32)_mm512_ternarylogic_epi32((__m512i)a, (__m512i)b, (__m512i)c, 0xfe);
}

/// a * b + c, rounded once.
VARVE_INLINE F32 FusedAdd(F32 a, F32 b, F32 c) {
  return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

/// max(|x|, top), top >= 0; any number where x is a NaN.
VARVE_INLINE F32 MaxMagnitude(F32 x, F32 top) {
  return (F32)_mm512_range_ps((__m512)x, (__m512)top, 0x0b);
}

/// Sixteen lanes added by halves.
VARVE_INLINE float FoldLanes(const F32* part) { return _mm512_reduce_add_ps((__m512)part[0]); }

VARVE_INLINE float FoldMax(const F32* part) { return _mm512_reduce_max_ps((__m512)part[0]); }

/// The butterflies of a Walsh-Hadamard transform inside a register: lanes 1, 2, 4, 8 apart. A
/// factor of 1 or -1 makes a fused multiply-add an exact sum or difference.
VARVE_INLINE F32 Butterflies(F32 lanes) {
  const auto signs = [](__mmask16 upper) __attribute__((always_inline)) {
    return _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), upper, _mm512_set1_ps(-1.0f));
  };
  auto x = (__m512)lanes;
  x = _mm512_fmadd_ps(x, signs(0xaaaa), _mm512_permute_ps(x, 0xb1));
  x = _mm512_fmadd_ps(x, signs(0xcccc), _mm512_permute_ps(x, 0x4e));
  x = _mm512_fmadd_ps(x, signs(0xf0f0), _mm512_shuffle_f32x4(x, x, 0xb1));
  x = _mm512_fmadd_ps(x, signs(0xff00), _mm512_shuffle_f32x4(x, x, 0x4e));
  return (F32)x;
}

/// Bytes of four registers of small integers: dword r of 128-bit lane l holds lane l of part[r].
VARVE_INLINE I32 PackFour(const I32* part) {
  return (I32)_mm512_packs_epi16(_mm512_packs_epi32((__m512i)part[0], (__m512i)part[1]),
                                 _mm512_packs_epi32((__m512i)part[2], (__m512i)part[3]));
}

/// Byte `byte` of each dword at p becomes that lane's low byte.
VARVE_INLINE void PutByte(uint8_t* p, int byte, I32 x) {
  _mm512_mask_storeu_epi8(p, 0x1111111111111111ull << byte,
                          _mm512_sll_epi32((__m512i)x, _mm_cvtsi32_si128(8 * byte)));
}

struct QuadIndex {
  alignas(64) uint8_t entry[64];
};

/// Even byte 2t: byte 4t of two lines.
consteval QuadIndex MakeQuadIndex() {
  QuadIndex index{};
  for (int i = 0; i < 64; ++i) index.entry[i] = static_cast<uint8_t>(i / 2 * 4);
  return index;
}

constexpr QuadIndex kQuadIndex = MakeQuadIndex();

/// Two product lines of keys to four rows of 32 levels.
VARVE_INLINE void LoadQuad(const uint8_t* lines, int16_t* rows) {
  const __m512i low = _mm512_loadu_si512(lines);
  const __m512i high = _mm512_loadu_si512(lines + 64);
  for (int k = 0; k < 4; ++k) {
    const __m512i index = _mm512_add_epi8(_mm512_load_si512(kQuadIndex.entry),
                                          _mm512_set1_epi8(static_cast<char>(k)));
    const __m512i biased = _mm512_maskz_permutex2var_epi8(0x5555555555555555ull, low, index, high);
    _mm512_storeu_si512(rows + 32 * k, _mm512_sub_epi16(biased, _mm512_set1_epi16(128)));
  }
}

VARVE_INLINE I32 LoadDwords(const void* p) { return (I32)_mm512_loadu_si512(p); }
VARVE_INLINE F32 LoadFloats(const float* p) { return (F32)_mm512_loadu_ps(p); }

/// 16 bytes in every 128-bit lane.
VARVE_INLINE I32 RepeatFour(const void* p) {
  return (I32)_mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

VARVE_INLINE void StoreFour(float* p, F32 x) {
  _mm_storeu_ps(p, _mm512_castps512_ps128((__m512)x));
}

/// The sum of all 128-bit lanes in the first.
VARVE_INLINE I32 AddFours(I32 x) {
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256((__m512i)x),
                                        _mm512_extracti64x4_epi64((__m512i)x, 1));
  return (I32)_mm512_castsi128_si512(
      _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

/// Transposes the 4 x 4 bytes of each 128-bit lane.
VARVE_INLINE I32 TransposeFours(I32 x) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm512_shuffle_epi8((__m512i)x, _mm512_broadcast_i32x4(order));
}

/// |x| of signed bytes.
VARVE_INLINE I32 Magnitudes(I32 x) { return (I32)_mm512_abs_epi8((__m512i)x); }

/// index + 1 in bytes whose magnitude is at least `least`, unsigned.
VARVE_INLINE I32 CountReached(I32 index, I32 magnitude, I32 least) {
  return (I32)_mm512_mask_add_epi8((__m512i)index,
                                   _mm512_cmpge_epu8_mask((__m512i)magnitude, (__m512i)least),
                                   (__m512i)index, _mm512_set1_epi8(1));
}

VARVE_INLINE I32 LookBytes(I32 table, I32 index) {
  return (I32)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
}

/// sum + the four products of bytes up to 127 in each dword.
VARVE_INLINE I32 AddProducts(I32 sum, I32 a, I32 b) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

/// Codes of indices into a positive half: half + index, half - 1 - index where `sign` is negative.
VARVE_INLINE I32 HalfCodes(I32 index, I32 sign, int half) {
  const __m512i base = _mm512_set1_epi8(static_cast<char>(half));
  return (I32)_mm512_mask_sub_epi8(_mm512_add_epi8((__m512i)index, base),
                                   _mm512_movepi8_mask((__m512i)sign),
                                   _mm512_set1_epi8(static_cast<char>(half - 1)), (__m512i)index);
}

VARVE_INLINE F32 Ceil(F32 x) { return (F32)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_POS_INF); }

/// A bit for each lane of a mask.
VARVE_INLINE uint32_t LaneBits(I32 mask) { return _mm512_movepi32_mask((__m512i)mask); }

/// The low half of each lane.
VARVE_INLINE void StoreWords(uint16_t* p, I32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16((__m512i)x));
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_LANES_AVX512_H_
