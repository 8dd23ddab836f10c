// qk on AVX-512 VNNI + VBMI. A 64-byte product line is 16 tokens x 4 channels; dword lane = token.
//
//   registers, N queries, T terms (2 in wide runs: high and low byte of q16; 1 in narrow ones):
//     acc[set][n][term][half]   one half of the tokens after the other from five queries on; two
//     sets where there are few, to cover the latency of VPDPBUSD (5 cycles, 2 a cycle)
//     k0, k1                    a quad's lines for tokens 0..15 and 16..31, decoded by one VPERMB
//     each
//   q                         broadcast to a register for both halves, a memory operand for one
//
// VPDPBUSD multiplies unsigned by signed: lines decode to level + 128, and accumulators start at
// -128 * sum(q). Operand order: wide quads [quad][n]{high, low} dwords of 4 channels, then narrow
// quads [quad][n].
//
// Why inline assembly: g++ 12 copies and spills accumulators of _mm512_dpbusd_epi32 round loops.
#include <immintrin.h>

#include "kernels/lines_avx512.h"
#include "kernels/qk/qk.h"

namespace varve {
namespace {

using Codes = Tables<128>;

// Accumulators of more queries over all 32 tokens do not fit the registers.
constexpr int kMaxBothHalves = 4;

/// acc += sum of 4 products of k (unsigned) and q (signed).
VARVE_INLINE void Dot(__m512i& acc, __m512i k, __m512i q) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(k), "v"(q));
}

/// The same with the dword at q for all lanes.
VARVE_INLINE void DotMemory(__m512i& acc, __m512i k, const int32_t* q) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(k), "m"(*q));
}

/// Sums of N queries in T terms over the tokens of halves kFirst to kLast.
template <int N, int T, int kFirst, int kLast>
struct Sums {
  static constexpr int kStep = N * T;  ///< dwords of a quad's queries
  static constexpr int kHalves = kLast - kFirst + 1;
  static constexpr int kSets = N * T * kHalves <= 6 ? 2 : 1;
  __m512i acc[kSets][N][T][kHalves];

  /// Starts query n, term t at `start`.
  VARVE_INLINE void Set(int n, int t, int32_t start) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      acc[0][n][t][half] = _mm512_set1_epi32(start);
      if constexpr (kSets == 2) acc[1][n][t][half] = _mm512_setzero_si512();
    }
  }

  VARVE_INLINE void Quad(int set, __m512i k0, __m512i k1, const int32_t* q) {
#pragma GCC unroll 7
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
      for (int t = 0; t < T; ++t) {
        __m512i(&sums)[kHalves] = acc[set % kSets][n][t];
        const int32_t* at = q + n * T + t;
        if constexpr (kHalves == 2) {
          const __m512i query = _mm512_set1_epi32(*at);
          Dot(sums[0], k0, query);
          Dot(sums[1], k1, query);
        } else {
          DotMemory(sums[0], kFirst == 0 ? k0 : k1, at);
        }
      }
    }
  }

  VARVE_INLINE __m512i Total(int n, int t, int half) const {
    if constexpr (kSets == 2) return _mm512_add_epi32(acc[0][n][t][half], acc[1][n][t][half]);
    return acc[0][n][t][half];
  }
};

/// Fetches lines as the kernel goes: two quads a turn.
struct Prefetch {
  Ahead ahead;
  int step;

  VARVE_INLINE Prefetch(const QkArgs& args, int head)
      : ahead(args.codes, args.head_stride, args.n_heads, head, args.next, args.next_stride),
        step(2 * (ahead.end - ahead.at) > kLine * args.runs[head].n_quads ? 2 : 1) {}

  VARVE_INLINE void Turn() {
    if (ahead.at >= ahead.end) return;
    _mm_prefetch(reinterpret_cast<const char*>(ahead.at), _MM_HINT_T0);
    if (step == 2) _mm_prefetch(reinterpret_cast<const char*>(ahead.at + kLine), _MM_HINT_T0);
    ahead.at += step * kLine;
  }
};

