#include "codec/bit_allocation.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/checked_math.h"
#include "codec/codebooks.h"
#include "layout/code_lines.h"

namespace varve {
namespace {

struct State {
  double cost = std::numeric_limits<double>::infinity();
  int run_start = 0;  ///< quad at which the run of the current width began
};

int GranuleLines(int bits) {
  return static_cast<int>(SegmentBytes(bits, Granule(Side::kKey, bits)) / kLineBytes);
}

}  // namespace

// With weights in descending order an optimum gives descending widths (exchange two channels), and
// pads only the last granule (else the next channel could move up for free). So a solution is a
// count of granules a width: a small knapsack.
std::vector<int> AllocateBits(std::span<const double> weight, int budget_lines) {
  const int n = static_cast<int>(weight.size());
  // Every granule but the last is full and a multiple of 4 channels.
  const int n_quads = (n + 3) / 4;
  const int n_states = n_quads + 1;
  std::vector<double> weight_before(static_cast<size_t>(n) + 1, 0.0);
  for (int i = 0; i < n; ++i)
    weight_before[static_cast<size_t>(i) + 1] =
        weight_before[static_cast<size_t>(i)] + weight[static_cast<size_t>(i)];
  const auto sum_before = [&](int quad) {
    return weight_before[static_cast<size_t>(std::min(4 * quad, n))];
  };
  const int n_lines = budget_lines + 1;
  const auto at = [&](int quad, int line) {
    return static_cast<size_t>(quad) * static_cast<size_t>(n_lines) + static_cast<size_t>(line);
  };

  // stage[w] holds, for the first w widths used, the least cost of coding the first `quad` quads in
  // exactly `line` lines.
  std::vector<std::vector<State>> stage(
      kSegmentWidths.size() + 1,
      std::vector<State>(static_cast<size_t>(n_states) * static_cast<size_t>(n_lines)));
  stage[0][at(0, 0)].cost = 0;
  for (size_t w = 0; w < kSegmentWidths.size(); ++w) {
    const int bits = kSegmentWidths[w];
    const int quads = Granule(Side::kKey, bits) / 4;
    const int lines = GranuleLines(bits);
    const double distortion = static_cast<double>(CodebookOf(bits).distortion);
    std::vector<State>& to = stage[w + 1];
    for (size_t i = 0; i < to.size(); ++i)
      to[i] = {stage[w][i].cost, static_cast<int>(i / static_cast<size_t>(n_lines))};
    for (int quad = 0; quad < n_quads; ++quad) {
      const int next = std::min(quad + quads, n_quads);
      const double cost = distortion * (sum_before(next) - sum_before(quad));
      for (int line = 0; line + lines <= budget_lines; ++line) {
        const State& from = to[at(quad, line)];
        State& target = to[at(next, line + lines)];
        if (from.cost + cost < target.cost) target = {from.cost + cost, from.run_start};
      }
    }
  }

  const std::vector<State>& last = stage.back();
  int quad = 0;
  int line = 0;
  double best = std::numeric_limits<double>::infinity();
  for (int q = 0; q <= n_quads; ++q) {
    for (int l = 0; l <= budget_lines; ++l) {
      const double cost = last[at(q, l)].cost + (sum_before(n_quads) - sum_before(q));
      if (cost < best) {
        best = cost;
        quad = q;
        line = l;
      }
    }
  }

  std::vector<int> bits(static_cast<size_t>(n), 0);
  for (size_t w = kSegmentWidths.size(); w-- > 0;) {
    const int width = kSegmentWidths[w];
    const int first = stage[w + 1][at(quad, line)].run_start;
    const int quads = Granule(Side::kKey, width) / 4;
    for (int i = 4 * first; i < std::min(4 * quad, n); ++i) bits[static_cast<size_t>(i)] = width;
    line -= CeilDiv(quad - first, quads) * GranuleLines(width);
    quad = first;
  }
  return bits;
}

}  // namespace varve
