// The caches whose sessions are compared with the reader in Python and frozen in tests/data/format.
#ifndef VARVE_TESTS_FORMAT_SAMPLES_H_
#define VARVE_TESTS_FORMAT_SAMPLES_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "varve/varve.hpp"

namespace samples {

constexpr int64_t kBatch = 2, kHeads = 2, kDimK = 8;

struct Sample {
  const char* name;
  std::vector<const char*> settings;  ///< of each cache
  int64_t n_tokens;
  varve_type type;

  bool has_order() const { return std::strcmp(name, "amc_order") == 0; }
  /// An order is for keys and values of one width.
  int64_t dim_v() const { return has_order() ? kDimK : 5; }
};

inline const std::vector<Sample> kSamples = {
    {"empty", {"method=age_tiered"}, 0, VARVE_F16},
    {"fp16", {"method=fp16"}, 33, VARVE_F16},
    {"fp16_bf16", {"method=fp16"}, 33, VARVE_BF16},
    {"uniform",
     {"method=uniform,uniform_bits_k=5,uniform_bits_v=3,uniform_group_size=7,value_axis=channel"},
     60,
     VARVE_F16},
    {"kivi", {"method=kivi,kivi_group_size=8,residual_length=11"}, 70, VARVE_F32},
    {"age_tiered",
     {"method=age_tiered,age_recent_boundary=16,age_mid_boundary=48,age_group_size=8",
      "method=age_tiered,age_recent_boundary=9,age_mid_boundary=30,age_group_size=4,age_bits_mid=5,"
      "age_bits_old=3,retier=exact",
      "method=age_tiered,age_recent_boundary=6,age_mid_boundary=17,age_group_size=16,"
      "age_bits_recent=16,sink_tokens=0"},
     101,
     VARVE_F16},
    {"age_tiered_bf16",
     {"method=age_tiered,age_recent_boundary=16,age_mid_boundary=48,age_group_size=8"},
     101,
     VARVE_BF16},
    {"amc", {"method=amc,amc_use_query_saliency=true,amc_threshold_window=16"}, 75, VARVE_F16},
    {"amc_order", {"method=amc,amc_groups=channels,amc_group_size=3"}, 75, VARVE_F16},
    {"per_token",
     {"method=age_tiered,codec=per_token,age_recent_boundary=40,age_mid_boundary=70,rope=neox"},
     130,
     VARVE_F16},
    {"per_token_statistics", {"method=uniform,codec=per_token"}, 20, VARVE_F16},
};

[[noreturn]] inline void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

inline void Check(const varve::Status& status, const char* name) {
  if (!status.ok()) Fail(std::string(name) + ": " + status.text());
}

/// Numbers that only integer arithmetic makes, so that they are the same everywhere.
inline std::vector<uint32_t> Numbers(size_t n, uint32_t seed) {
  std::vector<uint32_t> numbers;
  for (uint32_t state = seed; numbers.size() < n;) {
    state = state * 1664525u + 1013904223u;
    numbers.push_back(state >> 16);
  }
  return numbers;
}

/// Raw elements in -8 .. 8 in steps of 1/64, all of which the type holds.
inline std::vector<std::byte> Elements(size_t n, varve_type type, uint32_t seed) {
  std::vector<std::byte> bytes;
  for (const uint32_t number : Numbers(n, seed)) {
    const int step = type == VARVE_BF16 ? 16 : 1;
    const float x = static_cast<float>(static_cast<int>(number % 1025) / step * step - 512) / 64.0f;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (type == VARVE_F16 && x != 0) {
      const uint32_t exponent = (bits >> 23 & 255u) - 127u + 15u;
      bits = (bits >> 31) << 15 | exponent << 10 | (bits >> 13 & 1023u);
    } else if (type == VARVE_F16) {
      bits = 0;
    } else if (type == VARVE_BF16) {
      bits >>= 16;
    }
    for (size_t i = 0; i < (type == VARVE_F32 ? 4u : 2u); ++i)
      bytes.push_back(static_cast<std::byte>(bits >> (8 * i)));
  }
  return bytes;
}

/// An empty cache with a sample's settings.
inline varve::KVCache MakeEmpty(const Sample& sample, size_t index) {
  varve::CacheConfig config;
  Check(config.set_list(sample.settings[index]), sample.name);
  auto made = varve::KVCache::create(config, static_cast<int>(index),
                                     static_cast<int>(sample.settings.size()));
  Check(made.status(), sample.name);
  return std::move(made).value();
}

inline void Append(const Sample& sample, size_t index, int64_t n_tokens, uint32_t seed,
                   varve::KVCache& cache) {
  if (n_tokens == 0) return;
  seed += static_cast<uint32_t>(index);
  const auto n = static_cast<size_t>(kBatch * kHeads * n_tokens);
  const auto keys = Elements(n * kDimK, sample.type, seed);
  const auto values = Elements(n * static_cast<size_t>(sample.dim_v()), sample.type, seed + 1000);
  Check(cache.append({sample.type, keys.data(), {kBatch, kHeads, n_tokens, kDimK}},
                     {sample.type, values.data(), {kBatch, kHeads, n_tokens, sample.dim_v()}}),
        sample.name);
}

inline varve::KVCache MakeFull(const Sample& sample, size_t index) {
  varve::KVCache cache = MakeEmpty(sample, index);
  if (sample.has_order()) {
    std::vector<int32_t> order;
    for (int32_t i = 0; i < kHeads * kDimK; ++i) order.push_back(i * 5 % kDimK);
    Check(varve::Status::of(varve_cache_set_channel_order(cache.get(), kHeads, kDimK, order.data(),
                                                          order.data())),
          sample.name);
  }
  Append(sample, index, sample.n_tokens, 17, cache);
  return cache;
}

/// Cell caches: two streams of 100 cells, filled in batches of ten with their queries, then a hole
/// and a shift.
struct CellsSample {
  const char* name;
  const char* settings;
  bool shifted;
};

inline const std::vector<CellsSample> kCellsSamples = {
    {"cells_fp16", "method=fp16", false},
    {"cells_uniform", "method=uniform,uniform_bits=4,sink_tokens=2", true},
    {"cells_age_tiered",
     "method=age_tiered,age_recent_boundary=30,age_mid_boundary=64,sink_tokens=3", true},
};
constexpr int32_t kCells = 100, kStreams = 2, kCellHeads = 2, kCellDimK = 16, kCellDimV = 8;

struct DestroyCells {
  void operator()(varve_cells* cells) const { varve_cells_destroy(cells); }
};
using Cells = std::unique_ptr<varve_cells, DestroyCells>;

inline void Check(varve_status status, const char* name) { Check(varve::Status::of(status), name); }

inline Cells MakeEmptyCells(const CellsSample& sample) {
  varve::CacheConfig config;
  Check(config.set_list(sample.settings), sample.name);
  varve_cells_params params = {};
  params.struct_size = sizeof params;
  params.n_cells = kCells;
  params.n_streams = kStreams;
  params.n_kv_heads = kCellHeads;
  params.head_dim_k = kCellDimK;
  params.head_dim_v = kCellDimV;
  params.n_layers = 1;
  params.rope_kind = VARVE_ROPE_NEOX;
  params.n_rope_dims = kCellDimK;
  varve_cells* raw = nullptr;
  Check(varve_cells_create(config.get(), &params, &raw), sample.name);
  return Cells(raw);
}

/// Writes ten tokens from a cell on and attends with a query for each.
inline void WriteTen(const CellsSample& sample, int64_t first, int32_t position,
                     varve_cells* cells) {
  constexpr int32_t kTokens = 10;
  int64_t index[kTokens];
  int32_t positions[kTokens];
  for (int32_t i = 0; i < kTokens; ++i) {
    index[i] = first + i;
    positions[i] = position + i;
  }
  for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) {
    const size_t n = static_cast<size_t>(kCellHeads) * (side == VARVE_KEY ? kCellDimK : kCellDimV);
    const auto rows = Elements(kTokens * n, VARVE_F32, static_cast<uint32_t>(first * 2 + side + 1));
    Check(varve_cells_write(cells, side, index, positions, rows.data(), VARVE_F32,
                            n * sizeof(float), kTokens, 1),
          sample.name);
  }
  const auto q = Elements(size_t{kTokens} * kCellHeads * kCellDimK, VARVE_F32,
                          static_cast<uint32_t>(first + 5000));
  std::vector<float> out(size_t{kTokens} * kCellHeads * kCellDimV);
  varve_attend_args args = {};
  args.struct_size = sizeof args;
  args.stream = static_cast<int32_t>(first / kCells);
  args.n_cells = kCells;
  args.n_rows = kTokens;
  args.n_heads = kCellHeads;
  args.head_dim_v = kCellDimV;
  args.q = reinterpret_cast<const float*>(q.data());
  args.q_head_stride = kCellDimK * sizeof(float);
  args.q_row_stride = kCellHeads * args.q_head_stride;
  args.mask_heads = 1;
  args.scale = 0.25f;
  args.out = out.data();
  args.out_head_stride = kCellDimV * sizeof(float);
  args.out_row_stride = kCellHeads * args.out_head_stride;
  args.n_threads = 1;
  Check(varve_cells_attend(cells, &args), sample.name);
}

