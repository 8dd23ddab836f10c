// Copies between streams and caches, restored slots, rings and sinks (cases B6, B7, D1, D9, E10).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cells/cells_fixture.h"

namespace varve::testing {
namespace {

constexpr const char* kTestSettings = "age_recent_boundary=32,age_mid_boundary=96,sink_tokens=3";

CellShape ShapeOf(int n_kv_heads, int head_dim_k, int head_dim_v, int n_cells = 256,
                  int n_streams = 1) {
  CellShape shape;
  shape.n_cells = n_cells;
  shape.n_streams = n_streams;
  shape.n_kv_heads = n_kv_heads;
  shape.head_dim_k = head_dim_k;
  shape.head_dim_v = head_dim_v;
  shape.pairing = RopePairing::kHalves;
  shape.n_rope_dims = head_dim_k / 2 * 2;
  return shape;
}

void CopyBoth(CellCache& dst, int64_t dst_first, const CellCache& src, int64_t src_first,
              int32_t n) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const Status status = dst.CopyFrom(src, dst_first, src_first, n, side);
    ASSERT_TRUE(status.ok()) << status.text();
  }
}

TEST(CellsCopy, AStreamCarriesTiersBytesShiftsAndSinks) {
  auto cache = MakeCache(kTestSettings, ShapeOf(2, 32, 16, 256, 2));
  for (int t = 0; t < 230; t += 23) WriteTokens(*cache, t, 23);
  std::vector<int32_t> delta(256, -5);
  RopeShift rope;
  rope.pairing = RopePairing::kHalves;
  rope.n_dims = 32;
  ASSERT_TRUE(cache->Shift(0, delta.data(), 256, rope).ok());
  CopyBoth(*cache, 256, *cache, 0, 256);
  for (const Side side : {Side::kKey, Side::kValue}) {
    std::vector<float> rows = ReadAll(*cache, side);
    const std::vector<float> first(rows.begin(),
                                   rows.begin() + static_cast<ptrdiff_t>(rows.size() / 2));
    const std::vector<float> second(rows.begin() + static_cast<ptrdiff_t>(rows.size() / 2),
                                    rows.end());
    EXPECT_EQ(first, second);
    for (int cell = 0; cell < 230; cell += 32) {
      const auto a = cache->Payload(side, cell);
      const auto b = cache->Payload(side, 256 + cell);
      ASSERT_EQ(a.size(), b.size());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0);
    }
  }
  EXPECT_EQ(cache->Stats().tier_tokens[3], 6);
  const std::vector<float> q = QueryRows(9, 2, 4 * 32);
  EXPECT_EQ(AttendAll(*cache, q, 2, 4, 0), AttendAll(*cache, q, 2, 4, 1));

  // The copy goes on by itself: writing to it leaves the source alone.
  const std::vector<float> before = ReadAll(*cache, Side::kKey);
  WriteTokens(*cache, 60, 40, 1);
  const std::vector<float> after = ReadAll(*cache, Side::kKey);
  const auto half = static_cast<ptrdiff_t>(after.size() / 2);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + half, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + half, before.end(), after.begin() + half));
}

TEST(CellsCopy, AFreshCacheTakesOverTheTables) {
  auto source = MakeCache(kTestSettings, ShapeOf(2, 32, 32));
  for (int t = 0; t < 250; t += 25) WriteTokens(*source, t, 25);
  auto fresh = MakeCache(kTestSettings, ShapeOf(2, 32, 32));
  CopyBoth(*fresh, 0, *source, 0, 256);
  EXPECT_TRUE(fresh->has_tables());
  EXPECT_EQ(ReadAll(*fresh, Side::kKey), ReadAll(*source, Side::kKey));
  EXPECT_EQ(ReadAll(*fresh, Side::kValue), ReadAll(*source, Side::kValue));
  EXPECT_EQ(fresh->Stats().tier_tokens, source->Stats().tier_tokens);
}