template <typename S>
VARVE_INLINE const int32_t* AddRun(const QkRun& run, const uint8_t* codes, const int32_t* q,
                                   S& sums, Prefetch& prefetch) {
  constexpr int kStep = S::kStep;
  const uint8_t* line = codes + run.byte_offset;
  int quads = run.n_quads;
  switch (run.bits) {
    case 8:
      for (; quads >= 2; quads -= 2, line += 4 * kLine, q += 2 * kStep) {
        sums.Quad(0, Load(line), Load(line + kLine), q);
        prefetch.Turn();
        sums.Quad(1, Load(line + 2 * kLine), Load(line + 3 * kLine), q + kStep);
      }
      if (quads > 0) {
        sums.Quad(0, Load(line), Load(line + kLine), q);
        q += kStep;
      }
      break;
    case 4:
      for (; quads >= 2; quads -= 2, line += 2 * kLine, q += 2 * kStep) {
        const __m512i a = Load(line);
        sums.Quad(0, Look(Codes::k4, a), Look(Codes::k4, _mm512_srli_epi16(a, 4)), q);
        prefetch.Turn();
        const __m512i b = Load(line + kLine);
        sums.Quad(1, Look(Codes::k4, b), Look(Codes::k4, _mm512_srli_epi16(b, 4)), q + kStep);
      }
      if (quads > 0) {
        const __m512i a = Load(line);
        sums.Quad(0, Look(Codes::k4, a), Look(Codes::k4, _mm512_srli_epi16(a, 4)), q);
        q += kStep;
      }
      break;
    case 2:
      for (; quads > 0; quads -= 2, line += kLine, q += 2 * kStep) {
        const __m512i a = Load(line);
        sums.Quad(0, Look(Codes::k2a, a), Look(Codes::k2b, a), q);
        prefetch.Turn();
        sums.Quad(1, Look(Codes::k2c, a), Look(Codes::k2a, _mm512_srli_epi16(a, 6)), q + kStep);
      }
      break;
    case 6:
      for (; quads > 0; quads -= 2, line += 3 * kLine, q += 2 * kStep) {
        const __m512i a = Load(line);
        const __m512i b = Load(line + kLine);
        const __m512i c = Load(line + 2 * kLine);
        sums.Quad(0, Look(Codes::k6, a), Look(Codes::k6, b), q);
        prefetch.Turn();
        sums.Quad(1, Look(Codes::k6, c), Look(Codes::k6, Spare(a, b, c)), q + kStep);
      }
      break;
    default:
      for (; quads > 0; quads -= 4, line += 3 * kLine, q += 4 * kStep) {
        const __m512i a = Load(line);
        const __m512i b = Load(line + kLine);
        const __m512i c = Load(line + 2 * kLine);
        sums.Quad(0, Look(Codes::k3a, a), Look(Codes::k3b, a), q);
        prefetch.Turn();
        sums.Quad(1, Look(Codes::k3a, b), Look(Codes::k3b, b), q + kStep);
        sums.Quad(0, Look(Codes::k3a, c), Look(Codes::k3b, c), q + 2 * kStep);
        prefetch.Turn();
        const __m512i spare = Spare(a, b, c);
        sums.Quad(1, Look(Codes::k3a, spare), Look(Codes::k3b, spare), q + 3 * kStep);
      }
  }
  return q;
}

/// Exact value of 256 * high + low, rounded once.
VARVE_INLINE __m512 WideValue(__m512i high, __m512i low) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(low));
}

/// Logits of the tokens of halves kFirst to kLast.
template <int N, int kFirst, int kLast>
VARVE_INLINE void Tokens(const QkArgs& args, int head, Prefetch& prefetch) {
  using Wide = Sums<N, 2, kFirst, kLast>;
  using Narrow = Sums<N, 1, kFirst, kLast>;
  constexpr int kHalves = Wide::kHalves;
  const QkRuns& runs = args.runs[head];
  const QkQueries& queries = args.queries[head];
  const uint8_t* codes = args.codes + head * args.head_stride;
  const uint8_t* gains = reinterpret_cast<const uint8_t*>(args.gains) + head * args.head_stride;
  float* logits = args.logits + head * N * 32 + 16 * kFirst;
  const auto* q = static_cast<const int32_t*>(queries.operand);

  Wide wide;
#pragma GCC unroll 7
  for (int n = 0; n < N; ++n) {
    wide.Set(n, 0, queries.start[n][0]);
    wide.Set(n, 1, queries.start[n][1]);
  }
  for (int r = 0; r < runs.n_wide_runs; ++r) q = AddRun(runs.run[r], codes, q, wide, prefetch);

  __m512 logit[N][kHalves];
#pragma GCC unroll 7
  for (int n = 0; n < N; ++n) {
    const __m512 scale = _mm512_set1_ps(queries.wide_scale[n]);
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      logit[n][half] =
          _mm512_mul_ps(WideValue(wide.Total(n, 0, half), wide.Total(n, 1, half)), scale);
    }
  }

  __m512 gain[kHalves];
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
    gain[half] = _mm512_cvtph_ps(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(gains + 32 * (kFirst + half))));
  }
  if (runs.n_wide_runs == runs.n_runs) {
#pragma GCC unroll 7
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half)
        _mm512_storeu_ps(logits + 32 * n + 16 * half, _mm512_mul_ps(logit[n][half], gain[half]));
    }
    return;
  }

  Narrow narrow;
#pragma GCC unroll 7
  for (int n = 0; n < N; ++n) narrow.Set(n, 0, queries.start[n][2]);
  for (int r = runs.n_wide_runs; r < runs.n_runs; ++r)
    q = AddRun(runs.run[r], codes, q, narrow, prefetch);

#pragma GCC unroll 7
  for (int n = 0; n < N; ++n) {
    const __m512 scale = _mm512_set1_ps(queries.narrow_scale[n]);
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      const __m512 both =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(narrow.Total(n, 0, half)), scale, logit[n][half]);
      _mm512_storeu_ps(logits + 32 * n + 16 * half, _mm512_mul_ps(both, gain[half]));
    }
  }
}

