// Shifts stay pending: exact however often they come (cases C1, C2), by ggml's formula, or refused
// in words.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cells/cells_fixture.h"

namespace varve::testing {
namespace {

CellShape ShapeOf(RopePairing pairing, int n_rope_dims, int head_dim_v = 16) {
  CellShape shape;
  shape.n_cells = 256;
  shape.n_kv_heads = 2;
  shape.head_dim_k = 32;
  shape.head_dim_v = head_dim_v;
  shape.pairing = pairing;
  shape.n_rope_dims = n_rope_dims;
  return shape;
}

/// One row turned as ggml's ROPE does it, in double.
std::vector<double> Turn(const float* row, const CellShape& shape,
                         const std::vector<double>& angles, int first_dim, double delta) {
  std::vector<double> out(row, row + shape.n_kv_heads * shape.head_dim_k);
  const int half = static_cast<int>(angles.size());
  for (int h = 0; h < shape.n_kv_heads; ++h) {
    for (int i = 0; i < half; ++i) {
      const bool interleaved = shape.pairing == RopePairing::kInterleaved;
      const auto a =
          static_cast<size_t>(h * shape.head_dim_k + first_dim + (interleaved ? 2 * i : i));
      const auto b = static_cast<size_t>(h * shape.head_dim_k + first_dim +
                                         (interleaved ? 2 * i + 1 : i + half));
      const double x = out[a];
      const double y = out[b];
      const double angle = delta * angles[static_cast<size_t>(i)];
      out[a] = x * std::cos(angle) - y * std::sin(angle);
      out[b] = x * std::sin(angle) + y * std::cos(angle);
    }
  }
  return out;
}

double WorstError(const CellCache& cache, const std::vector<float>& before,
                  const std::vector<double>& angles, double delta) {
  const std::vector<float> after = ReadAll(cache, Side::kKey);
  const size_t n = cache.row_elements(Side::kKey);
  double worst = 0;
  for (size_t c = 0; c < after.size() / n; ++c) {
    const std::vector<double> expected =
        Turn(before.data() + c * n, cache.shape(), angles, 0, delta);
    for (size_t i = 0; i < n; ++i)
      worst = std::max(worst, std::abs(after[c * n + i] - expected[i]));
  }
  return worst;
}

TEST(CellsShift, TwoHundredShiftsAreAsExactAsOne) {
  for (const int step : {1, 64}) {
    for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalves}) {
      const CellShape shape = ShapeOf(pairing, 24);
      auto cache = MakeCache("age_recent_boundary=32,age_mid_boundary=96", shape);
      for (int t = 0; t < 200; t += 20) WriteTokens(*cache, t, 20);
      const std::vector<float> before = ReadAll(*cache, Side::kKey);
      const std::vector<std::byte> bytes(cache->Payload(Side::kKey, 0).begin(),
                                         cache->Payload(Side::kKey, 0).end());
      RopeShift rope;
      rope.pairing = pairing;
      rope.n_dims = 24;
      const auto angles = RopeAnglesPerPosition(rope, shape.head_dim_k);
      ASSERT_TRUE(angles.ok());
      const std::vector<int32_t> delta(256, -step);
      double first = 0;
      for (int i = 1; i <= 200; ++i) {
        ASSERT_TRUE(cache->Shift(0, delta.data(), 256, rope).ok());
        if (i == 1) first = WorstError(*cache, before, angles.value(), -step);
      }
      const double last = WorstError(*cache, before, angles.value(), -200.0 * step);
      EXPECT_LT(first, 1e-5);
      EXPECT_LT(last, 1e-5) << "200 shifts of " << step;
      EXPECT_EQ(std::memcmp(bytes.data(), cache->Payload(Side::kKey, 0).data(), bytes.size()), 0)
          << "codes are untouched";

      // Turning back by the sum gives the very rows there were.
      const std::vector<int32_t> back(256, 200 * step);
      ASSERT_TRUE(cache->Shift(0, back.data(), 256, rope).ok());
      EXPECT_EQ(ReadAll(*cache, Side::kKey), before);
    }
  }
}

TEST(CellsShift, AttentionSeesTheTurnedKeys) {
  const CellShape shape = ShapeOf(RopePairing::kHalves, 32);
  auto cache = MakeCache("age_recent_boundary=32,age_mid_boundary=96", shape);
  for (int t = 0; t < 200; t += 20) WriteTokens(*cache, t, 20);
  std::vector<int32_t> delta(256, 0);
  for (int c = 40; c < 130; ++c) delta[static_cast<size_t>(c)] = -37;
  for (int c = 130; c < 200; ++c) delta[static_cast<size_t>(c)] = c % 3;
  RopeShift rope;
  rope.pairing = RopePairing::kHalves;
  rope.n_dims = 32;
  ASSERT_TRUE(cache->Shift(0, delta.data(), 256, rope).ok());

  auto turned = MakeCache("method=fp16", shape);
  std::vector<int64_t> index(200);
  std::iota(index.begin(), index.end(), 0);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const std::vector<float> rows = ReadAll(*cache, side);
    ASSERT_TRUE(turned
                    ->Write(side, index.data(), nullptr, rows.data(), RowType::kF32,
                            cache->row_elements(side) * 4, 200, 1)
                    .ok());
  }
  const std::vector<float> q = QueryRows(5, 3, 4 * 32);
  const std::vector<float> got = AttendAll(*cache, q, 3, 4, 0);
  const std::vector<float> want = AttendAll(*turned, q, 3, 4, 0);
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  EXPECT_LT(std::sqrt(error / norm), 0.01);
}

