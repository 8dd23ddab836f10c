#include "codec/group_affine_pack.h"

#include <cstring>

namespace varve {
namespace {

void UnpackAnyWidth(int bits, const std::byte* packed, size_t first, size_t n, uint16_t* codes) {
  const uint32_t mask = (1u << bits) - 1;
  size_t bit = first * static_cast<size_t>(bits);
  for (size_t i = 0; i < n; ++i, bit += static_cast<size_t>(bits)) {
    const size_t byte = bit / 8;
    const size_t last = (bit + static_cast<size_t>(bits) - 1) / 8;
    uint32_t word = 0;
    for (size_t j = byte; j <= last; ++j)
      word |= std::to_integer<uint32_t>(packed[j]) << (8 * (j - byte));
    codes[i] = static_cast<uint16_t>((word >> (bit % 8)) & mask);
  }
}

void PackAnyWidth(int bits, const uint16_t* codes, size_t n, std::byte* packed) {
  uint64_t pending = 0;
  int n_pending = 0;
  for (size_t i = 0; i < n; ++i) {
    pending |= static_cast<uint64_t>(codes[i]) << n_pending;
    n_pending += bits;
    while (n_pending >= 8) {
      *packed++ = static_cast<std::byte>(pending & 0xff);
      pending >>= 8;
      n_pending -= 8;
    }
  }
  if (n_pending > 0) *packed = static_cast<std::byte>(pending);
}

// Widths that divide a byte: whole bytes at a time. n is a multiple of the codes in a byte.
template <int kBits>
void PackWholeBytes(const uint16_t* codes, size_t n, std::byte* packed) {
  constexpr size_t kPerByte = 8 / kBits;
  for (size_t i = 0; i < n / kPerByte; ++i) {
    uint32_t byte = 0;
    for (size_t j = 0; j < kPerByte; ++j)
      byte |= static_cast<uint32_t>(codes[i * kPerByte + j]) << (kBits * j);
    packed[i] = static_cast<std::byte>(byte);
  }
}

template <int kBits>
void UnpackWholeBytes(const std::byte* packed, size_t n, uint16_t* codes) {
  constexpr size_t kPerByte = 8 / kBits;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  for (size_t i = 0; i < n / kPerByte; ++i) {
    const uint32_t byte = std::to_integer<uint32_t>(packed[i]);
    for (size_t j = 0; j < kPerByte; ++j)
      codes[i * kPerByte + j] = static_cast<uint16_t>((byte >> (kBits * j)) & kMask);
  }
}

}  // namespace

void PackCodes(int bits, const uint16_t* codes, size_t n, std::byte* packed) {
  if (8 % bits != 0) return PackAnyWidth(bits, codes, n, packed);
  const size_t per_byte = 8 / static_cast<size_t>(bits);
  const size_t whole = n / per_byte * per_byte;
  switch (bits) {
    case 1:
      PackWholeBytes<1>(codes, whole, packed);
      break;
    case 2:
      PackWholeBytes<2>(codes, whole, packed);
      break;
    case 4:
      PackWholeBytes<4>(codes, whole, packed);
      break;
    default:
      PackWholeBytes<8>(codes, whole, packed);
      break;
  }
  PackAnyWidth(bits, codes + whole, n - whole, packed + whole / per_byte);
}

void UnpackCodes(int bits, const std::byte* packed, size_t first, size_t n, uint16_t* codes) {
  const size_t per_byte = bits <= 8 ? 8 / static_cast<size_t>(bits) : 1;
  if (8 % bits != 0 || first % per_byte != 0) return UnpackAnyWidth(bits, packed, first, n, codes);
  packed += first / per_byte;
  const size_t whole = n / per_byte * per_byte;
  switch (bits) {
    case 1:
      UnpackWholeBytes<1>(packed, whole, codes);
      break;
    case 2:
      UnpackWholeBytes<2>(packed, whole, codes);
      break;
    case 4:
      UnpackWholeBytes<4>(packed, whole, codes);
      break;
    default:
      UnpackWholeBytes<8>(packed, whole, codes);
      break;
  }
  UnpackAnyWidth(bits, packed + whole / per_byte, 0, n - whole, codes + whole);
}

}  // namespace varve
