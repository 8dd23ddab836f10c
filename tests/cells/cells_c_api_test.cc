// varve_cells_* as a host calls them: structs in bytes, codes and texts out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "varve/varve.h"

namespace {

class CellsCApi : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(varve_config_create(&config_), VARVE_OK);
    params_.struct_size = sizeof params_;
    params_.n_cells = 256;
    params_.n_streams = 1;
    params_.n_kv_heads = 2;
    params_.head_dim_k = params_.head_dim_v = 32;
    params_.n_layers = 1;
    params_.rope_kind = VARVE_ROPE_NEOX;
    params_.n_rope_dims = 32;
    ASSERT_EQ(varve_cells_create(config_, &params_, &cells_), VARVE_OK) << varve_last_error();
  }
  void TearDown() override {
    varve_cells_destroy(cells_);
    varve_config_destroy(config_);
  }

  void Write(varve_side side, int n) {
    std::vector<int64_t> index;
    std::vector<int32_t> positions;
    std::vector<float> rows;
    for (int i = 0; i < n; ++i) {
      index.push_back(i);
      positions.push_back(i);
      for (int c = 0; c < 64; ++c)
        rows.push_back(
            std::sin(static_cast<float>(i * 64 + c) * (side == VARVE_KEY ? 0.37f : 0.91f)));
    }
    ASSERT_EQ(varve_cells_write(cells_, side, index.data(), positions.data(), rows.data(),
                                VARVE_F32, 64 * 4, n, 2),
              VARVE_OK)
        << varve_last_error();
  }

  varve_config* config_ = nullptr;
  varve_cells_params params_ = {};
  varve_cells* cells_ = nullptr;
};

TEST_F(CellsCApi, WritesReadsAttendsAndCounts) {
  Write(VARVE_KEY, 40);
  Write(VARVE_VALUE, 40);
  std::vector<float> row(64);
  ASSERT_EQ(varve_cells_read(cells_, VARVE_VALUE, 20, 1, row.data(), VARVE_F32), VARVE_OK);
  for (int c = 0; c < 64; ++c)
    EXPECT_NEAR(row[static_cast<size_t>(c)], std::sin(static_cast<float>(20 * 64 + c) * 0.91f),
                0.02f);

  // A mask that lets one cell through makes attention that cell's value.
  std::vector<uint16_t> mask(256, 0xfc00);
  mask[20] = 0;
  std::vector<float> q(4 * 32, 0.5f);
  std::vector<float> out(4 * 32, -1.0f);
  varve_attend_args args = {};
  args.struct_size = sizeof args;
  args.n_cells = 256;
  args.n_rows = 1;
  args.n_heads = 4;
  args.head_dim_v = 32;
  args.q = q.data();
  args.q_row_stride = 4 * 32 * 4;
  args.q_head_stride = 32 * 4;
  args.mask = mask.data();
  args.mask_row_stride = 256 * 2;
  args.mask_heads = 1;
  args.scale = 0.2f;
  args.out = out.data();
  args.out_row_stride = 4 * 32 * 4;
  args.out_head_stride = 32 * 4;
  args.n_threads = 2;
  ASSERT_EQ(varve_cells_attend(cells_, &args), VARVE_OK) << varve_last_error();
  for (int h = 0; h < 4; ++h) {
    for (int c = 0; c < 32; ++c)
      EXPECT_NEAR(out[static_cast<size_t>(h * 32 + c)], row[static_cast<size_t>(h / 2 * 32 + c)],
                  0.02f);
  }
  args.q_head_stride = 33;
  EXPECT_EQ(varve_cells_attend(cells_, &args), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(varve_last_error(), "q_head_stride=33"), nullptr) << varve_last_error();
  args.q_head_stride = 32 * 4;
  args.n_heads = 3;
  EXPECT_EQ(varve_cells_attend(cells_, &args), VARVE_ERROR_INVALID_ARGUMENT);

  varve_cells_stats stats = {};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(varve_cells_get_stats(cells_, &stats), VARVE_OK);
  EXPECT_EQ(stats.n_tokens, 40);
  EXPECT_EQ(stats.tier_tokens[0], 36);
  EXPECT_EQ(stats.tier_tokens[3], 4);
  EXPECT_EQ(stats.f16_bytes, 40u * 2 * 64 * 2);
  EXPECT_GT(stats.packed_bytes, stats.payload_bytes);
  EXPECT_EQ(stats.last_key_bits, 3);

  varve_cells_workload work = {};
  work.struct_size = sizeof(work);
  work.n_tokens = 40;
  work.n_batch = 40;
  uint64_t estimate = 0;
  ASSERT_EQ(varve_cells_estimate(config_, &params_, &work, &estimate), VARVE_OK);
  EXPECT_EQ(varve_cells_estimate(config_, &params_, nullptr, &estimate),
            VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_NEAR(static_cast<double>(estimate), static_cast<double>(stats.packed_bytes),
              0.03 * static_cast<double>(stats.packed_bytes));
}

TEST_F(CellsCApi, ShiftsByAStructWithOrWithoutItsLastField) {
  Write(VARVE_KEY, 10);
  const std::vector<int32_t> delta(10, 3);
  varve_rope_params rope = {};
  rope.struct_size = offsetof(varve_rope_params, first_dim);
  rope.n_dims = 32;
  rope.kind = VARVE_ROPE_NEOX;
  rope.freq_base = 10000.0f;
  rope.freq_scale = 1.0f;
  rope.attn_factor = 1.0f;
  rope.first_dim = 77;  // not part of the struct that struct_size declares
  EXPECT_EQ(varve_cells_shift(cells_, 0, delta.data(), 10, &rope), VARVE_OK) << varve_last_error();
  rope.struct_size = sizeof rope;
  EXPECT_EQ(varve_cells_shift(cells_, 0, delta.data(), 10, &rope), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(varve_last_error(), "first_dim=77"), nullptr);
  rope.first_dim = 0;
  rope.attn_factor = 2.0f;
  EXPECT_EQ(varve_cells_shift(cells_, 0, delta.data(), 10, &rope), VARVE_ERROR_UNSUPPORTED);
}

TEST_F(CellsCApi, NullAndStaleStructsAreErrors) {
  varve_cells* none = nullptr;
  varve_cells_params old = params_;
  old.struct_size = 8;
  EXPECT_EQ(varve_cells_create(config_, &old, &none), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cells_create(nullptr, &params_, &none), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cells_create(config_, &params_, nullptr), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(varve_cells_read(nullptr, VARVE_KEY, 0, 1, nullptr, VARVE_F32),
            VARVE_ERROR_INVALID_ARGUMENT);
  float x[64];
  EXPECT_EQ(varve_cells_read(cells_, static_cast<varve_side>(2), 0, 1, x, VARVE_F32),
            VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cells_read(cells_, VARVE_KEY, 0, 1, x, static_cast<varve_type>(9)),
            VARVE_ERROR_INVALID_ARGUMENT);
  ASSERT_EQ(varve_config_set(config_, "method", "amc"), VARVE_OK);
  EXPECT_EQ(varve_cells_create(config_, &params_, &none), VARVE_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(varve_last_error(), "method=amc"), nullptr) << varve_last_error();
  varve_cells_destroy(nullptr);
}

}  // namespace
