// Row operations on AVX-512: sixteen floats a register, tails by masks.
#include <immintrin.h>

#include "kernels/rows/rows.h"

namespace varve {
namespace {

constexpr int kLanes = 16;

inline __mmask16 Tail(int left) {
  return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

void FromF16(const uint16_t* in, float* out, int n) {
  for (int i = 0; i < n; i += kLanes) {
    const __mmask16 m = Tail(n - i);
    _mm512_mask_storeu_ps(out + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, in + i)));
  }
}

/// One butterfly stage inside a register: lanes `half` apart. `swap` is x with its halves
/// exchanged.
inline __m512 Butterfly(__m512 x, __m512 swap, __mmask16 upper) {
  const __m512 sum = _mm512_add_ps(x, swap);
  return _mm512_mask_sub_ps(sum, upper, swap, x);
}

inline __m512 InRegister(__m512 x, int size) {
  if (size >= 2) x = Butterfly(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
  if (size >= 4) x = Butterfly(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
  if (size >= 8) x = Butterfly(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
  if (size >= 16) x = Butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
  return x;
}

void RotateRow(float* x, int n, int size, float factor) {
  const __m512 norm = _mm512_set1_ps(1.0f / __builtin_sqrtf(static_cast<float>(size)) * factor);
  for (int i = 0; i < n; i += kLanes) {
    const __mmask16 m = Tail(n - i);
    __m512 v = InRegister(_mm512_maskz_loadu_ps(m, x + i), size);
    if (size <= kLanes) v = _mm512_mul_ps(v, norm);
    _mm512_mask_storeu_ps(x + i, m, v);
  }
  for (int half = kLanes; half < size; half *= 2) {
    const bool last = 2 * half == size;
    for (int first = 0; first < n; first += 2 * half) {
      for (int i = first; i < first + half; i += kLanes) {
        const __m512 a = _mm512_loadu_ps(x + i);
        const __m512 b = _mm512_loadu_ps(x + i + half);
        __m512 sum = _mm512_add_ps(a, b);
        __m512 difference = _mm512_sub_ps(a, b);
        if (last) {
          sum = _mm512_mul_ps(sum, norm);
          difference = _mm512_mul_ps(difference, norm);
        }
        _mm512_storeu_ps(x + i, sum);
        _mm512_storeu_ps(x + i + half, difference);
      }
    }
  }
}

void Gather(const float* x, const int16_t* channel, const float* scale, float factor, float* out,
            int n) {
  const __m512 factors = _mm512_set1_ps(factor);
  for (int i = 0; i < n; i += kLanes) {
    const __mmask16 m = Tail(n - i);
    const __m512i index =
        _mm512_cvtepi16_epi32(_mm256_mask_loadu_epi16(_mm256_set1_epi16(-1), m, channel + i));
    const __mmask16 real = _mm512_cmpge_epi32_mask(index, _mm512_setzero_si512());
    const __m512 v = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), real, index, x, 4);
    const __m512 scaled =
        _mm512_mul_ps(_mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, scale + i)), factors);
    _mm512_mask_storeu_ps(out + i, m, _mm512_maskz_mov_ps(real, scaled));
  }
}

float Peak(const float* x, int n) {
  __m512 peak = _mm512_setzero_ps();
  for (int i = 0; i < n; i += kLanes) {
    // The second operand wins where the first is a NaN.
    peak = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(Tail(n - i), x + i)), peak);
  }
  return _mm512_reduce_max_ps(peak);
}

void ToIntegers(const float* x, float inverse, int16_t* out, int n) {
  const __m512 inverses = _mm512_set1_ps(inverse);
  for (int i = 0; i < n; i += kLanes) {
    const __mmask16 m = Tail(n - i);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inverses);
    _mm256_mask_storeu_epi16(out + i, m, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(scaled)));
  }
}

void Dot(const float* q, const float* k, ptrdiff_t stride, int n_tokens, int n, float* out) {
  for (int t = 0; t < n_tokens; ++t) {
    const float* row = k + t * stride;
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < n; i += kLanes) {
      const __mmask16 m = Tail(n - i);
      sum =
          _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, q + i), _mm512_maskz_loadu_ps(m, row + i), sum);
    }
    out[t] = _mm512_reduce_add_ps(sum);
  }
}

void AddWeighted(const float* weight, const float* v, ptrdiff_t stride, int n_tokens, int n,
                 float factor, float* out) {
  for (int i = 0; i < n; i += kLanes) {
    const __mmask16 m = Tail(n - i);
    __m512 sum = _mm512_maskz_loadu_ps(m, out + i);
    for (int t = 0; t < n_tokens; ++t) {
      if (weight[t] == 0) continue;
      sum = _mm512_fmadd_ps(_mm512_set1_ps(weight[t] * factor),
                            _mm512_maskz_loadu_ps(m, v + t * stride + i), sum);
    }
    _mm512_mask_storeu_ps(out + i, m, sum);
  }
}

}  // namespace

constinit const RowKernels kRowsAvx512 = {FromF16,    RotateRow, Gather,     Peak,
                                          ToIntegers, Dot,       AddWeighted};

}  // namespace varve
