// Scripts of writes, reads, copies, shifts, forgetting and attention on a cell cache of a random
// shape and settings, with good and bad arguments, beside a model that only knows which cells are
// written. Nothing may crash, a refused call must leave the figures as they were, what is read must
// be finite, and unwritten cells must read as zeros.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "byte_reader.h"
#include "require.h"
#include "varve/varve.h"

namespace {

using varve_fuzz::ByteReader;

constexpr int kHeadDims[] = {1, 2, 3, 8, 16, 20, 40, 64, 72, 96};
const char* const kSettings[] = {
    "method=fp16",
    "method=uniform,uniform_bits=4",
    "method=uniform,uniform_bits=8",
    "method=age_tiered,age_recent_boundary=32,age_mid_boundary=64",
    "method=age_tiered,age_recent_boundary=1,age_mid_boundary=2,sink_tokens=0",
    "method=age_tiered,age_recent_boundary=40,age_mid_boundary=41,age_bits_old_k=2,age_bits_old_v="
    "4",
};

class Script {
 public:
  Script(const uint8_t* data, size_t size) : input_(data, size) {}

  ~Script() {
    varve_cells_destroy(cells_);
    varve_config_destroy(config_);
  }

  void Run() {
    if (!Create()) return;
    for (int step = 0; step < 60 && !input_.done(); ++step) {
      switch (input_.Range(0, 7)) {
        case 0:
        case 1:
          Write();
          break;
        case 2:
          Read();
          break;
        case 3:
          Attend();
          break;
        case 4:
          Shift();
          break;
        case 5:
          Copy();
          break;
        case 6:
          Forget();
          break;
        default:
          Gather();
          break;
      }
      RequireFigures();
    }
  }

 private:
  bool Create() {
    REQUIRE(varve_config_create(&config_) == VARVE_OK);
    const char* settings = kSettings[input_.Range(0, std::size(kSettings) - 1)];
    REQUIRE(varve_config_set_list(config_, settings) == VARVE_OK);
    params_.struct_size = sizeof params_;
    params_.n_cells = static_cast<int32_t>(input_.Range(1, 200));
    params_.n_streams = static_cast<int32_t>(input_.Range(1, 2));
    params_.n_kv_heads = static_cast<int32_t>(input_.Range(1, 3));
    params_.head_dim_k = kHeadDims[input_.Range(0, std::size(kHeadDims) - 1)];
    params_.head_dim_v = kHeadDims[input_.Range(0, std::size(kHeadDims) - 1)];
    params_.n_layers = 1;
    params_.rope_kind = static_cast<varve_rope_kind>(input_.Range(0, 2));
    params_.n_rope_dims = params_.rope_kind == VARVE_ROPE_NONE ? 0 : params_.head_dim_k / 2 * 2;
    if (params_.n_rope_dims == 0) params_.rope_kind = VARVE_ROPE_NONE;
    const varve_status status = varve_cells_create(config_, &params_, &cells_);
    if (status != VARVE_OK) REQUIRE(*varve_last_error() != '\0');
    n_all_ = int64_t{params_.n_cells} * params_.n_streams;
    written_.assign(static_cast<size_t>(n_all_ * 2), 0);
    return status == VARVE_OK;
  }

  varve_side Side() { return input_.Range(0, 1) == 0 ? VARVE_KEY : VARVE_VALUE; }
  size_t Width(varve_side side) const {
    return static_cast<size_t>(params_.n_kv_heads) *
           static_cast<size_t>(side == VARVE_KEY ? params_.head_dim_k : params_.head_dim_v);
  }
  uint8_t& Written(varve_side side, int64_t cell) {
    return written_[static_cast<size_t>(cell * 2 + side)];
  }

  /// Mostly inside the cache, sometimes one past its end or before its start.
  int64_t Cell() {
    return input_.Range(0, 40) == 0 ? input_.Range(-1, n_all_) : input_.Range(0, n_all_ - 1);
  }

  void Check(varve_status status, bool valid) {
    REQUIRE(status == VARVE_OK || *varve_last_error() != '\0');
    REQUIRE(valid || status != VARVE_OK);
  }

