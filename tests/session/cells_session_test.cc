// A cell cache that was saved and loaded in the middle of a random life is the one that was never
// saved; cut and changed files are refused or harmless.
#include <cmath>
#include <random>
#include <string>

#include "cells/cells_fixture.h"
#include "session/session_fixture.h"
#include "varve/varve.h"

namespace varve::testing {
namespace {

constexpr const char* kSettings[] = {
    "method=age_tiered,age_recent_boundary=40,age_mid_boundary=100,sink_tokens=2",
    "method=age_tiered,age_recent_boundary=24,age_mid_boundary=64,key_error_limit=0.3",
    "method=age_tiered,age_recent_boundary=20,age_mid_boundary=20,age_bits_recent_v=4",
    "method=age_tiered,age_recent_boundary=33,age_mid_boundary=70,age_bits_recent_k=4,sink_tokens="
    "0",
    "method=uniform,uniform_bits=4,sink_tokens=3",
    "method=fp16",
};
const CellShape kShapes[] = {
    {150, 1, 2, 16, 16, RopePairing::kHalves, 16},
    {96, 2, 1, 24, 8, RopePairing::kInterleaved, 16},
    {200, 1, 1, 32, 0, RopePairing::kNone, 0},
    {70, 3, 2, 8, 40, RopePairing::kHalves, 8},
};
using CachePtr = std::unique_ptr<CellCache>;

/// A random life of one cache; the same seed lives the same life.
class Life {
 public:
  Life(uint64_t seed, const char* settings, const CellShape& shape)
      : random_(seed), shape_(shape), cache(MakeCache(settings, shape)) {}

  void Step() {
    switch (random_() % 8) {
      case 0:
        return Shift();
      case 1:
        return Forget();
      case 2:
        return Copy();
      default:
        return Write();
    }
  }

 private:
  int64_t Pick(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  void Write() {
    const int64_t total = int64_t{shape_.n_cells} * shape_.n_streams;
    const auto n = static_cast<int32_t>(1 + Pick(40));
    const int64_t first = next_ % (total - n);
    next_ += Pick(5) == 0 ? Pick(60) : n;
    std::vector<int64_t> index;
    std::vector<int32_t> positions;
    for (int32_t i = 0; i < n; ++i) {
      index.push_back(first + i);
      positions.push_back(position_++);
    }
    const bool with_positions = Pick(4) != 0;
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (side == Side::kValue && shape_.head_dim_v == 0) continue;
      std::vector<float> rows;
      for (int32_t i = 0; i < n; ++i) {
        const auto row = TokenRow(side, position_ + i, cache->row_elements(side));
        rows.insert(rows.end(), row.begin(), row.end());
      }
      const Status status =
          cache->Write(side, index.data(), with_positions ? positions.data() : nullptr, rows.data(),
                       RowType::kF32, cache->row_elements(side) * sizeof(float), n, 1);
      ASSERT_TRUE(status.ok()) << status.text();
    }
    const int n_heads = shape_.n_kv_heads;
    AttendAll(*cache, QueryRows(position_, 8, static_cast<size_t>(n_heads * shape_.head_dim_k)), 8,
              n_heads, static_cast<int>(first / shape_.n_cells));
  }

  void Shift() {
    RopeShift rope;
    rope.pairing = shape_.pairing;
    rope.n_dims = shape_.n_rope_dims;
    if (rope.pairing == RopePairing::kNone) return;
    const auto n = static_cast<int32_t>(1 + Pick(60));
    const int64_t first = Pick(int64_t{shape_.n_cells} * shape_.n_streams - n);
    const std::vector<int32_t> delta(static_cast<size_t>(n), static_cast<int32_t>(Pick(19)) - 9);
    const Status status = cache->Shift(first, delta.data(), n, rope);
    ASSERT_TRUE(status.ok()) << status.text();
  }

  void Forget() {
    const auto n = static_cast<int32_t>(1 + Pick(50));
    const Status status = cache->Forget(Pick(int64_t{shape_.n_cells} * shape_.n_streams - n), n);
    ASSERT_TRUE(status.ok()) << status.text();
  }

  void Copy() {
    const auto n = static_cast<int32_t>(1 + Pick(40));
    const int64_t total = int64_t{shape_.n_cells} * shape_.n_streams;
    const int64_t from = Pick(total - n);
    const int64_t to = Pick(total - n);
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (side == Side::kValue && shape_.head_dim_v == 0) continue;
      const Status status = cache->CopyFrom(*cache, to, from, n, side);
      ASSERT_TRUE(status.ok()) << status.text();
    }
  }

  std::mt19937_64 random_;
  CellShape shape_;
  int64_t next_ = 0;
  int32_t position_ = 0;

