// Whatever fails - an argument, the n-th allocation, the n-th slab - the cache is as it was, and
// works on.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "cells/cells_fixture.h"

namespace {

thread_local int64_t allocations_left = -1;  // below 0: no limit

bool AllocationFails() {
  if (allocations_left < 0) return false;
  if (allocations_left == 0) return true;
  --allocations_left;
  return false;
}

int64_t slabs_left = -1;

}  // namespace

// Replaced for the whole program, so that any allocation of the library can be the one that fails.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* p = AllocationFails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace varve::testing {
namespace {

std::byte* MapWithLimit(size_t bytes, size_t alignment) {
  if (slabs_left == 0) return nullptr;
  if (slabs_left > 0) --slabs_left;
  return MapPages(bytes, alignment);
}

CellShape TestShape() {
  CellShape shape;
  shape.n_cells = 320;
  shape.n_kv_heads = 2;
  shape.head_dim_k = shape.head_dim_v = 32;
  shape.pairing = RopePairing::kHalves;
  shape.n_rope_dims = 32;
  return shape;
}

constexpr const char* kTestSettings = "age_recent_boundary=32,age_mid_boundary=96,sink_tokens=3";

std::unique_ptr<CellCache> Filled() {
  auto cache = CellCache::Create(SettingsOf(kTestSettings), TestShape(), MapWithLimit);
  EXPECT_TRUE(cache.ok());
  for (int t = 0; t < 250; t += 25) WriteTokens(*cache.value(), t, 25);
  return std::move(cache).value();
}

struct Snapshot {
  std::vector<float> rows[2];
  int64_t n_tokens;
};

Snapshot Take(const CellCache& cache) {
  return {{ReadAll(cache, Side::kKey), ReadAll(cache, Side::kValue)}, cache.Stats().n_tokens};
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0;
  double norm = 1e-9;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += a[i] * a[i];
  }
  return std::sqrt(error / norm);
}

