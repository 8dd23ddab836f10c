// amc against plain uniform codes at equal bytes (A10 of the defect classes).
// docs/sequence-caches.md states the figures; this pins their direction.
#include <cmath>
#include <cstdio>

#include "property/sequence_fixture.h"

namespace varve {
namespace {

constexpr int kHeadDim = 128;
constexpr int64_t kTokens = 1024;

// Gaussian tokens of one magnitude, or of magnitudes exp(spread * g).
Tokens TokensOfSpread(std::mt19937_64& random, float spread) {
  Tokens tokens = RandomTokens(random, 1, 1, kTokens, kHeadDim, kHeadDim);
  std::normal_distribution<float> gauss;
  for (int64_t t = 0; t < kTokens; ++t) {
    const float magnitude = std::exp(spread * gauss(random));
    for (int d = 0; d < kHeadDim; ++d) {
      const size_t at = static_cast<size_t>(t * kHeadDim + d) * sizeof(uint16_t);
      StoreElement(tokens.type, magnitude * gauss(random), tokens.k.data() + at);
      StoreElement(tokens.type, magnitude * gauss(random), tokens.v.data() + at);
    }
  }
  return tokens;
}

struct Measured {
  double error;  // squared error of keys and values over their energy
  uint64_t payload_bytes;
};

Measured Measure(const Tokens& tokens, const std::string& settings) {
  CachePtr cache = MakeCache(settings + ",sink_tokens=0");
  EXPECT_TRUE(AppendSome(*cache, tokens, 0, kTokens).ok());
  double error = 0, energy = 0;
  for (const Side side : {Side::kKey, Side::kValue}) {
    const std::vector<float> decoded = Decoded(*cache, side);
    for (size_t i = 0; i < decoded.size(); ++i) {
      const double raw = static_cast<double>(tokens.At(side, 0, static_cast<int64_t>(i) / kHeadDim,
                                                       static_cast<int64_t>(i) % kHeadDim));
      const double off = static_cast<double>(decoded[i]) - raw;
      error += off * off;
      energy += raw * raw;
    }
  }
  return {error / energy, cache->Stats().payload_bytes};
}

TEST(AmcHonesty, A10UniformWinsByFarWhereTokensDoNotDifferInMagnitude) {
  std::mt19937_64 random(TestSeed());
  const Tokens tokens = TokensOfSpread(random, 0.0f);
  const Measured amc = Measure(tokens, "method=amc");
  const Measured uniform = Measure(tokens, "method=uniform,uniform_bits=3");
  std::printf("one magnitude: amc %.4f at %.2f bits, uniform %.4f at %.2f bits\n", amc.error,
              static_cast<double>(amc.payload_bytes) * 8 / (2 * kTokens * kHeadDim), uniform.error,
              static_cast<double>(uniform.payload_bytes) * 8 / (2 * kTokens * kHeadDim));
  ASSERT_LE(uniform.payload_bytes, amc.payload_bytes);
  EXPECT_GT(amc.error, 10 * uniform.error);
}

TEST(AmcHonesty, A10AmcGainsAsMagnitudesSpread) {
  std::mt19937_64 random(TestSeed());
  const Tokens even = TokensOfSpread(random, 0.0f);
  const Tokens spread = TokensOfSpread(random, 1.5f);
  const Measured amc = Measure(spread, "method=amc");
  const Measured uniform = Measure(spread, "method=uniform,uniform_bits=3");
  std::printf("magnitudes exp(1.5 g): amc %.4f, uniform %.4f\n", amc.error, uniform.error);
  EXPECT_LT(amc.error / uniform.error, 0.25 * Measure(even, "method=amc").error /
                                           Measure(even, "method=uniform,uniform_bits=3").error);
}

}  // namespace
}  // namespace varve
