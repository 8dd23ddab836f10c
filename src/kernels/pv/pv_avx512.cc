// pv on AVX-512 VNNI + VBMI. A 64-byte product line is 16 channels x 4 tokens; dword lane =
// channel, eight lines a vector of 16 channels, decoded by one VPERMB each. The weights' high and
// low bytes are the unsigned operand, four tokens a broadcast dword.
//
//   registers, up to four queries: acc[vector][n][high, low], at most 24: four vectors at a time
//   for one query, which covers the latency of VPDPBUSD (5 cycles, 2 a cycle), and for three, else
//   two; they share each broadcast. From five queries on one sum each, and two vectors' lines
//   decoded.
//
// Why inline assembly: g++ 12 copies and spills accumulators of _mm512_dpbusd_epi32 round loops.
#include <immintrin.h>

#include "kernels/lines_avx512.h"
#include "kernels/pv/pv.h"

namespace varve {
namespace {

using Codes = Tables<0>;

constexpr int kTokenQuads = 8;

// More queries have enough sums to cover the latency without one each for high and low bytes.
constexpr int kMaxSplitSums = 4;

template <int...>
struct Indices {};

/// acc += sum of 4 products of the weights (unsigned) and levels (signed).
VARVE_INLINE void Dot(__m512i& acc, __m512i weights, __m512i levels) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weights), "v"(levels));
}

/// The eight product lines of one vector of channels. Line<t>() of successive t.
template <int kBits>
struct Vector;

template <>
struct Vector<8> {
  static constexpr int kLines = 8;
  const uint8_t* codes;
  VARVE_INLINE void Read(const uint8_t* at) { codes = at; }
  template <int t>
  VARVE_INLINE __m512i Line() const {
    return Load(codes + t * kLine);
  }
};

template <>
struct Vector<4> {
  static constexpr int kLines = 4;
  __m512i line[4];
  VARVE_INLINE void Read(const uint8_t* at) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) line[i] = Load(at + i * kLine);
  }
  template <int t>
  VARVE_INLINE __m512i Line() const {
    if constexpr (t % 2 == 0) return Look(Codes::k4, line[t / 2]);
    return Look(Codes::k4, _mm512_srli_epi16(line[t / 2], 4));
  }
};

template <>
struct Vector<3> {
  static constexpr int kLines = 3;
  __m512i line[4];
  VARVE_INLINE void Read(const uint8_t* at) {
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) line[i] = Load(at + i * kLine);
    line[3] = Spare(line[0], line[1], line[2]);
  }
  template <int t>
  VARVE_INLINE __m512i Line() const {
    return Look(t % 2 == 0 ? Codes::k3a : Codes::k3b, line[t / 2]);
  }
};

template <>
struct Vector<2> {
  static constexpr int kLines = 2;
  __m512i line[2];
  VARVE_INLINE void Read(const uint8_t* at) {
    line[0] = Load(at);
    line[1] = Load(at + kLine);
  }
  template <int t>
  VARVE_INLINE __m512i Line() const {
    if constexpr (t % 4 == 3) return Look(Codes::k2a, _mm512_srli_epi16(line[t / 4], 6));
    return Look(t % 4 == 0 ? Codes::k2a : t % 4 == 1 ? Codes::k2b : Codes::k2c, line[t / 4]);
  }
};

VARVE_INLINE __m512i Broadcast(const uint8_t* weights, int t) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(weights + 4 * t));
}

VARVE_INLINE void Store(float* out, __m512i sum, __m512 factor) {
  _mm512_store_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, _mm512_load_ps(out)));
}

/// Token quad t of kVectors vectors of channels.
template <int t, int kBits, int N, int kVectors>
VARVE_INLINE void AddQuad(const uint8_t* weights, const Vector<kBits> (&vectors)[kVectors],
                          __m512i (&acc)[kVectors][N][2]) {
  __m512i line[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) line[i] = vectors[i].template Line<t>();
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i w = Broadcast(weights + 64 * n + 32 * half, t);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) Dot(acc[i][n][half], w, line[i]);
    }
  }
}

/// One head's operands.
struct HeadOf {
  const uint8_t* codes;
  const uint8_t* weights;
  const float* factors;
  float* out;
  ptrdiff_t out_stride;

  VARVE_INLINE HeadOf(const PvArgs& args, int head)
      : codes(args.codes + head * args.head_stride),
        weights(static_cast<const uint8_t*>(args.weights) + 64 * head * args.n),
        factors(args.factors + head * args.n),
        out(args.out + head * args.n * args.out_stride),
        out_stride(args.out_stride) {}
};

