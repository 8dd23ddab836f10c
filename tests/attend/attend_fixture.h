// A random attention problem over packed blocks, and its answer in double precision from the
// decoded values alone.
#ifndef VARVE_TESTS_ATTEND_ATTEND_FIXTURE_H_
#define VARVE_TESTS_ATTEND_ATTEND_FIXTURE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/f16.h"
#include "cache/attend.h"
#include "codec/block_codec.h"
#include "codec/key_table.h"

namespace varve {

/// One tier of a test cache: a coding for each side, and the blocks it covers.
struct TestTier {
  Scheme k;
  Scheme v;
  int n_blocks = 0;
};

struct TestShape {
  int n_heads = 2;
  int n_kv_heads = 1;
  int head_dim_k = 64;
  int head_dim_v = 64;
  int n_rows = 1;
  std::vector<TestTier> tiers;
  bool mask = true;
  bool causal = false;
  float masked_part = 0.2f;
  int mask_heads = 1;
  int n_exact = 0;
  bool slopes = false;
  bool sinks = false;
  float softcap = 0;
  RopePairing rotation = RopePairing::kNone;  ///< kNone: no pending shifts
  bool values_in_keys = false;
  int cells_cut = 5;  ///< cells of the last block past n_cells
  unsigned seed = 1;
};

class TestProblem {
 public:
  explicit TestProblem(const TestShape& shape) : shape_(shape), random_(shape.seed) { Build(); }

  AttendProblem& problem() { return problem_; }
  std::vector<float>& out() { return out_; }

  std::vector<float> Run(int n_threads) {
    std::fill(out_.begin(), out_.end(), 123.0f);
    Attend(problem_, n_threads, scratch_);
    return out_;
  }

  /// The definition, token by token, in double.
  std::vector<double> Expected() const {
    std::vector<double> out(out_.size());
    for (int row = 0; row < shape_.n_rows; ++row) {
      for (int head = 0; head < shape_.n_heads; ++head) ExpectedHead(row, head, out.data());
    }
    return out;
  }

  /// L2 norm of the difference over the L2 norm of the expected output.
  static double RelativeError(const std::vector<float>& got, const std::vector<double>& want) {
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
      norm += want[i] * want[i];
    }
    return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  }

  /// Largest L2 norm of a head's value among the blocks.
  double LargestValue() const {
    const auto dim = static_cast<size_t>(shape_.head_dim_v);
    std::vector<float> row(static_cast<size_t>(shape_.n_kv_heads) * dim);
    double largest = 0;
    for (const AttendBlock& block : blocks_) {
      for (int t = 0; t < kBlockTokens; ++t) {
        DecodeRow(block.v_coding, shape_.n_kv_heads, block.v, t, row.data());
        for (size_t first = 0; first < row.size(); first += dim) {
          double energy = 0;
          for (size_t i = first; i < first + dim; ++i)
            energy += static_cast<double>(row[i]) * static_cast<double>(row[i]);
          largest = std::max(largest, energy);
        }
      }
    }
    return std::sqrt(largest);
  }

