#include "codec/codebooks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codec/rotation.h"

namespace varve {
namespace {

/// Mean squared error and mean squared level on a unit Gaussian, by summing over a fine grid.
struct Moments {
  double error = 0;
  double level = 0;
};

Moments MomentsOf(const Codebook& book) {
  Moments moments;
  const double step = 1e-4;
  const auto unit = static_cast<double>(book.unit);
  for (double x = -9 + step / 2; x < 9; x += step) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI) * step;
    const double level = LevelOf(book, CodeOf(book, static_cast<float>(x * unit)));
    moments.error += density * std::pow(x - level / unit, 2);
    moments.level += density * level * level;
  }
  return moments;
}

TEST(Codebooks, DistortionIsWithinThreePercentOfTheLloydMaxOptimum) {
  const std::pair<int, double> optimum[] = {
      {2, 0.1175}, {3, 0.03454}, {4, 0.009497}, {6, 0.0006442}};
  for (const auto& [bits, distortion] : optimum) {
    const Codebook& book = CodebookOf(bits);
    const Moments moments = MomentsOf(book);
    EXPECT_LT(moments.error, 1.03 * distortion) << bits;
    EXPECT_NEAR(moments.error, static_cast<double>(book.distortion), 0.002 * distortion) << bits;
    EXPECT_NEAR(std::sqrt(moments.level), static_cast<double>(book.rms_level),
                1e-3 * static_cast<double>(book.rms_level))
        << bits;
  }
}

TEST(Codebooks, EveryLevelCodesToItselfAndEveryInputToTheNearest) {
  for (const int bits : {2, 3, 4, 6, 8}) {
    const Codebook& book = CodebookOf(bits);
    const unsigned first = bits == 8 ? 1 : 0;
    for (unsigned code = first; code < 1u << bits; ++code) {
      EXPECT_EQ(CodeOf(book, static_cast<float>(LevelOf(book, code))), code) << bits;
      if (code > first) {
        EXPECT_GT(LevelOf(book, code), LevelOf(book, code - 1));
      }
    }
    for (int i = -3000; i <= 3000; ++i) {
      const float x = 0.1f * static_cast<float>(i) + 0.01f;
      float nearest = INFINITY;
      for (unsigned code = first; code < 1u << bits; ++code) {
        nearest = std::fmin(nearest, std::fabs(x - static_cast<float>(LevelOf(book, code))));
      }
      EXPECT_EQ(std::fabs(x - static_cast<float>(LevelOf(book, CodeOf(book, x)))), nearest)
          << bits << " bits, x " << x;
    }
  }
}

TEST(Rotation, IsOrthonormalItsOwnInverseAndBlockDiagonal) {
  for (const int head_dim : {1, 3, 40, 64, 80, 96, 100, 112, 128, 192, 320, 576}) {
    const int block = HadamardSize(head_dim);
    for (const int at : {0, head_dim / 2, head_dim - 1}) {
      std::vector<float> x(static_cast<size_t>(head_dim), 0.0f);
      x[static_cast<size_t>(at)] = 2.0f;
      Rotate(x.data(), head_dim);
      for (int i = 0; i < head_dim; ++i) {
        const bool inside = i / block == at / block;
        EXPECT_NEAR(std::fabs(x[static_cast<size_t>(i)]),
                    inside ? 2.0f / std::sqrt(static_cast<float>(block)) : 0.0f, 1e-6f);
      }
      Rotate(x.data(), head_dim);
      for (int i = 0; i < head_dim; ++i)
        EXPECT_NEAR(x[static_cast<size_t>(i)], i == at ? 2.0f : 0.0f, 1e-5f);
    }
  }
}

}  // namespace
}  // namespace varve
