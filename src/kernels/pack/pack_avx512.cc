// pack on AVX-512: a register is the 16 lanes of the common body, every operation the same one in
// the same order. Levels are found by binary search with VPERMPS / VPERMT2PS over the decision
// thresholds.
#include <immintrin.h>

#include "kernels/pack/pack.h"
#include "kernels/pack/place_body.h"
#include "layout/levels.h"

namespace varve {
namespace {

/// Thresholds and levels of a codebook's positive half; entry 0 of the thresholds is not used.
struct HalfBook {
  alignas(64) float threshold[32];
  alignas(64) int32_t level[32];
};

consteval HalfBook MakeHalfBook(int bits) {
  HalfBook book{};
  const int half = 1 << (bits - 1);
  for (int i = 0; i < half; ++i) {
    book.level[i] = HalfLevelAt(bits, i);
    if (i > 0)
      book.threshold[i] =
          0.5f * static_cast<float>(HalfLevelAt(bits, i - 1) + HalfLevelAt(bits, i));
  }
  return book;
}

constexpr HalfBook kBook2 = MakeHalfBook(2);
constexpr HalfBook kBook3 = MakeHalfBook(3);
constexpr HalfBook kBook4 = MakeHalfBook(4);
constexpr HalfBook kBook6 = MakeHalfBook(6);

struct Coded {
  __m512i level;
  __m512i code;
};

template <int kBits>
VARVE_INLINE Coded Nearest(__m512 x) {
  const __m512 m = _mm512_abs_ps(x);
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  const __m512i zero = _mm512_setzero_si512();
  if constexpr (kBits == 8) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(m, _mm512_set1_ps(127.0f)));
    const __m512i level = _mm512_mask_sub_epi32(whole, negative, zero, whole);
    return {level, _mm512_add_epi32(level, _mm512_set1_epi32(128))};
  } else {
    constexpr int kHalf = 1 << (kBits - 1);
    constexpr const HalfBook& book = kBits == 2   ? kBook2
                                     : kBits == 3 ? kBook3
                                     : kBits == 4 ? kBook4
                                                  : kBook6;
    const auto look = [](const void* table, __m512i at) __attribute__((always_inline)) {
      const auto* entries = static_cast<const int32_t*>(table);
      if constexpr (kHalf > 16) {
        return _mm512_permutex2var_epi32(_mm512_load_si512(entries), at,
                                         _mm512_load_si512(entries + 16));
      } else {
        return _mm512_permutexvar_epi32(at, _mm512_load_si512(entries));
      }
    };
    __m512i index = zero;
#pragma GCC unroll 5
    for (int step = kHalf / 2; step > 0; step /= 2) {
      const __m512i candidate = _mm512_add_epi32(index, _mm512_set1_epi32(step));
      const __mmask16 above =
          _mm512_cmp_ps_mask(m, _mm512_castsi512_ps(look(book.threshold, candidate)), _CMP_GE_OQ);
      index = _mm512_mask_mov_epi32(index, above, candidate);
    }
    const __m512i level = look(book.level, index);
    const __m512i code = _mm512_add_epi32(index, _mm512_set1_epi32(kHalf));
    return {_mm512_mask_sub_epi32(level, negative, zero, level),
            _mm512_mask_sub_epi32(code, negative, _mm512_set1_epi32(kHalf - 1), index)};
  }
}

VARVE_INLINE __mmask16 Real(int left) {
  return left >= kLanes ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

template <int kBits, bool kStore>
VARVE_INLINE void CodeRun(const PackCodeArgs& args, const PackRun& run, __m512 inverse, bool coarse,
                          PackSums& sums) {
  const float* y = args.y + run.first_channel;
  uint8_t* codes = args.codes + run.first_channel;
  __m512 row = _mm512_setzero_ps();
  __m512 cross = _mm512_setzero_ps();
  __m512i squares = _mm512_setzero_si512();
  for (int i = 0; i < run.n_channels; i += kLanes) {
    const __mmask16 real = Real(run.n_channels - i);
    const __m512 v = _mm512_maskz_loadu_ps(real, y + i);
    const Coded coded = Nearest<kBits>(_mm512_mul_ps(v, inverse));
    const __m512i level = _mm512_maskz_mov_epi32(real, coded.level);
    squares = _mm512_add_epi32(
        squares, _mm512_madd_epi16(level, _mm512_and_si512(level, _mm512_set1_epi32(0xffff))));
    cross = _mm512_add_ps(cross, _mm512_mul_ps(v, _mm512_cvtepi32_ps(level)));
    if (coarse) row = _mm512_add_ps(row, _mm512_mul_ps(v, v));
    if constexpr (kStore) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm512_cvtepi32_epi8(coded.code));
    }
  }
  const float weighted_cross = _mm512_reduce_add_ps(cross) * run.weight;
  const float weighted_levels = static_cast<float>(_mm512_reduce_add_epi32(squares)) * run.weight;
  sums.cross += weighted_cross;
  sums.levels += weighted_levels;
  if (coarse) {
    sums.coarse_row += _mm512_reduce_add_ps(row) * run.weight;
    sums.coarse_cross += weighted_cross;
    sums.coarse_levels += weighted_levels;
  }
}

