// The estimate against what a cache holds, and what it holds against the process (cases F1, F4).
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <string>

#include "cells/cells_fixture.h"

namespace varve::testing {
namespace {

[[maybe_unused]] size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

/// Tokens `first` to first + n - 1 of a stream, with rows that cost less than the fixture's: the
/// bytes held do not depend on them.
void WriteCheap(CellCache& cache, int stream, int64_t first, int n) {
  const CellShape& shape = cache.shape();
  std::vector<int64_t> index(static_cast<size_t>(n));
  std::vector<int32_t> positions(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    index[static_cast<size_t>(i)] = int64_t{stream} * shape.n_cells + (first + i) % shape.n_cells;
    positions[static_cast<size_t>(i)] = static_cast<int32_t>(first + i);
  }
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (side == Side::kValue && shape.head_dim_v == 0) continue;
    const size_t elements = cache.row_elements(side);
    std::vector<float> rows(static_cast<size_t>(n) * elements);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = static_cast<float>((i * 7 + static_cast<size_t>(first)) % 13) - 6.0f;
    ASSERT_TRUE(cache
                    .Write(side, index.data(), positions.data(), rows.data(), RowType::kF32,
                           elements * 4, n, 1)
                    .ok());
  }
}

void Fill(CellCache& cache, const CellWorkload& work) {
  const int n_heads = 32 * cache.shape().n_kv_heads;
  const int64_t n_bulk = work.n_tokens - work.n_decoded;
  for (int stream = 0; stream < cache.shape().n_streams; ++stream) {
    for (int64_t t = 0; t < work.n_tokens;) {
      const int n = t < n_bulk ? static_cast<int>(std::min<int64_t>(work.n_batch, n_bulk - t)) : 1;
      WriteCheap(cache, stream, t, n);
      if (stream == 0 && t == 0) {
        AttendAll(cache, QueryRows(0, 1, static_cast<size_t>(n_heads) * cache.shape().head_dim_k),
                  1, n_heads, 0);
      }
      t += n;
    }
  }
}

struct Shape {
  int n_cells, n_streams, n_kv_heads, head_dim_k, head_dim_v;
};

void ExpectClose(const char* settings, const CellShape& shape, CellWorkload work) {
  auto cache = MakeCache(settings, shape);
  Fill(*cache, work);
  const CellStats stats = cache->Stats();
  work.last_key_bits = stats.last_key_bits;
  const auto estimate = EstimateCellBytes(SettingsOf(settings), shape, work);
  ASSERT_TRUE(estimate.ok()) << estimate.status().text();
  const auto held = static_cast<double>(stats.packed_bytes);
  EXPECT_NEAR(static_cast<double>(estimate.value()), held, 0.03 * held);
}

TEST(CellsEstimate, WithinThreePercentOfMeasured) {
  const Shape shapes[] = {{4096, 1, 3, 64, 64}, {4096, 1, 1, 256, 256}, {2048, 2, 2, 64, 64},
                          {1000, 3, 1, 40, 80}, {2048, 1, 8, 128, 128}, {1024, 1, 1, 576, 0}};
  const char* settings[] = {
      "method=age_tiered",
      "method=age_tiered,age_recent_boundary=64,age_mid_boundary=256",
      "method=age_tiered,age_recent_boundary=64,age_mid_boundary=64,sink_tokens=32",
      "method=age_tiered,age_bits_mid=8",
      "method=age_tiered,key_error_limit=0.0001",
      "method=uniform,uniform_bits=4",
      "method=uniform,uniform_bits_k=8,uniform_bits_v=2",
      "method=fp16"};
  for (const Shape& s : shapes) {
    CellShape shape;
    shape.n_cells = s.n_cells;
    shape.n_streams = s.n_streams;
    shape.n_kv_heads = s.n_kv_heads;
    shape.head_dim_k = s.head_dim_k;
    shape.head_dim_v = s.head_dim_v;
    for (const char* text : settings) {
      for (const int64_t n : {int64_t{1}, int64_t{100}, int64_t{777}, int64_t{s.n_cells}}) {
        SCOPED_TRACE(std::string(text) + " heads " + std::to_string(s.n_kv_heads) + " dim " +
                     std::to_string(s.head_dim_k) + " tokens " + std::to_string(n));
        CellWorkload work;
        work.n_tokens = n;
        ExpectClose(text, shape, work);
      }
    }
  }
}

// A prompt's last batch is still fine when it ends; a sliding window's cells are written over.
TEST(CellsEstimate, FollowsBatchesAndCellsThatAreWrittenOver) {
  CellShape shape;
  shape.n_cells = 768;
  shape.n_kv_heads = 2;
  shape.head_dim_k = shape.head_dim_v = 64;
  const int64_t many = int64_t{40} * shape.n_cells;
  const int64_t very_many = int64_t{5000} * shape.n_cells;
  for (const char* settings : {"method=age_tiered", "method=uniform,uniform_bits=4",
                               "method=age_tiered,age_recent_boundary=64,age_mid_boundary=256"}) {
    for (const int batch : {1, 32, 100, 256}) {
      for (const CellWorkload& work :
           {CellWorkload{700, batch}, CellWorkload{767, batch, 200}, CellWorkload{800, batch},
            CellWorkload{1900, batch}, CellWorkload{2000, batch, 130},
            CellWorkload{many + 77, batch}}) {
        SCOPED_TRACE(std::string(settings) + " batch " + std::to_string(batch) + " tokens " +
                     std::to_string(work.n_tokens) + " decoded " + std::to_string(work.n_decoded));
        ExpectClose(settings, shape, work);
      }
      const auto bytes = [&](int64_t n_tokens) {
        const auto estimate = EstimateCellBytes(SettingsOf(settings), shape, {n_tokens, batch});
        EXPECT_TRUE(estimate.ok());
        return estimate.ok() ? static_cast<double>(estimate.value()) : 0.0;
      };
      // Rounds over the same cells in the same calls: a page more or less.
      EXPECT_NEAR(bytes(very_many), bytes(25 * int64_t{shape.n_cells}), 2.0 * 4096)
          << settings << " batch " << batch;
    }
  }
}

// More work than an estimate goes through, beside a cache that does all of it.
TEST(CellsEstimate, ManyRoundsOverTheSameCells) {
  CellShape shape;
  shape.n_cells = 768;
  shape.n_kv_heads = 4;
  shape.head_dim_k = shape.head_dim_v = 64;
  ExpectClose("method=age_tiered", shape, {75077, 256});
  ExpectClose("method=age_tiered", shape, {70001, 1, 70001});
  const auto bytes = [&](const CellWorkload& work) {
    const auto estimate = EstimateCellBytes(SettingsOf("method=age_tiered"), shape, work);
    EXPECT_TRUE(estimate.ok());
    return estimate.ok() ? static_cast<double>(estimate.value()) : 0.0;
  };
  for (const int64_t batch : {1, 100, 256}) {
    // Calls fall on the same cells again after this many tokens.
    const int64_t period = std::lcm(int64_t{shape.n_cells}, batch);
    const int64_t most = int64_t{1} << 50;
    const double usual = bytes({100 * period + most % period, static_cast<int32_t>(batch)});
    EXPECT_NEAR(bytes({most, static_cast<int32_t>(batch)}), usual, 0.03 * usual) << batch;
  }
}

TEST(CellsEstimate, KeysThatTheLimitHoldsBackTakeMore) {
  CellShape shape;
  shape.n_cells = 4096;
  shape.n_kv_heads = 2;
  shape.head_dim_k = shape.head_dim_v = 64;
  const auto estimate = [&](const char* settings, int last_key_bits) {
    const auto bytes = EstimateCellBytes(SettingsOf(settings), shape, {4096, 1, 0, last_key_bits});
    EXPECT_TRUE(bytes.ok());
    return bytes.ok() ? bytes.value() : 0;
  };
  uint64_t before = 0;
  for (const int last_key_bits : {0, 4, 8}) {
    const uint64_t bytes = estimate("method=age_tiered", last_key_bits);
    EXPECT_GT(bytes, before + before / 20) << last_key_bits;
    before = bytes;
  }
  EXPECT_EQ(estimate("method=age_tiered", 16), before) << "no wider than what they are written in";
  EXPECT_EQ(estimate("method=age_tiered,key_error_limit=0", 16),
            estimate("method=age_tiered,key_error_limit=0", 0));
}

// A sanitizer keeps memory of its own, so RSS says nothing there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(CellsEstimate, HeldBytesAreResidentBytes) {
  CellShape shape;
  shape.n_cells = 8192;
  shape.n_kv_heads = 3;
  shape.head_dim_k = shape.head_dim_v = 64;
  std::vector<std::unique_ptr<CellCache>> layers;
  {
    // Warms up what is not the caches': scratch, allocator, libraries.
    auto warm = MakeCache("method=age_tiered", shape);
    Fill(*warm, {4096, 128});
  }
  malloc_trim(0);
  const size_t before = ResidentBytes();
  uint64_t held = 0;
  uint64_t payload = 0;
  uint64_t f16 = 0;
  for (int layer = 0; layer < 8; ++layer) {
    layers.push_back(MakeCache("method=age_tiered", shape));
    Fill(*layers.back(), {8192, 128});
    const CellStats stats = layers.back()->Stats();
    held += stats.packed_bytes;
    payload += stats.payload_bytes;
    f16 += stats.f16_bytes;
  }
  malloc_trim(0);
  const auto resident = static_cast<double>(ResidentBytes() - before);
  EXPECT_NEAR(static_cast<double>(held), resident, 0.05 * resident);
  EXPECT_LT(static_cast<double>(held), 1.06 * static_cast<double>(payload))
      << "slack and book-keeping";
  EXPECT_LT(resident, 0.24 * static_cast<double>(f16));

  for (auto& layer : layers) ASSERT_TRUE(layer->Forget(0, 8192).ok());
  malloc_trim(0);
  EXPECT_LT(static_cast<double>(ResidentBytes()) - static_cast<double>(before), 0.05 * resident)
      << "a forgotten cache gives its pages back";
}
#endif

TEST(CellsEstimate, RefusesWorkThatCannotBe) {
  CellShape shape;
  shape.n_cells = 64;
  shape.n_kv_heads = 1;
  shape.head_dim_k = shape.head_dim_v = 32;
  for (const CellWorkload& work :
       {CellWorkload{-1}, CellWorkload{10, 0}, CellWorkload{10, 1, 11}, CellWorkload{10, 1, -1}}) {
    EXPECT_EQ(EstimateCellBytes(Settings(), shape, work).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace varve::testing
