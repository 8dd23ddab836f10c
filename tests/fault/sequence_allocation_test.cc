// The Nth allocation fails, for every N: whatever the call was, the cache is then as it was before.
#include "fault/failing_new.h"
#include "property/sequence_fixture.h"

namespace varve {
namespace {

TEST(SequenceAllocation, AFailedCallChangesNothing) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    const Tokens tokens = RandomTokens(random, 1, 2, 200, 12, 12);
    // A token, a call that closes groups, one that demotes many, one on the empty cache.
    struct Step {
      int64_t held, n;
    };
    for (const Step step : {Step{0, 5}, Step{0, 130}, Step{31, 1}, Step{40, 9}, Step{70, 100}}) {
      CachePtr expected = MakeCache(config);
      CachePtr cache = MakeCache(config);
      if (step.held > 0) {
        ASSERT_TRUE(AppendSome(*expected, tokens, 0, step.held).ok());
        ASSERT_TRUE(AppendSome(*cache, tokens, 0, step.held).ok());
      }
      const Content before = ContentOf(*cache);
      const uint64_t bytes_before = cache->Stats().stored_bytes;
      int64_t nth = 0;
      for (bool done = false; !done; ++nth) {
        ASSERT_LT(nth, 20000) << config;
        done = Survives(nth, [&] {
          const Status status = AppendSome(*cache, tokens, step.held, step.n);
          ASSERT_TRUE(status.ok()) << status.text();
        });
        if (done) break;
        ASSERT_EQ(ContentOf(*cache), before)
            << config << ": allocation " << nth << " of append " << step.n;
        ASSERT_EQ(cache->Stats().stored_bytes, bytes_before) << config << ": allocation " << nth;
      }
      EXPECT_GT(nth, 0) << config;
      ASSERT_TRUE(AppendSome(*expected, tokens, step.held, step.n).ok());
      ASSERT_EQ(ContentOf(*cache), ContentOf(*expected)) << config;

      for (const int64_t cut : {int64_t{1}, step.n / 2 + 3}) {
        const Content held = ContentOf(*cache);
        int64_t removed = 0;
        for (int64_t at = 0; !Survives(at, [&] { ASSERT_TRUE(cache->Trim(cut, &removed).ok()); });
             ++at) {
          ASSERT_EQ(ContentOf(*cache), held)
              << config << ": allocation " << at << " of trim " << cut;
        }
        ASSERT_EQ(cache->n_tokens(), held.n_tokens - removed);
      }
      const Content source = ContentOf(*cache);
      CachePtr clone;
      for (int64_t at = 0; clone == nullptr; ++at) {
        Survives(at, [&] {
          Result<CachePtr> made = cache->Clone();
          if (made.ok()) clone = std::move(made).value();
        });
        ASSERT_EQ(ContentOf(*cache), source);
      }
      ASSERT_EQ(ContentOf(*clone), source) << config;
    }
  }
}

}  // namespace
}  // namespace varve
