// Attention over packed blocks equals the definition on the decoded values, within 0.3 %, for every
// shape and option.
#include "cache/attend.h"

#include <gtest/gtest.h>

#include "attend/attend_fixture.h"

namespace varve {
namespace {

constexpr double kMaxRelativeError = 0.003;

void ExpectClose(const TestShape& shape, const std::string& what) {
  TestProblem test(shape);
  EXPECT_LT(TestProblem::RelativeError(test.Run(1), test.Expected()), kMaxRelativeError) << what;
}

TEST(Attend, A8EveryHeadSizeOverTheDefaultLadder) {
  for (const int head_dim : {1, 3, 16, 33, 40, 64, 72, 80, 96, 100, 112, 128, 192, 256, 320, 576}) {
    for (const int n_rows : {1, 5}) {
      TestShape shape;
      shape.head_dim_k = shape.head_dim_v = head_dim;
      shape.n_rows = n_rows;
      shape.tiers = Ladder(3, 2, 2);
      shape.n_exact = 4;
      shape.seed = static_cast<unsigned>(head_dim * 10 + n_rows);
      ExpectClose(shape,
                  "head_dim " + std::to_string(head_dim) + " rows " + std::to_string(n_rows));
    }
  }
}

TEST(Attend, A6EveryPairOfCodecs) {
  const Scheme keys[] = {{Codec::kRotated, 2},  {Codec::kRotated, 3},  {Codec::kRotated, 4},
                         {Codec::kRotated, 8},  {Codec::kRopePair, 2}, {Codec::kRopePair, 3},
                         {Codec::kRopePair, 4}, {Codec::kRopePair, 8}, {Codec::kF16, 16}};
  const Scheme values[] = {{Codec::kRotated, 2},
                           {Codec::kRotated, 3},
                           {Codec::kRotated, 4},
                           {Codec::kRotated, 8},
                           {Codec::kF16, 16}};
  for (const Scheme& k : keys) {
    for (const Scheme& v : values) {
      for (const int n_rows : {1, 3, 17}) {
        TestShape shape;
        shape.head_dim_k = 64;
        shape.head_dim_v = 128;
        shape.n_heads = 6;
        shape.n_kv_heads = 2;
        shape.n_rows = n_rows;
        shape.tiers = {{k, v, 3}};
        ExpectClose(shape, "K " + std::to_string(static_cast<int>(k.codec)) + "/" +
                               std::to_string(k.bits) + " V " +
                               std::to_string(static_cast<int>(v.codec)) + "/" +
                               std::to_string(v.bits) + " rows " + std::to_string(n_rows));
      }
    }
  }
}

TEST(Attend, A9KeyAndValueWidthsDiffer) {
  const std::pair<int, int> kWidths[] = {{512, 64}, {192, 128}, {576, 512}, {64, 512}};
  for (const auto& [head_dim_k, head_dim_v] : kWidths) {
    for (const int n_rows : {1, 5}) {
      TestShape shape;
      shape.head_dim_k = head_dim_k;
      shape.head_dim_v = head_dim_v;
      shape.n_rows = n_rows;
      shape.tiers = Ladder(2, 1, 1);
      shape.n_exact = 4;
      ExpectClose(shape, "K " + std::to_string(head_dim_k) + " V " + std::to_string(head_dim_v) +
                             " rows " + std::to_string(n_rows));
    }
  }
}

TEST(Attend, QueryHeadsPerKvHead) {
  for (const int n_rep : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17}) {
    for (const int n_rows : {1, 2, 9, 40}) {
      TestShape shape;
      shape.n_kv_heads = 2;
      shape.n_heads = 2 * n_rep;
      shape.n_rows = n_rows;
      shape.tiers = Ladder(2, 1, 1);
      shape.seed = static_cast<unsigned>(n_rep);
      ExpectClose(shape,
                  std::to_string(n_rep) + " query heads a KV head, rows " + std::to_string(n_rows));
    }
  }
}

TEST(Attend, OptionsOfFlashAttention) {
  for (int bits = 0; bits < 64; ++bits) {
    for (const int n_rows : {1, 4, 20}) {
      TestShape shape;
      shape.n_heads = 4;
      shape.n_kv_heads = 2;
      shape.n_rows = n_rows;
      shape.tiers = Ladder(2, 1, 2);
      shape.n_exact = bits % 3;
      shape.softcap = (bits & 1) != 0 ? 30.0f : 0.0f;
      shape.slopes = (bits & 2) != 0;
      shape.sinks = (bits & 4) != 0;
      shape.mask = (bits & 8) != 0;
      shape.mask_heads = (bits & 16) != 0 ? 4 : 1;
      shape.rotation = (bits & 32) != 0 ? RopePairing::kHalves : RopePairing::kNone;
      shape.causal = n_rows == 20;
      shape.seed = static_cast<unsigned>(bits);
      if (shape.slopes && !shape.mask) continue;
      ExpectClose(shape, "options " + std::to_string(bits) + " rows " + std::to_string(n_rows));
    }
  }
}

TEST(Attend, PendingRotationsOfBothPairings) {
  for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalves}) {
    TestShape shape;
    shape.rotation = pairing;
    shape.tiers = Ladder(4, 2, 2);
    shape.n_exact = 3;
    ExpectClose(shape, "pairing");
  }
}