template <int N>
__attribute__((noinline)) void Heads(const QkArgs& args) {
  for (int head = 0; head < args.n_heads; ++head) {
    Prefetch prefetch(args, head);
    if constexpr (N <= kMaxBothHalves) {
      Tokens<N, 0, 1>(args, head, prefetch);
    } else {
      Tokens<N, 0, 0>(args, head, prefetch);
      Tokens<N, 1, 1>(args, head, prefetch);
    }
  }
}

}  // namespace

void QkAvx512(const QkArgs& args) {
  switch (args.queries->n) {
    case 1:
      return Heads<1>(args);
    case 2:
      return Heads<2>(args);
    case 3:
      return Heads<3>(args);
    case 4:
      return Heads<4>(args);
    case 5:
      return Heads<5>(args);
    case 6:
      return Heads<6>(args);
    default:
      return Heads<7>(args);
  }
}

void QkPackAvx512(const QkPackArgs& args) {
  const QkRuns& runs = *args.runs;
  auto* out = static_cast<int32_t*>(args.operand);
  args.queries->n = args.n;
  args.queries->operand = args.operand;
  const int stride = 4 * runs.n_quads;
  const int n_narrow = runs.n_quads - runs.n_wide_quads;
  int32_t* narrow_out = out + static_cast<ptrdiff_t>(runs.n_wide_quads) * args.n * 2;
  const __m512i first_pairs =
      _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i last_pairs = _mm512_add_epi32(first_pairs, _mm512_set1_epi32(8));
  for (int n = 0; n < args.n; ++n) {
    const int16_t* q = args.q + static_cast<ptrdiff_t>(n) * stride;
    __m512i high_sum = _mm512_setzero_si512();
    __m512i low_sum = _mm512_setzero_si512();
    const __m512i ones = _mm512_set1_epi8(1);
    // Sixteen quads a turn: 64 int16 split into two lines of bytes, {high, low} of a quad side by
    // side.
    for (int quad = 0; quad < runs.n_wide_quads; quad += 16) {
      const int left = 4 * (runs.n_wide_quads - quad);
      const __mmask32 first = left >= 32 ? 0xffffffffu : (1u << left) - 1;
      const __mmask32 second = left >= 64 ? 0xffffffffu : left > 32 ? (1u << (left - 32)) - 1 : 0;
      const __m512i a = _mm512_maskz_loadu_epi16(first, q + 4 * quad);
      const __m512i b = _mm512_maskz_loadu_epi16(second, q + 4 * quad + 32);
      const __m512i low = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                                             _mm512_cvtepi16_epi8(b), 1);
      const __m512i round = _mm512_set1_epi16(128);
      const __m512i high_a = _mm512_srai_epi16(_mm512_add_epi16(a, round), 8);
      const __m512i high_b = _mm512_srai_epi16(_mm512_add_epi16(b, round), 8);
      const __m512i high = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(high_a)),
                                              _mm512_cvtepi16_epi8(high_b), 1);
      high_sum = _mm512_dpbusd_epi32(high_sum, ones, high);
      low_sum = _mm512_dpbusd_epi32(low_sum, ones, low);
      alignas(64) int64_t pairs[16];
      _mm512_store_si512(pairs, _mm512_permutex2var_epi32(high, first_pairs, low));
      _mm512_store_si512(pairs + 8, _mm512_permutex2var_epi32(high, last_pairs, low));
      const int count = left < 64 ? left / 4 : 16;
      int32_t* to = out + 2 * (quad * args.n + n);
      for (int i = 0; i < count; ++i, to += 2 * args.n) __builtin_memcpy(to, pairs + i, 8);
    }
    __m512i narrow_sum = _mm512_setzero_si512();
    for (int quad = 0; quad < n_narrow; quad += 8) {
      const int left = 4 * (n_narrow - quad);
      const __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
      const __m512i a = _mm512_maskz_loadu_epi16(mask, q + 4 * (runs.n_wide_quads + quad));
      const __m512i bytes = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(a));
      narrow_sum = _mm512_dpbusd_epi32(
          narrow_sum, ones,
          _mm512_inserti64x4(_mm512_setzero_si512(), _mm512_castsi512_si256(bytes), 0));
      alignas(32) int32_t dwords[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(dwords), _mm512_castsi512_si256(bytes));
      const int count = left < 32 ? left / 4 : 8;
      for (int i = 0; i < count; ++i) narrow_out[(quad + i) * args.n + n] = dwords[i];
    }
    args.queries->start[n][0] = -128 * _mm512_reduce_add_epi32(high_sum);
    args.queries->start[n][1] = -128 * _mm512_reduce_add_epi32(low_sum);
    args.queries->start[n][2] = -128 * _mm512_reduce_add_epi32(narrow_sum);
  }
}

}  // namespace varve
