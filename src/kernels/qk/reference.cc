// Portable qk: the definition, one code at a time. Operand order: the integer queries as they come,
// [n][4 * n_quads].
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "kernels/qk/qk.h"
#include "layout/code_lines.h"
#include "layout/levels.h"

namespace varve {
namespace {

constexpr LevelTable kLevels2 = MakeLevelTable(2, 0, 0);
constexpr LevelTable kLevels3 = MakeLevelTable(3, 0, 0);
constexpr LevelTable kLevels4 = MakeLevelTable(4, 0, 0);
constexpr LevelTable kLevels6 = MakeLevelTable(6, 0, 0);

int KeyLevel(int bits, unsigned code) {
  if (bits == 8) return static_cast<int>(code) - 128;
  const LevelTable& table = bits == 2   ? kLevels2
                            : bits == 3 ? kLevels3
                            : bits == 4 ? kLevels4
                                        : kLevels6;
  return static_cast<int8_t>(table.entry[code]);
}

void Head(const QkRuns& runs, const QkQueries& queries, const uint8_t* codes, const uint8_t* gains,
          float* logits) {
  const auto* operand = static_cast<const int16_t*>(queries.operand);
  for (int token = 0; token < kBlockTokens; ++token) {
    int32_t wide[kMaxQkQueries] = {};
    int32_t narrow[kMaxQkQueries] = {};
    int channel = 0;
    for (int r = 0; r < runs.n_runs; ++r) {
      const QkRun& run = runs.run[r];
      int32_t* sums = r < runs.n_wide_runs ? wide : narrow;
      for (int i = 0; i < 4 * run.n_quads; ++i, ++channel) {
        const CodePosition at = PositionOf(Side::kKey, i, token);
        const int level = KeyLevel(run.bits, GetCode(codes + run.byte_offset, run.bits, at));
        for (int n = 0; n < queries.n; ++n)
          sums[n] += level * operand[n * 4 * runs.n_quads + channel];
      }
    }
    const float gain = F16ToF32(reinterpret_cast<const uint16_t*>(gains)[token]);
    for (int n = 0; n < queries.n; ++n) {
      const float wide_part = static_cast<float>(wide[n]) * queries.wide_scale[n];
      const float both =
          std::fma(static_cast<float>(narrow[n]), queries.narrow_scale[n], wide_part);
      logits[n * kBlockTokens + token] = both * gain;
    }
  }
}

}  // namespace

void QkPackReference(const QkPackArgs& args) {
  args.queries->n = args.n;
  args.queries->operand = args.operand;
  std::memcpy(
      args.operand, args.q,
      static_cast<size_t>(args.n) * static_cast<size_t>(args.runs->n_quads) * 4 * sizeof(int16_t));
}

void QkReference(const QkArgs& args) {
  float* logits = args.logits;
  for (int head = 0; head < args.n_heads; ++head) {
    const size_t offset = static_cast<size_t>(head) * args.head_stride;
    Head(args.runs[head], args.queries[head], args.codes + offset,
         reinterpret_cast<const uint8_t*>(args.gains) + offset, logits);
    logits += args.queries[head].n * kBlockTokens;
  }
}

}  // namespace varve
