// pv on AVX2. Half a product line is 8 channels x 4 tokens; dword lane = channel. Bytes are split
// into even and odd words and multiplied by 15-bit weights with VPMADDWD. Lines decode to level +
// 128; accumulators start at -128 * sum(weight). Weights: [token quad] of {w0, w2, w1, w3} int16.
#include <immintrin.h>

#include "kernels/lines_avx2.h"
#include "kernels/pv/pv.h"

namespace varve {
namespace {

constexpr int kTokenQuads = 8;

VARVE_INLINE __m256i Broadcast(const void* weights, int n, int index) {
  return _mm256_set1_epi32(static_cast<const int32_t*>(weights)[16 * n + index]);
}

/// Product line kQuad of a vector of channels, as level + 128. kBytes: a vector's.
template <int kBits, int kQuad>
VARVE_INLINE __m256i Line(const uint8_t* codes, int piece) {
  if constexpr (kBits == 8) {
    // Values keep 8-bit levels signed.
    return _mm256_xor_si256(Load(codes + kQuad * kLine + kPiece * piece),
                            _mm256_set1_epi8(static_cast<char>(0x80)));
  } else if constexpr (kBits == 4) {
    return Decode<4, kQuad % 2>(codes + kQuad / 2 * kLine, piece);
  } else if constexpr (kBits == 3) {
    return Decode<3, kQuad>(codes, piece);
  } else {
    return Decode<2, kQuad % 4>(codes + kQuad / 4 * kLine, piece);
  }
}

template <int kBits, int N, int kQuad>
VARVE_INLINE void AddQuad(const void* weights, const uint8_t* codes, __m256i (&acc)[N][2]) {
#pragma GCC unroll 2
  for (int piece = 0; piece < 2; ++piece) {
    const __m256i bytes = Line<kBits, kQuad>(codes, piece);
    const __m256i even = EvenBytes(bytes);
    const __m256i odd = OddBytes(bytes);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m256i dot = DotWords(even, odd, Broadcast(weights, n, 2 * kQuad),
                                   Broadcast(weights, n, 2 * kQuad + 1));
      Accumulate(acc[n][piece], dot);
    }
  }
}

/// N of the batch's queries, from `first` on.
template <int kBits, int N>
__attribute__((noinline)) void Block(const PvArgs& args, int head, int first, Ahead& ahead) {
  const uint8_t* codes = args.codes + head * args.head_stride;
  const auto* weights = static_cast<const __m256i*>(args.weights) + 2 * (head * args.n + first);
  const float* factors = args.factors + head * args.n + first;
  float* head_out = args.out + (head * args.n + first) * args.out_stride;
  bool zero = true;
  for (int n = 0; n < N; ++n) zero = zero && factors[n] == 0;
  if (zero) return;
  __m256i start[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i sums =
        _mm256_add_epi32(_mm256_madd_epi16(_mm256_load_si256(weights + 2 * n), ones),
                         _mm256_madd_epi16(_mm256_load_si256(weights + 2 * n + 1), ones));
    start[n] = _mm256_set1_epi32(-128 * Total(sums));
  }
  for (int v = 0; v < args.n_vectors; ++v, codes += kTokenQuads * kLine * kBits / 8) {
    __m256i acc[N][2];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[n][0] = acc[n][1] = start[n];
    ahead.Fetch(kTokenQuads * kBits / 8);
    AddQuad<kBits, N, 0>(weights, codes, acc);
    AddQuad<kBits, N, 1>(weights, codes, acc);
    AddQuad<kBits, N, 2>(weights, codes, acc);
    AddQuad<kBits, N, 3>(weights, codes, acc);
    AddQuad<kBits, N, 4>(weights, codes, acc);
    AddQuad<kBits, N, 5>(weights, codes, acc);
    AddQuad<kBits, N, 6>(weights, codes, acc);
    AddQuad<kBits, N, 7>(weights, codes, acc);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m256 factor = _mm256_set1_ps(factors[n]);
#pragma GCC unroll 2
      for (int piece = 0; piece < 2; ++piece) {
        float* out = head_out + n * args.out_stride + 16 * v + 8 * piece;
        _mm256_storeu_ps(
            out, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[n][piece]), factor, _mm256_loadu_ps(out)));
      }
    }
  }
}

template <int kBits>
VARVE_INLINE void Queries(const PvArgs& args, int head, int first, int n, Ahead& ahead) {
  switch (n) {
    case 1:
      return Block<kBits, 1>(args, head, first, ahead);
    case 2:
      return Block<kBits, 2>(args, head, first, ahead);
    case 3:
      return Block<kBits, 3>(args, head, first, ahead);
    default:
      return Block<kBits, 4>(args, head, first, ahead);
  }
}

template <int kBits>
VARVE_INLINE void Head(const PvArgs& args, int head, Ahead& ahead) {
  const int n_first = FirstQueries(args.n);
  Queries<kBits>(args, head, 0, n_first, ahead);
  if (args.n > n_first) Queries<kBits>(args, head, n_first, args.n - n_first, ahead);
  ahead.FetchRest();
}

}  // namespace

void PvAvx2(const PvArgs& args) {
  for (int head = 0; head < args.n_heads; ++head) {
    Ahead ahead(args.codes, args.head_stride, args.n_heads, head, args.next, args.next_stride);
    switch (args.bits) {
      case 2:
        Head<2>(args, head, ahead);
        break;
      case 3:
        Head<3>(args, head, ahead);
        break;
      case 4:
        Head<4>(args, head, ahead);
        break;
      default:
        Head<8>(args, head, ahead);
    }
  }
}

}  // namespace varve
