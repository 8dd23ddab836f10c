// Memory that comes back: caches that are made, filled, trimmed and freed again and again leave the
// process as large as after the first few (F3 of the defect classes).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "cache/cell_cache.h"
#include "property/sequence_fixture.h"

namespace varve {
namespace {

constexpr size_t kWarmUp = 120;  // ten turns of every method
constexpr size_t kRounds = 500;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// A sanitizer keeps freed memory for a while; leaks are its own report.
constexpr double kSlackBytes = 512.0 * 1048576;
#else
constexpr double kSlackBytes = 2.0 * 1048576;
#endif

double ResidentBytes() {
  long pages = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return -1;
  const bool read = std::fscanf(file, "%ld %ld", &pages, &resident) == 2;
  std::fclose(file);
  return read ? static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) : -1;
}

// Runs round(0), round(1), ... kWarmUp times and kRounds times more; the second lot must not grow
// the process.
template <typename Round>
void ExpectFlat(const std::string& what, Round&& round) {
  for (size_t i = 0; i < kWarmUp; ++i) ASSERT_NO_FATAL_FAILURE(round(i));
  const double before = ResidentBytes();
  ASSERT_GT(before, 0);
  for (size_t i = 0; i < kRounds; ++i) ASSERT_NO_FATAL_FAILURE(round(kWarmUp + i));
  EXPECT_LT(ResidentBytes() - before, kSlackBytes) << what;
}

TEST(SequenceGrowth, F3FiveHundredCachesLeaveNothingBehind) {
  std::mt19937_64 random(TestSeed());
  const Tokens tokens = RandomTokens(random, 1, 2, 150, 32, 32);
  const std::vector<std::string>& configs = ManyConfigs();
  std::vector<uint64_t> stored_bytes(configs.size());
  ExpectFlat("caches of every method", [&](size_t i) {
    const std::string& config = configs[i % configs.size()];
    CachePtr cache = MakeCache(config);
    ASSERT_TRUE(AppendSome(*cache, tokens, 0, 60).ok());
    ASSERT_TRUE(AppendSome(*cache, tokens, 60, 90).ok());
    Result<CachePtr> clone = cache->Clone();
    ASSERT_TRUE(clone.ok());
    const uint64_t held = clone.value()->Stats().stored_bytes;
    uint64_t& first = stored_bytes[i % configs.size()];
    if (first == 0) first = held;
    ASSERT_EQ(held, first) << config << ", cache " << i;
  });
}

TEST(SequenceGrowth, F3TrimAndAppendForEverHoldTheSame) {
  std::mt19937_64 random(TestSeed());
  const Tokens tokens = RandomTokens(random, 1, 2, 150, 32, 32);
  const std::vector<std::string>& configs = ManyConfigs();
  std::vector<CachePtr> caches;
  for (const std::string& config : configs) {
    caches.push_back(MakeCache(config));
    ASSERT_TRUE(AppendSome(*caches.back(), tokens, 0, 150).ok());
  }
  std::vector<uint64_t> most(configs.size());
  ExpectFlat("trims of every method", [&](size_t i) {
    const size_t which = i % configs.size();
    SequenceCache& cache = *caches[which];
    // The same trims come round every five turns, so warm-up has met them all.
    constexpr int64_t kCuts[] = {1, 17, 150, 64, 33};
    const int64_t n = kCuts[i / configs.size() % 5];
    int64_t removed = 0;
    ASSERT_TRUE(cache.Trim(n, &removed).ok());
    ASSERT_EQ(removed, n);
    ASSERT_TRUE(AppendSome(cache, tokens, 150 - n, n).ok());
    const uint64_t held = cache.Stats().stored_bytes;
    if (i < kWarmUp) {
      most[which] = std::max(most[which], held);
    } else {
      ASSERT_LE(held, most[which]) << configs[which] << ", trim " << i;
    }
  });
  for (size_t which = 0; which < configs.size(); ++which) {
    ASSERT_EQ(caches[which]->n_tokens(), 150);
    caches[which]->Clear();
    EXPECT_EQ(caches[which]->Stats().stored_bytes, MakeCache(configs[which])->Stats().stored_bytes)
        << configs[which];
  }
}

TEST(CellGrowth, F3FiveHundredCellCachesLeaveNothingBehind) {
  CellShape shape;
  shape.n_cells = 256;
  shape.n_kv_heads = 2;
  shape.head_dim_k = shape.head_dim_v = 64;
  Settings settings;
  ASSERT_TRUE(SetFields(&settings, "age_recent_boundary=64,age_mid_boundary=128").ok());
  std::mt19937_64 random(TestSeed());
  std::normal_distribution<float> gauss;
  std::vector<float> rows(256 * 2 * 64);
  for (float& x : rows) x = gauss(random);
  std::vector<int64_t> index(256);
  std::iota(index.begin(), index.end(), int64_t{0});
  std::vector<int32_t> positions(256);
  std::iota(positions.begin(), positions.end(), 0);
  ExpectFlat("cell caches", [&](size_t) {
    auto made = CellCache::Create(settings, shape);
    ASSERT_TRUE(made.ok()) << made.status().text();
    const std::unique_ptr<CellCache> cache = std::move(made).value();
    for (int first = 0; first < 256; first += 64) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        const Status status = cache->Write(side, index.data() + first,
                                           side == Side::kKey ? positions.data() + first : nullptr,
                                           rows.data() + static_cast<size_t>(first) * 128,
                                           RowType::kF32, 128 * sizeof(float), 64, 1);
        ASSERT_TRUE(status.ok()) << status.text();
      }
    }
    ASSERT_TRUE(cache->Read(Side::kKey, 0, 256, rows.data(), RowType::kF32).ok());
  });
}

}  // namespace
}  // namespace varve
