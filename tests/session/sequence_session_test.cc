// A sequence cache that was saved and loaded is the cache that was never saved: the same bytes, and
// the same bytes after everything that comes later.
#include <array>
#include <random>

#include "property/sequence_fixture.h"
#include "session/session_fixture.h"

namespace varve {
namespace {

std::vector<std::string> AllConfigs() {
  std::vector<std::string> configs = ManyConfigs();
  configs.insert(
      configs.end(),
      {"method=uniform,uniform_bits=16",
       "method=age_tiered,codec=per_token,age_recent_boundary=16,age_mid_boundary=48,age_bits_mid_"
       "v=16,sink_tokens=0",
       "method=amc,amc_tiering=call",
       "method=amc,amc_adaptive_thresholds=true,amc_calib_variance=1"});
  return configs;
}

/// A random life: chunks of tokens, trims, row selections.
class Life {
 public:
  Life(uint64_t seed, const std::string& config) : random_(seed), config_(config) {
    cache = MakeCache(config);
    const std::array types = {ElementType::kF16, ElementType::kBf16, ElementType::kF32};
    tokens_ = RandomTokens(random_, 1 + seed % 2, 1 + seed % 3, 400, 8 + seed % 9, 8 + seed % 5,
                           types[seed % 3]);
  }

  void Step() {
    if (random_() % 6 == 0 && cache->n_tokens() > 0) {
      int64_t removed = 0;
      const Status status = cache->Trim(1 + static_cast<int64_t>(random_() % 20), &removed);
      ASSERT_TRUE(status.ok()) << status.text();
      return;
    }
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(random_() % 40), 400 - next_);
    const Status status = AppendSome(*cache, tokens_, next_, n);
    ASSERT_TRUE(status.ok()) << config_ << ": " << status.text();
    next_ += n;
  }

  CachePtr cache;