TEST(CellsShift, OverwritingClearsTheShiftAndPositionsMoveAlong) {
  const CellShape shape = ShapeOf(RopePairing::kHalves, 32);
  auto cache = MakeCache("method=fp16", shape);
  WriteTokens(*cache, 0, 64);
  const std::vector<int32_t> delta(64, 9);
  RopeShift rope;
  rope.pairing = RopePairing::kHalves;
  rope.n_dims = 32;
  ASSERT_TRUE(cache->Shift(0, delta.data(), 64, rope).ok());
  WriteTokens(*cache, 10, 20);
  const std::vector<float> rows = ReadAll(*cache, Side::kKey);
  const size_t n = cache->row_elements(Side::kKey);
  for (int c = 10; c < 30; ++c) {
    const std::vector<float> raw = TokenRow(Side::kKey, c, n);
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(rows[static_cast<size_t>(c) * n + i], raw[i], 0.01) << "cell " << c;
  }
}

TEST(CellsShift, YarnAndFactorsFollowTheFormula) {
  std::vector<float> factors(16);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0f + 0.25f * static_cast<float>(i);
  RopeShift rope;
  rope.pairing = RopePairing::kHalves;
  rope.n_dims = 32;
  rope.n_ctx_orig = 4096;
  rope.freq_base = 10000.0f;
  rope.freq_scale = 0.25f;
  rope.ext_factor = 1.0f;
  rope.beta_fast = 32.0f;
  rope.beta_slow = 1.0f;
  rope.freq_factors = factors.data();
  rope.attn_factor = 1.0f / (1.0f + 0.1f * std::log(4.0f));
  const auto angles = RopeAnglesPerPosition(rope, 32);
  ASSERT_TRUE(angles.ok()) << angles.status().text();
  // By hand: correction dims of 32 and 1 turns over 4,096 positions are 32*ln(4096/(2 pi t))/(2 ln
  // 1e4): 5 and 12.
  for (int i = 0; i < 16; ++i) {
    const double free_angle = std::pow(10000.0, -i / 16.0) / factors[static_cast<size_t>(i)];
    const double ramp = std::clamp((i - 5.0) / (12.0 - 5.0), 0.0, 1.0);
    EXPECT_NEAR(angles.value()[static_cast<size_t>(i)], free_angle * (ramp * 0.25 + (1 - ramp)),
                1e-9)
        << "pair " << i;
  }
  rope.attn_factor = 1.0f;
  EXPECT_EQ(RopeAnglesPerPosition(rope, 32).status().code(), StatusCode::kUnsupported);
}

TEST(CellsShift, RefusesWhatIsNoShift) {
  const CellShape shape = ShapeOf(RopePairing::kHalves, 32);
  auto cache = MakeCache("method=age_tiered", shape);
  WriteTokens(*cache, 0, 40);
  const std::vector<float> before = ReadAll(*cache, Side::kKey);
  const std::vector<int32_t> delta(300, 5);
  RopeShift rope;
  rope.pairing = RopePairing::kHalves;
  rope.n_dims = 32;
  EXPECT_EQ(cache->Shift(0, delta.data(), 257, rope).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Shift(-1, delta.data(), 2, rope).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Shift(0, nullptr, 2, rope).code(), StatusCode::kInvalidArgument);
  RopeShift bad = rope;
  bad.n_dims = 34;
  EXPECT_EQ(cache->Shift(0, delta.data(), 2, bad).code(), StatusCode::kInvalidArgument);
  bad = rope;
  bad.pairing = RopePairing::kNone;
  EXPECT_EQ(cache->Shift(0, delta.data(), 2, bad).code(), StatusCode::kInvalidArgument);
  bad = rope;
  bad.attn_factor = 1.2f;
  EXPECT_EQ(cache->Shift(0, delta.data(), 2, bad).code(), StatusCode::kUnsupported);
  const std::vector<int32_t> huge(40, INT32_MAX);
  EXPECT_EQ(cache->Shift(0, huge.data(), 40, rope).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadAll(*cache, Side::kKey), before);

  ASSERT_TRUE(cache->Shift(0, delta.data(), 40, rope).ok());
  bad = rope;
  bad.freq_base = 500000.0f;
  EXPECT_EQ(cache->Shift(0, delta.data(), 40, bad).code(), StatusCode::kUnsupported);
  WriteTokens(*cache, 0, 40);
  EXPECT_TRUE(cache->Shift(0, delta.data(), 40, bad).ok()) << "no cell is behind any more";
}

TEST(CellsShift, TurnsRowsWhereValuesAreChannelsOfTheKeys) {
  CellShape shape = ShapeOf(RopePairing::kHalves, 8, 0);
  auto cache = MakeCache("method=age_tiered", shape);
  WriteTokens(*cache, 0, 60);
  const std::vector<float> before = ReadAll(*cache, Side::kKey);
  RopeShift rope;
  rope.pairing = RopePairing::kHalves;
  rope.n_dims = 8;
  rope.first_dim = 24;
  const auto angles = RopeAnglesPerPosition(rope, 32);
  ASSERT_TRUE(angles.ok()) << angles.status().text();
  const std::vector<int32_t> delta(60, 11);
  ASSERT_TRUE(cache->Shift(0, delta.data(), 60, rope).ok());
  const std::vector<float> after = ReadAll(*cache, Side::kKey);
  const size_t n = cache->row_elements(Side::kKey);
  double error = 0;
  double norm = 0;
  for (size_t c = 0; c < 60; ++c) {
    const std::vector<double> expected = Turn(before.data() + c * n, shape, angles.value(), 24, 11);
    for (size_t i = 0; i < n; ++i) {
      error += std::pow(after[c * n + i] - expected[i], 2);
      norm += expected[i] * expected[i];
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 0.01) << "one more coding at 8 bits";
}

}  // namespace
}  // namespace varve::testing
