// Tiles on AVX-512: a channel of a tile is one register.
#include <immintrin.h>

#include "kernels/tile/tile.h"

namespace varve {
namespace {

constexpr int kWidth = 16;
constexpr int kMaxRadix = 16;

typedef float F32 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));

/// table[index] of kEntries floats.
template <int kEntries>
__attribute__((always_inline)) inline F32 Look(const float* table, I32 index) {
  if constexpr (kEntries > 16) {
    return (F32)_mm512_permutex2var_ps(_mm512_load_ps(table), (__m512i)index,
                                       _mm512_load_ps(table + 16));
  } else {
    return (F32)_mm512_permutexvar_ps((__m512i)index, _mm512_load_ps(table));
  }
}

__attribute__((always_inline)) inline I32 WidenBytes(const uint8_t* p) {
  return (I32)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

__attribute__((always_inline)) inline void StoreBytes(uint8_t* p, I32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)x));
}

__attribute__((always_inline)) inline F32 ToFloat(I32 x) {
  return (F32)_mm512_cvtepi32_ps((__m512i)x);
}

__attribute__((always_inline)) inline F32 Sqrt(F32 x) { return (F32)_mm512_sqrt_ps((__m512)x); }

/// The second operand wins where the first is a NaN.
__attribute__((always_inline)) inline F32 Max(F32 a, F32 b) {
  return (F32)_mm512_max_ps((__m512)a, (__m512)b);
}

__attribute__((always_inline)) inline F32 Min(F32 a, F32 b) {
  return (F32)_mm512_min_ps((__m512)a, (__m512)b);
}

/// candidate where m >= threshold, otherwise index.
__attribute__((always_inline)) inline I32 Step(F32 m, F32 threshold, I32 candidate, I32 index) {
  return (I32)_mm512_mask_mov_epi32((__m512i)index,
                                    _mm512_cmp_ps_mask((__m512)m, (__m512)threshold, _CMP_GE_OQ),
                                    (__m512i)candidate);
}

}  // namespace
}  // namespace varve

#include "kernels/tile/tile_body.h"

namespace varve {

constinit const TileKernels kTileAvx512 = {Load, Gather, RotateTile, Code, Store};

}  // namespace varve
