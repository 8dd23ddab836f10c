// Packing product lines in the lanes of one level (kernels/lanes_<level>.h comes first).
#ifndef VARVE_KERNELS_PACK_LINES_BODY_H_
#define VARVE_KERNELS_PACK_LINES_BODY_H_

#include "kernels/pack/place_body.h"

namespace varve {
namespace {

/// A group's packed lines from its product lines, `at` bytes into each.
template <int kBits>
VARVE_INLINE void PackGroup(const uint8_t* lines, uint8_t* group, size_t at) {
  const auto codes = [&](int k) __attribute__((always_inline)) {
    return LoadAs<I32>(lines + static_cast<size_t>(k) * kLineBytes + at);
  };
  const auto put = [&](int line, I32 packed) __attribute__((always_inline)) {
    std::memcpy(group + static_cast<size_t>(line) * kLineBytes + at, &packed, sizeof packed);
  };
  // No code reaches into the next byte, so dwords shift as bytes.
  if constexpr (kBits == 8) {
    put(0, codes(0));
  } else if constexpr (kBits == 4) {
    put(0, codes(0) | codes(1) << 4);
  } else if constexpr (kBits == 2) {
    put(0, codes(0) | codes(1) << 2 | codes(2) << 4 | codes(3) << 6);
  } else {
    const auto six = [&](int field) __attribute__((always_inline)) {
      return kBits == 6 ? codes(field) : codes(2 * field) | codes(2 * field + 1) << 3;
    };
    const I32 spread = six(3);
    for (int field = 0; field < 3; ++field)
      put(field, six(field) | (spread >> (2 * field) & 0x03030303) << 6);
  }
}

template <int kBits>
void PackAll(const PackLinesArgs& args) {
  const int per_group = kLinesPerGroup[kBits];
  const uint8_t* lines = args.lines;
  uint8_t* group = args.segment;
  int left = args.n_lines;
  for (; left >= per_group; left -= per_group) {
    for (size_t at = 0; at < kLineBytes; at += sizeof(I32)) PackGroup<kBits>(lines, group, at);
    lines += static_cast<size_t>(per_group) * kLineBytes;
    group += kGroupBytes[kBits];
  }
  if (left <= 0) return;
  alignas(64) uint8_t last[8 * kLineBytes] = {};
  std::memcpy(last, lines, static_cast<size_t>(left) * kLineBytes);
  for (size_t at = 0; at < kLineBytes; at += sizeof(I32)) PackGroup<kBits>(last, group, at);
}

void PackLines(const PackLinesArgs& args) {
  switch (args.bits) {
    case 2:
      return PackAll<2>(args);
    case 3:
      return PackAll<3>(args);
    case 4:
      return PackAll<4>(args);
    case 6:
      return PackAll<6>(args);
    default:
      return PackAll<8>(args);
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_PACK_LINES_BODY_H_
