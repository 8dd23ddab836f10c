// Row operations on AVX2 + FMA + F16C: eight floats a register, tails by masked loads and stores.
#include <immintrin.h>

#include "kernels/rows/rows.h"

namespace varve {
namespace {

constexpr int kLanes = 8;

inline __m256i Tail(int left) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline __m256 Load(const float* x, int left) {
  return left >= kLanes ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, Tail(left));
}

inline void Store(float* x, int left, __m256 v) {
  if (left >= kLanes) {
    _mm256_storeu_ps(x, v);
  } else {
    _mm256_maskstore_ps(x, Tail(left), v);
  }
}

void FromF16(const uint16_t* in, float* out, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    _mm256_storeu_ps(out + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  }
  for (; i < n; ++i) out[i] = _cvtsh_ss(in[i]);
}

inline __m256 InRegister(__m256 x, int size) {
  if (size >= 2) {
    const __m256 swap = _mm256_permute_ps(x, 0xb1);
    x = _mm256_blend_ps(_mm256_add_ps(x, swap), _mm256_sub_ps(swap, x), 0xaa);
  }
  if (size >= 4) {
    const __m256 swap = _mm256_permute_ps(x, 0x4e);
    x = _mm256_blend_ps(_mm256_add_ps(x, swap), _mm256_sub_ps(swap, x), 0xcc);
  }
  if (size >= 8) {
    const __m256 swap = _mm256_permute2f128_ps(x, x, 1);
    x = _mm256_blend_ps(_mm256_add_ps(x, swap), _mm256_sub_ps(swap, x), 0xf0);
  }
  return x;
}

void RotateRow(float* x, int n, int size, float factor) {
  const __m256 norm = _mm256_set1_ps(1.0f / __builtin_sqrtf(static_cast<float>(size)) * factor);
  for (int i = 0; i < n; i += kLanes) {
    __m256 v = InRegister(Load(x + i, n - i), size);
    if (size <= kLanes) v = _mm256_mul_ps(v, norm);
    Store(x + i, n - i, v);
  }
  for (int half = kLanes; half < size; half *= 2) {
    const bool last = 2 * half == size;
    for (int first = 0; first < n; first += 2 * half) {
      for (int i = first; i < first + half; i += kLanes) {
        const __m256 a = _mm256_loadu_ps(x + i);
        const __m256 b = _mm256_loadu_ps(x + i + half);
        __m256 sum = _mm256_add_ps(a, b);
        __m256 difference = _mm256_sub_ps(a, b);
        if (last) {
          sum = _mm256_mul_ps(sum, norm);
          difference = _mm256_mul_ps(difference, norm);
        }
        _mm256_storeu_ps(x + i, sum);
        _mm256_storeu_ps(x + i + half, difference);
      }
    }
  }
}

void Gather(const float* x, const int16_t* channel, const float* scale, float factor, float* out,
            int n) {
  for (int i = 0; i < n; ++i) out[i] = channel[i] < 0 ? 0.0f : x[channel[i]] * scale[i] * factor;
}

float Peak(const float* x, int n) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 peak = _mm256_setzero_ps();
  for (int i = 0; i < n; i += kLanes)
    peak = _mm256_max_ps(_mm256_andnot_ps(sign, Load(x + i, n - i)), peak);
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(peak), _mm256_extractf128_ps(peak, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

void ToIntegers(const float* x, float inverse, int16_t* out, int n) {
  const __m256 inverses = _mm256_set1_ps(inverse);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverses));
    const __m128i packed =
        _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), packed);
  }
  for (; i < n; ++i) out[i] = static_cast<int16_t>(_mm_cvtss_si32(_mm_set_ss(x[i] * inverse)));
}

inline float Total(__m256 x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

void Dot(const float* q, const float* k, ptrdiff_t stride, int n_tokens, int n, float* out) {
  for (int t = 0; t < n_tokens; ++t) {
    const float* row = k + t * stride;
    __m256 sum = _mm256_setzero_ps();
    for (int i = 0; i < n; i += kLanes)
      sum = _mm256_fmadd_ps(Load(q + i, n - i), Load(row + i, n - i), sum);
    out[t] = Total(sum);
  }
}

void AddWeighted(const float* weight, const float* v, ptrdiff_t stride, int n_tokens, int n,
                 float factor, float* out) {
  for (int i = 0; i < n; i += kLanes) {
    __m256 sum = Load(out + i, n - i);
    for (int t = 0; t < n_tokens; ++t) {
      if (weight[t] == 0) continue;
      sum =
          _mm256_fmadd_ps(_mm256_set1_ps(weight[t] * factor), Load(v + t * stride + i, n - i), sum);
    }
    Store(out + i, n - i, sum);
  }
}

}  // namespace

constinit const RowKernels kRowsAvx2 = {FromF16,    RotateRow, Gather,     Peak,
                                        ToIntegers, Dot,       AddWeighted};

}  // namespace varve
