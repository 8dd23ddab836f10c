#include "base/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace varve {
namespace {

TEST(F16, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 0x10000u; ++h) {
    const float f = F16ToF32(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(f)))) << h;
    } else {
      EXPECT_EQ(F32ToF16(f), h);
    }
  }
}

TEST(F16, RoundsToNearestEvenBetweenEveryTwoNeighbours) {
  for (uint16_t h = 0; h < 0x7bffu; ++h) {
    const float low = F16ToF32(h);
    const float high = F16ToF32(static_cast<uint16_t>(h + 1));
    const float middle = low + (high - low) / 2;
    EXPECT_EQ(F32ToF16(middle), (h & 1) ? h + 1 : h) << h;
    EXPECT_EQ(F32ToF16(std::nextafter(middle, low)), h) << h;
    EXPECT_EQ(F32ToF16(std::nextafter(middle, high)), h + 1) << h;
  }
  EXPECT_EQ(F32ToF16(65519.996f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7f7fu; ++h) {
    const float low = Bf16ToF32(static_cast<uint16_t>(h));
    EXPECT_EQ(F32ToBf16(low), h);
    const float middle = std::bit_cast<float>((h << 16) | 0x8000u);
    EXPECT_EQ(F32ToBf16(middle), (h & 1) ? h + 1 : h) << h;
  }
}

}  // namespace
}  // namespace varve
