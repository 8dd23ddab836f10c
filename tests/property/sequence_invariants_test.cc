// What must hold of every sequence cache: the bytes depend on the tokens only, what is decoded does
// not wobble, a clone shares nothing, trimming really removes.
#include <algorithm>
#include <set>

#include "property/sequence_fixture.h"

namespace varve {
namespace {

TEST(SequenceInvariants, A2AnyChunkingGivesTheSameBytes) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    const Tokens tokens = RandomTokens(random, 2, 2, 200, 12, 20);
    CachePtr whole = MakeCache(config);
    ASSERT_TRUE(AppendSome(*whole, tokens, 0, 200).ok());
    const Content expected = ContentOf(*whole);
    for (int trial = 0; trial < 6; ++trial) {
      CachePtr parts = MakeCache(config);
      const int64_t most = trial == 0 ? 1 : 1 + static_cast<int64_t>(random() % 70);
      for (int64_t n = 0; n < 200;) {
        const int64_t step =
            std::min<int64_t>(200 - n, random() % static_cast<uint64_t>(most + 1) + (trial == 0));
        ASSERT_TRUE(AppendSome(*parts, tokens, n, step).ok());
        n += step;
      }
      ASSERT_EQ(ContentOf(*parts), expected)
          << config << ", steps of at most " << most << ", seed " << TestSeed();
    }
  }
}

// A1: a settled token is not coded again at every step.
TEST(SequenceInvariants, A1ASettledTokenChangesOnlyWithItsTier) {
  std::mt19937_64 random(TestSeed());
  const Tokens tokens = RandomTokens(random, 1, 1, 2600, 32, 32);
  CachePtr cache = MakeCache("method=age_tiered");
  ASSERT_TRUE(AppendSome(*cache, tokens, 0, 600).ok());
  const auto token10 = [&] {
    std::vector<float> row(32);
    EXPECT_TRUE(
        cache
            ->Decode(Side::kKey, 10, 1, ElementType::kF32, reinterpret_cast<std::byte*>(row.data()))
            .ok());
    return row;
  };
  std::vector<float> last = token10();
  int n_changes = 0;
  for (int64_t n = 600; n < 2600; ++n) {
    ASSERT_TRUE(AppendSome(*cache, tokens, n, 1).ok());
    const std::vector<float> now = token10();
    n_changes += now != last ? 1 : 0;
    last = now;
  }
  EXPECT_EQ(n_changes, 1);  // mid to old; recent to mid was before token 600
  CachePtr direct = MakeCache("method=uniform,uniform_bits=2");
  ASSERT_TRUE(AppendSome(*direct, tokens, 0, 2600).ok());
  double error = 0, direct_error = 0;
  const std::vector<float> aged = Decoded(*cache, Side::kKey);
  const std::vector<float> once = Decoded(*direct, Side::kKey);
  for (size_t i = 4 * 32; i < 1000 * 32; ++i) {
    const double raw =
        static_cast<double>(tokens.At(Side::kKey, 0, static_cast<int64_t>(i / 32), i % 32));
    error += (static_cast<double>(aged[i]) - raw) * (static_cast<double>(aged[i]) - raw);
    direct_error += (static_cast<double>(once[i]) - raw) * (static_cast<double>(once[i]) - raw);
  }
  EXPECT_LT(error, 1.2 * direct_error);
  EXPECT_LT(cache->Stats().stored_bytes, static_cast<uint64_t>(cache->Stats().full_seq_bytes) / 2);
}

// A2: one-token calls fill groups as any others do; the exact tail stays below a group.
TEST(SequenceInvariants, A2TheExactTailNeverReachesAGroup) {
  std::mt19937_64 random(TestSeed());
  const Tokens tokens = RandomTokens(random, 1, 1, 300, 16, 16);
  CachePtr cache = MakeCache("method=age_tiered,sink_tokens=4");
  for (int64_t n = 0; n < 300; ++n) {
    ASSERT_TRUE(AppendSome(*cache, tokens, n, 1).ok());
    std::vector<uint8_t> tiers(static_cast<size_t>(n + 1));
    ASSERT_TRUE(cache->TokenTiers(0, tiers).ok());
    const auto exact = std::count(tiers.begin() + std::min<int64_t>(4, n + 1), tiers.end(),
                                  SequenceCache::kExactTier);
    ASSERT_EQ(exact, std::max<int64_t>(0, n + 1 - 4) % 32);
  }
}

