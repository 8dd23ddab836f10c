// Random scripts of everything a host can do to a cell cache, against the plain model: rows bit for
// bit, tiers, counts, and attention against softmax over the model's rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "cells/cells_fixture.h"
#include "cells/cells_model.h"

namespace varve::testing {
namespace {

constexpr const char* kSettings[] = {
    "method=age_tiered,age_recent_boundary=40,age_mid_boundary=100,sink_tokens=2",
    "method=age_tiered,age_recent_boundary=24,age_mid_boundary=64,key_error_limit=0.3",
    "method=age_tiered,age_recent_boundary=20,age_mid_boundary=20,age_bits_recent_v=4",
    "method=age_tiered,age_recent_boundary=33,age_mid_boundary=70,age_bits_recent_k=4,age_bits_mid_"
    "v=8,sink_tokens=0",
    "method=age_tiered,age_recent_boundary=16,age_mid_boundary=48,age_bits_mid=8,age_bits_old=8",
    "method=uniform,uniform_bits=4,sink_tokens=3",
    "method=uniform,uniform_bits_k=8,uniform_bits_v=3",
    "method=fp16",
};

RopeShift TestRope(const CellShape& shape) {
  RopeShift rope;
  rope.pairing = shape.pairing;
  rope.n_dims = shape.n_rope_dims;
  return rope;
}

class Script {
 public:
  explicit Script(uint64_t seed) : random_(seed) {
    const CellShape shapes[] = {
        {150, 1, 2, 16, 16, RopePairing::kHalves, 16},
        {96, 2, 1, 24, 8, RopePairing::kInterleaved, 16},
        {200, 1, 1, 32, 0, RopePairing::kNone, 0},
        {70, 3, 2, 8, 40, RopePairing::kHalves, 8},
        {256, 1, 1, 16, 16, RopePairing::kNone, 0},
    };
    shape_ = shapes[Pick(5)];
    settings_ = kSettings[Pick(static_cast<int>(std::size(kSettings)))];
    cache_ = MakeCache(settings_, shape_);
    model_ = std::make_unique<CellModel>(SettingsOf(settings_), shape_);
    heads_ = shape_.n_kv_heads * (1 + Pick(3));
    in_order_ = Pick(2) == 0;
    for (int i = 0; i < shape_.n_rope_dims / 2; ++i) {
      frequencies_.push_back(std::pow(10000.0, -2.0 * i / shape_.n_rope_dims));
    }
  }

  void Run() {
    SCOPED_TRACE(std::string(settings_) + " n_cells " + std::to_string(shape_.n_cells));
    const int n_steps = 8 + Pick(16);
    WriteBatch(30 + Pick(70));
    for (int step = 0; step < n_steps && !::testing::Test::HasFailure(); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const int what = Pick(100);
      if (what < 60) {
        WriteBatch(1 + Pick(Pick(4) == 0 ? 60 : 12));
      } else if (what < 66) {
        OverwriteOneSide();
      } else if (what < 74) {
        Shift();
      } else if (what < 84) {
        Copy();
      } else if (what < 90) {
        Forget();
      } else {
        Attend();
      }
      if (step % 3 == 0) Compare();
    }
    Compare();
    Attend();
  }

 private:
  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  int64_t Total() const { return int64_t{shape_.n_cells} * shape_.n_streams; }

  void Write(Side side, const std::vector<int64_t>& index, const int32_t* positions) {
    std::vector<std::vector<float>> rows;
    const auto type = static_cast<RowType>(Pick(3));
    const size_t n = cache_->row_elements(side);
    const size_t stride = n * RowTypeBytes(type) + static_cast<size_t>(Pick(2)) * 6;
    std::vector<std::byte> bytes(stride * index.size());
    for (size_t i = 0; i < index.size(); ++i) {
      std::vector<float> row = TokenRow(side, next_row_++, n);
      StoreRow(type, row.data(), n, bytes.data() + i * stride);
      LoadRow(type, bytes.data() + i * stride, n, row.data());
      rows.push_back(row);
    }
    const Status status = cache_->Write(side, index.data(), positions, bytes.data(), type, stride,
                                        static_cast<int32_t>(index.size()), 1 + Pick(2));
    ASSERT_TRUE(status.ok()) << status.text();
    model_->Write(side, index, positions, rows);
  }

  void WriteBatch(int n) {
    std::vector<int64_t> index;
    std::vector<int32_t> positions;
    for (int i = 0; i < n; ++i) {
      if (in_order_ || Pick(3) != 0) {
        index.push_back(cursor_++ % Total());
      } else {
        index.push_back(static_cast<int64_t>(random_() % static_cast<uint64_t>(Total())));
      }
      positions.push_back(Pick(30) == 0 ? Pick(300) : next_position_++);
    }
    const bool with_positions = Pick(8) != 0;
    const bool values_first = Pick(10) == 0;
    for (const Side side :
         {values_first ? Side::kValue : Side::kKey, values_first ? Side::kKey : Side::kValue}) {
      if (side == Side::kValue && shape_.head_dim_v == 0) continue;
      Write(side, index, side == Side::kKey && with_positions ? positions.data() : nullptr);
    }
    if (Pick(3) != 0) Attend();
  }