 private:
  std::mt19937_64 random_;
  std::string config_;
  Tokens tokens_;
  int64_t next_ = 0;
};

TEST(SequenceSession, LoadedCacheGoesOnAsIfNeverSaved) {
  for (const std::string& config : AllConfigs()) {
    for (uint64_t seed = TestSeed(); seed < TestSeed() + 12; ++seed) {
      SCOPED_TRACE(config + ", seed " + std::to_string(seed));
      Life plain(seed, config);
      Life saved(seed, config);
      for (int step = 0; step < 14; ++step) {
        plain.Step();
        saved.Step();
        if (step % 3 != 2) continue;
        const Bytes bytes = Snapshot(*saved.cache);
        Result<CachePtr> loaded = Restore(*MakeCache(config), bytes);
        ASSERT_TRUE(loaded.ok()) << loaded.status().text();
        ASSERT_EQ(Snapshot(*loaded.value()), bytes) << "save, load, save";
        saved.cache = std::move(loaded).value();
        ASSERT_EQ(ContentOf(*saved.cache), ContentOf(*plain.cache));
      }
      EXPECT_EQ(Snapshot(*saved.cache), Snapshot(*plain.cache));
      const SequenceStats a = saved.cache->Stats();
      const SequenceStats b = plain.cache->Stats();
      EXPECT_EQ(a.tokens_seen, b.tokens_seen);
      EXPECT_EQ(a.tier_tokens, b.tier_tokens);
      EXPECT_EQ(a.nominal_bytes, b.nominal_bytes);
      EXPECT_EQ(a.seed_nbytes, b.seed_nbytes);
      EXPECT_EQ(a.compressed_key_bytes, b.compressed_key_bytes);
      EXPECT_EQ(a.payload_bytes, b.payload_bytes);
    }
  }
}

TEST(SequenceSession, EmptyCachesLoad) {
  for (const std::string& config : AllConfigs()) {
    SCOPED_TRACE(config);
    const CachePtr empty = MakeCache(config);
    Result<CachePtr> loaded = Restore(*MakeCache(config), Snapshot(*empty));
    ASSERT_TRUE(loaded.ok()) << loaded.status().text();
    EXPECT_FALSE(loaded.value()->has_shape());

    // No tokens, but a shape: trimmed to nothing.
    std::mt19937_64 random(1);
    const Tokens tokens = RandomTokens(random, 1, 2, 50, 8, 8);
    ASSERT_TRUE(AppendSome(*empty, tokens, 0, 50).ok());
    int64_t removed = 0;
    ASSERT_TRUE(empty->Trim(50, &removed).ok());
    loaded = Restore(*MakeCache(config), Snapshot(*empty));
    ASSERT_TRUE(loaded.ok()) << loaded.status().text();
    EXPECT_TRUE(loaded.value()->has_shape());
    EXPECT_EQ(loaded.value()->n_tokens(), 0);
    ASSERT_TRUE(AppendSome(*loaded.value(), tokens, 0, 50).ok());
    ASSERT_TRUE(AppendSome(*empty, tokens, 0, 50).ok());
    EXPECT_EQ(Snapshot(*loaded.value()), Snapshot(*empty));
  }
}

TEST(SequenceSession, FileIsAsLargeAsTheCache) {
  std::mt19937_64 random(7);
  for (const char* config : {"method=age_tiered", "method=age_tiered,codec=per_token",
                             "method=kivi", "method=uniform", "method=fp16", "method=amc"}) {
    const CachePtr cache = MakeCache(config);
    const Tokens tokens = RandomTokens(random, 1, 2, 4096, 64, 64);
    ASSERT_TRUE(AppendSome(*cache, tokens, 0, 4096).ok());
    const auto file_bytes = static_cast<double>(Snapshot(*cache).size());
    const auto payload_bytes = static_cast<double>(cache->Stats().payload_bytes);
    EXPECT_LT(file_bytes, 1.01 * payload_bytes + 8192) << config;
    std::printf("%-36s payload %9.0f, file %9.0f bytes\n", config, payload_bytes, file_bytes);
  }
}

TEST(SequenceSession, NanIsContentWhereTheSettingsAllowIt) {
  for (const char* method :
       {"method=fp16", "method=age_tiered,age_group_size=8,age_recent_boundary=8",
        "method=age_tiered,codec=per_token", "method=kivi,residual_length=0", "method=amc"}) {
    SCOPED_TRACE(method);
    const CachePtr lenient = MakeCache(std::string(method) + ",reject_non_finite=false");
    std::mt19937_64 random(3);
    Tokens tokens = RandomTokens(random, 1, 1, 70, 8, 8);
    const uint16_t nan = 0x7e00;
    std::memcpy(tokens.k.data() + 40, &nan, sizeof nan);
    ASSERT_TRUE(AppendSome(*lenient, tokens, 0, 70).ok());
    const Bytes bytes = Snapshot(*lenient);
    const Result<CachePtr> loaded =
        Restore(*MakeCache(std::string(method) + ",reject_non_finite=false"), bytes);
    ASSERT_TRUE(loaded.ok()) << loaded.status().text();
    EXPECT_EQ(Snapshot(*loaded.value()), bytes);
  }
}

// An infinity anywhere among the numbers: refused, or read as a code that says something finite.
TEST(SequenceSession, NumbersFromOutsideAreFinite) {
  for (const std::string& config : AllConfigs()) {
    SCOPED_TRACE(config);
    const CachePtr cache = MakeCache(config);
    std::mt19937_64 random(4);
    ASSERT_TRUE(AppendSome(*cache, RandomTokens(random, 1, 1, 130, 8, 8), 0, 130).ok());
    const Bytes good = Snapshot(*cache);
    int n_refused = 0;
    int n_taken = 0;
    for (const SectionType type :
         {SectionType::kKeys, SectionType::kValues, SectionType::kAmcRecords}) {
      Bytes bytes = good;
      const size_t n = SectionOf(bytes, type).size();
      for (size_t at = 0; at + 2 <= n; at += 2) {
        bytes = good;
        const uint16_t infinity = 0x7c00;
        std::memcpy(SectionOf(bytes, type).data() + at, &infinity, sizeof infinity);
        ASSERT_TRUE(Reseal(bytes));
        const Result<CachePtr> loaded = Restore(*MakeCache(config), bytes);
        n_refused += loaded.ok() ? 0 : 1;
        if (!loaded.ok()) {
          ASSERT_EQ(loaded.status().code(), StatusCode::kBadFormat) << loaded.status().text();
          continue;
        }
        ++n_taken;
        for (const Side side : {Side::kKey, Side::kValue}) {
          for (const float x : Decoded(*loaded.value(), side)) ASSERT_TRUE(std::isfinite(x)) << at;
        }
      }
    }
    EXPECT_GT(n_refused, 0);
    std::printf("%d refused, %d taken\n", n_refused, n_taken);
  }
}

}  // namespace
}  // namespace varve