 public:
  CachePtr cache;
};

TEST(CellsSession, LoadedCacheGoesOnAsIfNeverSaved) {
  int n_with_rotations = 0;
  for (const char* settings : kSettings) {
    for (const CellShape& shape : kShapes) {
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        SCOPED_TRACE(std::string(settings) + ", " + std::to_string(shape.n_cells) +
                     " cells, seed " + std::to_string(seed));
        Life plain(seed, settings, shape);
        Life saved(seed, settings, shape);
        for (int step = 0; step < 24; ++step) {
          plain.Step();
          saved.Step();
          if (step % 4 != 3) continue;
          Bytes bytes = Snapshot(*saved.cache);
          n_with_rotations += SectionOf(bytes, SectionType::kCellRotations).empty() ? 0 : 1;
          auto loaded = Restore(*MakeCache(settings, shape), bytes);
          ASSERT_TRUE(loaded.ok()) << loaded.status().text();
          ASSERT_EQ(Snapshot(*loaded.value()), bytes) << "save, load, save";
          saved.cache = std::move(loaded).value();
          ASSERT_EQ(bytes, Snapshot(*plain.cache));
          for (const Side side : {Side::kKey, Side::kValue}) {
            if (side == Side::kValue && shape.head_dim_v == 0) continue;
            ASSERT_EQ(ReadAll(*saved.cache, side), ReadAll(*plain.cache, side));
          }
          const std::vector<float> q =
              QueryRows(7, 2, static_cast<size_t>(shape.n_kv_heads * shape.head_dim_k));
          ASSERT_EQ(AttendAll(*saved.cache, q, 2, shape.n_kv_heads, 0),
                    AttendAll(*plain.cache, q, 2, shape.n_kv_heads, 0));
        }
        const CellStats a = saved.cache->Stats();
        const CellStats b = plain.cache->Stats();
        EXPECT_EQ(a.n_tokens, b.n_tokens);
        EXPECT_EQ(a.tier_tokens, b.tier_tokens);
        EXPECT_EQ(a.payload_bytes, b.payload_bytes);
        EXPECT_EQ(a.n_demotions, b.n_demotions);
      }
    }
  }
  EXPECT_GT(n_with_rotations, 20);
}

TEST(CellsSession, EmptyCachesLoad) {
  for (const char* settings : kSettings) {
    const CachePtr empty = MakeCache(settings, kShapes[0]);
    const Bytes bytes = Snapshot(*empty);
    auto loaded = Restore(*MakeCache(settings, kShapes[0]), bytes);
    ASSERT_TRUE(loaded.ok()) << loaded.status().text();
    WriteTokens(*loaded.value(), 0, 120);
    WriteTokens(*empty, 0, 120);
    EXPECT_EQ(Snapshot(*loaded.value()), Snapshot(*empty));
    ASSERT_TRUE(loaded.value()->Forget(0, 150).ok());
    EXPECT_EQ(Snapshot(*loaded.value()).size(), bytes.size());
  }
}

TEST(CellsSession, FileIsAsLargeAsTheCache) {
  const CellShape shape = {4096, 1, 2, 64, 64, RopePairing::kHalves, 64};
  const CachePtr cache = MakeCache("method=age_tiered", shape);
  for (int first = 0; first < 4096; first += 64) WriteTokens(*cache, first, 64);
  const auto file_bytes = static_cast<double>(Snapshot(*cache).size());
  const CellStats stats = cache->Stats();
  std::printf("payload %.0f, packed %.0f, file %.0f bytes\n",
              static_cast<double>(stats.payload_bytes), static_cast<double>(stats.packed_bytes),
              file_bytes);
  EXPECT_LT(file_bytes, 1.02 * static_cast<double>(stats.payload_bytes) + 8192);
}

// Rows at the ends of what f32 holds leave numbers that load again.
TEST(CellsSession, ExtremeRowsLoadAgain) {
  for (const char* settings : kSettings) {
    const CachePtr cache = MakeCache(settings, kShapes[0]);
    WriteTokens(*cache, 0, 20);
    int64_t cell = 20;
    for (const float x : {0.0f, 1e-40f, 1e-20f, 65504.0f, 70000.0f, 1e10f, 1e19f, 3e38f, INFINITY,
                          -INFINITY, NAN}) {
      for (const Side side : {Side::kKey, Side::kValue}) {
        std::vector<float> row(cache->row_elements(side), x);
        const Status status = cache->Write(side, &cell, nullptr, row.data(), RowType::kF32,
                                           row.size() * sizeof(float), 1, 1);
        ASSERT_TRUE(status.ok()) << status.text();
      }
      ++cell;
    }
    WriteTokens(*cache, 40, 110);
    const auto loaded = Restore(*MakeCache(settings, kShapes[0]), Snapshot(*cache));
    EXPECT_TRUE(loaded.ok()) << settings << ": " << loaded.status().text();
  }
}

TEST(CellsSession, CutAndFlippedFilesAreRefused) {
  for (const char* settings : {kSettings[0], kSettings[5]}) {
    Life life(3, settings, kShapes[0]);
    for (int step = 0; step < 16; ++step) life.Step();
    const Bytes good = Snapshot(*life.cache);
    const auto expect_refused = [&](const Bytes& bytes, size_t at) {
      const auto loaded = Restore(*life.cache, bytes);
      ASSERT_FALSE(loaded.ok()) << at;
      EXPECT_FALSE(loaded.status().text().empty());
    };
    for (size_t n = 0; n < good.size(); n += n < 2000 ? 1 : 97)
      expect_refused(Bytes(good.begin(), good.begin() + static_cast<ptrdiff_t>(n)), n);
    Bytes bytes = good;
    for (size_t at = 0; at < bytes.size(); at += at < 4000 ? 1 : 61) {
      bytes[at] ^= std::byte{16};
      expect_refused(bytes, at);
      bytes[at] = good[at];
    }
  }
}

