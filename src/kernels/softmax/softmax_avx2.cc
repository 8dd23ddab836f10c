// softmax on AVX2 + FMA + F16C. An item is four registers of 8 cells; the maxima and sums of 8
// items are found together, by one tree that ends with one item a lane. Weights: [token quad] of
// {w0, w2, w1, w3} int16, the word pairs that VPMADDWD meets with even and odd bytes.
#include <immintrin.h>

#include "kernels/softmax/softmax.h"

namespace varve {
namespace {

#define VARVE_INLINE __attribute__((always_inline)) inline

constexpr int kPieces = 4;
constexpr int kItems = 8;

VARVE_INLINE __m256 Exp2(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-126.0f), x);  // of a NaN and a number the second operand wins
  const __m256 whole = _mm256_floor_ps(x);
  const __m256 r = _mm256_sub_ps(x, whole);
  __m256 p = _mm256_set1_ps(kExp2Coefficient[kExp2Degree]);
#pragma GCC unroll 4
  for (int i = kExp2Degree - 1; i >= 0; --i)
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExp2Coefficient[i]));
  const __m256i octaves = _mm256_slli_epi32(_mm256_cvtps_epi32(whole), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), octaves));
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

struct Max {
  static VARVE_INLINE __m256 Of(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
};

struct Add {
  static VARVE_INLINE __m256 Of(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
};

/// Of f16 numbers two a lane. Gains are not negative, so their bits order as they do, and a NaN is
/// above all.
struct MaxBits {
  static VARVE_INLINE __m256 Of(__m256 a, __m256 b) {
    return _mm256_castsi256_ps(_mm256_max_epu16(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
};

/// Lane i of the result is row i folded by halves: lanes 4 apart, then 2 and 1, as the reference
/// folds.
template <typename Op>
VARVE_INLINE __m256 FoldRows(const __m256* rows) {
  __m256 level[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 a = rows[i];
    const __m256 b = rows[i + 4];
    level[i] = Op::Of(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256 a = level[i];
    const __m256 b = level[i + 2];
    level[i] = Op::Of(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  }
  const __m256 folded = Op::Of(_mm256_shuffle_ps(level[0], level[1], 0x88),
                               _mm256_shuffle_ps(level[0], level[1], 0xdd));
  // The foldings leave row r in lane order[r].
  return _mm256_permutevar8x32_ps(folded, _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7));
}

VARVE_INLINE __m256 Gains(const uint16_t* gains, int piece) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(gains + 8 * piece)));
}

/// Undoes the lanes of VPACKSSDW and swaps the middle words of each quad of tokens.
VARVE_INLINE __m256i WordOrder(__m256i packed) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1,
                                         4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(packed, 0xd8), order);
}

/// Which cells of an item take part.
VARVE_INLINE __m256 PartOf(const float* bias, int piece) {
  return _mm256_cmp_ps(_mm256_loadu_ps(bias + 8 * piece), _mm256_set1_ps(-__builtin_inff()),
                       _CMP_NEQ_UQ);
}

/// Brings an item's logits to what the exponential takes, with -inf where a cell takes no part.
VARVE_INLINE void Bias(const SoftmaxArgs& args, int item) {
  float* logits = args.logits + 32 * item;
  const float* bias = args.bias[item];
  for (int p = 0; p < kPieces; ++p) {
    __m256 x = _mm256_loadu_ps(logits + 8 * p);
    if (args.cap != 0) x = _mm256_mul_ps(_mm256_set1_ps(args.cap), Tanh(x));
    if (bias != nullptr) {
      const __m256 b = _mm256_loadu_ps(bias + 8 * p);
      x = _mm256_fmadd_ps(_mm256_set1_ps(args.slope[item]), b, x);
      x = _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, PartOf(bias, p));
    }
    _mm256_storeu_ps(logits + 8 * p, x);
  }
}

/// Gains as bits, 0 where a cell takes no part; half: cells 0..15 or 16..31.
VARVE_INLINE __m256i GainBits(const uint16_t* gains, const float* bias, int half) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(gains + 16 * half));
  if (bias == nullptr) return bits;
  const __m256i words = _mm256_packs_epi32(_mm256_castps_si256(PartOf(bias, 2 * half)),
                                           _mm256_castps_si256(PartOf(bias, 2 * half + 1)));
  return _mm256_and_si256(bits, _mm256_permute4x64_epi64(words, 0xd8));
}