/// Adds kVectors vectors of channels from number v on.
template <int kBits, int N, int kVectors>
VARVE_INLINE void AddVectors(const HeadOf& head, int v) {
  constexpr ptrdiff_t kBytes = Vector<kBits>::kLines * kLine;
  Vector<kBits> vectors[kVectors];
  __m512i acc[kVectors][N][2];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    vectors[i].Read(head.codes + (v + i) * kBytes);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[i][n][0] = acc[i][n][1] = _mm512_setzero_si512();
  }
  AddQuad<0>(head.weights, vectors, acc);
  AddQuad<1>(head.weights, vectors, acc);
  AddQuad<2>(head.weights, vectors, acc);
  AddQuad<3>(head.weights, vectors, acc);
  AddQuad<4>(head.weights, vectors, acc);
  AddQuad<5>(head.weights, vectors, acc);
  AddQuad<6>(head.weights, vectors, acc);
  AddQuad<7>(head.weights, vectors, acc);
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const __m512 factor = _mm512_set1_ps(head.factors[n]);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(acc[i][n][0], 8), acc[i][n][1]);
      Store(head.out + n * head.out_stride + 16 * (v + i), sum, factor);
    }
  }
}

template <int kBits, int kVectors, int... t>
VARVE_INLINE void DecodeAll(const uint8_t* codes, __m512i (&line)[kVectors][kTokenQuads],
                            Indices<t...>) {
#pragma GCC unroll 2
  for (int i = 0; i < kVectors; ++i) {
    Vector<kBits> vector;
    vector.Read(codes + i * Vector<kBits>::kLines * kLine);
    ((line[i][t] = vector.template Line<t>()), ...);
  }
}

/// AddVectors() of five queries and more, one sum a query and vector: all lines are decoded first,
/// and stay in registers while the weights' high bytes go over them, then the low ones.
template <int kBits, int N, int kVectors>
VARVE_INLINE void AddVectorsOfMany(const HeadOf& head, int v) {
  __m512i line[kVectors][kTokenQuads];
  DecodeAll<kBits>(head.codes + v * Vector<kBits>::kLines * kLine, line,
                   Indices<0, 1, 2, 3, 4, 5, 6, 7>());
  __m512i acc[N][kVectors];
#pragma GCC unroll 7
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i) acc[n][i] = _mm512_setzero_si512();
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokenQuads; ++t) {
#pragma GCC unroll 7
      for (int n = 0; n < N; ++n) {
        const __m512i w = Broadcast(head.weights + 64 * n + 32 * half, t);
#pragma GCC unroll 2
        for (int i = 0; i < kVectors; ++i) Dot(acc[n][i], w, line[i][t]);
      }
    }
    if (half == 1) break;
#pragma GCC unroll 7
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 2
      for (int i = 0; i < kVectors; ++i) acc[n][i] = _mm512_slli_epi32(acc[n][i], 8);
    }
  }
#pragma GCC unroll 7
  for (int n = 0; n < N; ++n) {
    const __m512 factor = _mm512_set1_ps(head.factors[n]);
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i)
      Store(head.out + n * head.out_stride + 16 * (v + i), acc[n][i], factor);
  }
}

template <int N>
VARVE_INLINE bool AllZero(const float* factors) {
  bool zero = true;
#pragma GCC unroll 7
  for (int n = 0; n < N; ++n) zero = zero && factors[n] == 0;
  return zero;
}

template <int kBits, int N, int kVectors>
VARVE_INLINE void Add(const HeadOf& head, int v) {
  if constexpr (N <= kMaxSplitSums) {
    AddVectors<kBits, N, kVectors>(head, v);
  } else {
    AddVectorsOfMany<kBits, N, kVectors>(head, v);
  }
}

template <int kBits, int N>
__attribute__((noinline)) void Heads(const PvArgs& args) {
  constexpr int kVectors = N == 1 || N == 3 ? 4 : 2;
  for (int i = 0; i < args.n_heads; ++i) {
    const HeadOf head(args, i);
    if (AllZero<N>(head.factors)) continue;
    Ahead ahead(args.codes, args.head_stride, args.n_heads, i, args.next, args.next_stride);
    const int n_turns = (args.n_vectors + kVectors - 1) / kVectors;
    const int step = (static_cast<int>((ahead.end - ahead.at) / kLine) + n_turns - 1) / n_turns;
    int v = 0;
    for (; v + kVectors <= args.n_vectors; v += kVectors) {
      Add<kBits, N, kVectors>(head, v);
      ahead.Fetch(step);
    }
    for (; v < args.n_vectors; ++v) {
      Add<kBits, N, 1>(head, v);
      ahead.Fetch(step);
    }
  }
}

template <int kBits>
VARVE_INLINE void Block(const PvArgs& args) {
  switch (args.n) {
    case 1:
      return Heads<kBits, 1>(args);
    case 2:
      return Heads<kBits, 2>(args);
    case 3:
      return Heads<kBits, 3>(args);
    case 4:
      return Heads<kBits, 4>(args);
    case 5:
      return Heads<kBits, 5>(args);
    case 6:
      return Heads<kBits, 6>(args);
    default:
      return Heads<kBits, 7>(args);
  }
}

}  // namespace

void PvAvx512(const PvArgs& args) {
  switch (args.bits) {
    case 2:
      return Block<2>(args);
    case 3:
      return Block<3>(args);
    case 4:
      return Block<4>(args);
    default:
      return Block<8>(args);
  }
}

}  // namespace varve
