// Vectors of numbers on AVX2 for the bodies that both levels share (kernels/*/..._body.h), for the
// kernel files of that level alone: everything here is internal to each.
#ifndef VARVE_KERNELS_LANES_AVX2_H_
#define VARVE_KERNELS_LANES_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/half_book.h"

#define VARVE_INLINE __attribute__((always_inline)) inline

namespace varve {
namespace {

constexpr int kWidth = 8;
constexpr int kMaxRadix = 8;

typedef float F32 __attribute__((vector_size(32)));
typedef int32_t I32 __attribute__((vector_size(32)));
typedef uint32_t U32 __attribute__((vector_size(32)));
typedef int16_t I16 __attribute__((vector_size(32)));

/// table[index] of up to 32 floats. Why not a gather: it costs 8 loads, and more where microcode
/// guards it.
template <int kEntries>
VARVE_INLINE __m256 Look(const float* table, __m256i index) {
  const auto eight = [&](int first) __attribute__((always_inline)) {
    return _mm256_permutevar8x32_ps(_mm256_load_ps(table + first), index);
  };
  // Blends look at the sign.
  const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
  if constexpr (kEntries <= 8) {
    return eight(0);
  } else if constexpr (kEntries <= 16) {
    return _mm256_blendv_ps(eight(0), eight(8), bit3);
  } else {
    const __m256 bit4 = _mm256_castsi256_ps(_mm256_slli_epi32(index, 27));
    return _mm256_blendv_ps(_mm256_blendv_ps(eight(0), eight(8), bit3),
                            _mm256_blendv_ps(eight(16), eight(24), bit3), bit4);
  }
}

VARVE_INLINE F32 ToFloat(I32 x) { return (F32)_mm256_cvtepi32_ps((__m256i)x); }

/// Nearest integers, ties to even.
VARVE_INLINE I32 ToNearest(F32 x) { return (I32)_mm256_cvtps_epi32((__m256)x); }

/// kWidth 16-bit integers.
VARVE_INLINE I32 WidenWords(const int16_t* p) {
  return (I32)_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

/// The low byte of each lane.
VARVE_INLINE void StoreBytes(uint8_t* p, I32 x) {
  const __m256i bytes = _mm256_shuffle_epi8((__m256i)x, _mm256_set1_epi32(0x0c080400));
  _mm_storel_epi64(
      reinterpret_cast<__m128i*>(p),
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}

VARVE_INLINE F32 Sqrt(F32 x) { return (F32)_mm256_sqrt_ps((__m256)x); }

/// The second operand wins where the first is a NaN.
VARVE_INLINE F32 Max(F32 a, F32 b) { return (F32)_mm256_max_ps((__m256)a, (__m256)b); }
VARVE_INLINE F32 Min(F32 a, F32 b) { return (F32)_mm256_min_ps((__m256)a, (__m256)b); }

struct Found {
  F32 level;
  I32 index;
};

/// What FindMagnitude() takes its magnitudes times.
template <int kBits>
constexpr float kSearchScale = 1.0f;

/// Nearest level to a magnitude, and its index in the positive half.
template <int kBits>
VARVE_INLINE Found FindMagnitude(F32 m) {
  constexpr int kHalf = 1 << (kBits - 1);
  constexpr const HalfBook& book = kHalfBook<kBits>;
  __m256i index = _mm256_setzero_si256();
#pragma GCC unroll 5
  for (int step = kBits - 2; step >= 0; --step) {
    const __m256 decision = kHalf >> step > 16 ? Look<16>(book.decision[step], index)
                            : step < kBits - 2 ? Look<8>(book.decision[step], index)
                                               : _mm256_set1_ps(book.decision[step][0]);
    const __m256 high = _mm256_cmp_ps((__m256)m, decision, _CMP_GE_OQ);
    index = _mm256_sub_epi32(_mm256_add_epi32(index, index), _mm256_castps_si256(high));
  }
  return {(F32)Look<kHalf>(book.level, index), (I32)index};
}

/// Lanes below 0; -0 is not.
struct Negative {
  I32 lanes;  ///< -1
};

VARVE_INLINE Negative IsNegative(F32 x) { return {x < 0}; }

VARVE_INLINE F32 WithSign(F32 magnitude, Negative negative) {
  return (F32)((I32)magnitude | (negative.lanes & static_cast<int32_t>(0x80000000u)));
}

/// half + index, or half - 1 - index.
VARVE_INLINE I32 SignedCode(I32 index, Negative negative, int half) {
  return (index ^ negative.lanes) + half;
}

VARVE_INLINE I32 Or3(I32 a, I32 b, I32 c) { return a | b | c; }

/// a * b + c, rounded once.
VARVE_INLINE F32 FusedAdd(F32 a, F32 b, F32 c) {
  return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

/// max(|x|, top), top >= 0; any number where x is a NaN.
VARVE_INLINE F32 MaxMagnitude(F32 x, F32 top) { return Max((F32)((I32)x & 0x7fffffff), top); }

/// Sixteen lanes added by halves.
VARVE_INLINE float FoldLanes(const F32* part) {
  const auto sum = (__m256)(part[0] + part[1]);
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

VARVE_INLINE float FoldMax(const F32* part) {
  const auto top = (__m256)Max(part[0], part[1]);
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

/// The butterflies of a Walsh-Hadamard transform inside a register: lanes 1, 2, 4 apart. A factor
/// of 1 or -1 makes a fused multiply-add an exact sum or difference.
VARVE_INLINE F32 Butterflies(F32 lanes) {
  auto x = (__m256)lanes;
  x = _mm256_fmadd_ps(x, _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1), _mm256_permute_ps(x, 0xb1));
  x = _mm256_fmadd_ps(x, _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1), _mm256_permute_ps(x, 0x4e));
  x = _mm256_fmadd_ps(x, _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1),
                      _mm256_permute2f128_ps(x, x, 1));
  return (F32)x;
}

/// Bytes of four registers of small integers: dword r of 128-bit lane l holds lane l of part[r].
VARVE_INLINE I32 PackFour(const I32* part) {
  return (I32)_mm256_packs_epi16(_mm256_packs_epi32((__m256i)part[0], (__m256i)part[1]),
                                 _mm256_packs_epi32((__m256i)part[2], (__m256i)part[3]));
}

/// Byte `byte` of each dword at p becomes that lane's low byte.
VARVE_INLINE void PutByte(uint8_t* p, int byte, I32 x) {
  auto* at = reinterpret_cast<__m256i*>(p);
  const __m128i shift = _mm_cvtsi32_si128(8 * byte);
  const __m256i mask = _mm256_sll_epi32(_mm256_set1_epi32(0xff), shift);
  const __m256i moved = _mm256_sll_epi32((__m256i)x, shift);
  _mm256_storeu_si256(at, _mm256_blendv_epi8(_mm256_loadu_si256(at), moved, mask));
}

/// Two product lines of keys to four rows of 32 levels.
VARVE_INLINE void LoadQuad(const uint8_t* lines, int16_t* rows) {
  for (int half = 0; half < 2; ++half, lines += 64, rows += 16) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines + 32));
    for (int k = 0; k < 4; ++k) {
      const __m256i byte = _mm256_set1_epi32(255);
      const __m256i words =
          _mm256_packus_epi32(_mm256_and_si256(_mm256_srli_epi32(a, 8 * k), byte),
                              _mm256_and_si256(_mm256_srli_epi32(b, 8 * k), byte));
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(rows + 32 * k),
          _mm256_sub_epi16(_mm256_permute4x64_epi64(words, 0xd8), _mm256_set1_epi16(128)));
    }
  }
}