  float Number() {
    const auto byte = static_cast<float>(static_cast<int8_t>(input_.Byte()));
    return byte == -128.0F ? 60000.0F : byte * 0.05F;
  }

  void Write() {
    const varve_side side = Side();
    const auto n = static_cast<int32_t>(input_.Range(1, 80));
    const int64_t first = Cell();
    const auto position = static_cast<int32_t>(input_.Range(0, 300));
    const bool has_positions = input_.Range(0, 3) != 0;
    const float scale = Number();
    std::vector<int64_t> index;
    std::vector<int32_t> positions;
    std::vector<float> rows;
    bool valid = true;
    for (int32_t i = 0; i < n; ++i) {
      index.push_back(first + i);
      positions.push_back(position + i);
      valid = valid && first + i >= 0 && first + i < n_all_;
      for (size_t c = 0; c < Width(side); ++c) {
        seed_ = seed_ * 1664525U + 1013904223U;
        rows.push_back(scale *
                       (static_cast<float>(seed_ >> 8) / static_cast<float>(1U << 23) - 1.0F));
      }
    }
    const varve_status status =
        varve_cells_write(cells_, side, index.data(), has_positions ? positions.data() : nullptr,
                          rows.data(), VARVE_F32, Width(side) * sizeof(float), n, 1);
    Check(status, valid);
    if (status != VARVE_OK) return;
    for (const int64_t cell : index) Written(side, cell) = 1;
  }

  void RequireRow(varve_side side, int64_t cell, const float* row) {
    for (size_t c = 0; c < Width(side); ++c) {
      REQUIRE(std::isfinite(row[c]));
      if (Written(side, cell) == 0) REQUIRE(row[c] == 0.0F);
    }
  }

  void Read() {
    const varve_side side = Side();
    const int64_t first = Cell();
    const auto n = static_cast<int32_t>(input_.Range(0, 70));
    const bool valid = first >= 0 && first + n <= n_all_;
    std::vector<float> rows(static_cast<size_t>(n) * Width(side), NAN);
    const varve_status status = varve_cells_read(cells_, side, first, n, rows.data(), VARVE_F32);
    Check(status, valid);
    if (status != VARVE_OK) return;
    for (int32_t i = 0; i < n; ++i)
      RequireRow(side, first + i, &rows[static_cast<size_t>(i) * Width(side)]);
  }

  void Gather() {
    const varve_side side = Side();
    std::vector<int64_t> index(static_cast<size_t>(input_.Range(1, 20)));
    bool valid = true;
    for (int64_t& cell : index) {
      cell = Cell();
      valid = valid && cell >= 0 && cell < n_all_;
    }
    std::vector<float> rows(index.size() * Width(side), NAN);
    const auto n = static_cast<int32_t>(index.size());
    const varve_status status =
        varve_cells_gather(cells_, side, index.data(), n, rows.data(), VARVE_F32);
    Check(status, valid);
    if (status != VARVE_OK) return;
    for (size_t i = 0; i < index.size(); ++i) RequireRow(side, index[i], &rows[i * Width(side)]);
  }