/// Runs `change` with the n-th allocation or slab failing, for every n until it goes through.
template <typename Change>
void FailInTurn(Change change, int64_t* budget, bool demotes) {
  int failures = 0;
  for (int64_t n = 0; n < 4000; ++n) {
    auto cache = Filled();
    const Snapshot before = Take(*cache);
    *budget = n;
    Status status;
    bool threw = false;
    try {
      status = change(*cache);
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    *budget = -1;
    if (!threw && status.ok()) {
      EXPECT_GT(failures, 0) << "nothing was allocated";
      return;
    }
    ++failures;
    ASSERT_TRUE(threw || status.code() == StatusCode::kOutOfMemory) << status.text();
    const Snapshot after = Take(*cache);
    ASSERT_EQ(after.n_tokens, before.n_tokens) << "failure " << n;
    for (const size_t s : {size_t{0}, size_t{1}}) {
      if (demotes) {
        // Blocks that were due may have gone down before the failure; the rows are the same but for
        // that.
        ASSERT_LT(Distance(before.rows[s], after.rows[s]), 0.35) << "failure " << n;
      } else {
        ASSERT_EQ(before.rows[s], after.rows[s]) << "failure " << n;
      }
    }
    ASSERT_TRUE(change(*cache).ok()) << "the same call again, after failure " << n;
  }
  FAIL() << "never went through";
}

Status WriteRows(CellCache& cache, int64_t first, int n, bool positions) {
  std::vector<int64_t> index(static_cast<size_t>(n));
  std::iota(index.begin(), index.end(), first);
  std::vector<int32_t> at(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) at[static_cast<size_t>(i)] = i % 5 == 0 ? i / 5 : 300 + i;
  std::vector<float> rows(static_cast<size_t>(n) * cache.row_elements(Side::kKey), 0.5f);
  return cache.Write(Side::kKey, index.data(), positions ? at.data() : nullptr, rows.data(),
                     RowType::kF32, cache.row_elements(Side::kKey) * 4, n, 1);
}

TEST(CellsFault, WriteIsAllOrNothing) {
  const auto append = [](CellCache& cache) { return WriteRows(cache, 250, 60, true); };
  const auto rewrite = [](CellCache& cache) { return WriteRows(cache, 3, 70, true); };
  FailInTurn(append, &allocations_left, true);
  FailInTurn(rewrite, &allocations_left, true);
}

TEST(CellsFault, CopyShiftAndForgetAreAllOrNothing) {
  FailInTurn([](CellCache& cache) { return cache.CopyFrom(cache, 32, 96, 100, Side::kKey); },
             &allocations_left, false);
  FailInTurn([](CellCache& cache) { return cache.CopyFrom(cache, 41, 2, 100, Side::kValue); },
             &allocations_left, false);
  FailInTurn(
      [](CellCache& cache) {
        std::vector<int32_t> delta(200, 3);
        delta[40] = 7;
        RopeShift rope;
        rope.pairing = RopePairing::kHalves;
        rope.n_dims = 32;
        return cache.Shift(20, delta.data(), 200, rope);
      },
      &allocations_left, false);
}

TEST(CellsFault, NoSlabMeansOutOfMemory) {
  // A fresh width needs a fresh slab: keys written for the first time after everything was
  // forgotten.
  slabs_left = -1;
  auto cache = Filled();
  ASSERT_TRUE(cache->Forget(0, 320).ok());
  slabs_left = 0;
  const Status status = WriteRows(*cache, 0, 10, false);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.text();
  EXPECT_EQ(cache->Stats().n_tokens, 0);
  slabs_left = -1;
  EXPECT_TRUE(WriteRows(*cache, 0, 10, false).ok());
  EXPECT_EQ(cache->Stats().n_tokens, 10);
}

TEST(CellsFault, BadArgumentsChangeNothingAndAreNamed) {
  auto cache = Filled();
  const Snapshot before = Take(*cache);
  const std::vector<float> rows(2 * cache->row_elements(Side::kKey), 1.0f);
  const size_t stride = cache->row_elements(Side::kKey) * 4;
  const int64_t good[] = {1, 2};
  const int64_t outside[] = {1, 320};
  const int64_t negative[] = {-1, 2};
  const auto write = [&](const int64_t* index, const void* data, size_t row_stride, int32_t n) {
    return cache->Write(Side::kKey, index, nullptr, data, RowType::kF32, row_stride, n, 1);
  };
  EXPECT_NE(write(outside, rows.data(), stride, 2).text().find("320"), std::string::npos);
  EXPECT_EQ(write(negative, rows.data(), stride, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(nullptr, rows.data(), stride, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(good, nullptr, stride, 2).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(write(good, rows.data(), stride - 4, 2).code(), StatusCode::kShapeMismatch);
  EXPECT_EQ(write(good, rows.data(), stride, -1).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(write(good, rows.data(), stride, 0).ok());
  std::vector<float> out(rows.size());
  EXPECT_EQ(cache->Read(Side::kKey, 319, 2, out.data(), RowType::kF32).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Read(Side::kKey, 0, 2, nullptr, RowType::kF32).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Gather(Side::kKey, outside, 2, out.data(), RowType::kF32).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->Forget(300, 21).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->CopyFrom(*cache, 300, 0, 21, Side::kKey).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache->SetRope(RopePairing::kInterleaved, 32).code(), StatusCode::kInvalidState);
  EXPECT_EQ(cache->SetRope(RopePairing::kHalves, 31).code(), StatusCode::kInvalidArgument);
  const Snapshot after = Take(*cache);
  EXPECT_EQ(before.rows[0], after.rows[0]);
  EXPECT_EQ(before.rows[1], after.rows[1]);
}

TEST(CellsFault, CreateNamesWhatItCannotDo) {
  const auto code = [](std::string_view settings, CellShape shape) {
    return CellCache::Create(SettingsOf(settings), shape).status().code();
  };
  const CellShape shape = TestShape();
  EXPECT_EQ(code("method=amc", shape), StatusCode::kUnsupported);
  EXPECT_EQ(code("method=kivi", shape), StatusCode::kUnsupported);
  EXPECT_EQ(code("codec=group_affine", shape), StatusCode::kUnsupported);
  EXPECT_EQ(code("age_bits_mid=5", shape), StatusCode::kUnsupported);
  for (int32_t CellShape::*field : {&CellShape::n_cells, &CellShape::n_streams,
                                    &CellShape::n_kv_heads, &CellShape::head_dim_k}) {
    CellShape bad = shape;
    bad.*field = 0;
    EXPECT_EQ(code("", bad), StatusCode::kInvalidArgument);
  }
  CellShape bad = shape;
  bad.n_rope_dims = 34;
  EXPECT_EQ(code("", bad), StatusCode::kInvalidArgument);
  bad = shape;
  bad.n_cells = INT32_MAX - 64;
  bad.n_streams = INT32_MAX;
  bad.n_kv_heads = 65536;
  EXPECT_EQ(code("", bad), StatusCode::kSizeOverflow);
}

}  // namespace
}  // namespace varve::testing