TEST(Attend, ValuesThatAreTheFirstChannelsOfTheKeys) {
  for (const int n_rows : {1, 12}) {
    TestShape shape;
    shape.head_dim_k = 576;
    shape.head_dim_v = 512;
    shape.n_heads = 4;
    shape.n_rows = n_rows;
    shape.n_exact = 2;
    shape.values_in_keys = true;
    shape.tiers = Ladder(2, 1, 1);
    ExpectClose(shape, "rows " + std::to_string(n_rows));
  }
}

TEST(Attend, TheResultDoesNotDependOnTheNumberOfThreads) {
  for (const int n_rows : {1, 6, 33}) {
    TestShape shape;
    shape.n_heads = 6;
    shape.n_kv_heads = 2;
    shape.n_rows = n_rows;
    shape.tiers = Ladder(20, 10, 5);
    shape.n_exact = 4;
    shape.causal = n_rows > 1;
    TestProblem test(shape);
    const std::vector<float> one = test.Run(1);
    for (const int n_threads : {2, 3, 8}) EXPECT_EQ(test.Run(n_threads), one) << n_threads;
  }
}

// From 32 blocks on the work goes in chunks of about as many, merged by a tree.
TEST(Attend, AnyNumberOfChunks) {
  for (const int n_blocks : {31, 32, 70, 100, 160, 200, 230}) {
    TestShape shape;
    shape.n_heads = 6;
    shape.n_kv_heads = 2;
    shape.head_dim_k = shape.head_dim_v = 32;
    shape.tiers = Ladder(n_blocks - 12, 8, 4);
    shape.n_exact = 4;
    TestProblem test(shape);
    const std::vector<float> one = test.Run(1);
    EXPECT_LT(TestProblem::RelativeError(one, test.Expected()), kMaxRelativeError) << n_blocks;
    for (const int n_threads : {2, 3, 5, 16})
      EXPECT_EQ(test.Run(n_threads), one) << n_blocks << " blocks, " << n_threads << " threads";
  }
}

