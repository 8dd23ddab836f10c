// A layer whose keys a coarse table would damage (large channels that the queries listen to) keeps
// them finer; other layers do not pay.
#include <gtest/gtest.h>

#include <vector>

#include "cells/cells_fixture.h"

namespace varve {
namespace {

constexpr int kHeadDim = 64;
constexpr int kTokens = 400;
constexpr const char* kSettings =
    "method=age_tiered,age_recent_boundary=64,age_mid_boundary=128,sink_tokens=0";

CellShape Shape() {
  CellShape shape;
  shape.n_cells = 512;
  shape.n_kv_heads = 1;
  shape.head_dim_k = kHeadDim;
  shape.head_dim_v = kHeadDim;
  return shape;
}

/// Keys packed bytes of the oldest block after kTokens keys of this size, with queries that listen.
size_t OldestKeyBytes(const std::string& settings, float size) {
  const auto cache = testing::MakeCache(settings, Shape());
  for (int t = 0; t < kTokens; ++t) {
    std::vector<float> key = testing::TokenRow(Side::kKey, t, kHeadDim);
    for (float& k : key) k *= size;
    const std::vector<float> value = testing::TokenRow(Side::kValue, t, kHeadDim);
    const int64_t cell = t;
    const int32_t position = t;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const auto* rows = side == Side::kKey ? key.data() : value.data();
      EXPECT_TRUE(cache
                      ->Write(side, &cell, side == Side::kKey ? &position : nullptr, rows,
                              RowType::kF32, kHeadDim * sizeof(float), 1, 1)
                      .ok());
    }
    testing::AttendAll(*cache, testing::QueryRows(t, 1, kHeadDim), 1, 1, 0);
  }
  return cache->Payload(Side::kKey, 0).size();
}

size_t BytesAt(Scheme scheme) {
  return MakeBlockLayout(scheme, Side::kKey, kHeadDim).block_bytes(1);
}

TEST(KeyErrorLimit, KeysOfModestSizeTakeEveryStep) {
  EXPECT_EQ(OldestKeyBytes(kSettings, 1.0f), BytesAt({Codec::kRopePair, 3}));
}

TEST(KeyErrorLimit, KeysThatALogitFollowsCloselyStayAtEightBits) {
  EXPECT_EQ(OldestKeyBytes(kSettings, 100.0f), BytesAt({Codec::kRotated, 8}));
}

TEST(KeyErrorLimit, BetweenThemKeysStopHalfway) {
  bool stopped_at_mid = false;
  for (float size = 1.0f; size < 100.0f; size *= 1.1f)
    stopped_at_mid =
        stopped_at_mid || OldestKeyBytes(kSettings, size) == BytesAt({Codec::kRopePair, 4});
  EXPECT_TRUE(stopped_at_mid);
}

TEST(KeyErrorLimit, ZeroMeansNoLimit) {
  EXPECT_EQ(OldestKeyBytes(std::string(kSettings) + ",key_error_limit=0", 100.0f),
            BytesAt({Codec::kRopePair, 3}));
}

}  // namespace
}  // namespace varve