TEST(CellsSession, ChangedValuesAreRefusedOrHarmless) {
  for (const char* settings : {kSettings[0], kSettings[1], kSettings[4]}) {
    for (const uint64_t seed : {3, 4}) {
      const CellShape& shape = kShapes[seed % 2];
      Life life(seed, settings, shape);
      for (int step = 0; step < 20; ++step) life.Step();
      const Bytes good = Snapshot(*life.cache);
      std::mt19937_64 random(seed);
      int n_taken = 0;
      constexpr int kTries = 3000;
      for (int i = 0; i < kTries; ++i) {
        Bytes bytes = good;
        constexpr SectionType kTypes[] = {
            SectionType::kCache,         SectionType::kCoding,       SectionType::kState,
            SectionType::kKeyTables,     SectionType::kKeys,         SectionType::kValues,
            SectionType::kKeyStatistics, SectionType::kCellBlocks,   SectionType::kCellBlocks,
            SectionType::kCellExactRows, SectionType::kCellRotations};
        for (uint64_t n = 1 + random() % 3; n > 0; --n) {
          const auto section = SectionOf(bytes, kTypes[random() % std::size(kTypes)]);
          if (section.size() < 8) continue;
          constexpr uint64_t kValues[] = {0, 1, 2, 255, 0x7fffffff, 0xffffffff, 1ull << 40, ~0ull};
          const size_t width = size_t{1} << random() % 4;
          const uint64_t value = random() % 2 == 0 ? kValues[random() % 8] : random();
          std::memcpy(section.data() + random() % (section.size() - width + 1), &value, width);
        }
        ASSERT_TRUE(Reseal(bytes));
        auto loaded = Restore(*MakeCache(settings, shape), bytes);
        if (!loaded.ok()) {
          EXPECT_FALSE(loaded.status().text().empty());
          continue;
        }
        ++n_taken;
        CellCache& cache = *loaded.value();
        (void)ReadAll(cache, Side::kKey);
        const std::vector<float> row(cache.row_elements(Side::kKey), 1.0f);
        const std::vector<int32_t> delta(30, 2);
        RopeShift rope;
        rope.pairing = shape.pairing;
        rope.n_dims = shape.n_rope_dims;
        for (int64_t cell = 5; cell < 100; cell += 40) {
          (void)cache.Write(Side::kKey, &cell, nullptr, row.data(), RowType::kF32,
                            row.size() * sizeof(float), 1, 1);
          (void)cache.Forget(3, 40);
          (void)cache.Shift(20, delta.data(), 30, rope);
          (void)cache.CopyFrom(cache, 40, 2, 30, Side::kKey);
          (void)AttendAll(cache,
                          QueryRows(7, 2, static_cast<size_t>(shape.n_kv_heads * shape.head_dim_k)),
                          2, shape.n_kv_heads, 0);
        }
        (void)cache.Stats();
      }
      EXPECT_GT(n_taken, 0);
      EXPECT_LT(n_taken, kTries);
    }
  }
}

TEST(CellsSession, OtherIdentityIsNamed) {
  const CachePtr cache = MakeCache(kSettings[0], kShapes[0]);
  WriteTokens(*cache, 0, 100);
  const Bytes bytes = Snapshot(*cache);
  const auto text_of = [&](const char* settings, const CellShape& shape) {
    const Status status = Restore(*MakeCache(settings, shape), bytes).status();
    EXPECT_EQ(status.code(), StatusCode::kIncompatible);
    return status.text();
  };
  CellShape shape = kShapes[0];
  shape.n_cells = 160;
  EXPECT_EQ(text_of(kSettings[0], shape), "cache 0: n_cells is 150 in the session, 160 here");
  shape = kShapes[0];
  shape.pairing = RopePairing::kNone;
  EXPECT_EQ(text_of(kSettings[0], shape), "cache 0: rope_kind is 2 in the session, 0 here");
  EXPECT_EQ(text_of("method=age_tiered,age_recent_boundary=40,age_mid_boundary=90,sink_tokens=2",
                    kShapes[0]),
            "cache 0: ladder of keys, stage 1: leave_age is 100 in the session, 90 here");
  EXPECT_EQ(text_of("method=age_tiered,age_recent_boundary=40,age_mid_boundary=100,sink_tokens=2,"
                    "age_bits_old_v=4",
                    kShapes[0]),
            "cache 0: ladder of values, stage 2: bits[0] is 2 in the session, 4 here");
  EXPECT_NE(text_of("method=fp16,sink_tokens=2", kShapes[0]), "");
}

}  // namespace
}  // namespace varve::testing