// B3: beams move both the coded and the exact region.
TEST(SequenceInvariants, B3SelectedRowsAreTheRowsThemselves) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    const Tokens tokens = RandomTokens(random, 3, 2, 150, 8, 12);
    CachePtr cache = MakeCache(config);
    ASSERT_TRUE(AppendSome(*cache, tokens, 0, 131).ok());
    const std::vector<int64_t> picked = {2, 0, 2, 1};
    Result<CachePtr> selected = cache->SelectRows(picked);
    ASSERT_TRUE(selected.ok()) << selected.status().text();
    for (const Side side : {Side::kKey, Side::kValue}) {
      const std::vector<float> before = Decoded(*cache, side);
      const std::vector<float> after = Decoded(*selected.value(), side);
      const size_t batch_row = before.size() / 3;
      ASSERT_EQ(after.size(), 4 * batch_row);
      for (size_t b = 0; b < picked.size(); ++b) {
        EXPECT_TRUE(std::equal(
            after.begin() + static_cast<ptrdiff_t>(b * batch_row),
            after.begin() + static_cast<ptrdiff_t>((b + 1) * batch_row),
            before.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(picked[b]) * batch_row)))
            << config;
      }
    }
    // The copy goes on by itself.
    const Content untouched = ContentOf(*cache);
    Result<CachePtr> clone = cache->Clone();
    ASSERT_TRUE(clone.ok());
    ASSERT_TRUE(AppendSome(*clone.value(), tokens, 131, 19).ok());
    EXPECT_EQ(ContentOf(*cache), untouched) << config;
    ASSERT_TRUE(AppendSome(*cache, tokens, 131, 19).ok());
    EXPECT_EQ(ContentOf(*cache), ContentOf(*clone.value())) << config;
  }
}

// Merged rows are the rows themselves, and go on as a batch that was one from the start.
TEST(SequenceInvariants, B3MergedRowsAreTheRowsThemselves) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    SCOPED_TRACE(config);
    const Tokens tokens = RandomTokens(random, 3, 2, 150, 8, 12);
    const auto rows_of = [&](int64_t first_row, int64_t n_rows) {
      Tokens part = tokens;
      part.batch = n_rows;
      for (auto* bytes : {&part.k, &part.v}) {
        const size_t row_bytes = bytes->size() / 3;
        bytes->erase(
            bytes->begin(),
            bytes->begin() + static_cast<ptrdiff_t>(static_cast<size_t>(first_row) * row_bytes));
        bytes->resize(static_cast<size_t>(n_rows) * row_bytes);
      }
      return part;
    };
    const CachePtr whole = MakeCache(config);
    const CachePtr two = MakeCache(config);
    const CachePtr one = MakeCache(config);
    ASSERT_TRUE(AppendSome(*whole, tokens, 0, 131).ok());
    ASSERT_TRUE(AppendSome(*two, rows_of(0, 2), 0, 131).ok());
    ASSERT_TRUE(AppendSome(*one, rows_of(2, 1), 0, 131).ok());
    const SequenceCache* caches[] = {two.get(), one.get()};
    Result<CachePtr> merged = SequenceCache::Merge(caches);
    ASSERT_TRUE(merged.ok()) << merged.status().text();
    EXPECT_EQ(ContentOf(*merged.value()), ContentOf(*whole));
    ASSERT_TRUE(AppendSome(*merged.value(), tokens, 131, 19).ok());
    ASSERT_TRUE(AppendSome(*whole, tokens, 131, 19).ok());
    EXPECT_EQ(ContentOf(*merged.value()), ContentOf(*whole));
    EXPECT_EQ(merged.value()->Stats().tokens_seen, whole->Stats().tokens_seen);
    EXPECT_EQ(merged.value()->Stats().nominal_bytes, whole->Stats().nominal_bytes);

    ASSERT_TRUE(AppendSome(*one, rows_of(2, 1), 131, 1).ok());
    EXPECT_EQ(SequenceCache::Merge(caches).status().code(), StatusCode::kShapeMismatch);
    const CachePtr empty = MakeCache(config);
    caches[1] = empty.get();
    EXPECT_EQ(SequenceCache::Merge(caches).status().code(), StatusCode::kInvalidState);
    const CachePtr other = MakeCache(config + ",reject_non_finite=false");
    ASSERT_TRUE(AppendSome(*other, rows_of(2, 1), 0, 131).ok());
    caches[1] = other.get();
    EXPECT_EQ(SequenceCache::Merge(caches).status().code(), StatusCode::kIncompatible);
  }
  // As many tokens, but a trim has left more of them coded.
  const Tokens tokens = RandomTokens(random, 1, 1, 96, 8, 8);
  const CachePtr trimmed = MakeCache("method=kivi,residual_length=32,sink_tokens=0");
  const CachePtr grown = MakeCache("method=kivi,residual_length=32,sink_tokens=0");
  ASSERT_TRUE(AppendSome(*trimmed, tokens, 0, 96).ok());
  ASSERT_TRUE(AppendSome(*grown, tokens, 0, 80).ok());
  int64_t removed = 0;
  ASSERT_TRUE(trimmed->Trim(16, &removed).ok());
  const SequenceCache* caches[] = {grown.get(), trimmed.get()};
  EXPECT_EQ(SequenceCache::Merge(caches).status().code(), StatusCode::kInvalidState);
}

