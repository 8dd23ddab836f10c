// The places of codes, shared by the pack kernels of every level: vectors of 16 lanes in the
// compiler's own notation.
#ifndef VARVE_KERNELS_PACK_PLACE_BODY_H_
#define VARVE_KERNELS_PACK_PLACE_BODY_H_

#include <cstdint>
#include <cstring>

#include "kernels/pack/pack.h"
#include "layout/code_lines.h"

#define VARVE_INLINE __attribute__((always_inline)) inline

// All of it is inlined, so the ABI of vector arguments does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace varve {
namespace {

constexpr int kLanes = 16;

typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef uint8_t U8x16 __attribute__((vector_size(16)));
typedef int8_t I8x16 __attribute__((vector_size(16)));

template <typename T, typename Pointer>
VARVE_INLINE T LoadAs(const Pointer* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// -1 in lanes below n.
VARVE_INLINE I32x16 Below(int n) {
  const I32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < n;
}

/// The layout's functions as tables by width, so that none of them is compiled here.
constexpr int kLinesPerGroup[9] = {0,
                                   0,
                                   LinesPerGroup(2),
                                   LinesPerGroup(3),
                                   LinesPerGroup(4),
                                   0,
                                   LinesPerGroup(6),
                                   0,
                                   LinesPerGroup(8)};
constexpr size_t kGroupBytes[9] = {
    0, 0, GroupBytes(2), GroupBytes(3), GroupBytes(4), 0, GroupBytes(6), 0, GroupBytes(8)};

/// Where a product line's codes are: shift inside a byte of line `line` of the group, or spread
/// over the top bits of three lines.
struct Slot {
  bool spread;
  int line;
  int shift;
  uint32_t mask;  ///< of a code in each byte
};

VARVE_INLINE Slot SlotOf(int bits, int product_line) {
  const int slot = product_line % kLinesPerGroup[bits];
  switch (bits) {
    case 8:
      return {false, 0, 0, 0xffffffffu};
    case 4:
      return {false, 0, 4 * slot, 0x0f0f0f0fu};
    case 2:
      return {false, 0, 2 * slot, 0x03030303u};
    case 6:
      return {slot == 3, slot, 0, 0x3f3f3f3fu};
    default:
      return {slot >= 6, slot / 2, 3 * (slot % 2), 0x07070707u};
  }
}

/// Writes `value`'s codes (in the bytes that `bytes` selects) into dwords of a packed line. T:
/// uint32_t or U32x16.
template <typename T>
VARVE_INLINE void Merge(uint8_t* at, uint32_t mask, T value) {
  T old = LoadAs<T>(at);
  old = (old & ~mask) | value;
  std::memcpy(at, &old, sizeof old);
}

template <typename T>
VARVE_INLINE void Put(uint8_t* group, size_t byte, const Slot& slot, uint32_t bytes, T value) {
  const uint32_t mask = slot.mask & bytes;
  if (!slot.spread) {
    Merge<T>(group + static_cast<size_t>(slot.line) * kLineBytes + byte, mask << slot.shift,
             value << slot.shift);
    return;
  }
  const uint32_t shifted_mask = mask << slot.shift;
  const T shifted = value << slot.shift;
  for (int i = 0; i < 3; ++i) {
    const uint32_t two = 0x03030303u << (2 * i);
    Merge<T>(group + static_cast<size_t>(i) * kLineBytes + byte,
             (shifted_mask & two) << (6 - 2 * i), (shifted & two) << (6 - 2 * i));
  }
}

VARVE_INLINE void PackStore(const PackStoreArgs& args) {
  const int bits = args.bits;
  const int per_group = kLinesPerGroup[bits];
  if (args.side == Side::kKey) {
    if (bits == 8 && args.n_channels % 4 == 0) {
      uint8_t* at = args.segment + static_cast<size_t>(args.token / 16) * kLineBytes +
                    static_cast<size_t>(args.token % 16) * 4;
      for (int i = 0; i < args.n_channels; i += 4, at += 2 * kLineBytes)
        std::memcpy(at, args.codes + i, 4);
      return;
    }
    for (int quad = 0; 4 * quad < args.n_channels; ++quad) {
      const int line = 2 * quad + args.token / 16;
      uint32_t value = 0;
      uint32_t bytes = 0xffffffffu;
      const int left = args.n_channels - 4 * quad;
      if (left < 4) bytes = (1u << (8 * left)) - 1;
      std::memcpy(&value, args.codes + 4 * quad, sizeof value);
      uint8_t* group = args.segment + static_cast<size_t>(line / per_group) * kGroupBytes[bits];
      Put<uint32_t>(group, static_cast<size_t>(args.token % 16) * 4, SlotOf(bits, line), bytes,
                    value & bytes);
    }
    return;
  }
  const int byte_shift = 8 * (args.token % 4);
  for (int first = 0; first < args.n_channels; first += kLanes) {
    const int line = first / kLanes * 8 + args.token / 4;
    U32x16 value = __builtin_convertvector(LoadAs<U8x16>(args.codes + first), U32x16);
    // Values keep an 8-bit level as two's complement.
    if (bits == 8) value ^= 0x80u;
    value &= (U32x16)Below(args.n_channels - first);
    uint8_t* group = args.segment + static_cast<size_t>(line / per_group) * kGroupBytes[bits];
    Put<U32x16>(group, 0, SlotOf(bits, line), 0xffu << byte_shift, value << byte_shift);
  }
}

VARVE_INLINE void PackLoad(const PackLoadArgs& args) {
  const auto finish = [&](int i, F32x16 level) __attribute__((always_inline)) {
    F32x16 factor = F32x16{} + args.gain;
    const int n = args.n_channels - i;
    if (n >= kLanes) {
      if (args.scale != nullptr) factor *= LoadAs<F32x16>(args.scale + i);
      const F32x16 value = level * factor;
      std::memcpy(args.out + i, &value, sizeof value);
      return;
    }
    for (int k = 0; k < n; ++k) {
      args.out[i + k] =
          level[k] * (args.scale != nullptr ? args.gain * args.scale[i + k] : args.gain);
    }
  };
  if (args.side == Side::kKey) {
    const uint8_t* at = args.lines + static_cast<size_t>(args.token / 16) * kLineBytes +
                        static_cast<size_t>(args.token % 16) * 4;
    for (int i = 0; i < args.n_channels; i += kLanes) {
      uint8_t bytes[kLanes] = {};
      for (int quad = 0; quad < 4 && i + 4 * quad < args.n_channels; ++quad, at += 2 * kLineBytes) {
        std::memcpy(bytes + 4 * quad, at, 4);
      }
      finish(i, __builtin_convertvector(__builtin_convertvector(LoadAs<U8x16>(bytes), I32x16) - 128,
                                        F32x16));
    }
    return;
  }
  const int shift = 24 - 8 * (args.token % 4);
  for (int i = 0; i < args.n_channels; i += kLanes) {
    const uint8_t* line =
        args.lines + static_cast<size_t>(i / kLanes * 8 + args.token / 4) * kLineBytes;
    const I32x16 level = (LoadAs<I32x16>(line) << shift) >> 24;
    finish(i, __builtin_convertvector(level, F32x16));
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_PACK_PLACE_BODY_H_
