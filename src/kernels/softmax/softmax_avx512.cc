// softmax on AVX-512. An item is two registers of 16 cells. The maxima of 16 items are found
// together: sixteen registers are halved pairwise, so that one tree of 15 steps ends with one item
// a lane. Weights: 32 high bytes, then 32 low bytes, each in token order: the unsigned operands of
// VPDPBUSD.
#include <immintrin.h>

#include "kernels/softmax/softmax.h"

namespace varve {
namespace {

__attribute__((always_inline)) inline __m512 Exp2(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);  // of a NaN and a number the second operand wins
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(kExp2Coefficient[kExp2Degree]);
#pragma GCC unroll 4
  for (int i = kExp2Degree - 1; i >= 0; --i)
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExp2Coefficient[i]));
  return _mm512_scalef_ps(p, x);  // takes the floor
}

__attribute__((always_inline)) inline __m512 Tanh(__m512 x) {
  const __m512 magnitude = _mm512_abs_ps(x);
  const __m512 e = Exp2(_mm512_min_ps(_mm512_mul_ps(magnitude, _mm512_set1_ps(2.8853900817779268f)),
                                      _mm512_set1_ps(60.0f)));
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 t = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(one, e)));
  const __m512 signed_t = _mm512_or_ps(t, _mm512_and_ps(x, _mm512_set1_ps(-0.0f)));
  // min() above hides a NaN.
  return _mm512_mask_mov_ps(signed_t, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}

struct Max {
  static __attribute__((always_inline)) inline __m512 Of(__m512 a, __m512 b) {
    return _mm512_max_ps(a, b);
  }
};

struct Add {
  static __attribute__((always_inline)) inline __m512 Of(__m512 a, __m512 b) {
    return _mm512_add_ps(a, b);
  }
};

/// Of f16 numbers two a lane. Gains are not negative, so their bits order as they do, and a NaN is
/// above all.
struct MaxBits {
  static __attribute__((always_inline)) inline __m512 Of(__m512 a, __m512 b) {
    return _mm512_castsi512_ps(_mm512_max_epu16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
};

/// Lane i of the result is row i folded by halves: lanes 8 apart, then 4, 2 and 1, as the reference
/// folds.
template <typename Op>
__attribute__((always_inline)) inline __m512 FoldRows(const __m512* rows) {
  __m512 level[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512 a = rows[i];
    const __m512 b = rows[i + 8];
    level[i] = Op::Of(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = level[i];
    const __m512 b = level[i + 4];
    level[i] = Op::Of(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 a = level[i];
    const __m512 b = level[i + 2];
    level[i] = Op::Of(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
  }
  const __m512 folded = Op::Of(_mm512_shuffle_ps(level[0], level[1], 0x88),
                               _mm512_shuffle_ps(level[0], level[1], 0xdd));
  // The foldings leave row r in lane order[r].
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_permutexvar_ps(order, folded);
}

/// Byte order that turns lanes {low a, high a, low b, high b} into 32 high bytes (a, b) and 32 low
/// bytes.
struct ByteOrder {
  alignas(64) uint8_t index[64];
};

consteval ByteOrder MakeByteOrder() {
  ByteOrder order{};
  for (int i = 0; i < 16; ++i) {
    order.index[i] = static_cast<uint8_t>(4 * i + 1);
    order.index[16 + i] = static_cast<uint8_t>(4 * i + 3);
    order.index[32 + i] = static_cast<uint8_t>(4 * i);
    order.index[48 + i] = static_cast<uint8_t>(4 * i + 2);
  }
  return order;
}

constexpr ByteOrder kByteOrder = MakeByteOrder();

/// Stores what the weights of a group's items are made with: e to room, NaN if a gain is one, and
/// 32767 / gain_max behind it. `packed`: items with gains.
__attribute__((always_inline)) inline void StoreScales(SoftmaxArgs& args, int first, int n_rounded,
                                                       const __m512* maxima,
                                                       const __m512* gain_rows, __mmask16 packed) {
  const __m512 exponent =
      _mm512_roundscale_ps(FoldRows<Max>(maxima), _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  const __m512i pairs = _mm512_castps_si512(FoldRows<MaxBits>(gain_rows));
  const __m512 gain =
      _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_max_epu16(pairs, _mm512_srli_epi32(pairs, 16))));
  const __mmask16 bad = _mm512_cmp_ps_mask(gain, gain, _CMP_UNORD_Q);
  const __m512 gain_max = _mm512_max_ps(gain, _mm512_set1_ps(1e-30f));
  _mm512_storeu_ps(args.room + first,
                   _mm512_mask_mov_ps(exponent, bad, _mm512_set1_ps(__builtin_nanf(""))));
  _mm512_storeu_ps(args.room + n_rounded + first,
                   _mm512_div_ps(_mm512_set1_ps(32767.0f), gain_max));
  const __m512 level = _mm512_loadu_ps(args.unit + first);
  const __m512 weight = _mm512_mul_ps(gain_max, _mm512_set1_ps(1.0f / 32767.0f));
  _mm512_storeu_ps(args.unit + first, _mm512_mask_mul_ps(level, packed, level, weight));
}

__attribute__((always_inline)) inline void StoreWeights(const SoftmaxArgs& args, int item,
                                                        __m512i a, __m512i b) {
  const __m512i both = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
  const __m512i ordered = _mm512_permutexvar_epi8(_mm512_load_si512(kByteOrder.index), both);
  _mm512_store_si512(static_cast<uint8_t*>(args.weights) + 64 * item, ordered);
}

/// Results of a group of n items. A NaN or +inf among the logits, or a NaN gain, has made the sum
/// NaN.
__attribute__((always_inline)) inline void Finish(SoftmaxArgs& args, int first, int n,
                                                  const __m512* sum_rows) {
  const __m512 exponent = _mm512_loadu_ps(args.room + first);
  const __m512 sums = FoldRows<Add>(sum_rows);
  const __mmask16 bad = _mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q);
  const __mmask16 seen =
      _mm512_cmp_ps_mask(exponent, _mm512_set1_ps(-__builtin_inff()), _CMP_GT_OQ);
  const __mmask16 present = seen & static_cast<__mmask16>(~bad);
  const __m512i e = _mm512_mask_cvtps_epi32(_mm512_set1_epi32(kNoExponent), present, exponent);
  const __m512 sum = _mm512_mask_mov_ps(_mm512_maskz_mov_ps(present, sums), bad,
                                        _mm512_set1_ps(__builtin_nanf("")));
  const __m512 unit = _mm512_maskz_loadu_ps(present, args.unit + first);
  _mm512_storeu_si512(args.exponent + first, e);
  _mm512_storeu_ps(args.sum + first, sum);
  _mm512_storeu_ps(args.unit + first, unit);

  const __m512i octaves = _mm512_sub_epi32(e, _mm512_loadu_si512(args.base + first));
  const __mmask16 near =
      _mm512_cmple_epu32_mask(_mm512_sub_epi32(octaves, _mm512_set1_epi32(kMinOctaves)),
                              _mm512_set1_epi32(kMaxOctaves - kMinOctaves));
  const __m512 power = _mm512_castsi512_ps(
      _mm512_maskz_slli_epi32(near, _mm512_add_epi32(octaves, _mm512_set1_epi32(127)), 23));
  _mm512_storeu_ps(args.share + first, _mm512_mul_ps(sum, power));
  _mm512_storeu_ps(args.factor + first, _mm512_mul_ps(unit, power));
  const __mmask16 items = static_cast<__mmask16>((1u << n) - 1);
  args.near = args.near && (near & items) == items;
}

struct Halves {
  __m512 half[2];
};

__attribute__((always_inline)) inline Halves LoadGains(const uint16_t* gains) {
  return {{_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(gains))),
           _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(gains + 16)))}};
}

