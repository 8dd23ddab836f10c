// What the tests of cell caches share: rows that look like a model's, settings by text, writes and
// attention by tokens.
#ifndef VARVE_TESTS_CELLS_CELLS_FIXTURE_H_
#define VARVE_TESTS_CELLS_CELLS_FIXTURE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "cache/cell_cache.h"
#include "policy/settings.h"

namespace varve::testing {

inline Settings SettingsOf(std::string_view assignments) {
  Settings settings;
  const Status status = SetFields(&settings, assignments);
  EXPECT_TRUE(status.ok()) << status.text();
  return settings;
}

inline std::unique_ptr<CellCache> MakeCache(std::string_view assignments, const CellShape& shape) {
  auto cache = CellCache::Create(SettingsOf(assignments), shape);
  EXPECT_TRUE(cache.ok()) << cache.status().text();
  return cache.ok() ? std::move(cache).value() : nullptr;
}

/// A row of a KV head's keys or values for a token: Gaussian, channels of unequal size. The same
/// token gives the same row.
inline std::vector<float> TokenRow(Side side, int64_t token, size_t n) {
  std::mt19937_64 random(static_cast<uint64_t>(token) * 2 + static_cast<uint64_t>(side) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> row(n);
  for (size_t i = 0; i < n; ++i)
    row[i] = normal(random) * (side == Side::kKey ? 0.3f + static_cast<float>(i % 7) : 1.0f);
  return row;
}

inline std::vector<float> QueryRows(int64_t first_token, int n_rows, size_t n) {
  std::vector<float> q;
  for (int r = 0; r < n_rows; ++r) {
    const std::vector<float> row = TokenRow(Side::kValue, 1000000 + first_token + r, n);
    q.insert(q.end(), row.begin(), row.end());
  }
  return q;
}

/// Attention of all heads over the cells of a stream, nothing masked; out
/// [n_rows][n_heads][head_dim_v].
inline std::vector<float> AttendAll(CellCache& cache, const std::vector<float>& q, int n_rows,
                                    int n_heads, int stream, int n_threads = 1) {
  const CellShape& shape = cache.shape();
  CellAttendArgs args;
  args.stream = stream;
  args.n_cells = shape.n_cells;
  args.n_rows = n_rows;
  args.n_heads = n_heads;
  args.head_dim_v = shape.head_dim_v != 0 ? shape.head_dim_v : shape.head_dim_k / 2;
  args.q = q.data();
  args.q_head_stride = shape.head_dim_k;
  args.q_row_stride = static_cast<ptrdiff_t>(n_heads) * shape.head_dim_k;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim_k)) / 4.0f;
  std::vector<float> out(static_cast<size_t>(n_rows) * n_heads * args.head_dim_v);
  args.out = out.data();
  args.out_head_stride = args.head_dim_v;
  args.out_row_stride = static_cast<ptrdiff_t>(n_heads) * args.head_dim_v;
  const Status status = cache.Attend(args, n_threads);
  EXPECT_TRUE(status.ok()) << status.text();
  return out;
}

/// Writes tokens [first, first+n) into the cells of the same number of one stream, keys then
/// values, then attends with their query rows, as a host does for each batch.
inline void WriteTokens(CellCache& cache, int64_t first, int n, int stream = 0,
                        bool with_positions = true, int n_threads = 1) {
  const CellShape& shape = cache.shape();
  std::vector<int64_t> index(static_cast<size_t>(n));
  std::iota(index.begin(), index.end(), int64_t{stream} * shape.n_cells + first);
  std::vector<int32_t> positions(static_cast<size_t>(n));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first));
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (side == Side::kValue && shape.head_dim_v == 0) continue;
    std::vector<float> rows;
    for (int i = 0; i < n; ++i) {
      const std::vector<float> row = TokenRow(side, first + i, cache.row_elements(side));
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const Status status = cache.Write(
        side, index.data(), side == Side::kKey && with_positions ? positions.data() : nullptr,
        rows.data(), RowType::kF32, cache.row_elements(side) * sizeof(float), n, n_threads);
    ASSERT_TRUE(status.ok()) << status.text();
  }
  const int n_heads = 2 * shape.n_kv_heads;
  AttendAll(cache, QueryRows(first, n, static_cast<size_t>(n_heads) * shape.head_dim_k), n, n_heads,
            stream, n_threads);
}

inline std::vector<float> ReadAll(const CellCache& cache, Side side) {
  const CellShape& shape = cache.shape();
  const int32_t n = shape.n_cells * shape.n_streams;
  std::vector<float> rows(static_cast<size_t>(n) * cache.row_elements(side));
  const Status status = cache.Read(side, 0, n, rows.data(), RowType::kF32);
  EXPECT_TRUE(status.ok()) << status.text();
  return rows;
}

}  // namespace varve::testing

#endif  // VARVE_TESTS_CELLS_CELLS_FIXTURE_H_