// Values that are plain rows in some chunks and packed in others; sinks are plain too.
TEST(Attend, PlainValuesInAnyChunk) {
  const Scheme k{Codec::kRotated, 4};
  const Scheme packed{Codec::kRotated, 4};
  const Scheme plain{Codec::kF16, 16};
  const std::vector<std::vector<TestTier>> mixtures = {
      {{k, plain, 100}},
      {{k, packed, 70}, {k, plain, 40}},
      {{k, plain, 40}, {k, packed, 90}},
      {{k, packed, 40}, {k, plain, 40}, {k, packed, 50}}};
  for (const int n_exact : {0, 4}) {
    for (const std::vector<TestTier>& tiers : mixtures) {
      TestShape shape;
      shape.n_heads = 4;
      shape.n_kv_heads = 2;
      shape.head_dim_k = shape.head_dim_v = 32;
      shape.tiers = tiers;
      shape.n_exact = n_exact;
      TestProblem test(shape);
      const std::vector<float> one = test.Run(1);
      EXPECT_LT(TestProblem::RelativeError(one, test.Expected()), kMaxRelativeError)
          << tiers.size() << " tiers, " << n_exact << " sinks";
      for (const int n_threads : {2, 3}) EXPECT_EQ(test.Run(n_threads), one);
    }
  }
}

TEST(Attend, CellsThatTakeNoPartLeaveNoTraceWhateverTheyHold) {
  for (const int n_rows : {1, 4, 20}) {
    TestShape shape;
    shape.n_rows = n_rows;
    shape.tiers = Ladder(4, 4, 4);
    TestProblem test(shape);
    const std::vector<float> clean = test.Run(1);
    test.PoisonDeadCells();
    EXPECT_EQ(test.Run(1), clean) << n_rows;
  }
}

TEST(Attend, MaskedCellsLeaveNoTraceWhateverTheyHold) {
  for (const int n_rows : {1, 4, 20}) {
    for (const bool half : {false, true}) {
      TestShape shape;
      shape.n_rows = n_rows;
      shape.masked_part = 0;
      shape.tiers = Ladder(4, 4, 4);
      TestProblem test(shape);
      AttendProblem& problem = test.problem();
      auto* mask = const_cast<uint16_t*>(problem.mask);
      const int step = half ? 2 : 1;
      for (int row = 0; row < n_rows; ++row) {
        for (int cell = 0; cell < 5 * kBlockTokens; cell += step)
          mask[row * problem.mask_row_stride + cell] = 0xfc00;
      }
      const std::vector<float> clean = test.Run(1);
      std::vector<AttendBlock> blocks(problem.blocks.begin(), problem.blocks.end());
      std::vector<std::vector<std::byte>> bytes;
      for (size_t b = 0; b < 5; ++b) {
        bytes.emplace_back(blocks[b].k, blocks[b].k + blocks[b].k_coding.layout->block_bytes(1));
        bytes.emplace_back(blocks[b].v, blocks[b].v + blocks[b].v_coding.layout->block_bytes(1));
        const std::vector<float> nan_row(64, NAN);
        for (int t = 0; t < kBlockTokens; t += step) {
          EncodeRow(blocks[b].k_coding, 1, nan_row.data(), t, bytes[2 * b].data());
          EncodeRow(blocks[b].v_coding, 1, nan_row.data(), t, bytes[2 * b + 1].data());
        }
      }
      for (size_t b = 0; b < 5; ++b) {
        blocks[b].k = bytes[2 * b].data();
        blocks[b].v = bytes[2 * b + 1].data();
      }
      problem.blocks = blocks;
      EXPECT_EQ(test.Run(1), clean) << n_rows;
    }
  }
}

TEST(Attend, ANanKeyOrValueInTheContextIsNotHidden) {
  for (const bool key : {true, false}) {
    for (const int n_rows : {1, 4, 20}) {
      TestShape shape;
      shape.n_rows = n_rows;
      shape.mask = false;
      shape.tiers = Ladder(2, 2, 2);
      TestProblem test(shape);
      AttendProblem& problem = test.problem();
      std::vector<AttendBlock> blocks(problem.blocks.begin(), problem.blocks.end());
      const AttendBlock& block = blocks[1];
      const BlockCoding coding = key ? block.k_coding : block.v_coding;
      const std::byte* bytes = key ? block.k : block.v;
      std::vector<std::byte> bad(bytes, bytes + coding.layout->block_bytes(1));
      EncodeRow(coding, 1, std::vector<float>(64, NAN).data(), 3, bad.data());
      (key ? blocks[1].k : blocks[1].v) = bad.data();
      problem.blocks = blocks;
      for (const float x : test.Run(1)) ASSERT_TRUE(std::isnan(x)) << key << " rows " << n_rows;
    }
  }
}