VARVE_INLINE I32 LoadDwords(const void* p) {
  return (I32)_mm256_loadu_si256(static_cast<const __m256i*>(p));
}
VARVE_INLINE F32 LoadFloats(const float* p) { return (F32)_mm256_loadu_ps(p); }

/// 16 bytes in every 128-bit lane.
VARVE_INLINE I32 RepeatFour(const void* p) {
  return (I32)_mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

VARVE_INLINE void StoreFour(float* p, F32 x) {
  _mm_storeu_ps(p, _mm256_castps256_ps128((__m256)x));
}

/// The sum of all 128-bit lanes in the first.
VARVE_INLINE I32 AddFours(I32 x) {
  return (I32)_mm256_castsi128_si256(
      _mm_add_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1)));
}

/// Transposes the 4 x 4 bytes of each 128-bit lane.
VARVE_INLINE I32 TransposeFours(I32 x) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return (I32)_mm256_shuffle_epi8((__m256i)x, _mm256_broadcastsi128_si256(order));
}

/// |x| of signed bytes.
VARVE_INLINE I32 Magnitudes(I32 x) { return (I32)_mm256_abs_epi8((__m256i)x); }

/// index + 1 in bytes whose magnitude is at least `least`, unsigned.
VARVE_INLINE I32 CountReached(I32 index, I32 magnitude, I32 least) {
  const auto m = (__m256i)magnitude;
  return (I32)_mm256_sub_epi8((__m256i)index,
                              _mm256_cmpeq_epi8(_mm256_max_epu8(m, (__m256i)least), m));
}

VARVE_INLINE I32 LookBytes(I32 table, I32 index) {
  return (I32)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
}

/// sum + the four products of bytes up to 127 in each dword.
VARVE_INLINE I32 AddProducts(I32 sum, I32 a, I32 b) {
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
  return (I32)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/// Codes of indices into a positive half: half + index, half - 1 - index where `sign` is negative.
VARVE_INLINE I32 HalfCodes(I32 index, I32 sign, int half) {
  const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), (__m256i)sign);
  return (I32)_mm256_add_epi8(_mm256_xor_si256((__m256i)index, negative),
                              _mm256_set1_epi8(static_cast<char>(half)));
}

VARVE_INLINE F32 Ceil(F32 x) { return (F32)_mm256_ceil_ps((__m256)x); }

/// A bit for each lane of a mask.
VARVE_INLINE uint32_t LaneBits(I32 mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps((__m256i)mask)));
}

/// The low half of each lane.
VARVE_INLINE void StoreWords(uint16_t* p, I32 x) {
  const __m256i words = _mm256_packus_epi32((__m256i)x, (__m256i)x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0x08)));
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_LANES_AVX2_H_