/// All cells of all items take part, unbiased, with packed values: what a step over an open context
/// is made of.
struct Open {
  static __attribute__((always_inline)) inline void Maxima(SoftmaxArgs& args, int first, int n,
                                                           int n_rounded) {
    __m512 rows[kSoftmaxGroup];
    __m512 gain_rows[kSoftmaxGroup];
    for (int i = 0; i < n; ++i) {
      const float* x = args.logits + 32 * (first + i);
      rows[i] = _mm512_max_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16));
      gain_rows[i] = _mm512_loadu_ps(args.v_gains[first + i]);
    }
    for (int i = n; i < kSoftmaxGroup; ++i) {
      rows[i] = _mm512_setzero_ps();
      gain_rows[i] = _mm512_setzero_ps();
    }
    StoreScales(args, first, n_rounded, rows, gain_rows, 0xffff);
  }

  static __attribute__((always_inline)) inline void Weights(SoftmaxArgs& args, int first, int n,
                                                            int n_rounded) {
    __m512 rows[kSoftmaxGroup];
    const uint16_t* gains_of = nullptr;
    Halves gains{};
    for (int i = 0; i < n; ++i) {
      const int item = first + i;
      const float* x = args.logits + 32 * item;
      if (args.v_gains[item] != gains_of) {
        gains_of = args.v_gains[item];
        gains = LoadGains(gains_of);
        const __m512 per_unit = _mm512_set1_ps(args.room[n_rounded + item]);
        gains.half[0] = _mm512_mul_ps(gains.half[0], per_unit);
        gains.half[1] = _mm512_mul_ps(gains.half[1], per_unit);
      }
      const __m512 e = _mm512_set1_ps(args.room[item]);
      const __m512 a = Exp2(_mm512_sub_ps(_mm512_loadu_ps(x), e));
      const __m512 b = Exp2(_mm512_sub_ps(_mm512_loadu_ps(x + 16), e));
      rows[i] = _mm512_add_ps(a, b);
      StoreWeights(args, item, _mm512_cvtps_epi32(_mm512_mul_ps(a, gains.half[0])),
                   _mm512_cvtps_epi32(_mm512_mul_ps(b, gains.half[1])));
    }
    for (int i = n; i < kSoftmaxGroup; ++i) rows[i] = _mm512_setzero_ps();
    Finish(args, first, n, rows);
  }
};

