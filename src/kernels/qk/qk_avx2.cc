// qk on AVX2. Half a product line is 8 tokens x 4 channels; dword lane = token. Bytes are split
// into even and odd words and multiplied by 16-bit queries with VPMADDWD: exact, where VPMADDUBSW
// would saturate.
//
//   registers: acc[n][piece], 8: all 32 tokens for one or two queries, 16 at a time for three or
//   four; a piece's even and odd words; two broadcast queries.
//
// Lines decode to level + 128; accumulators start at -128 * sum(q).
// Operand order: [quad][n] of {q0, q2, q1, q3} int16.
#include <immintrin.h>

#include "kernels/lines_avx2.h"
#include "kernels/qk/qk.h"

namespace varve {
namespace {

/// Sums of N queries over halves kFirst to kLast of the block's tokens, two pieces each.
template <int N, int kFirst, int kLast>
struct Sums {
  static constexpr int kPieces = 2 * (kLast - kFirst + 1);
  __m256i acc[N][kPieces];

  VARVE_INLINE void Set(const int32_t* start) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int p = 0; p < kPieces; ++p) acc[n][p] = _mm256_set1_epi32(start[3 * n]);
    }
  }

  VARVE_INLINE void Piece(int p, __m256i bytes, const int32_t* q) {
    const __m256i even = EvenBytes(bytes);
    const __m256i odd = OddBytes(bytes);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      Accumulate(acc[n][p],
                 DotWords(even, odd, _mm256_set1_epi32(q[2 * n]), _mm256_set1_epi32(q[2 * n + 1])));
    }
  }

  /// Quad kQuad of a group: product lines 2 * kQuad and 2 * kQuad + 1.
  template <int kBits, int kQuad>
  VARVE_INLINE void Quad(const uint8_t* group, const int32_t* q) {
    if constexpr (kFirst == 0) Half<kBits, 2 * kQuad>(group, q, 0);
    if constexpr (kLast == 1) Half<kBits, 2 * kQuad + 1>(group, q, kPieces - 2);
  }

 private:
  template <int kBits, int kSlot>
  VARVE_INLINE void Half(const uint8_t* group, const int32_t* q, int first_piece) {
    // Every line of 8 bits is a group of its own.
    if constexpr (kBits == 8) {
      Piece(first_piece, Load(group + kSlot * kLine), q);
      Piece(first_piece + 1, Load(group + kSlot * kLine + kPiece), q);
    } else {
      Piece(first_piece, Decode<kBits, kSlot>(group, 0), q);
      Piece(first_piece + 1, Decode<kBits, kSlot>(group, 1), q);
    }
  }
};

/// Fetches as many lines as it reads: what comes next is mostly coded alike.
template <typename S>
VARVE_INLINE const int32_t* AddRun(const QkRun& run, const uint8_t* codes, const int32_t* q,
                                   int stride, S& sums, Ahead& ahead) {
  const uint8_t* group = codes + run.byte_offset;
  int quads = run.n_quads;
  switch (run.bits) {
    case 8:
      for (; quads > 0; --quads, group += 2 * kLine, q += stride) {
        ahead.Fetch(2);
        sums.template Quad<8, 0>(group, q);
      }
      break;
    case 4:
      for (; quads > 0; --quads, group += kLine, q += stride) {
        ahead.Fetch(1);
        sums.template Quad<4, 0>(group, q);
      }
      break;
    case 2:
      for (; quads > 0; quads -= 2, group += kLine, q += 2 * stride) {
        ahead.Fetch(1);
        sums.template Quad<2, 0>(group, q);
        sums.template Quad<2, 1>(group, q + stride);
      }
      break;
    case 6:
      for (; quads > 0; quads -= 2, group += 3 * kLine, q += 2 * stride) {
        ahead.Fetch(3);
        sums.template Quad<6, 0>(group, q);
        sums.template Quad<6, 1>(group, q + stride);
      }
      break;
    default:
      for (; quads > 0; quads -= 4, group += 3 * kLine, q += 4 * stride) {
        ahead.Fetch(3);
        sums.template Quad<3, 0>(group, q);
        sums.template Quad<3, 1>(group, q + stride);
        sums.template Quad<3, 2>(group, q + 2 * stride);
        sums.template Quad<3, 3>(group, q + 3 * stride);
      }
  }
  return q;
}