/// Items first .. first + n - 1, n at most 8.
template <bool kOpen>
VARVE_INLINE void Items(SoftmaxArgs& args, int first, int n) {
  const __m256 minus_inf = _mm256_set1_ps(-__builtin_inff());
  __m256 rows[kItems];
  __m256 gain_rows[kItems];
  for (int i = 0; i < kItems; ++i) {
    rows[i] = minus_inf;
    gain_rows[i] = _mm256_setzero_ps();
    if (i >= n) continue;
    const int item = first + i;
    if constexpr (!kOpen) Bias(args, item);
    const float* x = args.logits + 32 * item;
    rows[i] = _mm256_max_ps(_mm256_max_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)),
                            _mm256_max_ps(_mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)));
    if (kOpen || args.v_gains[item] != nullptr) {
      const float* bias = kOpen ? nullptr : args.bias[item];
      gain_rows[i] = _mm256_castsi256_ps(_mm256_max_epu16(GainBits(args.v_gains[item], bias, 0),
                                                          GainBits(args.v_gains[item], bias, 1)));
    }
  }
  const __m256 exponent = _mm256_ceil_ps(FoldRows<Max>(rows));
  const __m256i pairs = _mm256_castps_si256(FoldRows<MaxBits>(gain_rows));
  const __m256i bits = _mm256_and_si256(_mm256_max_epu16(pairs, _mm256_srli_epi32(pairs, 16)),
                                        _mm256_set1_epi32(0xffff));
  const __m256 gain = _mm256_cvtph_ps(
      _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
  const __m256 gain_max = _mm256_max_ps(gain, _mm256_set1_ps(1e-30f));
  alignas(32) float exponents[kItems];
  alignas(32) float per_unit[kItems];
  _mm256_store_ps(exponents, exponent);
  _mm256_store_ps(per_unit, _mm256_div_ps(_mm256_set1_ps(32767.0f), gain_max));

  alignas(32) int32_t packed[kItems] = {};
  for (int i = 0; i < n; ++i) {
    const int item = first + i;
    float* x = args.logits + 32 * item;
    const float* bias = kOpen ? nullptr : args.bias[item];
    const uint16_t* gains = args.v_gains[item];
    const __m256 e = _mm256_set1_ps(exponents[i]);
    __m256 w[kPieces];
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) {
      w[p] = Exp2(_mm256_sub_ps(_mm256_loadu_ps(x + 8 * p), e));
      if (bias != nullptr) w[p] = _mm256_and_ps(w[p], PartOf(bias, p));
    }
    rows[i] = _mm256_add_ps(_mm256_add_ps(w[0], w[2]), _mm256_add_ps(w[1], w[3]));
    if (!kOpen && gains == nullptr) {
      for (int p = 0; p < kPieces; ++p) _mm256_storeu_ps(x + 8 * p, w[p]);
      continue;
    }
    packed[i] = -1;
    const __m256 unit = _mm256_set1_ps(per_unit[i]);
    __m256i whole[kPieces];
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) {
      whole[p] = _mm256_cvtps_epi32(_mm256_mul_ps(w[p], _mm256_mul_ps(Gains(gains, p), unit)));
      // A cell that takes no part may hold a NaN.
      if (bias != nullptr)
        whole[p] = _mm256_and_si256(whole[p], _mm256_castps_si256(PartOf(bias, p)));
    }
    auto* weights = static_cast<__m256i*>(args.weights) + 2 * item;
    weights[0] = WordOrder(_mm256_packs_epi32(whole[0], whole[1]));
    weights[1] = WordOrder(_mm256_packs_epi32(whole[2], whole[3]));
  }
  for (int i = n; i < kItems; ++i) rows[i] = _mm256_setzero_ps();

  const __m256 sums = FoldRows<Add>(rows);
  const __m256 bad = _mm256_or_ps(_mm256_cmp_ps(sums, sums, _CMP_UNORD_Q),
                                  _mm256_cmp_ps(gain, gain, _CMP_UNORD_Q));
  const __m256 seen = _mm256_cmp_ps(exponent, minus_inf, _CMP_GT_OQ);
  const __m256 present = _mm256_andnot_ps(bad, seen);
  const __m256i none = _mm256_set1_epi32(kNoExponent);
  const __m256i e =
      _mm256_blendv_epi8(none, _mm256_cvtps_epi32(exponent), _mm256_castps_si256(present));
  const __m256 sum =
      _mm256_blendv_ps(_mm256_and_ps(sums, present), _mm256_set1_ps(__builtin_nanf("")), bad);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(args.exponent + first), e);
  _mm256_storeu_ps(args.sum + first, sum);
  const __m256 level = _mm256_and_ps(_mm256_loadu_ps(args.unit + first), present);
  const __m256 weight = _mm256_mul_ps(gain_max, _mm256_set1_ps(1.0f / 32767.0f));
  const __m256 is_packed =
      _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(packed)));
  const __m256 unit = _mm256_blendv_ps(level, _mm256_mul_ps(level, weight), is_packed);
  _mm256_storeu_ps(args.unit + first, unit);

  const __m256i octaves =
      _mm256_sub_epi32(e, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(args.base + first)));
  const __m256i above = _mm256_sub_epi32(octaves, _mm256_set1_epi32(kMinOctaves));
  const __m256i near = _mm256_cmpeq_epi32(
      above, _mm256_min_epu32(above, _mm256_set1_epi32(kMaxOctaves - kMinOctaves)));
  const __m256i power_bits =
      _mm256_slli_epi32(_mm256_add_epi32(octaves, _mm256_set1_epi32(127)), 23);
  const __m256 power = _mm256_castsi256_ps(_mm256_and_si256(near, power_bits));
  _mm256_storeu_ps(args.share + first, _mm256_mul_ps(sum, power));
  _mm256_storeu_ps(args.factor + first, _mm256_mul_ps(unit, power));
  const int items = (1 << n) - 1;
  args.near = args.near && (_mm256_movemask_ps(_mm256_castsi256_ps(near)) & items) == items;
}

#undef VARVE_INLINE

}  // namespace

void SoftmaxAvx2(SoftmaxArgs& args) {
  args.near = true;
  for (int first = 0; first < args.n_items; first += kItems) {
    const int n = args.n_items - first < kItems ? args.n_items - first : kItems;
    if (args.open) {
      Items<true>(args, first, n);
    } else {
      Items<false>(args, first, n);
    }
  }
}

}  // namespace varve
