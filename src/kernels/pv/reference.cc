// Portable pv. Weights: int16 [32] in token order.
#include <cmath>

#include "kernels/pv/pv.h"
#include "layout/code_lines.h"
#include "layout/levels.h"

namespace varve {
namespace {

constexpr LevelTable kLevels2 = MakeLevelTable(2, 0, 0);
constexpr LevelTable kLevels3 = MakeLevelTable(3, 0, 0);
constexpr LevelTable kLevels4 = MakeLevelTable(4, 0, 0);
constexpr LevelTable kLevels6 = MakeLevelTable(6, 0, 0);

int ValueLevel(int bits, unsigned code) {
  if (bits == 8) return static_cast<int8_t>(code);
  const LevelTable& table = bits == 2   ? kLevels2
                            : bits == 3 ? kLevels3
                            : bits == 4 ? kLevels4
                                        : kLevels6;
  return static_cast<int8_t>(table.entry[code]);
}

}  // namespace

void PvReference(const PvArgs& args) {
  for (int channel = 0; channel < 16 * args.n_vectors; ++channel) {
    int32_t sum[kMaxPvQueries] = {};
    for (int token = 0; token < kBlockTokens; ++token) {
      const CodePosition at = PositionOf(Side::kValue, channel, token);
      const int level = ValueLevel(args.bits, GetCode(args.codes, args.bits, at));
      for (int n = 0; n < args.n; ++n) {
        sum[n] += level * static_cast<const int16_t*>(args.weights)[n * kBlockTokens + token];
      }
    }
    for (int n = 0; n < args.n; ++n) {
      float& out = args.out[n * args.out_stride + channel];
      out = std::fma(static_cast<float>(sum[n]), args.factors[n], out);
    }
  }
}

}  // namespace varve