template <bool kStore, bool kResidual>
VARVE_INLINE PackSums CodeAll(const PackCodeArgs& args, float inverse) {
  PackSums sums;
  const __m512 factor = _mm512_set1_ps(inverse);
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    const bool coarse = kResidual && (run.bits <= 4 || !args.has_coarse);
    switch (run.bits) {
      case 2:
        CodeRun<2, kStore>(args, run, factor, coarse, sums);
        break;
      case 3:
        CodeRun<3, kStore>(args, run, factor, coarse, sums);
        break;
      case 4:
        CodeRun<4, kStore>(args, run, factor, coarse, sums);
        break;
      case 6:
        CodeRun<6, kStore>(args, run, factor, coarse, sums);
        break;
      default:
        CodeRun<8, kStore>(args, run, factor, coarse, sums);
    }
  }
  return sums;
}

}  // namespace

void PackCodeAvx512(PackCodeArgs& args) {
  args.settled = false;
  float energy = 0;
  __m512 top = _mm512_setzero_ps();
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < run.n_channels; i += kLanes) {
      const __m512 v =
          _mm512_maskz_loadu_ps(Real(run.n_channels - i), args.y + run.first_channel + i);
      sum = _mm512_add_ps(sum, _mm512_mul_ps(v, v));
      top = _mm512_max_ps(_mm512_abs_ps(v), top);
    }
    energy += _mm512_reduce_add_ps(sum) * run.weight;
  }
  if (!(energy < __builtin_inff())) return Clear(args, kNanGain);
  const float first =
      args.has_coarse ? __builtin_sqrtf(energy / args.nominal) : _mm512_reduce_max_ps(top) / 127.0f;
  if (RoundGain(first) == 0) return Clear(args, 0);
  const PackSums guess = CodeAll<false, true>(args, 1.0f / first);
  const float lattice = guess.coarse_cross / guess.coarse_levels;
  const float residual = guess.coarse_row - lattice * guess.coarse_cross;
  const float fresh = args.has_coarse ? guess.cross / guess.levels : first;
  const float least = (args.has_coarse ? kOnLattice : kOnFineLattice) * guess.coarse_row;
  const bool decoded = residual <= least;
  const float gains[2] = {decoded ? lattice : fresh, first};
  for (int attempt = 0; attempt < 2 && !args.settled; ++attempt) {
    args.gain = RoundGain(gains[attempt]);
    if (args.gain == 0) return Clear(args, 0);
    const float gain = GainValue(args.gain);
    const PackSums coded = CodeAll<true, false>(args, 1.0f / gain);
    if (!args.has_coarse) {
      args.settled = true;
      return;
    }
    const float ratio = __builtin_sqrtf(coded.levels / args.nominal);
    const float error = energy + gain * (gain * coded.levels - 2 * coded.cross);
    args.settled = ratio >= args.window_low && ratio <= args.window_high &&
                   error <= args.allowed_error * energy;
    if (args.settled && args.keep_norm && !decoded)
      args.gain = RoundGain(__builtin_sqrtf(energy / coded.levels));
  }
}

PackSums PackTryAvx512(const PackCodeArgs& args, float gain) {
  return CodeAll<true, true>(args, 1.0f / gain);
}
void PackStoreAvx512(const PackStoreArgs& args) { PackStore(args); }
void PackLoadAvx512(const PackLoadArgs& args) { PackLoad(args); }

}  // namespace varve
