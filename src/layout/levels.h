// The integer levels that codes stand for: the positive half of each symmetric codebook
// (codec/codebooks.h says where they come from). Kernels build their lookup tables from them at
// compile time.
#ifndef VARVE_LAYOUT_LEVELS_H_
#define VARVE_LAYOUT_LEVELS_H_

#include <cstdint>

namespace varve {

// Plain arrays of internal linkage: kernel files may not share symbols.
constexpr int8_t kHalfLevels2[2] = {33, 110};
constexpr int8_t kHalfLevels3[4] = {13, 40, 71, 114};
constexpr int8_t kHalfLevels4[8] = {5, 15, 25, 36, 48, 62, 79, 104};
constexpr int8_t kHalfLevels6[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                     23, 25, 27, 29, 32, 34, 37, 39, 42, 45, 48,
                                     51, 54, 58, 62, 66, 71, 77, 84, 93, 108};

/// Level of a code of 2, 3, 4 or 6 bits; codes ascend with their levels.
// Why not consteval: clang 14 rejects such calls in static members of a template. Kernel files
// call it in constant expressions alone, so that no symbol is emitted.
constexpr int HalfLevelAt(int bits, int i) {
  return bits == 2   ? kHalfLevels2[i]
         : bits == 3 ? kHalfLevels3[i]
         : bits == 4 ? kHalfLevels4[i]
                     : kHalfLevels6[i];
}

/// 64 entries indexed by the low 6 bits of a packed byte, of which bits [shift, shift + bits) are
/// the code: level + bias.
struct LevelTable {
  alignas(64) uint8_t entry[64];
};

constexpr LevelTable MakeLevelTable(int bits, int shift, int bias) {
  LevelTable table{};
  const int half = 1 << (bits - 1);
  for (int i = 0; i < 64; ++i) {
    const int code = i >> shift & (2 * half - 1);
    const int level =
        code >= half ? HalfLevelAt(bits, code - half) : -HalfLevelAt(bits, half - 1 - code);
    table.entry[i] = static_cast<uint8_t>(level + bias);
  }
  return table;
}

}  // namespace varve

#endif  // VARVE_LAYOUT_LEVELS_H_