  void Attend() {
    const auto n_rows = static_cast<int32_t>(input_.Range(1, 9));
    const auto n_heads = static_cast<int32_t>(params_.n_kv_heads * input_.Range(1, 3));
    const auto head_dim_k = static_cast<size_t>(params_.head_dim_k);
    const auto head_dim_v = static_cast<size_t>(params_.head_dim_v);
    const size_t n_q = static_cast<size_t>(n_rows) * static_cast<size_t>(n_heads);
    std::vector<float> q(n_q * head_dim_k);
    for (float& value : q) value = Number() * 0.1F;
    std::vector<float> out(n_q * head_dim_v, NAN);
    varve_attend_args args = {};
    args.struct_size = sizeof args;
    args.stream = static_cast<int32_t>(input_.Range(0, params_.n_streams - 1));
    args.n_cells = static_cast<int32_t>(input_.Range(0, params_.n_cells));
    args.n_rows = n_rows;
    args.n_heads = n_heads;
    args.head_dim_v = params_.head_dim_v;
    args.q = q.data();
    args.q_head_stride = head_dim_k * sizeof(float);
    args.q_row_stride = args.q_head_stride * static_cast<size_t>(n_heads);
    args.mask_heads = 1;
    args.scale = 0.125F;
    args.logit_softcap = input_.Range(0, 2) == 0 ? 30.0F : 0.0F;
    args.out = out.data();
    args.out_head_stride = head_dim_v * sizeof(float);
    args.out_row_stride = args.out_head_stride * static_cast<size_t>(n_heads);
    args.n_threads = 1;
    std::vector<uint16_t> mask;
    if (input_.Range(0, 1) == 1) {
      mask.resize(static_cast<size_t>(n_rows) * static_cast<size_t>(params_.n_cells));
      for (uint16_t& value : mask) value = input_.Range(0, 3) == 0 ? 0xFC00 : 0;
      args.mask = mask.data();
      args.mask_row_stride = static_cast<size_t>(params_.n_cells) * sizeof(uint16_t);
      args.mask_head_stride = args.mask_row_stride * static_cast<size_t>(n_rows);
    }
    const varve_status status = varve_cells_attend(cells_, &args);
    Check(status, true);
    if (status != VARVE_OK) return;
    for (const float value : out) REQUIRE(std::isfinite(value));
  }

  void Shift() {
    const int64_t first = Cell();
    std::vector<int32_t> delta(static_cast<size_t>(input_.Range(1, 40)));
    const auto step = static_cast<int32_t>(input_.Range(-64, 64));
    for (int32_t& value : delta) value = input_.Range(0, 3) == 0 ? 0 : step;
    varve_rope_params rope = {};
    rope.struct_size = sizeof rope;
    rope.n_dims = params_.n_rope_dims;
    rope.kind = params_.rope_kind;
    rope.n_ctx_orig = 4096;
    rope.freq_base = 10000.0F;
    rope.freq_scale = 1.0F;
    rope.attn_factor = 1.0F;
    rope.beta_fast = 32.0F;
    rope.beta_slow = 1.0F;
    const auto n = static_cast<int32_t>(delta.size());
    Check(varve_cells_shift(cells_, first, delta.data(), n, &rope),
          first >= 0 && first + n <= n_all_);
  }

  void Copy() {
    const varve_side side = Side();
    const int64_t to = Cell();
    const int64_t from = Cell();
    const auto n = static_cast<int32_t>(input_.Range(0, 70));
    const bool valid = std::min(to, from) >= 0 && std::max(to, from) + n <= n_all_;
    const varve_status status = varve_cells_copy(cells_, to, cells_, from, n, side);
    Check(status, valid);
    if (status != VARVE_OK) return;
    std::vector<uint8_t> moved;
    for (int32_t i = 0; i < n; ++i) moved.push_back(Written(side, from + i));
    for (int32_t i = 0; i < n; ++i) Written(side, to + i) = moved[static_cast<size_t>(i)];
  }

  void Forget() {
    const int64_t first = Cell();
    const auto n = static_cast<int32_t>(input_.Range(0, 70));
    const varve_status status = varve_cells_forget(cells_, first, n);
    Check(status, first >= 0 && first + n <= n_all_);
    if (status != VARVE_OK) return;
    for (int64_t cell = first; cell < first + n; ++cell)
      Written(VARVE_KEY, cell) = Written(VARVE_VALUE, cell) = 0;
  }

  void RequireFigures() {
    varve_cells_stats stats = {};
    stats.struct_size = sizeof stats;
    REQUIRE(varve_cells_get_stats(cells_, &stats) == VARVE_OK);
    REQUIRE(stats.payload_bytes <= stats.packed_bytes);
    REQUIRE(stats.n_tokens >= 0 && stats.n_tokens <= n_all_);
  }

  ByteReader input_;
  varve_config* config_ = nullptr;
  varve_cells* cells_ = nullptr;
  varve_cells_params params_ = {};
  int64_t n_all_ = 0;
  std::vector<uint8_t> written_;
  uint32_t seed_ = 1;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Script(data, size).Run();
  return 0;
}
