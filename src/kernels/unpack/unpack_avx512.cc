// unpack on AVX-512 VBMI: one VPERMB a product line, a shift where a field would reach past bit 5
// of its byte.
#include <immintrin.h>

#include "kernels/lines_avx512.h"
#include "kernels/unpack/unpack.h"

namespace varve {
namespace {

template <int kBias>
void Unpack(const UnpackArgs& args) {
  using T = Tables<kBias>;
  const uint8_t* in = args.codes;
  uint8_t* out = args.lines;
  const auto load = [&](int i) { return _mm512_loadu_si512(in + i * kLine); };
  const auto store = [&](int i, __m512i x) { _mm512_storeu_si512(out + i * kLine, x); };
  int left = args.n_lines;
  switch (args.bits) {
    case 8:
      for (; left > 0; --left, in += kLine, out += kLine) store(0, load(0));
      break;
    case 4:
      for (; left > 0; left -= 2, in += kLine, out += 2 * kLine) {
        const __m512i a = load(0);
        store(0, Look(T::k4, a));
        store(1, Look(T::k4, _mm512_srli_epi16(a, 4)));
      }
      break;
    case 2:
      for (; left > 0; left -= 4, in += kLine, out += 4 * kLine) {
        const __m512i a = load(0);
        store(0, Look(T::k2a, a));
        store(1, Look(T::k2b, a));
        store(2, Look(T::k2c, a));
        store(3, Look(T::k2a, _mm512_srli_epi16(a, 6)));
      }
      break;
    case 6:
      for (; left > 0; left -= 4, in += 3 * kLine, out += 4 * kLine) {
        const __m512i a = load(0);
        const __m512i b = load(1);
        const __m512i c = load(2);
        store(0, Look(T::k6, a));
        store(1, Look(T::k6, b));
        store(2, Look(T::k6, c));
        store(3, Look(T::k6, Spare(a, b, c)));
      }
      break;
    default:
      for (; left > 0; left -= 8, in += 3 * kLine, out += 8 * kLine) {
        const __m512i a = load(0);
        const __m512i b = load(1);
        const __m512i c = load(2);
        const __m512i spare = Spare(a, b, c);
        store(0, Look(T::k3a, a));
        store(1, Look(T::k3b, a));
        store(2, Look(T::k3a, b));
        store(3, Look(T::k3b, b));
        store(4, Look(T::k3a, c));
        store(5, Look(T::k3b, c));
        store(6, Look(T::k3a, spare));
        store(7, Look(T::k3b, spare));
      }
  }
}

}  // namespace

void UnpackAvx512(const UnpackArgs& args) {
  if (args.side == Side::kKey) {
    Unpack<128>(args);
  } else {
    Unpack<0>(args);
  }
}

}  // namespace varve
