// pv on AVX-512 VNNI + VBMI. A 64-byte product line is 16 channels x 4 tokens; dword lane =
// channel, eight lines a vector of 16 channels, decoded by one VPERMB each. The weights' high and
// low bytes are the unsigned operand, four tokens a broadcast dword.
//
//   registers: acc[vector][n][high, low], at most 16: four vectors at a time for one query, which
//   covers the latency of VPDPBUSD (5 cycles, 2 a cycle), two for more; they share each broadcast.
//
// Why inline assembly: g++ 12 copies and spills accumulators of _mm512_dpbusd_epi32 round loops.
#include <immintrin.h>

#include "kernels/lines_avx512.h"
#include "kernels/pv/pv.h"

namespace varve {
namespace {

using Codes = Tables<0>;

constexpr int kTokenQuads = 8;

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

VARVE_INLINE void Store(float* out, __m512i high, __m512i low, __m512 factor) {
  const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
  _mm512_store_ps(out, _mm512_fmadd_ps(sum, factor, _mm512_load_ps(out)));
}

struct Prefetch {
  const uint8_t* next;
  const uint8_t* end;
  int step;

  VARVE_INLINE explicit Prefetch(const PvArgs& args, int n_turns)
      : next(args.prefetch),
        end(args.prefetch + static_cast<ptrdiff_t>(args.n_prefetch_lines) * kLine),
        step((args.n_prefetch_lines + n_turns - 1) / n_turns) {}

  VARVE_INLINE void Turn() {
    for (int i = 0; i < step && next < end; ++i, next += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
    }
  }
};

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

/// Adds kVectors vectors of channels from number v on, whose codes start at `codes`.
template <int kBits, int N, int kVectors>
VARVE_INLINE void AddVectors(const PvArgs& args, int v, const uint8_t* codes) {
  const auto* weights = static_cast<const uint8_t*>(args.weights);
  Vector<kBits> vectors[kVectors];
  __m512i acc[kVectors][N][2];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    vectors[i].Read(codes + i * Vector<kBits>::kLines * kLine);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[i][n][0] = acc[i][n][1] = _mm512_setzero_si512();
  }
  AddQuad<0>(weights, vectors, acc);
  AddQuad<1>(weights, vectors, acc);
  AddQuad<2>(weights, vectors, acc);
  AddQuad<3>(weights, vectors, acc);
  AddQuad<4>(weights, vectors, acc);
  AddQuad<5>(weights, vectors, acc);
  AddQuad<6>(weights, vectors, acc);
  AddQuad<7>(weights, vectors, acc);
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const __m512 factor = _mm512_set1_ps(args.factors[n]);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
      Store(args.out + n * args.out_stride + 16 * (v + i), acc[i][n][0], acc[i][n][1], factor);
  }
}

template <int kBits, int N>
__attribute__((noinline)) void Queries(const PvArgs& args) {
  constexpr ptrdiff_t kBytes = Vector<kBits>::kLines * kLine;
  constexpr int kVectors = N == 1 ? 4 : 2;
  Prefetch prefetch(args, (args.n_vectors + kVectors - 1) / kVectors);
  int v = 0;
  for (; v + kVectors <= args.n_vectors; v += kVectors) {
    AddVectors<kBits, N, kVectors>(args, v, args.codes + v * kBytes);
    prefetch.Turn();
  }
  for (; v < args.n_vectors; ++v) {
    AddVectors<kBits, N, 1>(args, v, args.codes + v * kBytes);
    prefetch.Turn();
  }
}

template <int kBits>
VARVE_INLINE void Block(const PvArgs& args) {
  switch (args.n) {
    case 1:
      return Queries<kBits, 1>(args);
    case 2:
      return Queries<kBits, 2>(args);
    case 3:
      return Queries<kBits, 3>(args);
    default:
      return Queries<kBits, 4>(args);
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