inline Cells MakeFullCells(const CellsSample& sample) {
  Cells cells = MakeEmptyCells(sample);
  for (int32_t first = 0; first < kCells; first += 10) WriteTen(sample, first, first, cells.get());
  for (int32_t first = 0; first < 50; first += 10)
    WriteTen(sample, kCells + first, first, cells.get());
  Check(varve_cells_forget(cells.get(), 40, 7), sample.name);
  if (!sample.shifted) return cells;
  varve_rope_params rope = {};
  rope.struct_size = sizeof rope;
  rope.n_dims = kCellDimK;
  rope.kind = VARVE_ROPE_NEOX;
  rope.freq_base = 10000.0f;
  rope.freq_scale = rope.attn_factor = 1.0f;
  const std::vector<int32_t> delta(50, -7);
  Check(varve_cells_shift(cells.get(), 47, delta.data(), 50, &rope), sample.name);
  return cells;
}

/// All rows of one side, f32 [cell][n_kv_heads*head_dim].
inline std::vector<std::byte> ReadCells(const CellsSample& sample, varve_side side,
                                        const varve_cells* cells) {
  constexpr int32_t kAll = kCells * kStreams;
  const size_t n = static_cast<size_t>(kCellHeads) * (side == VARVE_KEY ? kCellDimK : kCellDimV);
  std::vector<std::byte> rows(static_cast<size_t>(kAll) * n * sizeof(float));
  Check(varve_cells_read(cells, side, 0, kAll, rows.data(), VARVE_F32), sample.name);
  return rows;
}

inline std::vector<std::byte> SnapshotCells(const CellsSample& sample, varve_cells* cells) {
  size_t n_bytes = 0;
  Check(varve_cells_snapshot_bound(&cells, 1, "a model", &n_bytes), sample.name);
  std::vector<std::byte> bytes(n_bytes);
  Check(varve_cells_snapshot(&cells, 1, "a model", bytes.data(), n_bytes, &n_bytes), sample.name);
  return bytes;
}

}  // namespace samples

#endif  // VARVE_TESTS_FORMAT_SAMPLES_H_