TEST(CellsCopy, OtherTablesMeanCodingAnew) {
  auto source = MakeCache(kTestSettings, ShapeOf(2, 32, 32));
  for (int t = 0; t < 250; t += 25) WriteTokens(*source, t, 25);
  auto other = MakeCache(kTestSettings, ShapeOf(2, 32, 32));
  // Other queries and keys, so other tables.
  for (int t = 0; t < 250; t += 25) {
    std::vector<int64_t> index(25);
    std::iota(index.begin(), index.end(), t);
    for (const Side side : {Side::kKey, Side::kValue}) {
      std::vector<float> rows(25 * other->row_elements(side));
      for (size_t i = 0; i < rows.size(); ++i)
        rows[i] = std::sin(static_cast<float>(i * 37 + static_cast<size_t>(t))) *
                  static_cast<float>(1 + i % 5);
      ASSERT_TRUE(other
                      ->Write(side, index.data(), nullptr, rows.data(), RowType::kF32,
                              other->row_elements(side) * 4, 25, 1)
                      .ok());
    }
    AttendAll(*other, QueryRows(t, 25, 4 * 32), 25, 4, 0);
  }
  ASSERT_TRUE(other->has_tables());
  CopyBoth(*other, 0, *source, 0, 250);
  const std::vector<float> want = ReadAll(*source, Side::kKey);
  const std::vector<float> got = ReadAll(*other, Side::kKey);
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < 250 * source->row_elements(Side::kKey); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  EXPECT_LT(std::sqrt(error / norm), 0.02) << "8 bits at first";
  EXPECT_GT(error, 0.0);
}

TEST(CellsCopy, RefusesOtherGeometry) {
  auto a = MakeCache(kTestSettings, ShapeOf(2, 32, 32));
  auto b = MakeCache(kTestSettings, ShapeOf(4, 16, 32));
  EXPECT_EQ(a->CopyFrom(*b, 0, 0, 8, Side::kKey).code(), StatusCode::kShapeMismatch)
      << "same width, other heads";
}

TEST(CellsCopy, RowsSurviveAHostsSaveAndRestore) {
  for (const int heads : {1, 2, 3, 8}) {
    for (const int head_dim : {64, 128, 256}) {
      const CellShape shape = ShapeOf(heads, head_dim, head_dim, 160);
      auto cache = MakeCache("method=uniform,uniform_bits=8,sink_tokens=0", shape);
      WriteTokens(*cache, 0, 100);
      for (const Side side : {Side::kKey, Side::kValue}) {
        const size_t n = cache->row_elements(side);
        std::vector<uint16_t> saved(100 * n);
        ASSERT_TRUE(cache->Read(side, 0, 100, saved.data(), RowType::kF16).ok());
        const std::vector<std::byte> bytes(cache->Payload(side, 0).begin(),
                                           cache->Payload(side, 0).end());
        std::vector<int64_t> index(100);
        std::iota(index.begin(), index.end(), 0);
        ASSERT_TRUE(
            cache->Write(side, index.data(), nullptr, saved.data(), RowType::kF16, n * 2, 100, 1)
                .ok());
        EXPECT_EQ(std::memcmp(bytes.data(), cache->Payload(side, 0).data(), bytes.size()), 0)
            << "write(read()) is a fixed point; heads " << heads << " dim " << head_dim;
        std::vector<uint16_t> again(100 * n);
        ASSERT_TRUE(cache->Gather(side, index.data(), 100, again.data(), RowType::kF16).ok());
        EXPECT_EQ(saved, again);
      }
    }
  }
}

