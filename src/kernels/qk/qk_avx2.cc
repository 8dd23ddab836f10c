// qk on AVX2. Half a product line is 8 tokens x 4 channels; dword lane = token. Bytes are split
// into even and odd words and multiplied by 16-bit queries with VPMADDWD: exact, where VPMADDUBSW
// would saturate.
//
//   registers: acc[n][piece], 8 for two queries (more go in turns); a piece's even and odd words;
//   two broadcast queries.
//
// Lines decode to level + 128; accumulators start at -128 * sum(q).
// Operand order: [quad][n] of {q0, q2, q1, q3} int16.
#include <immintrin.h>

#include "kernels/lines_avx2.h"
#include "kernels/qk/qk.h"

namespace varve {
namespace {

constexpr int kPieces = 4;  // 32 tokens

template <int N>
struct Sums {
  __m256i acc[N][kPieces];

  VARVE_INLINE void Set(const int32_t* start) {
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
      for (int p = 0; p < kPieces; ++p) acc[n][p] = _mm256_set1_epi32(start[3 * n]);
    }
  }

  VARVE_INLINE void Piece(int p, __m256i bytes, const int32_t* q) {
    const __m256i even = EvenBytes(bytes);
    const __m256i odd = OddBytes(bytes);
#pragma GCC unroll 2
    for (int n = 0; n < N; ++n) {
      const __m256i dot =
          DotWords(even, odd, _mm256_set1_epi32(q[2 * n]), _mm256_set1_epi32(q[2 * n + 1]));
      acc[n][p] = _mm256_add_epi32(acc[n][p], dot);
    }
  }
};

/// Quad kQuad of a group: product lines 2 * kQuad and 2 * kQuad + 1.
template <int kBits, int kQuad, int N>
VARVE_INLINE void AddQuad(const uint8_t* group, const int32_t* q, Sums<N>& sums) {
  if constexpr (kBits == 8) {
    sums.Piece(0, Load(group), q);
    sums.Piece(1, Load(group + kPiece), q);
    sums.Piece(2, Load(group + kLine), q);
    sums.Piece(3, Load(group + kLine + kPiece), q);
  } else {
    sums.Piece(0, Decode<kBits, 2 * kQuad>(group, 0), q);
    sums.Piece(1, Decode<kBits, 2 * kQuad>(group, 1), q);
    sums.Piece(2, Decode<kBits, 2 * kQuad + 1>(group, 0), q);
    sums.Piece(3, Decode<kBits, 2 * kQuad + 1>(group, 1), q);
  }
}

template <int N>
VARVE_INLINE const int32_t* AddRun(const QkRun& run, const uint8_t* codes, const int32_t* q,
                                   int stride, Sums<N>& sums) {
  const uint8_t* group = codes + run.byte_offset;
  int quads = run.n_quads;
  switch (run.bits) {
    case 8:
      for (; quads > 0; --quads, group += 2 * kLine, q += stride) AddQuad<8, 0>(group, q, sums);
      break;
    case 4:
      for (; quads > 0; --quads, group += kLine, q += stride) AddQuad<4, 0>(group, q, sums);
      break;
    case 2:
      for (; quads > 0; quads -= 2, group += kLine, q += 2 * stride) {
        AddQuad<2, 0>(group, q, sums);
        AddQuad<2, 1>(group, q + stride, sums);
      }
      break;
    case 6:
      for (; quads > 0; quads -= 2, group += 3 * kLine, q += 2 * stride) {
        AddQuad<6, 0>(group, q, sums);
        AddQuad<6, 1>(group, q + stride, sums);
      }
      break;
    default:
      for (; quads > 0; quads -= 4, group += 3 * kLine, q += 4 * stride) {
        AddQuad<3, 0>(group, q, sums);
        AddQuad<3, 1>(group, q + stride, sums);
        AddQuad<3, 2>(group, q + 2 * stride, sums);
        AddQuad<3, 3>(group, q + 3 * stride, sums);
      }
  }
  return q;
}

/// Queries first .. first + N - 1 of the batch.
template <int N>
__attribute__((noinline)) void Block(const QkArgs& args, int first) {
  const QkRuns& runs = *args.runs;
  const QkQueries& queries = *args.queries;
  const int stride = 2 * queries.n;
  const int32_t* q = static_cast<const int32_t*>(queries.operand) + 2 * first;
  Sums<N> wide;
  wide.Set(&queries.start[first][0]);
  for (int r = 0; r < runs.n_wide_runs; ++r) q = AddRun(runs.run[r], args.codes, q, stride, wide);
  __m256 logit[N][kPieces];
#pragma GCC unroll 2
  for (int n = 0; n < N; ++n) {
    const __m256 scale = _mm256_set1_ps(queries.wide_scale[first + n]);
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p)
      logit[n][p] = _mm256_mul_ps(_mm256_cvtepi32_ps(wide.acc[n][p]), scale);
  }
  Sums<N> narrow;
  narrow.Set(&queries.start[first][2]);
  for (int r = runs.n_wide_runs; r < runs.n_runs; ++r)
    q = AddRun(runs.run[r], args.codes, q, stride, narrow);
#pragma GCC unroll 2
  for (int n = 0; n < N; ++n) {
    const __m256 scale = _mm256_set1_ps(queries.narrow_scale[first + n]);
#pragma GCC unroll 4
    for (int p = 0; p < kPieces; ++p) {
      const __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(narrow.acc[n][p]), scale);
      const __m256 gain =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(args.gains + 8 * p)));
      _mm256_storeu_ps(args.logits + 32 * (first + n) + 8 * p,
                       _mm256_mul_ps(_mm256_add_ps(logit[n][p], part), gain));
    }
  }
}

}  // namespace

void QkAvx2(const QkArgs& args) {
  for (int i = 0; i < args.n_prefetch_lines; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(args.prefetch + i * kLine), _MM_HINT_T0);
  }
  int first = 0;
  for (; first + 2 <= args.queries->n; first += 2) Block<2>(args, first);
  if (first < args.queries->n) Block<1>(args, first);
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
