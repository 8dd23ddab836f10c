// Saving and loading when memory runs out, and what a made-up file can make a reader ask for.
#include "cells/cells_fixture.h"
#include "fault/failing_new.h"
#include "property/sequence_fixture.h"
#include "session/session_fixture.h"

namespace varve {
namespace {

/// Loads with every allocation failing in turn; each time nothing is made, and at last it is.
template <typename Cache>
void ExpectLoadsAllOrNothing(const Cache& like, const Bytes& bytes) {
  const Bytes before = Snapshot(like);
  int64_t nth = 0;
  for (bool done = false; !done; ++nth) {
    ASSERT_LT(nth, 20000);
    done = Survives(nth, [&] {
      const auto loaded = Restore(like, bytes);
      ASSERT_TRUE(loaded.ok()) << loaded.status().text();
    });
    ASSERT_EQ(Snapshot(like), before);
  }
  EXPECT_GT(nth, 5);
}

TEST(SessionAllocation, AFailedLoadChangesNothing) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    SCOPED_TRACE(config);
    const CachePtr cache = MakeCache(config);
    ASSERT_TRUE(AppendSome(*cache, RandomTokens(random, 1, 2, 150, 12, 12), 0, 150).ok());
    ExpectLoadsAllOrNothing(*cache, Snapshot(*cache));
  }
  const CellShape shape = {150, 1, 2, 16, 16, RopePairing::kHalves, 16};
  const auto cells =
      testing::MakeCache("method=age_tiered,age_recent_boundary=40,age_mid_boundary=100", shape);
  testing::WriteTokens(*cells, 0, 150);
  ExpectLoadsAllOrNothing(*cells, Snapshot(*cells));
}

TEST(SessionAllocation, AMadeUpFileAsksForLittle) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    SCOPED_TRACE(config);
    const CachePtr cache = MakeCache(config);
    ASSERT_TRUE(AppendSome(*cache, RandomTokens(random, 1, 2, 60, 4, 4), 0, 60).ok());
    const Bytes good = Snapshot(*cache);
    const CachePtr empty = MakeCache(config);
    uint64_t most = 0;
    for (int i = 0; i < 3000; ++i) {
      Bytes bytes = good;
      for (uint64_t n = 1 + random() % 3; n > 0; --n) {
        const auto section = SectionOf(
            bytes, std::array{SectionType::kCache, SectionType::kState, SectionType::kKeyTables,
                              SectionType::kKeyStatistics, SectionType::kAmcMemory,
                              SectionType::kAmcTiers}[random() % 6]);
        if (section.size() < 8) continue;
        // Numbers are aligned to 8 bytes where sizes are kept.
        const size_t at = random() % (std::min<size_t>(section.size(), 88) / 8) * 8;
        const uint64_t value = random() % 3 == 0 ? random() : uint64_t{1} << random() % 63;
        std::memcpy(section.data() + at, &value, sizeof value);
      }
      ASSERT_TRUE(Reseal(bytes));
      bytes_asked_for = 0;
      (void)Restore(*empty, bytes);
      most = std::max(most, bytes_asked_for);
    }
    // One tile of a group with the widest head there is, and small change.
    constexpr uint64_t kTile = uint64_t{32} * SequenceCache::kMaxChannels * 64;
    EXPECT_LT(most, kTile + 100 * good.size());
    std::printf("%9.0f KiB asked for at most, file %zu bytes\n", static_cast<double>(most) / 1024,
                good.size());
  }
}

}  // namespace
}  // namespace varve