// B2
TEST(SequenceInvariants, B2TrimRemovesWhatItSays) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    const Tokens tokens = RandomTokens(random, 1, 2, 260, 8, 8);
    for (const int64_t n : {0, 1, 7, 8, 31, 32, 33, 99, 130, 131, 1000}) {
      CachePtr cache = MakeCache(config);
      ASSERT_TRUE(AppendSome(*cache, tokens, 0, 131).ok());
      const std::vector<float> before = Decoded(*cache, Side::kValue);
      int64_t removed = -1;
      ASSERT_TRUE(cache->Trim(n, &removed).ok());
      ASSERT_EQ(removed, std::min<int64_t>(n, 131));
      const int64_t left = 131 - removed;
      ASSERT_EQ(cache->n_tokens(), left);
      ASSERT_EQ(cache->Stats().full_seq_bytes, 2 * left * 16 * 2);
      const bool tail_wobbles = config.find("exact_tail=false") != std::string::npos;
      const std::vector<float> after = Decoded(*cache, Side::kValue);
      for (int64_t row = 0; row < 2 && !tail_wobbles; ++row) {
        for (int64_t i = 0; i < left * 8; ++i) {
          // A group that is cut is held as f16 of what its codes say.
          const float was = before[static_cast<size_t>(row * 131 * 8 + i)];
          const float is = after[static_cast<size_t>(row * left * 8 + i)];
          ASSERT_LE(std::fabs(was - is), std::fabs(was) * 0x1p-11f + 1e-7f)
              << config << " trim " << n;
        }
      }
      int64_t again = -1;
      ASSERT_TRUE(cache->Trim(5, &again).ok());
      ASSERT_EQ(again, std::min<int64_t>(5, left));
      ASSERT_TRUE(AppendSome(*cache, tokens, 131, 100).ok());
      ASSERT_EQ(cache->n_tokens(), left - again + 100);
    }
  }
}

