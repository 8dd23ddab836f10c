// Tiles on AVX2: a channel of a tile is two registers.
#include <immintrin.h>

#include "kernels/tile/tile.h"

namespace varve {
namespace {

constexpr int kWidth = 8;
constexpr int kMaxRadix = 8;

typedef float F32 __attribute__((vector_size(32)));
typedef int32_t I32 __attribute__((vector_size(32)));

/// table[index] of kEntries floats.
template <int kEntries>
__attribute__((always_inline)) inline F32 Look(const float* table, I32 index) {
  if constexpr (kEntries > 8) {
    return (F32)_mm256_i32gather_ps(table, (__m256i)index, 4);
  } else {
    return (F32)_mm256_permutevar8x32_ps(_mm256_load_ps(table), (__m256i)index);
  }
}

__attribute__((always_inline)) inline I32 WidenBytes(const uint8_t* p) {
  return (I32)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

__attribute__((always_inline)) inline void StoreBytes(uint8_t* p, I32 x) {
  const __m256i order = _mm256_set1_epi32(0x0c080400);
  const __m256i bytes = _mm256_shuffle_epi8((__m256i)x, order);
  _mm_storel_epi64(
      reinterpret_cast<__m128i*>(p),
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}

__attribute__((always_inline)) inline F32 ToFloat(I32 x) {
  return (F32)_mm256_cvtepi32_ps((__m256i)x);
}

__attribute__((always_inline)) inline F32 Sqrt(F32 x) { return (F32)_mm256_sqrt_ps((__m256)x); }

/// The second operand wins where the first is a NaN.
__attribute__((always_inline)) inline F32 Max(F32 a, F32 b) {
  return (F32)_mm256_max_ps((__m256)a, (__m256)b);
}

__attribute__((always_inline)) inline F32 Min(F32 a, F32 b) {
  return (F32)_mm256_min_ps((__m256)a, (__m256)b);
}

/// candidate where m >= threshold, otherwise index.
__attribute__((always_inline)) inline I32 Step(F32 m, F32 threshold, I32 candidate, I32 index) {
  return (I32)_mm256_blendv_ps((__m256)index, (__m256)candidate,
                               _mm256_cmp_ps((__m256)m, (__m256)threshold, _CMP_GE_OQ));
}

}  // namespace
}  // namespace varve

#include "kernels/tile/tile_body.h"

namespace varve {

constinit const TileKernels kTileAvx2 = {Load, Gather, RotateTile, Code, Store};

}  // namespace varve
