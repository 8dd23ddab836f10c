// unpack on AVX2: shift, mask and one VPSHUFB (four for 6 bits) a half line.
#include <immintrin.h>

#include "kernels/lines_avx2.h"
#include "kernels/unpack/unpack.h"

namespace varve {
namespace {

/// Product lines first .. last of the group at `in`, written from `out` on.
template <int kBits, int kSlot, int kSlots>
VARVE_INLINE void Group(const uint8_t* in, uint8_t* out, __m256i flip) {
  if constexpr (kSlot < kSlots) {
    for (int piece = 0; piece < 2; ++piece) {
      const __m256i levels = _mm256_xor_si256(Decode<kBits, kSlot>(in, piece), flip);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + kSlot * kLine + kPiece * piece), levels);
    }
    Group<kBits, kSlot + 1, kSlots>(in, out, flip);
  }
}

template <int kBits, int kSlots, int kLines>
void Unpack(const UnpackArgs& args, __m256i flip) {
  const uint8_t* in = args.codes;
  uint8_t* out = args.lines;
  for (int line = 0; line < args.n_lines;
       line += kSlots, in += kLines * kLine, out += kSlots * kLine) {
    Group<kBits, 0, kSlots>(in, out, flip);
  }
}

}  // namespace

void UnpackAvx2(const UnpackArgs& args) {
  // level + 128 with the top bit turned is the signed level.
  const __m256i flip =
      args.side == Side::kKey ? _mm256_setzero_si256() : _mm256_set1_epi8(static_cast<char>(0x80));
  switch (args.bits) {
    case 2:
      return Unpack<2, 4, 1>(args, flip);
    case 3:
      return Unpack<3, 8, 3>(args, flip);
    case 4:
      return Unpack<4, 2, 1>(args, flip);
    case 6:
      return Unpack<6, 4, 3>(args, flip);
    default:
      return Unpack<8, 1, 1>(args, _mm256_setzero_si256());
  }
}

}  // namespace varve
