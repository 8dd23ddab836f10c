// Where a code sits. Codes come in product lines of 64: one byte a code once decoded, which is what
// VPDPBUSD multiplies. A group of product lines is packed into 64-byte memory lines so that
// decoding is a table lookup a line:
//
//   bits   product lines a group   bytes   slot s of byte b (b = 0..63 in the line)
//   8      1                        64     the byte
//   4      2                        64     bits 4s..4s+3
//   2      4                        64     bits 2s..2s+1
//   6      4                       192     s < 3: bits 0..5 of line s;  s = 3: bits 6..7 of lines
//   0, 1, 2, low to high 3      8                       192     as two codes in each slot of the
//   6-bit form: slot s/2, bits 3(s%2)..3(s%2)+2
//
// Keys:   byte b of product line 2i+h is channel 4i + b%4 of token 16h + b/4 (i counts quads of a
// segment's channels). Values: byte b of product line 8i+t is channel 16i + b/4 of token 4t + b%4.
#ifndef VARVE_LAYOUT_CODE_LINES_H_
#define VARVE_LAYOUT_CODE_LINES_H_

#include <cstddef>
#include <cstdint>

#include "layout/scheme.h"

namespace varve {

inline constexpr int kBlockTokens = 32;
inline constexpr size_t kLineBytes = 64;

/// Product lines in a packed group of this width (2, 3, 4, 6 or 8 bits).
// Why static: kernel files of an instruction set call it, and may leave no weak copy behind.
static constexpr int LinesPerGroup(int bits) {
  return bits == 3 ? 8 : bits == 2 || bits == 6 ? 4 : bits == 4 ? 2 : 1;
}

static constexpr size_t GroupBytes(int bits) {
  return bits == 3 || bits == 6 ? 3 * kLineBytes : kLineBytes;
}

/// Channels that fill whole groups: keys have two product lines a quad of channels, values eight
/// for 16 channels.
constexpr int Granule(Side side, int bits) {
  return side == Side::kValue ? 16 : LinesPerGroup(bits) <= 2 ? 4 : 2 * LinesPerGroup(bits);
}

/// Bytes that `n_channels` (a multiple of the granule) of 32 tokens take.
constexpr size_t SegmentBytes(int bits, int n_channels) {
  return static_cast<size_t>(n_channels) * static_cast<size_t>(bits) * kBlockTokens / 8;
}

/// Product line and byte of a channel (counted inside its segment) and token.
struct CodePosition {
  int line;
  int byte;
};

constexpr CodePosition PositionOf(Side side, int channel, int token) {
  if (side == Side::kKey) return {channel / 4 * 2 + token / 16, token % 16 * 4 + channel % 4};
  return {channel / 16 * 8 + token / 4, channel % 16 * 4 + token % 4};
}

/// Reads the code at a position of a segment that starts at `segment`.
inline unsigned GetCode(const uint8_t* segment, int bits, CodePosition at) {
  const int slot = at.line % LinesPerGroup(bits);
  const uint8_t* byte =
      segment + static_cast<size_t>(at.line / LinesPerGroup(bits)) * GroupBytes(bits) + at.byte;
  switch (bits) {
    case 8:
      return byte[0];
    case 4:
      return byte[0] >> (4 * slot) & 15u;
    case 2:
      return byte[0] >> (2 * slot) & 3u;
    default:
      break;
  }
  const int field = bits == 6 ? slot : slot / 2;
  const unsigned spare = byte[0] >> 6 | (byte[64] >> 6) << 2 | (byte[128] >> 6) << 4;
  const unsigned six = field < 3 ? byte[64 * field] & 63u : spare;
  return bits == 6 ? six : six >> (3 * (slot % 2)) & 7u;
}

/// Writes the code at a position, leaving its neighbours alone.
inline void PutCode(uint8_t* segment, int bits, CodePosition at, unsigned code) {
  const int slot = at.line % LinesPerGroup(bits);
  uint8_t* byte =
      segment + static_cast<size_t>(at.line / LinesPerGroup(bits)) * GroupBytes(bits) + at.byte;
  const auto put = [](uint8_t* at_byte, unsigned mask, unsigned value) {
    *at_byte = static_cast<uint8_t>((*at_byte & ~mask) | value);
  };
  switch (bits) {
    case 8:
      byte[0] = static_cast<uint8_t>(code);
      return;
    case 4:
      put(byte, 15u << (4 * slot), code << (4 * slot));
      return;
    case 2:
      put(byte, 3u << (2 * slot), code << (2 * slot));
      return;
    default:
      break;
  }
  const int field = bits == 6 ? slot : slot / 2;
  const int shift = bits == 6 ? 0 : 3 * (slot % 2);
  const unsigned mask = (bits == 6 ? 63u : 7u) << shift;
  const unsigned value = code << shift;
  if (field < 3) {
    put(byte + 64 * field, mask, value);
    return;
  }
  for (int i = 0; i < 3; ++i)
    put(byte + 64 * i, (mask >> (2 * i) & 3u) << 6, (value >> (2 * i) & 3u) << 6);
}

}  // namespace varve

#endif  // VARVE_LAYOUT_CODE_LINES_H_