TEST(SequenceInvariants, ClearOpensShapeAndTypeAgain) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    CachePtr cache = MakeCache(config);
    const uint64_t empty_bytes = cache->Stats().stored_bytes;
    ASSERT_TRUE(AppendSome(*cache, RandomTokens(random, 1, 2, 90, 8, 8), 0, 90).ok());
    cache->Clear();
    EXPECT_EQ(cache->n_tokens(), 0);
    EXPECT_EQ(cache->Stats().stored_bytes, empty_bytes) << config;
    const Tokens other = RandomTokens(random, 2, 1, 90, 5, 3, ElementType::kBf16);
    ASSERT_TRUE(AppendSome(*cache, other, 0, 90).ok()) << config;
    CachePtr fresh = MakeCache(config);
    ASSERT_TRUE(AppendSome(*fresh, other, 0, 90).ok());
    EXPECT_EQ(ContentOf(*cache), ContentOf(*fresh)) << config;
  }
}

// B3: however often beams are reordered, codes move as they are and nothing drifts.
TEST(SequenceInvariants, B3FiftyReordersMoveCodesWithoutDrift) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    const Tokens tokens = RandomTokens(random, 3, 2, 140, 8, 12);
    CachePtr cache = MakeCache(config);
    ASSERT_TRUE(AppendSome(*cache, tokens, 0, 131).ok());  // coded groups and an exact tail
    const Content before = ContentOf(*cache);
    std::vector<int64_t> order = {0, 1, 2};  // row i is row order[i] of the first cache
    for (int round = 0; round < 50; ++round) {
      std::vector<int64_t> picked = {0, 1, 2};
      std::shuffle(picked.begin(), picked.end(), random);
      const std::vector<int64_t> last = order;
      for (size_t i = 0; i < 3; ++i) order[i] = last[static_cast<size_t>(picked[i])];
      Result<CachePtr> selected = cache->SelectRows(picked);
      ASSERT_TRUE(selected.ok()) << selected.status().text();
      cache = std::move(selected).value();
    }
    std::vector<int64_t> back(3);
    for (size_t i = 0; i < 3; ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
    Result<CachePtr> restored = cache->SelectRows(back);
    ASSERT_TRUE(restored.ok()) << restored.status().text();
    EXPECT_EQ(ContentOf(*restored.value()), before) << config;
  }
}

// A8, A9, F1: any widths; what is stored is what is reported, within the slack of its slabs.
TEST(SequenceInvariants, A8A9AnyHeadSizesWork) {
  std::mt19937_64 random(TestSeed());
  const std::pair<int, int> kDims[] = {
      {1, 1},     {40, 40},   {64, 64},   {72, 72},   {80, 80},  {96, 96},   {100, 100}, {112, 112},
      {192, 192}, {256, 256}, {320, 320}, {576, 576}, {512, 64}, {192, 128}, {576, 512}, {3, 7}};
  for (const std::string& config : ManyConfigs()) {
    for (const auto& [dim_k, dim_v] : kDims) {
      const Tokens tokens = RandomTokens(random, 1, 1, 70, dim_k, dim_v);
      CachePtr cache = MakeCache(config);
      const Status status = AppendSome(*cache, tokens, 0, 70);
      ASSERT_TRUE(status.ok()) << config << " " << dim_k << " " << status.text();
      for (const Side side : {Side::kKey, Side::kValue}) {
        const int64_t dim = side == Side::kKey ? dim_k : dim_v;
        const std::vector<float> decoded = Decoded(*cache, side);
        ASSERT_EQ(decoded.size(), static_cast<size_t>(70 * dim));
        double error = 0, energy = 0;
        for (size_t i = 0; i < decoded.size(); ++i) {
          const auto at = static_cast<int64_t>(i);
          const auto raw = static_cast<double>(tokens.At(side, 0, at / dim, at % dim));
          const double off = static_cast<double>(decoded[i]) - raw;
          error += off * off;
          energy += raw * raw;
        }
        // amc drops channels; no codec here is worse than 2 bits.
        const double bound = config == "method=fp16"                   ? 0
                             : config.find("amc") != std::string::npos ? 1
                                                                       : 0.15;
        EXPECT_LE(error, bound * energy)
            << config << " K " << dim_k << " V " << dim_v << " side " << static_cast<int>(side);
      }
      EXPECT_GE(cache->Stats().stored_bytes, cache->Stats().payload_bytes)
          << config << " " << dim_k;
    }
  }
}

