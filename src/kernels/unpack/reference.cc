// Portable unpack.
#include "kernels/unpack/unpack.h"
#include "layout/code_lines.h"
#include "layout/levels.h"

namespace varve {
namespace {

constexpr LevelTable kLevels2 = MakeLevelTable(2, 0, 0);
constexpr LevelTable kLevels3 = MakeLevelTable(3, 0, 0);
constexpr LevelTable kLevels4 = MakeLevelTable(4, 0, 0);
constexpr LevelTable kLevels6 = MakeLevelTable(6, 0, 0);

}  // namespace

void UnpackReference(const UnpackArgs& args) {
  const int bias = args.side == Side::kKey ? 128 : 0;
  const LevelTable& table = args.bits == 2   ? kLevels2
                            : args.bits == 3 ? kLevels3
                            : args.bits == 4 ? kLevels4
                                             : kLevels6;
  for (int line = 0; line < args.n_lines; ++line) {
    for (int byte = 0; byte < static_cast<int>(kLineBytes); ++byte) {
      const unsigned code = GetCode(args.codes, args.bits, {line, byte});
      const int value =
          args.bits == 8 ? static_cast<int>(code) : static_cast<int8_t>(table.entry[code]) + bias;
      args.lines[static_cast<size_t>(line) * kLineBytes + static_cast<size_t>(byte)] =
          static_cast<uint8_t>(value);
    }
  }
}

}  // namespace varve
