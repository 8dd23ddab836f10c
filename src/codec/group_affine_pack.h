// Codes of 1..16 bits as one little-endian bit string: code i takes bits [i*bits, (i+1)*bits), low
// bits first within a byte. For 1 to 4 bits this is the seeds' BitPackBuffer (spec section 6).
#ifndef VARVE_CODEC_GROUP_AFFINE_PACK_H_
#define VARVE_CODEC_GROUP_AFFINE_PACK_H_

#include <cstddef>
#include <cstdint>

namespace varve {

/// Bytes of n codes: ceil(n * bits / 8).
constexpr size_t PackedCodeBytes(size_t n, int bits) {
  return (n * static_cast<size_t>(bits) + 7) / 8;
}

/// Packs n codes, each below 2^bits, into PackedCodeBytes(n, bits) bytes; unused bits of the last
/// byte are 0.
void PackCodes(int bits, const uint16_t* codes, size_t n, std::byte* packed);

/// Reads codes [first, first + n) of a bit string back. Never reads past the byte that holds the
/// last of them.
void UnpackCodes(int bits, const std::byte* packed, size_t first, size_t n, uint16_t* codes);

}  // namespace varve

#endif  // VARVE_CODEC_GROUP_AFFINE_PACK_H_