TEST(CellsCopy, ARestoredSlotWaitsForQueriesBeforeItsTablesAreFitted) {
  const CellShape shape = ShapeOf(1, 64, 64, 1024);
  auto cache = MakeCache(kTestSettings, shape);
  const size_t n = cache->row_elements(Side::kKey);
  std::vector<int64_t> index(800);
  std::iota(index.begin(), index.end(), 0);
  for (const Side side : {Side::kKey, Side::kValue}) {
    std::vector<float> rows;
    for (int t = 0; t < 800; ++t) {
      const auto row = TokenRow(side, t, n);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    ASSERT_TRUE(
        cache->Write(side, index.data(), nullptr, rows.data(), RowType::kF32, n * 4, 800, 2).ok());
  }
  const auto key_bytes = [&] { return cache->Payload(Side::kKey, 0).size(); };
  const size_t recent_bytes = key_bytes();
  // The next token makes nearly all due; values go down, keys wait.
  WriteTokens(*cache, 800, 1);
  EXPECT_FALSE(cache->has_tables());
  EXPECT_EQ(key_bytes(), recent_bytes);
  EXPECT_LT(cache->Payload(Side::kValue, 0).size(), recent_bytes);
  for (int t = 801; t < 820; ++t) WriteTokens(*cache, t, 1);
  EXPECT_TRUE(cache->has_tables()) << "20 rows of 2 heads were seen";
  EXPECT_LT(key_bytes(), recent_bytes);
}

TEST(CellsCopy, ARingIsRewrittenCheaply) {
  const CellShape shape = ShapeOf(1, 64, 64, 512);
  auto cache = MakeCache(kTestSettings, shape);
  for (int t = 0; t < 512; t += 16) WriteTokens(*cache, t, 16);
  const CellStats before = cache->Stats();
  for (int t = 512; t < 1536; ++t) {
    const int64_t cell = t % 512;
    const int32_t position = t;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const auto row = TokenRow(side, t, 64);
      ASSERT_TRUE(cache->Write(side, &cell, &position, row.data(), RowType::kF32, 256, 1, 1).ok());
    }
  }
  const CellStats after = cache->Stats();
  EXPECT_EQ(after.n_promotions - before.n_promotions, 2u * 1024 / 32)
      << "a block comes up once a round";
  EXPECT_LE(after.n_demotions - before.n_demotions, 2u * 2 * 1024 / 32 + 4);
  EXPECT_NEAR(static_cast<double>(after.packed_bytes), static_cast<double>(before.packed_bytes),
              0.15 * static_cast<double>(before.packed_bytes));
  EXPECT_EQ(after.tier_tokens[3], 0) << "the sinks were overwritten";
}

TEST(CellsCopy, SinksAreExactAndBadRowsStayTheirOwn) {
  const CellShape shape = ShapeOf(2, 32, 32);
  auto cache = MakeCache(kTestSettings, shape);
  WriteTokens(*cache, 0, 200);
  const size_t n = cache->row_elements(Side::kKey);
  const std::vector<float> rows = ReadAll(*cache, Side::kKey);
  for (int t = 0; t < 3; ++t) {
    const auto raw = TokenRow(Side::kKey, t, n);
    for (size_t i = 0; i < n; ++i)
      ASSERT_EQ(rows[static_cast<size_t>(t) * n + i], F16ToF32(F32ToF16(raw[i])));
  }
  std::vector<float> bad(n, 1.0f);
  bad[5] = std::numeric_limits<float>::quiet_NaN();
  const int64_t cell = 100;
  ASSERT_TRUE(
      cache->Write(Side::kKey, &cell, nullptr, bad.data(), RowType::kF32, n * 4, 1, 1).ok());
  const std::vector<float> after = ReadAll(*cache, Side::kKey);
  EXPECT_TRUE(std::isnan(after[100 * n + 5]));
  for (size_t i = 0; i < after.size(); ++i) {
    ASSERT_TRUE(std::isfinite(after[i]) || i / n == 100) << "cell " << i / n;
  }
  ASSERT_TRUE(cache->Forget(100, 1).ok());
  for (const float x : AttendAll(*cache, QueryRows(1, 2, 4 * 32), 2, 4, 0))
    ASSERT_TRUE(std::isfinite(x));
}

TEST(CellsCopy, EmptyMeansZeros) {
  auto cache = MakeCache(kTestSettings, ShapeOf(1, 32, 32));
  for (const float x : AttendAll(*cache, QueryRows(1, 2, 2 * 32), 2, 2, 0)) ASSERT_EQ(x, 0.0f);
  for (const float x : ReadAll(*cache, Side::kKey)) ASSERT_EQ(x, 0.0f);
  WriteTokens(*cache, 0, 100);
  ASSERT_TRUE(cache->Forget(0, 256).ok());
  for (const float x : ReadAll(*cache, Side::kKey)) ASSERT_EQ(x, 0.0f);
  EXPECT_FALSE(cache->has_tables()) << "an emptied cache starts afresh";
  EXPECT_EQ(cache->Stats().payload_bytes, 0u);
}

}  // namespace
}  // namespace varve::testing
