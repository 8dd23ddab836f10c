// The bytes after n tokens depend on the tokens alone: not on how they came in calls, nor on the
// number of threads.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cells/cells_fixture.h"

namespace varve::testing {
namespace {

using Param = std::tuple<const char*, int>;

class CellsChunking : public ::testing::TestWithParam<Param> {};

TEST_P(CellsChunking, SameBytesForEveryChunking) {
  const auto [settings, head_dim] = GetParam();
  CellShape shape;
  shape.n_cells = 768;
  shape.n_kv_heads = 2;
  shape.head_dim_k = head_dim;
  shape.head_dim_v = head_dim;
  shape.pairing = RopePairing::kHalves;
  shape.n_rope_dims = head_dim / 2 * 2;
  constexpr int kTokens = 700;

  std::unique_ptr<CellCache> reference;
  for (const int chunk : {1, 7, 32, 333, 700}) {
    auto cache = MakeCache(settings, shape);
    for (int t = 0; t < kTokens; t += chunk)
      WriteTokens(*cache, t, std::min(chunk, kTokens - t), 0, true, chunk > 32 ? 3 : 1);
    // What is due at the tokens of one batch is settled by the next one.
    WriteTokens(*cache, kTokens, 1);
    if (!reference) {
      reference = std::move(cache);
      continue;
    }
    for (const Side side : {Side::kKey, Side::kValue}) {
      EXPECT_EQ(ReadAll(*cache, side), ReadAll(*reference, side)) << "chunk " << chunk;
      for (int cell = 0; cell + kBlockTokens <= kTokens; cell += kBlockTokens) {
        const auto expected = reference->Payload(side, cell);
        const auto actual = cache->Payload(side, cell);
        ASSERT_EQ(actual.size(), expected.size()) << "chunk " << chunk << " cell " << cell;
        ASSERT_FALSE(actual.empty());
        ASSERT_EQ(std::memcmp(actual.data(), expected.data(), expected.size()), 0)
            << "chunk " << chunk << " side " << static_cast<int>(side) << " cell " << cell;
      }
    }
    EXPECT_EQ(cache->Stats().tier_tokens, reference->Stats().tier_tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CellsChunking,
    ::testing::Values(
        Param{"method=age_tiered", 64},
        Param{"method=age_tiered,age_recent_boundary=64,age_mid_boundary=256", 40},
        Param{"method=age_tiered,age_recent_boundary=1,age_mid_boundary=33,sink_tokens=0", 64},
        Param{"method=age_tiered,age_bits_recent=4,age_recent_boundary=100,age_mid_boundary=100",
              32},
        Param{"method=uniform,uniform_bits=4", 64},
        Param{"method=uniform,uniform_bits_k=3,uniform_bits_v=2", 80},
        Param{"method=uniform,uniform_bits=8", 64}, Param{"method=fp16", 64}));

}  // namespace
}  // namespace varve::testing