  /// Fills what no token of the problem may read: dead slots of blocks get NaN gains and 0xff
  /// codes.
  void PoisonDeadCells() {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      for (int t = 0; t < kBlockTokens; ++t) {
        const bool live =
            (blocks_[b].live >> t & 1u) != 0 && blocks_[b].first_cell + t < problem_.n_cells;
        if (live) continue;
        Poison(blocks_[b].k_coding, k_bytes_[b], t);
        Poison(blocks_[b].v_coding, v_bytes_[b], t);
      }
    }
  }

 private:
  float Normal() { return std::normal_distribution<float>()(random_); }

  void Build() {
    const auto dim_k = static_cast<size_t>(shape_.head_dim_k);
    const auto dim_v = static_cast<size_t>(shape_.head_dim_v);
    const auto heads = static_cast<size_t>(shape_.n_kv_heads);
    std::vector<float> channel_scale(dim_k);
    for (float& s : channel_scale) s = std::exp(0.7f * Normal());
    int n_blocks = 0;
    for (const TestTier& tier : shape_.tiers) n_blocks += tier.n_blocks;
    layouts_.reserve(2 * shape_.tiers.size());
    tables_.reserve(shape_.tiers.size());
    const int n_rotations = shape_.rotation == RopePairing::kNone ? 1 : 3;
    for (int r = 0; r < n_rotations; ++r) {
      PendingRotation rotation;
      if (r > 0) {
        rotation.pairing = shape_.rotation;
        rotation.n_dims = shape_.head_dim_k / 2 * 2;
        for (int i = 0; i < rotation.n_dims / 2; ++i) {
          const float angle = static_cast<float>(r * 5) *
                              std::pow(10000.0f, -2.0f * static_cast<float>(i) /
                                                     static_cast<float>(rotation.n_dims));
          rotation.cos.push_back(std::cos(angle));
          rotation.sin.push_back(std::sin(angle));
        }
      }
      rotations_.push_back(rotation);
    }

    int cell = shape_.n_exact;
    for (const TestTier& tier : shape_.tiers) {
      layouts_.push_back(MakeBlockLayout(tier.k, Side::kKey, shape_.head_dim_k));
      const BlockLayout* layout_k = &layouts_.back();
      layouts_.push_back(MakeBlockLayout(tier.v, Side::kValue, shape_.head_dim_v));
      const BlockLayout* layout_v = &layouts_.back();
      tables_.emplace_back();
      for (size_t h = 0; h < heads && tier.k.codec == Codec::kRopePair; ++h) {
        PairEnergies energies;
        energies.n_keys = energies.n_queries = 1;
        for (const float s : channel_scale) {
          energies.key.push_back(static_cast<double>(s) * s * std::exp(Normal()));
          energies.query.push_back(std::exp(static_cast<double>(Normal())));
        }
        tables_.back().push_back(FitKeyTable(energies, RopePairing::kHalves,
                                             shape_.head_dim_k / 2 * 2, shape_.head_dim_k,
                                             tier.k.bits));
      }
      for (int b = 0; b < tier.n_blocks; ++b, cell += kBlockTokens) {
        AttendBlock block;
        block.k_coding = {layout_k, tables_.back().empty() ? nullptr : tables_.back().data()};
        block.v_coding = {layout_v, nullptr};
        k_bytes_.emplace_back(layout_k->block_bytes(shape_.n_kv_heads));
        v_bytes_.emplace_back(layout_v->block_bytes(shape_.n_kv_heads));
        for (int t = 0; t < kBlockTokens; ++t) {
          const float gain = std::exp(0.3f * Normal());
          std::vector<float> k(heads * dim_k);
          for (size_t i = 0; i < k.size(); ++i) k[i] = gain * channel_scale[i % dim_k] * Normal();
          std::vector<float> v(heads * dim_v);
          for (float& x : v) x = 0.4f + Normal();
          EncodeRow(block.k_coding, shape_.n_kv_heads, k.data(), t, k_bytes_.back().data());
          EncodeRow(block.v_coding, shape_.n_kv_heads, v.data(), t, v_bytes_.back().data());
        }
        block.first_cell = cell;
        block.live = b % 3 == 2 ? 0xdeadbeefu : 0xffffffffu;
        block.rotation = static_cast<int>(blocks_.size()) % n_rotations;
        blocks_.push_back(block);
      }
    }
    for (size_t b = 0; b < blocks_.size(); ++b) {
      blocks_[b].k = k_bytes_[b].data();
      blocks_[b].v = shape_.values_in_keys ? nullptr : v_bytes_[b].data();
    }
    problem_.n_cells = blocks_.empty() ? cell : cell - shape_.cells_cut;

    exact_k_.resize(static_cast<size_t>(shape_.n_exact) * heads * dim_k);
    exact_v_.resize(static_cast<size_t>(shape_.n_exact) * heads * dim_v);
    for (uint16_t& x : exact_k_) x = F32ToF16(Normal());
    for (uint16_t& x : exact_v_) x = F32ToF16(Normal());
    for (int e = 0; e < shape_.n_exact; ++e) {
      ExactRow row;
      row.k = exact_k_.data() + static_cast<size_t>(e) * heads * dim_k;
      row.v = shape_.values_in_keys ? nullptr
                                    : exact_v_.data() + static_cast<size_t>(e) * heads * dim_v;
      row.cell = e;
      row.rotation = e % n_rotations;
      exact_rows_.push_back(row);
    }

    const auto rows = static_cast<size_t>(shape_.n_rows);
    const auto q_heads = static_cast<size_t>(shape_.n_heads);
    q_.resize(rows * q_heads * dim_k);
    const float q_scale = 2.0f;
    for (float& x : q_) x = q_scale * Normal();
    out_.resize(rows * q_heads * dim_v);
    mask_columns_ = static_cast<size_t>(cell) + 3;
    mask_.assign(static_cast<size_t>(shape_.mask_heads) * rows * mask_columns_, 0xfc00);
    for (size_t plane = 0; plane < static_cast<size_t>(shape_.mask_heads); ++plane) {
      for (size_t row = 0; row < rows; ++row) {
        for (size_t c = 0; c < static_cast<size_t>(problem_.n_cells); ++c) {
          uint16_t& m = mask_[(plane * rows + row) * mask_columns_ + c];
          const bool future =
              shape_.causal && c > static_cast<size_t>(problem_.n_cells) - rows + row;
          const bool dropped =
              std::uniform_real_distribution<float>()(random_) < shape_.masked_part;
          m = future || dropped ? 0xfc00
              : shape_.slopes   ? F32ToF16(-0.01f * static_cast<float>(c % 50))
                                : 0;
        }
      }
    }
    for (int h = 0; h < shape_.n_heads; ++h) {
      slopes_.push_back(std::pow(2.0f, -static_cast<float>(h + 1)));
      sink_logits_.push_back(Normal());
    }

    problem_.n_rows = shape_.n_rows;
    problem_.n_heads = shape_.n_heads;
    problem_.n_kv_heads = shape_.n_kv_heads;
    problem_.head_dim_k = shape_.head_dim_k;
    problem_.head_dim_v = shape_.head_dim_v;
    problem_.q = q_.data();
    problem_.q_head_stride = shape_.head_dim_k;
    problem_.q_row_stride = static_cast<ptrdiff_t>(q_heads * dim_k);
    if (shape_.mask) {
      problem_.mask = mask_.data();
      problem_.mask_row_stride = static_cast<ptrdiff_t>(mask_columns_);
      problem_.mask_head_stride = static_cast<ptrdiff_t>(rows * mask_columns_);
      problem_.mask_heads = shape_.mask_heads;
    }
    problem_.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim_k));
    problem_.logit_softcap = shape_.softcap;
    if (shape_.slopes) problem_.slopes = slopes_.data();
    if (shape_.sinks) problem_.sinks = sink_logits_.data();
    problem_.out = out_.data();
    problem_.out_head_stride = shape_.head_dim_v;
    problem_.out_row_stride = static_cast<ptrdiff_t>(q_heads * dim_v);
    problem_.blocks = blocks_;
    problem_.exact_rows = exact_rows_;
    problem_.rotations = rotations_;
  }

  static void Poison(const BlockCoding& coding, std::vector<std::byte>& bytes, int token) {
    const BlockLayout& layout = *coding.layout;
    const int n_heads = static_cast<int>(bytes.size() / layout.head_bytes());
    const std::vector<float> nan_row(static_cast<size_t>(n_heads * layout.head_dim), NAN);
    EncodeRow(coding, n_heads, nan_row.data(), token, bytes.data());
  }

  void ExpectedHead(int row, int head, double* out) const {
    const int kv_head = head / (shape_.n_heads / shape_.n_kv_heads);
    const auto dim_k = static_cast<size_t>(shape_.head_dim_k);
    const auto dim_v = static_cast<size_t>(shape_.head_dim_v);
    std::vector<double> logits;
    std::vector<std::vector<double>> values;
    const auto add = [&](const float* k, const float* v, int cell, int rotation) {
      if (cell >= problem_.n_cells) return;
      double bias = 0;
      if (problem_.mask != nullptr) {
        const uint16_t* mask = problem_.mask + row * problem_.mask_row_stride +
                               head % problem_.mask_heads * problem_.mask_head_stride;
        bias = static_cast<double>(F16ToF32(mask[cell]));
        if (std::isinf(bias)) return;
        if (problem_.slopes != nullptr) bias *= static_cast<double>(problem_.slopes[head]);
      }
      std::vector<double> key(k, k + dim_k);
      const PendingRotation& turn = rotations_[static_cast<size_t>(rotation)];
      for (size_t i = 0; i < turn.cos.size(); ++i) {
        const size_t a = turn.pairing == RopePairing::kInterleaved ? 2 * i : i;
        const size_t b =
            turn.pairing == RopePairing::kInterleaved ? 2 * i + 1 : i + turn.cos.size();
        const double x = key[a];
        const double y = key[b];
        key[a] = x * static_cast<double>(turn.cos[i]) - y * static_cast<double>(turn.sin[i]);
        key[b] = x * static_cast<double>(turn.sin[i]) + y * static_cast<double>(turn.cos[i]);
      }
      const float* q = problem_.q + row * problem_.q_row_stride + head * problem_.q_head_stride;
      double logit = 0;
      for (size_t i = 0; i < dim_k; ++i) logit += key[i] * static_cast<double>(q[i]);
      logit *= static_cast<double>(problem_.scale);
      const auto cap = static_cast<double>(problem_.logit_softcap);
      if (cap != 0) logit = cap * std::tanh(logit / cap);
      logits.push_back(logit + bias);
      values.emplace_back(v, v + dim_v);
    };
    std::vector<float> k_row(static_cast<size_t>(shape_.n_kv_heads) * dim_k);
    std::vector<float> v_row(static_cast<size_t>(shape_.n_kv_heads) * dim_v);
    const float* k = k_row.data() + static_cast<size_t>(kv_head) * dim_k;
    const float* v =
        shape_.values_in_keys ? k : v_row.data() + static_cast<size_t>(kv_head) * dim_v;
    for (const ExactRow& exact : exact_rows_) {
      for (size_t i = 0; i < k_row.size(); ++i) k_row[i] = F16ToF32(exact.k[i]);
      for (size_t i = 0; i < v_row.size() && exact.v != nullptr; ++i)
        v_row[i] = F16ToF32(exact.v[i]);
      add(k, v, exact.cell, exact.rotation);
    }
    for (const AttendBlock& block : blocks_) {
      for (int t = 0; t < kBlockTokens; ++t) {
        if ((block.live >> t & 1u) == 0) continue;
        DecodeRow(block.k_coding, shape_.n_kv_heads, block.k, t, k_row.data());
        if (block.v != nullptr)
          DecodeRow(block.v_coding, shape_.n_kv_heads, block.v, t, v_row.data());
        add(k, v, block.first_cell + t, block.rotation);
      }
    }
    double max = -INFINITY;
    for (const double logit : logits) max = std::max(max, logit);
    double sum = 0;
    if (problem_.sinks != nullptr) {
      const auto sink = static_cast<double>(problem_.sinks[head]);
      max = std::max(max, sink);
      sum = std::exp(sink - max);
    }
    double* result = out + (static_cast<size_t>(row) * static_cast<size_t>(shape_.n_heads) +
                            static_cast<size_t>(head)) *
                               dim_v;
    for (size_t t = 0; t < logits.size(); ++t) {
      const double p = std::exp(logits[t] - max);
      sum += p;
      for (size_t i = 0; i < dim_v; ++i) result[i] += p * values[t][i];
    }
    for (size_t i = 0; i < dim_v; ++i) result[i] = sum > 0 ? result[i] / sum : 0.0;
  }

  TestShape shape_;
  std::mt19937 random_;
  AttendProblem problem_;
  std::vector<BlockLayout> layouts_;
  std::vector<std::vector<KeyTable>> tables_;
  std::vector<std::vector<std::byte>> k_bytes_;
  std::vector<std::vector<std::byte>> v_bytes_;
  std::vector<AttendBlock> blocks_;
  std::vector<uint16_t> exact_k_;
  std::vector<uint16_t> exact_v_;
  std::vector<ExactRow> exact_rows_;
  std::vector<PendingRotation> rotations_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<uint16_t> mask_;
  size_t mask_columns_ = 0;
  std::vector<float> slopes_;
  std::vector<float> sink_logits_;
  std::vector<std::byte> scratch_;
};

/// The default method's ladder: recent 8 bits, mid 4, old K 3 / V 2.
inline std::vector<TestTier> Ladder(int n_old, int n_mid, int n_recent) {
  return {{{Codec::kRopePair, 3}, {Codec::kRotated, 2}, n_old},
          {{Codec::kRopePair, 4}, {Codec::kRotated, 4}, n_mid},
          {{Codec::kRotated, 8}, {Codec::kRotated, 8}, n_recent}};
}

}  // namespace varve

#endif  // VARVE_TESTS_ATTEND_ATTEND_FIXTURE_H_
