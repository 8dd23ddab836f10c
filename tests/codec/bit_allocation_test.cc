#include "codec/bit_allocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "codec/codebooks.h"

namespace varve {
namespace {

constexpr std::array<int, 6> kWidths = {0, 2, 3, 4, 6, 8};

double Distortion(int bits) {
  return bits == 0 ? 1.0 : static_cast<double>(CodebookOf(bits).distortion);
}

/// Lines that `n` channels of a width take, from the documented granules alone.
int Lines(int bits, int n) {
  const auto granules = [n](int channels) { return (n + channels - 1) / channels; };
  switch (bits) {
    case 8:
      return 2 * granules(4);
    case 6:
      return 3 * granules(8);
    case 4:
      return granules(4);
    case 3:
      return 3 * granules(16);
    case 2:
      return granules(8);
    default:
      return 0;
  }
}

double CostOf(const std::vector<double>& weight, const std::vector<int>& bits) {
  double cost = 0;
  for (size_t i = 0; i < weight.size(); ++i) cost += weight[i] * Distortion(bits[i]);
  return cost;
}

int LinesOf(const std::vector<int>& bits) {
  int lines = 0;
  for (const int width : kWidths) {
    lines += Lines(width, static_cast<int>(std::count(bits.begin(), bits.end(), width)));
  }
  return lines;
}

/// Every number of channels a width, whatever the granules: the channels of most weight take the
/// widest.
double ExhaustiveCost(const std::vector<double>& weight, int budget_lines) {
  double best = INFINITY;
  std::vector<int> bits;
  const std::function<void(size_t)> place = [&](size_t width) {
    if (width == 0) {
      std::vector<int> all = bits;
      all.resize(weight.size(), 0);
      if (LinesOf(all) <= budget_lines) best = std::min(best, CostOf(weight, all));
      return;
    }
    const size_t used = bits.size();
    for (size_t n = used; n <= weight.size(); ++n) {
      bits.resize(n, kWidths[width]);
      place(width - 1);
    }
    bits.resize(used);
  };
  place(kWidths.size() - 1);
  return best;
}

std::vector<double> Weights(size_t n, double spread, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> weight(n);
  for (double& w : weight) w = std::exp(spread * normal(random));
  std::sort(weight.begin(), weight.end(), std::greater<>());
  return weight;
}

TEST(BitAllocation, MatchesTheExhaustiveOptimumOnSmallHeads) {
  std::mt19937 random(1);
  for (const size_t n : {1, 3, 4, 7, 8, 13, 16, 20, 24}) {
    for (const double spread : {0.0, 1.0, 3.0}) {
      for (int budget = 0; budget <= static_cast<int>(n) / 2 + 2; budget += n > 16 ? 2 : 1) {
        const std::vector<double> weight = Weights(n, spread, random);
        const std::vector<int> bits = AllocateBits(weight, budget);
        ASSERT_LE(LinesOf(bits), budget);
        EXPECT_NEAR(CostOf(weight, bits), ExhaustiveCost(weight, budget),
                    1e-9 * CostOf(weight, bits))
            << n << " channels, " << budget << " lines";
      }
    }
  }
}

TEST(BitAllocation, MonotoneWidthsLoseNothingAgainstAnyAssignment) {
  // Six channels, all 6^6 assignments: the widest codes to the heaviest channels is no restriction.
  std::mt19937 random(2);
  const std::vector<double> weight = Weights(6, 2.0, random);
  for (int budget = 0; budget <= 6; ++budget) {
    double best = INFINITY;
    for (int code = 0; code < 46656; ++code) {
      std::vector<int> bits(6);
      int rest = code;
      for (int& b : bits) {
        b = kWidths[static_cast<size_t>(rest % 6)];
        rest /= 6;
      }
      if (LinesOf(bits) <= budget) best = std::min(best, CostOf(weight, bits));
    }
    EXPECT_NEAR(CostOf(weight, AllocateBits(weight, budget)), best, 1e-9 * best)
        << budget << " lines";
  }
}

TEST(BitAllocation, KeepsTheBudgetAndDescendsForWholeHeads) {
  std::mt19937 random(3);
  for (const int n : {40, 64, 80, 96, 128, 256, 576}) {
    for (const int average : {2, 3, 4, 8}) {
      const std::vector<double> weight = Weights(static_cast<size_t>(n), 2.0, random);
      const int budget = (n * average + 15) / 16;
      const std::vector<int> bits = AllocateBits(weight, budget);
      EXPECT_LE(LinesOf(bits), budget);
      EXPECT_GE(LinesOf(bits), budget - 2) << "bits left unused";
      EXPECT_TRUE(std::is_sorted(bits.rbegin(), bits.rend()));
    }
  }
}

}  // namespace
}  // namespace varve
