// Files that are cut, flipped or made up: an error with a text, never a crash, and the cache is as
// it was.
#include <random>

#include "property/sequence_fixture.h"
#include "session/session_fixture.h"

namespace varve {
namespace {

struct Sample {
  CachePtr cache;
  Bytes bytes;
};

Sample MakeSample(const std::string& config, int64_t n_tokens = 45) {
  Sample sample;
  sample.cache = MakeCache(config);
  std::mt19937_64 random(11);
  const Tokens tokens = RandomTokens(random, 1, 2, n_tokens, 4, 4);
  const Status status = AppendSome(*sample.cache, tokens, 0, n_tokens);
  EXPECT_TRUE(status.ok()) << status.text();
  sample.bytes = Snapshot(*sample.cache, "a model");
  return sample;
}

const char* const kConfigs[] = {
    "method=fp16",
    "method=age_tiered,age_recent_boundary=8,age_mid_boundary=24,age_group_size=8",
    "method=age_tiered,codec=per_token,age_recent_boundary=4,age_mid_boundary=8",
    "method=age_tiered,codec=per_token",
    "method=kivi,kivi_group_size=8,residual_length=8",
    "method=amc,amc_use_query_saliency=true,amc_threshold_window=16",
};

void ExpectRefused(const Sample& sample, const Bytes& bytes, const std::string& what) {
  const Result<CachePtr> loaded = Restore(*sample.cache, bytes, "a model");
  ASSERT_FALSE(loaded.ok()) << what;
  EXPECT_FALSE(loaded.status().text().empty()) << what;
  const int code = static_cast<int>(loaded.status().code());
  EXPECT_TRUE(code >= 50 && code <= 60) << what << ": " << loaded.status().text();
}

TEST(HostileSession, EveryTruncationIsRefused) {
  for (const char* config : kConfigs) {
    SCOPED_TRACE(config);
    const Sample sample = MakeSample(config);
    for (size_t n = 0; n < sample.bytes.size(); ++n) {
      ExpectRefused(sample, Bytes(sample.bytes.begin(), sample.bytes.begin() + n),
                    std::to_string(n) + " bytes");
    }
    Bytes longer = sample.bytes;
    for (int extra = 0; extra < 130; ++extra) {
      longer.push_back(std::byte{0});
      ExpectRefused(sample, longer, "longer");
    }
  }
}

TEST(HostileSession, EveryFlippedBitIsRefused) {
  for (const char* config : kConfigs) {
    SCOPED_TRACE(config);
    const Sample sample = MakeSample(config);
    Bytes bytes = sample.bytes;
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (int bit = 0; bit < 8; bit += at < 1024 ? 1 : 5) {
        bytes[at] ^= std::byte{1} << bit;
        ExpectRefused(sample, bytes, "byte " + std::to_string(at) + ", bit " + std::to_string(bit));
        bytes[at] = sample.bytes[at];
      }
    }
  }
}

// With CRCs made right the values themselves have to be checked. What is taken must be usable.
TEST(HostileSession, ChangedValuesAreRefusedOrHarmless) {
  for (const char* config : kConfigs) {
    SCOPED_TRACE(config);
    const Sample sample = MakeSample(config);
    const Content before = ContentOf(*sample.cache);
    std::mt19937_64 random(TestSeed());
    int n_taken = 0;
    constexpr int kTries = 4000;
    for (int i = 0; i < kTries; ++i) {
      Bytes bytes = sample.bytes;
      for (uint64_t n = 1 + random() % 3; n > 0; --n) {
        constexpr uint64_t kValues[] = {0, 1, 2, 255, 0x7fffffff, 0xffffffff, 1ull << 40, ~0ull};
        const size_t width = size_t{1} << random() % 4;
        // Half of the changes go to the part that is not payload.
        const size_t limit =
            random() % 2 == 0 ? std::min<size_t>(bytes.size(), 1600) : bytes.size();
        const size_t at = random() % (limit - 8) / width * width;
        const uint64_t value = random() % 2 == 0 ? kValues[random() % 8] : random();
        std::memcpy(bytes.data() + at, &value, width);
      }
      if (!Reseal(bytes)) continue;
      const Result<CachePtr> loaded = Restore(*MakeCache(config), bytes);
      if (!loaded.ok()) {
        EXPECT_FALSE(loaded.status().text().empty());
        continue;
      }
      ++n_taken;
      SequenceCache& cache = *loaded.value();
      (void)ContentOf(cache);
      (void)cache.Stats();
      if (!cache.has_shape() || cache.shape().n_rows() > 1000) continue;
      std::mt19937_64 more(5);
      const SequenceShape& shape = cache.shape();
      const Tokens tokens =
          RandomTokens(more, shape.batch, shape.n_kv_heads, 60, shape.head_dim_k, shape.head_dim_v);
      ASSERT_TRUE(AppendSome(cache, tokens, 0, 60).ok());
      (void)ContentOf(cache);
      int64_t removed = 0;
      ASSERT_TRUE(cache.Trim(70, &removed).ok());
      (void)ContentOf(cache);
    }
    EXPECT_GT(n_taken, 0);
    EXPECT_LT(n_taken, kTries);
    EXPECT_EQ(ContentOf(*sample.cache), before);
  }
}

TEST(HostileSession, VersionsAndUnknownSections) {
  const Sample sample = MakeSample(kConfigs[0]);
  const auto code_of = [&](const Bytes& bytes) {
    return Restore(*sample.cache, bytes).status().code();
  };
  Bytes bytes = sample.bytes;
  bytes[8] = std::byte{2};  // major
  (void)Reseal(bytes);
  EXPECT_EQ(code_of(bytes), StatusCode::kUnsupported);

  bytes = sample.bytes;
  bytes[10] = std::byte{9};  // minor: optional sections that are skipped
  (void)Reseal(bytes);
  EXPECT_EQ(code_of(bytes), StatusCode::kOk);

  // A section of an unknown type behind the last one.
  for (const bool required : {false, true}) {
    SessionWriter writer;
    const SequenceCache* caches[] = {sample.cache.get()};
    DescribeSession(std::span<const SequenceCache* const>(caches), "", &writer);
    writer.Add(static_cast<SectionType>(999), 0).own.Put(uint64_t{42});
    bytes.resize(writer.file_bytes());
    MemorySink sink(bytes);
    ASSERT_TRUE(writer.WriteTo(sink).ok());
    uint32_t n_sections;
    std::memcpy(&n_sections, bytes.data() + 16, sizeof n_sections);
    const size_t flags = kSessionHeaderBytes + (n_sections - 1) * kSessionEntryBytes + 4;
    bytes[flags] = std::byte{required};
    ASSERT_TRUE(Reseal(bytes));
    EXPECT_EQ(code_of(bytes), required ? StatusCode::kUnsupported : StatusCode::kOk);
  }
}

// Every difference is named, with both values.
TEST(HostileSession, OtherIdentityIsNamed) {
  struct Case {
    const char* saved;
    const char* loaded;
    const char* text;
  };
  const Case cases[] = {
      {"method=age_tiered", "method=amc", "method is age_tiered in the session, amc here"},
      {"method=age_tiered", "method=age_tiered,age_bits_old=4",
       "age_bits_old is 2 in the session, 4 here"},
      {"method=age_tiered,age_bits_old_k=3", "method=age_tiered",
       "age_bits_old_k is 3 in the session, unset here"},
      {"method=kivi,residual_length=7", "method=kivi", "residual_length is 7 in the session, 128"},
      {"method=uniform,codec=per_token", "method=uniform",
       "codec is per_token in the session, group_affine here"},
      {"method=amc,amc_tiering=call", "method=amc", "amc_tiering is call in the session, running"},
  };
  for (const Case& c : cases) {
    const Sample sample = MakeSample(c.saved);
    const Status status = Restore(*MakeCache(c.loaded), sample.bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kIncompatible) << status.text();
    EXPECT_NE(status.text().find(c.text), std::string::npos) << status.text();
  }

  const Sample sample = MakeSample(kConfigs[1]);
  Status status = Restore(*sample.cache, sample.bytes, "another model").status();
  EXPECT_EQ(status.code(), StatusCode::kIncompatible);
  EXPECT_EQ(status.text(), "model is \"a model\" in the session, \"another model\" here");

  const CachePtr other_shape = MakeCache(kConfigs[1]);
  std::mt19937_64 random(2);
  ASSERT_TRUE(AppendSome(*other_shape, RandomTokens(random, 1, 2, 3, 4, 6), 0, 3).ok());
  status = Restore(*other_shape, sample.bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kIncompatible);
  EXPECT_EQ(status.text(), "cache 0: head_dim_v is 4 in the session, 6 here");

  const SequenceCache* two[] = {sample.cache.get(), sample.cache.get()};
  MemorySource source(sample.bytes);
  status = LoadSession(std::span<const SequenceCache* const>(two), "", source).status();
  EXPECT_EQ(status.text(), "n_caches is 1 in the session, 2 here");

  const CachePtr other_layer = MakeCache(kConfigs[1]);
  other_layer->set_layer(3, 8);
  status = Restore(*other_layer, sample.bytes).status();
  EXPECT_EQ(status.text(), "cache 0: layer is 0 in the session, 3 here");
}

}  // namespace
}  // namespace varve