  void OverwriteOneSide() {
    const Side side = shape_.head_dim_v == 0 || Pick(2) == 0 ? Side::kKey : Side::kValue;
    std::vector<int64_t> index;
    for (int i = 0; i < 1 + Pick(5); ++i)
      index.push_back(static_cast<int64_t>(random_() % static_cast<uint64_t>(Total())));
    Write(side, index, nullptr);
  }

  void Shift() {
    if (shape_.pairing == RopePairing::kNone) return;
    const int64_t first = static_cast<int64_t>(random_() % static_cast<uint64_t>(Total()));
    const int n = 1 + Pick(static_cast<int>(Total() - first));
    std::vector<int32_t> delta(static_cast<size_t>(n));
    const int uniform = Pick(40) - 20;
    for (int32_t& d : delta) d = Pick(20) == 0 ? Pick(10) - 5 : uniform;
    const Status status = cache_->Shift(first, delta.data(), n, TestRope(shape_));
    ASSERT_TRUE(status.ok()) << status.text();
    model_->Shift(first, delta);
  }

  void Copy() {
    int64_t src = Pick(static_cast<int>(Total()));
    int64_t dst = Pick(static_cast<int>(Total()));
    if (Pick(2) == 0 && shape_.n_cells % 32 == 0) {
      src = src / 32 * 32;
      dst = dst / 32 * 32;
    }
    const int64_t n = 1 + Pick(static_cast<int>(Total() - std::max(src, dst)));
    // The model keeps one source stream a call, as hosts do.
    const int64_t left =
        std::min(shape_.n_cells - src % shape_.n_cells, shape_.n_cells - dst % shape_.n_cells);
    const auto run = static_cast<int32_t>(std::min(n, left));
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (side == Side::kValue && shape_.head_dim_v == 0) continue;
      const Status status = cache_->CopyFrom(*cache_, dst, src, run, side);
      ASSERT_TRUE(status.ok()) << status.text();
      model_->Copy(dst, src, run, side);
    }
  }

  void Forget() {
    const int64_t first = Pick(static_cast<int>(Total()));
    const int64_t n = Pick(20) == 0 ? Total() : 1 + Pick(static_cast<int>(Total() - first));
    const int64_t from = n == Total() ? 0 : first;
    const Status status = cache_->Forget(from, static_cast<int32_t>(n));
    ASSERT_TRUE(status.ok()) << status.text();
    model_->Forget(from, n);
  }

  /// What attention takes: the exact row only when both sides have one.
  std::vector<float> AttendedRow(Side side, int64_t c) const {
    const CellModel::Cell& cell = model_->cell(c);
    const bool exact = cell.exact[0] && (cell.exact[1] || shape_.head_dim_v == 0);
    return exact ? *cell.exact[static_cast<size_t>(side)] : cell.row[static_cast<size_t>(side)];
  }

  std::vector<double> Turned(int64_t cell, const std::vector<float>& row) const {
    std::vector<double> out(row.begin(), row.end());
    const int64_t delta = model_->cell(cell).written[0] ? model_->cell(cell).delta : 0;
    if (delta == 0) return out;
    for (int h = 0; h < shape_.n_kv_heads; ++h) {
      for (int i = 0; i < shape_.n_rope_dims / 2; ++i) {
        const double angle = static_cast<double>(delta) * frequencies_[static_cast<size_t>(i)];
        const bool interleaved = shape_.pairing == RopePairing::kInterleaved;
        const int a = h * shape_.head_dim_k + (interleaved ? 2 * i : i);
        const int b =
            h * shape_.head_dim_k + (interleaved ? 2 * i + 1 : i + shape_.n_rope_dims / 2);
        const double x = out[static_cast<size_t>(a)];
        const double y = out[static_cast<size_t>(b)];
        out[static_cast<size_t>(a)] = x * std::cos(angle) - y * std::sin(angle);
        out[static_cast<size_t>(b)] = x * std::sin(angle) + y * std::cos(angle);
      }
    }
    return out;
  }

