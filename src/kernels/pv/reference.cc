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

void Head(const PvArgs& args, int head) {
  const uint8_t* codes = args.codes + static_cast<size_t>(head) * args.head_stride;
  const auto* weights = static_cast<const int16_t*>(args.weights) + head * args.n * kBlockTokens;
  for (int channel = 0; channel < 16 * args.n_vectors; ++channel) {
    int32_t sum[kMaxPvQueries] = {};
    for (int token = 0; token < kBlockTokens; ++token) {
      const CodePosition at = PositionOf(Side::kValue, channel, token);
      const int level = ValueLevel(args.bits, GetCode(codes, args.bits, at));
      for (int n = 0; n < args.n; ++n) sum[n] += level * weights[n * kBlockTokens + token];
    }
    for (int n = 0; n < args.n; ++n) {
      const int query = head * args.n + n;
      float& out = args.out[query * args.out_stride + channel];
      out = std::fma(static_cast<float>(sum[n]), args.factors[query], out);
    }
  }
}

}  // namespace

void PvReference(const PvArgs& args) {
  for (int head = 0; head < args.n_heads; ++head) Head(args, head);
}

}  // namespace varve