/// Any mixture of masks, biases, soft-cap and plain values. Between the passes `exponent` holds
/// which cells take part.
struct Masked {
  static __attribute__((always_inline)) inline void Maxima(SoftmaxArgs& args, int first, int n,
                                                           int n_rounded) {
    const __m512 minus_inf = _mm512_set1_ps(-__builtin_inff());
    __m512 rows[kSoftmaxGroup];
    __m512 gain_rows[kSoftmaxGroup];
    __mmask16 packed = 0;
    for (int i = 0; i < n; ++i) {
      const int item = first + i;
      float* logits = args.logits + 32 * item;
      const float* bias = args.bias[item];
      Halves x = {{_mm512_loadu_ps(logits), _mm512_loadu_ps(logits + 16)}};
      uint32_t part = ~0u;
      if (args.cap != 0) {
        const __m512 cap = _mm512_set1_ps(args.cap);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) x.half[h] = _mm512_mul_ps(cap, Tanh(x.half[h]));
      }
      if (bias != nullptr) {
        const __m512 slope = _mm512_set1_ps(args.slope[item]);
        part = 0;
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          const __m512 b = _mm512_loadu_ps(bias + 16 * h);
          const __mmask16 m = _mm512_cmp_ps_mask(b, minus_inf, _CMP_NEQ_UQ);
          x.half[h] = _mm512_mask_mov_ps(minus_inf, m, _mm512_fmadd_ps(slope, b, x.half[h]));
          part |= static_cast<uint32_t>(m) << (16 * h);
        }
      }
      _mm512_storeu_ps(logits, x.half[0]);
      _mm512_storeu_ps(logits + 16, x.half[1]);
      rows[i] = _mm512_max_ps(x.half[0], x.half[1]);
      gain_rows[i] = _mm512_setzero_ps();
      if (args.v_gains[item] != nullptr) {
        gain_rows[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(part, args.v_gains[item]));
        packed |= static_cast<__mmask16>(1u << i);
      }
      args.exponent[item] = static_cast<int32_t>(part);
    }
    for (int i = n; i < kSoftmaxGroup; ++i) {
      rows[i] = minus_inf;
      gain_rows[i] = _mm512_setzero_ps();
    }
    StoreScales(args, first, n_rounded, rows, gain_rows, packed);
  }

  static __attribute__((always_inline)) inline void Weights(SoftmaxArgs& args, int first, int n,
                                                            int n_rounded) {
    __m512 rows[kSoftmaxGroup];
    for (int i = 0; i < n; ++i) {
      const int item = first + i;
      float* logits = args.logits + 32 * item;
      const __m512 e = _mm512_set1_ps(args.room[item]);
      const auto part = static_cast<uint32_t>(args.exponent[item]);
      const __mmask16 m[2] = {static_cast<__mmask16>(part), static_cast<__mmask16>(part >> 16)};
      Halves w;
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        w.half[h] =
            _mm512_maskz_mov_ps(m[h], Exp2(_mm512_sub_ps(_mm512_loadu_ps(logits + 16 * h), e)));
      }
      rows[i] = _mm512_add_ps(w.half[0], w.half[1]);
      if (args.v_gains[item] == nullptr) {
        _mm512_storeu_ps(logits, w.half[0]);
        _mm512_storeu_ps(logits + 16, w.half[1]);
        continue;
      }
      const Halves gains = LoadGains(args.v_gains[item]);
      const __m512 per_unit = _mm512_set1_ps(args.room[n_rounded + item]);
      __m512i integers[2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m512 scaled = _mm512_mul_ps(w.half[h], _mm512_mul_ps(gains.half[h], per_unit));
        integers[h] = _mm512_maskz_cvtps_epi32(m[h], scaled);
      }
      StoreWeights(args, item, integers[0], integers[1]);
    }
    for (int i = n; i < kSoftmaxGroup; ++i) rows[i] = _mm512_setzero_ps();
    Finish(args, first, n, rows);
  }
};

/// All maxima first: a group's chain of foldings runs beside the next group's loads.
template <typename Kind>
__attribute__((noinline)) void Run(SoftmaxArgs& args) {
  const int n_rounded = (args.n_items + kSoftmaxGroup - 1) / kSoftmaxGroup * kSoftmaxGroup;
  for (int first = 0; first < n_rounded; first += kSoftmaxGroup) {
    const int left = args.n_items - first;
    Kind::Maxima(args, first, left < kSoftmaxGroup ? left : kSoftmaxGroup, n_rounded);
  }
  for (int first = 0; first < n_rounded; first += kSoftmaxGroup) {
    const int left = args.n_items - first;
    Kind::Weights(args, first, left < kSoftmaxGroup ? left : kSoftmaxGroup, n_rounded);
  }
}

}  // namespace

void SoftmaxAvx512(SoftmaxArgs& args) {
  args.near = true;
  if (args.open) {
    Run<Open>(args);
  } else {
    Run<Masked>(args);
  }
}

}  // namespace varve