  void Compare() {
    std::array<int64_t, 4> tiers{};
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (side == Side::kValue && shape_.head_dim_v == 0) continue;
      const auto s = static_cast<size_t>(side);
      const std::vector<float> rows = ReadAll(*cache_, side);
      const size_t n = cache_->row_elements(side);
      for (int64_t c = 0; c < Total(); ++c) {
        const float* row = rows.data() + static_cast<size_t>(c) * n;
        if (side == Side::kKey && model_->cell(c).written[0] && model_->cell(c).delta != 0) {
          const std::vector<double> expected = Turned(c, model_->Unrotated(side, c));
          for (size_t i = 0; i < n; ++i)
            ASSERT_NEAR(row[i], expected[i], 2e-5 * (1 + std::abs(expected[i])))
                << "key cell " << c;
        } else {
          const std::vector<float> expected = model_->Unrotated(side, c);
          for (size_t i = 0; i < n; ++i)
            ASSERT_EQ(row[i], expected[i]) << "side " << s << " cell " << c << " channel " << i;
        }
      }
    }
    int64_t n_tokens = 0;
    for (int64_t c = 0; c < Total(); ++c) {
      const CellModel::Cell& cell = model_->cell(c);
      if (!cell.written[0] && !cell.written[1]) continue;
      ++n_tokens;
      const bool exact = cell.exact[0] && (cell.exact[1] || shape_.head_dim_v == 0);
      const Side side = model_->stage(Side::kKey, c) >= 0 ? Side::kKey : Side::kValue;
      ++tiers[exact ? 3 : static_cast<size_t>(model_->tier(side, c))];
    }
    const CellStats stats = cache_->Stats();
    ASSERT_EQ(stats.n_tokens, n_tokens);
    ASSERT_EQ(stats.tier_tokens, tiers);
    ASSERT_EQ(cache_->has_tables(), model_->has_tables());
  }

  void Attend() {
    const int stream = Pick(shape_.n_streams);
    const int n_rows = 1 + Pick(4);
    const std::vector<float> q =
        QueryRows(next_row_++, n_rows, static_cast<size_t>(heads_) * shape_.head_dim_k);
    const std::vector<float> out = AttendAll(*cache_, q, n_rows, heads_, stream, 1 + Pick(2));
    model_->AddQueries(q.data(), n_rows, heads_,
                       1.0f / std::sqrt(static_cast<float>(shape_.head_dim_k)) / 4.0f);
    const int dim_v = shape_.head_dim_v != 0 ? shape_.head_dim_v : shape_.head_dim_k / 2;
    const double scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim_k)) / 4.0;
    std::vector<std::vector<double>> keys;
    std::vector<int64_t> live;
    for (int64_t c = int64_t{stream} * shape_.n_cells; c < int64_t{stream + 1} * shape_.n_cells;
         ++c) {
      if (!model_->cell(c).written[0] || (shape_.head_dim_v != 0 && !model_->cell(c).written[1]))
        continue;
      live.push_back(c);
      keys.push_back(Turned(c, AttendedRow(Side::kKey, c)));
    }
    double error = 0;
    double norm = 0;
    for (int r = 0; r < n_rows; ++r) {
      for (int h = 0; h < heads_; ++h) {
        const int kv = h / (heads_ / shape_.n_kv_heads);
        const float* query = q.data() + (static_cast<size_t>(r) * heads_ + h) * shape_.head_dim_k;
        std::vector<double> logits;
        for (const auto& key : keys) {
          double dot = 0;
          for (int c = 0; c < shape_.head_dim_k; ++c)
            dot += query[c] * key[static_cast<size_t>(kv * shape_.head_dim_k + c)];
          logits.push_back(dot * scale);
        }
        const double top = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
        std::vector<double> expected(static_cast<size_t>(dim_v), 0.0);
        double total = 0;
        for (size_t i = 0; i < live.size(); ++i) {
          const double p = std::exp(logits[i] - top);
          total += p;
          const std::vector<float> value =
              shape_.head_dim_v != 0 ? AttendedRow(Side::kValue, live[i]) : std::vector<float>();
          for (int c = 0; c < dim_v; ++c) {
            expected[static_cast<size_t>(c)] +=
                p * (shape_.head_dim_v != 0
                         ? value[static_cast<size_t>(kv * dim_v + c)]
                         : keys[i][static_cast<size_t>(kv * shape_.head_dim_k + c)]);
          }
        }
        for (int c = 0; c < dim_v; ++c) {
          const double want = total > 0 ? expected[static_cast<size_t>(c)] / total : 0.0;
          const double got =
              out[(static_cast<size_t>(r) * heads_ + h) * dim_v + static_cast<size_t>(c)];
          ASSERT_TRUE(std::isfinite(got));
          error += (got - want) * (got - want);
          norm += want * want;
        }
      }
    }
    ASSERT_LE(std::sqrt(error), 0.02 * std::sqrt(norm) + 1e-6) << live.size() << " cells";
  }

  std::mt19937_64 random_;
  CellShape shape_;
  const char* settings_ = nullptr;
  std::unique_ptr<CellCache> cache_;
  std::unique_ptr<CellModel> model_;
  std::vector<double> frequencies_;
  int heads_ = 1;
  bool in_order_ = true;
  int64_t cursor_ = 0;
  int64_t next_row_ = 0;
  int32_t next_position_ = 0;
};

TEST(CellsScript, AgreesWithThePlainModel) {
  const char* text = std::getenv("VARVE_TEST_SEED");
  const uint64_t first = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  for (uint64_t seed = first; seed < first + (text != nullptr ? 1 : 1000); ++seed) {
    SCOPED_TRACE("VARVE_TEST_SEED=" + std::to_string(seed));
    Script(seed).Run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace varve::testing