TEST(Attend, ARowWithNothingToAttendToGivesZeros) {
  for (const int n_rows : {1, 4, 20}) {
    TestShape shape;
    shape.n_rows = n_rows;
    shape.masked_part = 1.0f;
    shape.tiers = Ladder(1, 1, 1);
    shape.n_exact = 2;
    TestProblem test(shape);
    for (const float x : test.Run(1)) EXPECT_EQ(x, 0.0f);
  }
  TestShape nothing;
  TestProblem test(nothing);
  for (const float x : test.Run(2)) EXPECT_EQ(x, 0.0f);
}

TEST(Attend, ValuesPassedOverMoveAnOutputByTheirShareAtMost) {
  for (const int n_rows : {1, 5, 40}) {
    for (const float share : {0.001f, 0.03f, 0.3f}) {
      TestShape shape;
      shape.n_rows = n_rows;
      shape.n_exact = 3;
      shape.tiers = Ladder(20, 10, 4);
      TestProblem test(shape);
      // Three times the logits: few tokens hold most of the weight.
      test.problem().scale *= 3;
      const std::vector<float> all = test.Run(1);
      test.problem().value_skip_share = share;
      const std::vector<float> some = test.Run(1);
      EXPECT_NE(some, all) << "share " << share << ": nothing was passed over";
      for (const int n_threads : {2, 3}) EXPECT_EQ(test.Run(n_threads), some);
      const double bound = static_cast<double>(share) * test.LargestValue();
      const auto dim = static_cast<size_t>(shape.head_dim_v);
      for (size_t first = 0; first < all.size(); first += dim) {
        double moved = 0;
        for (size_t i = first; i < first + dim; ++i)
          moved += std::pow(static_cast<double>(all[i]) - static_cast<double>(some[i]), 2);
        EXPECT_LE(std::sqrt(moved), bound) << "share " << share << " rows " << n_rows;
      }
    }
  }
}

TEST(Attend, LargeLogitsOfEitherSign) {
  for (const float size : {1e-3f, 30.0f, 1e4f}) {
    TestShape shape;
    shape.tiers = Ladder(3, 3, 3);
    TestProblem test(shape);
    std::vector<float> q(test.problem().q, test.problem().q + 128);
    for (float& x : q) x *= size;
    test.problem().q = q.data();
    EXPECT_LT(TestProblem::RelativeError(test.Run(1), test.Expected()),
              size > 1 ? 0.05 : kMaxRelativeError)
        << size;
  }
}

// A result begins at 2^0 if its first logits are usual ones: here they lie far off, and later ones
// elsewhere.
TEST(Attend, LogitsFarFromZeroAndFromEachOther) {
  for (const int n_rows : {1, 20}) {
    for (const float first : {-4000.0f, -100.0f, -40.0f, -27.0f, 0.0f, 40.0f, 100.0f, 4000.0f}) {
      for (const float later : {-4000.0f, -50.0f, 0.0f, 50.0f, 4000.0f}) {
        TestShape shape;
        shape.n_rows = n_rows;
        shape.masked_part = 0;
        shape.tiers = Ladder(30, 8, 4);
        TestProblem test(shape);
        const AttendProblem& problem = test.problem();
        auto* mask = const_cast<uint16_t*>(problem.mask);
        for (int row = 0; row < n_rows; ++row) {
          for (int cell = 0; cell < problem.n_cells; ++cell) {
            uint16_t& bias = mask[row * problem.mask_row_stride + cell];
            if (bias != 0xfc00) bias = F32ToF16(cell < 10 * kBlockTokens ? first : later);
          }
        }
        EXPECT_LT(TestProblem::RelativeError(test.Run(1), test.Expected()), kMaxRelativeError)
            << n_rows << " rows, " << first << ", then " << later;
      }
    }
  }
}

}  // namespace
}  // namespace varve