// The error of one coding is at most half a step of its group.
// A8: the per-token codecs have a widest head; past it they say so.
TEST(SequenceInvariants, A8PerTokenCodecsRefuseHeadsTheyCannotHold) {
  std::mt19937_64 random(TestSeed());
  for (const char* method : {"method=uniform", "method=age_tiered"}) {
    const CachePtr cache = MakeCache(std::string(method) + ",codec=per_token");
    const Tokens wide = RandomTokens(random, 1, 1, 80, 16, 1040);
    const Status status = AppendSome(*cache, wide, 0, 80);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.text().find("at most 1024 channels, got 1040"), std::string::npos);
    EXPECT_TRUE(AppendSome(*cache, RandomTokens(random, 1, 1, 80, 16, 1024), 0, 80).ok());
  }
}

TEST(SequenceInvariants, ErrorsStayWithinHalfAStep) {
  std::mt19937_64 random(TestSeed());
  for (int bits = 1; bits <= 15; ++bits) {
    const Tokens tokens = RandomTokens(random, 1, 1, 64, 24, 24, ElementType::kF16);
    CachePtr cache = MakeCache("method=uniform,sink_tokens=0,uniform_group_size=16,uniform_bits=" +
                               std::to_string(bits));
    ASSERT_TRUE(AppendSome(*cache, tokens, 0, 64).ok());
    const std::vector<float> keys = Decoded(*cache, Side::kKey);
    for (int64_t d = 0; d < 24; ++d) {
      for (int64_t g = 0; g < 4; ++g) {
        float lo = 1e9f, hi = -1e9f;
        for (int64_t t = g * 16; t < g * 16 + 16; ++t) {
          lo = std::min(lo, tokens.At(Side::kKey, 0, t, d));
          hi = std::max(hi, tokens.At(Side::kKey, 0, t, d));
        }
        const float half_step = (hi - lo) / static_cast<float>((1 << bits) - 1) / 2;
        for (int64_t t = g * 16; t < g * 16 + 16; ++t) {
          const float error =
              std::fabs(keys[static_cast<size_t>(t * 24 + d)] - tokens.At(Side::kKey, 0, t, d));
          ASSERT_LE(error, half_step * 1.001f + 1e-6f) << bits << " bits";
        }
      }
    }
  }
}

TEST(SequenceInvariants, BadInputIsRefusedAndChangesNothing) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    CachePtr cache = MakeCache(config);
    const Tokens tokens = RandomTokens(random, 2, 3, 60, 8, 8);
    ASSERT_TRUE(AppendSome(*cache, tokens, 0, 50).ok());
    const Content before = ContentOf(*cache);
    const uint64_t bytes_before = cache->Stats().stored_bytes;
    const auto refused = [&](const Tokens& bad, StatusCode code) {
      const Status status = AppendSome(*cache, bad, 0, bad.n);
      EXPECT_EQ(status.code(), code) << config << ": " << status.text();
      EXPECT_FALSE(status.text().empty());
    };
    refused(RandomTokens(random, 3, 2, 4, 8, 8), StatusCode::kShapeMismatch);  // B and H swapped
    refused(RandomTokens(random, 2, 3, 4, 9, 8), StatusCode::kShapeMismatch);
    refused(RandomTokens(random, 2, 3, 4, 8, 7), StatusCode::kShapeMismatch);
    for (const uint16_t bad_bits : {0x7c00, 0xfc00, 0x7e01}) {
      Tokens bad = RandomTokens(random, 2, 3, 4, 8, 8);
      std::memcpy(bad.v.data() + 2 * 37, &bad_bits, 2);
      refused(bad, StatusCode::kNonFinite);
    }
    Tokens huge = RandomTokens(random, 2, 3, 4, 8, 8, ElementType::kF32);
    const float too_large = 70000.0f;
    std::memcpy(huge.k.data() + 4 * 11, &too_large, 4);
    refused(huge, StatusCode::kNonFinite);
    TensorView absurd = tokens.View(Side::kKey, 0, 1);
    absurd.shape[2] = int64_t{1} << 50;
    EXPECT_FALSE(cache->Append(absurd, absurd).ok());
    absurd.shape[2] = -1;
    EXPECT_FALSE(cache->Append(absurd, absurd).ok());
    int64_t removed = 0;
    EXPECT_FALSE(cache->Trim(-1, &removed).ok());
    EXPECT_FALSE(cache->Decode(Side::kKey, 0, 51, ElementType::kF32, nullptr).ok());
    EXPECT_EQ(ContentOf(*cache), before) << config;
    EXPECT_EQ(cache->Stats().stored_bytes, bytes_before) << config;
  }
}

