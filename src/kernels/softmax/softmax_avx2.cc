// softmax on AVX2 + FMA + F16C: an item is four registers of 8 cells.
// Weights: [token quad] of {w0, w2, w1, w3} int16, the word pairs that VPMADDWD meets with even and
// odd bytes.
#include <immintrin.h>

#include "kernels/softmax/softmax.h"

namespace varve {
namespace {

#define VARVE_INLINE __attribute__((always_inline)) inline

constexpr int kPieces = 4;

VARVE_INLINE __m256 Exp2(__m256 x) {
  x = _mm256_max_ps(x, _mm256_set1_ps(-126.0f));
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_sub_ps(x, whole);
  __m256 p = _mm256_set1_ps(kExp2Coefficient[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2Coefficient[i]));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

VARVE_INLINE __m256 Tanh(__m256 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 magnitude = _mm256_andnot_ps(sign, x);
  const __m256 e = Exp2(_mm256_min_ps(_mm256_mul_ps(magnitude, _mm256_set1_ps(2.8853900817779268f)),
                                      _mm256_set1_ps(60.0f)));
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 t = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(one, e)));
  // min() above hides a NaN.
  return _mm256_blendv_ps(_mm256_or_ps(t, _mm256_and_ps(x, sign)), x,
                          _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

VARVE_INLINE float MaxOf(__m256 x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

/// Folds 32 lanes 16, 8, 4, 2 and 1 apart, as the reference does.
VARVE_INLINE float FoldAdd(const __m256 (&w)[kPieces]) {
  const __m256 eight = _mm256_add_ps(_mm256_add_ps(w[0], w[2]), _mm256_add_ps(w[1], w[3]));
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

/// Lanes that are NaN or +inf.
VARVE_INLINE __m256 Bad(__m256 x) {
  return _mm256_cmp_ps(x, _mm256_set1_ps(__builtin_inff()), _CMP_NLT_UQ);
}

VARVE_INLINE __m256 Gains(const uint16_t* gains, int piece) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(gains + 8 * piece)));
}

VARVE_INLINE __m256i PairOrder(__m256i words) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1,
                                         4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  return _mm256_shuffle_epi8(words, order);
}

void Item(SoftmaxArgs& args, int item) {
  float* logits = args.logits + 32 * item;
  const float* bias = args.bias[item];
  const uint16_t* gains = args.v_gains[item];
  const __m256 minus_inf = _mm256_set1_ps(-__builtin_inff());
  __m256 x[kPieces];
  __m256 part[kPieces];
  __m256 bad = _mm256_setzero_ps();
  __m256 max = minus_inf;
  __m256 gain_max = _mm256_setzero_ps();
  for (int p = 0; p < kPieces; ++p) {
    x[p] = _mm256_loadu_ps(logits + 8 * p);
    part[p] = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    if (args.cap != 0) x[p] = _mm256_mul_ps(_mm256_set1_ps(args.cap), Tanh(x[p]));
    if (bias != nullptr) {
      const __m256 b = _mm256_loadu_ps(bias + 8 * p);
      part[p] = _mm256_cmp_ps(b, minus_inf, _CMP_NEQ_UQ);
      x[p] = _mm256_and_ps(part[p], _mm256_fmadd_ps(_mm256_set1_ps(args.slope[item]), b, x[p]));
    }
    bad = _mm256_or_ps(bad, Bad(x[p]));
    x[p] = _mm256_blendv_ps(minus_inf, x[p], part[p]);
    max = _mm256_max_ps(max, x[p]);
    if (gains != nullptr) {
      const __m256 gain = _mm256_and_ps(part[p], Gains(gains, p));
      bad = _mm256_or_ps(bad, _mm256_cmp_ps(gain, gain, _CMP_UNORD_Q));
      gain_max = _mm256_max_ps(gain_max, gain);
    }
  }
  const bool is_bad = _mm256_movemask_ps(bad) != 0;
  const float top = MaxOf(max);
  auto* weights = static_cast<__m256i*>(args.weights) + 2 * item;
  args.exponent[item] = kNoExponent;
  args.sum[item] = is_bad ? __builtin_nanf("") : 0.0f;
  args.unit[item] = 0;
  if (is_bad || top == -__builtin_inff()) {
    for (int p = 0; p < kPieces; ++p) _mm256_storeu_ps(logits + 8 * p, _mm256_setzero_ps());
    weights[0] = weights[1] = _mm256_setzero_si256();
    return;
  }
  const __m256 exponent = _mm256_ceil_ps(_mm256_set1_ps(top));
  const float gain_top = __builtin_fmaxf(MaxOf(gain_max), 1e-30f);
  const __m256 per_unit = _mm256_set1_ps(32767.0f / gain_top);
  __m256 w[kPieces];
  __m256i whole[kPieces];
  for (int p = 0; p < kPieces; ++p) {
    w[p] = _mm256_and_ps(part[p], Exp2(_mm256_sub_ps(x[p], exponent)));
    if (gains == nullptr) {
      _mm256_storeu_ps(logits + 8 * p, w[p]);
    } else {
      const __m256 gain = _mm256_and_ps(part[p], Gains(gains, p));
      whole[p] = _mm256_cvtps_epi32(_mm256_mul_ps(w[p], _mm256_mul_ps(gain, per_unit)));
    }
  }
  if (gains != nullptr) {
    for (int half = 0; half < 2; ++half) {
      const __m256i words = _mm256_packs_epi32(whole[2 * half], whole[2 * half + 1]);
      weights[half] = PairOrder(_mm256_permute4x64_epi64(words, 0xd8));
    }
  }
  args.exponent[item] = _mm256_cvtsi256_si32(_mm256_cvtps_epi32(exponent));
  args.sum[item] = FoldAdd(w);
  args.unit[item] = gain_top / 32767.0f;
}

#undef VARVE_INLINE

}  // namespace

void SoftmaxAvx2(SoftmaxArgs& args) {
  for (int item = 0; item < args.n_items; ++item) Item(args, item);
}

}  // namespace varve
