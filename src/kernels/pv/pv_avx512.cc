// pv on AVX-512 VNNI + VBMI. A 64-byte product line is 16 channels x 4 tokens; dword lane =
// channel, eight lines a vector of 16 channels, decoded by one VPERMB each. The weights' high and
// low bytes are the unsigned operand, four tokens a broadcast dword.
//
//   N = 1: the block's 16 weight registers stay; acc[vector parity][high, low].
//   N > 1: two vectors at a time share each broadcast; acc[vector][n][high, low], at most 16.
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
  VARVE_INLINE explicit Vector(const uint8_t* at) : codes(at) {}
  template <int t>
  VARVE_INLINE __m512i Line() const {
    return Load(codes + t * kLine);
  }
};

template <>
struct Vector<4> {
  static constexpr int kLines = 4;
  __m512i line[4];
  VARVE_INLINE explicit Vector(const uint8_t* at)
      : line{Load(at), Load(at + kLine), Load(at + 2 * kLine), Load(at + 3 * kLine)} {}
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
  VARVE_INLINE explicit Vector(const uint8_t* at)
      : line{Load(at), Load(at + kLine), Load(at + 2 * kLine), _mm512_setzero_si512()} {
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
  VARVE_INLINE explicit Vector(const uint8_t* at) : line{Load(at), Load(at + kLine)} {}
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

template <int kBits>
__attribute__((noinline)) void OneQuery(const PvArgs& args) {
  const auto* weights = static_cast<const uint8_t*>(args.weights);
  __m512i high[kTokenQuads];
  __m512i low[kTokenQuads];
#pragma GCC unroll 8
  for (int t = 0; t < kTokenQuads; ++t) {
    high[t] = Broadcast(weights, t);
    low[t] = Broadcast(weights + 32, t);
  }
  const __m512 factor = _mm512_set1_ps(args.factor[0]);
  float* out = args.out[0];
  Prefetch prefetch(args, args.n_vectors);
  for (int v = 0; v < args.n_vectors; ++v) {
    const Vector<kBits> vector(args.codes +
                               static_cast<ptrdiff_t>(v) * Vector<kBits>::kLines * kLine);
    __m512i acc_high = _mm512_setzero_si512();
    __m512i acc_low = _mm512_setzero_si512();
    const auto add = [&](__m512i levels, __m512i h, __m512i l) __attribute__((always_inline)) {
      Dot(acc_high, h, levels);
      Dot(acc_low, l, levels);
    };
    add(vector.template Line<0>(), high[0], low[0]);
    add(vector.template Line<1>(), high[1], low[1]);
    add(vector.template Line<2>(), high[2], low[2]);
    add(vector.template Line<3>(), high[3], low[3]);
    add(vector.template Line<4>(), high[4], low[4]);
    add(vector.template Line<5>(), high[5], low[5]);
    add(vector.template Line<6>(), high[6], low[6]);
    add(vector.template Line<7>(), high[7], low[7]);
    Store(out + 16 * v, acc_high, acc_low, factor);
    prefetch.Turn();
  }
}

template <int kBits, int N, int kVectors>
VARVE_INLINE void Vectors(const PvArgs& args, int v, const uint8_t* codes) {
  const auto* weights = static_cast<const uint8_t*>(args.weights);
  constexpr int kBytes = Vector<kBits>::kLines * kLine;
  const Vector<kBits> first(codes);
  const Vector<kBits> second(codes + (kVectors == 2 ? kBytes : 0));
  __m512i acc[kVectors][N][2];
#pragma GCC unroll 2
  for (int i = 0; i < kVectors; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[i][n][0] = acc[i][n][1] = _mm512_setzero_si512();
  }
  const auto quad = [&](int t, __m512i a, __m512i b) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m512i high = Broadcast(weights + 64 * n, t);
      Dot(acc[0][n][0], high, a);
      if constexpr (kVectors == 2) Dot(acc[kVectors - 1][n][0], high, b);
      const __m512i low = Broadcast(weights + 64 * n + 32, t);
      Dot(acc[0][n][1], low, a);
      if constexpr (kVectors == 2) Dot(acc[kVectors - 1][n][1], low, b);
    }
  };
  quad(0, first.template Line<0>(), second.template Line<0>());
  quad(1, first.template Line<1>(), second.template Line<1>());
  quad(2, first.template Line<2>(), second.template Line<2>());
  quad(3, first.template Line<3>(), second.template Line<3>());
  quad(4, first.template Line<4>(), second.template Line<4>());
  quad(5, first.template Line<5>(), second.template Line<5>());
  quad(6, first.template Line<6>(), second.template Line<6>());
  quad(7, first.template Line<7>(), second.template Line<7>());
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    const __m512 factor = _mm512_set1_ps(args.factor[n]);
#pragma GCC unroll 2
    for (int i = 0; i < kVectors; ++i)
      Store(args.out[n] + 16 * (v + i), acc[i][n][0], acc[i][n][1], factor);
  }
}

template <int kBits, int N>
__attribute__((noinline)) void SeveralQueries(const PvArgs& args) {
  constexpr ptrdiff_t kBytes = Vector<kBits>::kLines * kLine;
  Prefetch prefetch(args, (args.n_vectors + 1) / 2);
  int v = 0;
  for (; v + 2 <= args.n_vectors; v += 2) {
    Vectors<kBits, N, 2>(args, v, args.codes + v * kBytes);
    prefetch.Turn();
  }
  if (v < args.n_vectors) {
    Vectors<kBits, N, 1>(args, v, args.codes + v * kBytes);
    prefetch.Turn();
  }
}

template <int kBits>
VARVE_INLINE void Block(const PvArgs& args) {
  switch (args.n) {
    case 1:
      return OneQuery<kBits>(args);
    case 2:
      return SeveralQueries<kBits, 2>(args);
    case 3:
      return SeveralQueries<kBits, 3>(args);
    default:
      return SeveralQueries<kBits, 4>(args);
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