TEST(SequenceInvariants, NonFiniteIsContainedWhenItIsAllowed) {
  std::mt19937_64 random(TestSeed());
  Tokens tokens = RandomTokens(random, 1, 1, 64, 8, 8);
  const uint16_t nan_bits = 0x7e00;
  std::memcpy(tokens.k.data() + 2 * (10 * 8 + 3), &nan_bits, 2);  // token 10, channel 3
  CachePtr cache =
      MakeCache("method=uniform,sink_tokens=0,uniform_group_size=16,reject_non_finite=false");
  ASSERT_TRUE(AppendSome(*cache, tokens, 0, 64).ok());
  const std::vector<float> keys = Decoded(*cache, Side::kKey);
  for (size_t i = 0; i < keys.size(); ++i)
    EXPECT_EQ(std::isnan(keys[i]), i / 8 < 16 && i % 8 == 3) << i;
}

TEST(SequenceInvariants, AChannelOrderIsUndoneOnReading) {
  std::mt19937_64 random(TestSeed());
  const Tokens tokens = RandomTokens(random, 1, 2, 80, 32, 32);
  AmcLayerOrder order{2, 32, {}, {}};
  for (int head = 0; head < 2; ++head) {
    std::vector<int32_t> permutation(32);
    for (int i = 0; i < 32; ++i) permutation[static_cast<size_t>(i)] = i;
    std::shuffle(permutation.begin(), permutation.end(), random);
    order.keys.insert(order.keys.end(), permutation.begin(), permutation.end());
    order.values.insert(order.values.end(), permutation.rbegin(), permutation.rend());
  }
  CachePtr cache = MakeCache("method=amc,sink_tokens=0");
  ASSERT_TRUE(cache->SetChannelOrder(order).ok());
  ASSERT_TRUE(AppendSome(*cache, tokens, 0, 80).ok());
  EXPECT_EQ(cache->SetChannelOrder(order).code(), StatusCode::kInvalidState);
  std::vector<uint8_t> tiers(80);
  for (int64_t row = 0; row < 2; ++row) {
    ASSERT_TRUE(cache->TokenTiers(row, tiers).ok());
    const std::vector<float> keys = Decoded(*cache, Side::kKey);
    for (int64_t t = 0; t < 80; ++t) {
      std::set<int32_t> kept;
      const int rank = tiers[static_cast<size_t>(t)] == 0   ? 32
                       : tiers[static_cast<size_t>(t)] == 1 ? 11
                                                            : 2;
      for (int j = 0; j < rank; ++j) kept.insert(order.keys[static_cast<size_t>(row * 32 + j)]);
      for (int32_t d = 0; d < 32; ++d) {
        const float got = keys[static_cast<size_t>((row * 80 + t) * 32 + d)];
        const float raw = tokens.At(Side::kKey, row, t, d);
        if (kept.count(d) == 0) {
          ASSERT_EQ(got, 0.0f);
        } else {
          ASSERT_NEAR(got, raw, rank == 32 ? 0.0 : 0.6);
        }
      }
    }
  }
  AmcLayerOrder broken = order;
  broken.keys[3] = broken.keys[4];
  EXPECT_EQ(MakeCache("method=amc")->SetChannelOrder(broken).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeCache("method=kivi")->SetChannelOrder(order).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace varve