/// Logits of N of the batch's queries, from `first` on, with the tokens of halves kFirst to kLast.
template <int N, int kFirst, int kLast>
__attribute__((noinline)) void Block(const QkArgs& args, int head, int first, Ahead& ahead) {
  using S = Sums<N, kFirst, kLast>;
  const QkRuns& runs = args.runs[head];
  const QkQueries& queries = args.queries[head];
  const uint8_t* codes = args.codes + head * args.head_stride;
  const uint8_t* gains = reinterpret_cast<const uint8_t*>(args.gains) + head * args.head_stride;
  float* logits = args.logits + (head * queries.n + first) * 32;
  const auto* q = static_cast<const int32_t*>(queries.operand) + 2 * first;
  const int stride = 2 * queries.n;
  S wide;
  wide.Set(&queries.start[first][0]);
  for (int r = 0; r < runs.n_wide_runs; ++r) q = AddRun(runs.run[r], codes, q, stride, wide, ahead);
  __m256 logit[N][S::kPieces];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const __m256 scale = _mm256_set1_ps(queries.wide_scale[first + n]);
#pragma GCC unroll 4
    for (int p = 0; p < S::kPieces; ++p)
      logit[n][p] = _mm256_mul_ps(_mm256_cvtepi32_ps(wide.acc[n][p]), scale);
  }
  S narrow;
  narrow.Set(&queries.start[first][2]);
  for (int r = runs.n_wide_runs; r < runs.n_runs; ++r)
    q = AddRun(runs.run[r], codes, q, stride, narrow, ahead);
#pragma GCC unroll 4
  for (int p = 0; p < S::kPieces; ++p) {
    const int token = 16 * kFirst + 8 * p;
    const __m256 gain =
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(gains + 2 * token)));
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m256 both =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(narrow.acc[n][p]),
                          _mm256_set1_ps(queries.narrow_scale[first + n]), logit[n][p]);
      _mm256_storeu_ps(logits + 32 * n + token, _mm256_mul_ps(both, gain));
    }
  }
}

void Queries(const QkArgs& args, int head, int first, int n, Ahead& ahead) {
  switch (n) {
    case 1:
      return Block<1, 0, 1>(args, head, first, ahead);
    case 2:
      return Block<2, 0, 1>(args, head, first, ahead);
    case 3:
      Block<3, 0, 0>(args, head, first, ahead);
      return Block<3, 1, 1>(args, head, first, ahead);
    default:
      Block<4, 0, 0>(args, head, first, ahead);
      return Block<4, 1, 1>(args, head, first, ahead);
  }
}

}  // namespace

void QkAvx2(const QkArgs& args) {
  for (int head = 0; head < args.n_heads; ++head) {
    Ahead ahead(args.codes, args.head_stride, args.n_heads, head, args.next, args.next_stride);
    const int n = args.queries[head].n;
    const int n_first = FirstQueries(n);
    Queries(args, head, 0, n_first, ahead);
    if (n > n_first) Queries(args, head, n_first, n - n_first, ahead);
    ahead.FetchRest();
  }
}

void QkPackAvx2(const QkPackArgs& args) {
  const QkRuns& runs = *args.runs;
  auto* out = static_cast<int16_t*>(args.operand);
  args.queries->n = args.n;
  args.queries->operand = args.operand;
  for (int n = 0; n < args.n; ++n) {
    const int16_t* q = args.q + static_cast<ptrdiff_t>(n) * 4 * runs.n_quads;
    int32_t wide = 0;
    int32_t narrow = 0;
    for (int quad = 0; quad < runs.n_quads; ++quad, q += 4) {
      int16_t* to = out + static_cast<ptrdiff_t>(quad * args.n + n) * 4;
      to[0] = q[0];
      to[1] = q[2];
      to[2] = q[1];
      to[3] = q[3];
      (quad < runs.n_wide_quads ? wide : narrow) += q[0] + q[1] + q[2] + q[3];
    }
    // Sums of products wrap around and come out right: the total fits.
    args.queries->start[n][0] = static_cast<int32_t>(-128u * static_cast<uint32_t>(wide));
    args.queries->start[n][2] = -128 * narrow;
  }
}

}  // namespace varve
