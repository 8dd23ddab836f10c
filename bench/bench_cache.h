// A cache of one layer for benchmarks: packed blocks in one arena, in the ladder of a method,
// filled with key-like data.
#ifndef VARVE_BENCH_BENCH_CACHE_H_
#define VARVE_BENCH_BENCH_CACHE_H_

#include <sys/mman.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/f16.h"
#include "cache/attend.h"
#include "codec/block_codec.h"

namespace varve::bench {

struct Shape {
  int n_heads;
  int n_kv_heads;
  int head_dim;
};

/// Memory that the system may back with huge pages, as a cache's arena is.
class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kHuge, bytes_)));
    madvise(data_.get(), bytes_, MADV_HUGEPAGE);
  }
  std::byte* Take(size_t bytes) {
    std::byte* at = data_.get() + used_;
    used_ += bytes;
    return at;
  }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t bytes_;
  size_t used_ = 0;
};

/// One stretch of tokens of a cache, youngest last.
struct Tier {
  Scheme k;
  Scheme v;
  int n_tokens;
};

/// Tiers of the default method at n tokens: 128 recent at 8 bits, up to 1,024 at 4, then K 3 / V 2.
inline std::vector<Tier> DefaultLadder(int n) {
  const int recent = std::min(n, 128);
  const int mid = std::min(n - recent, 1024 - 128);
  return {{{Codec::kRopePair, 3}, {Codec::kRotated, 2}, n - recent - mid},
          {{Codec::kRopePair, 4}, {Codec::kRotated, 4}, mid},
          {{Codec::kRotated, 8}, {Codec::kRotated, 8}, recent}};
}

inline std::vector<Tier> OneTier(Scheme k, Scheme v, int n) { return {{k, v, n}}; }

class PackedCache {
 public:
  PackedCache(const Shape& shape, const std::vector<Tier>& tiers, int n_sinks)
      : shape_(shape), arena_(Bytes(shape, tiers)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto dim = static_cast<size_t>(shape.head_dim);
    const size_t width = dim * static_cast<size_t>(shape.n_kv_heads);
    std::vector<float> sigma(dim);
    // RoPE turns channels i and i + head_dim / 2 together, so they share their energy.
    for (size_t i = 0; i < dim; ++i)
      sigma[i] = i < dim / 2 ? std::exp(1.2f * normal(random)) : sigma[i - dim / 2];
    layouts_.reserve(2 * tiers.size());
    tables_.reserve(tiers.size());
    rotations_.resize(1);
    int cell = 0;
    for (const Tier& tier : tiers) {
      layouts_.push_back(MakeBlockLayout(tier.k, Side::kKey, shape.head_dim));
      const BlockLayout* k_layout = &layouts_.back();
      layouts_.push_back(MakeBlockLayout(tier.v, Side::kValue, shape.head_dim));
      const BlockLayout* v_layout = &layouts_.back();
      tables_.emplace_back();
      for (int h = 0; h < shape.n_kv_heads && tier.k.codec == Codec::kRopePair; ++h) {
        PairEnergies energies;
        energies.n_keys = energies.n_queries = 1;
        for (const float s : sigma) {
          energies.key.push_back(static_cast<double>(s) * s);
          energies.query.push_back(1.0);
        }
        tables_.back().push_back(FitKeyTable(energies, RopePairing::kHalves, shape.head_dim,
                                             shape.head_dim, tier.k.bits));
      }
      const BlockCoding k = {k_layout, tables_.back().empty() ? nullptr : tables_.back().data()};
      const BlockCoding v = {v_layout, nullptr};
      const size_t k_bytes = k_layout->block_bytes(shape.n_kv_heads);
      const size_t v_bytes = v_layout->block_bytes(shape.n_kv_heads);
      constexpr size_t kDistinct = 16;  // blocks that are really coded; the rest are copies
      std::vector<AttendBlock> coded;
      for (int first = 0; first < tier.n_tokens; first += kBlockTokens, cell += kBlockTokens) {
        AttendBlock block;
        std::byte* k_at = arena_.Take(k_bytes);
        std::byte* v_at = arena_.Take(v_bytes);
        packed_bytes_ += k_bytes + v_bytes;
        if (coded.size() < kDistinct) {
          for (int t = 0; t < kBlockTokens; ++t) {
            const float gain = std::exp(0.2f * normal(random));
            std::vector<float> row(width);
            for (size_t i = 0; i < width; ++i) row[i] = gain * sigma[i % dim] * normal(random);
            EncodeRow(k, shape.n_kv_heads, row.data(), t, k_at);
            for (float& x : row) x = normal(random);
            EncodeRow(v, shape.n_kv_heads, row.data(), t, v_at);
          }
        } else {
          const AttendBlock& model = coded[blocks_.size() % kDistinct];
          std::memcpy(k_at, model.k, k_bytes);
          std::memcpy(v_at, model.v, v_bytes);
        }
        block.k = k_at;
        block.v = v_at;
        block.k_coding = k;
        block.v_coding = v;
        block.live = ~0u;
        block.first_cell = cell;
        if (coded.size() < kDistinct) coded.push_back(block);
        blocks_.push_back(block);
      }
    }
    n_cells_ = cell;
    sinks_.resize(static_cast<size_t>(n_sinks) * 2 * width);
    for (uint16_t& x : sinks_) x = F32ToF16(normal(random));
    for (int s = 0; s < n_sinks; ++s) {
      exact_.push_back({sinks_.data() + static_cast<size_t>(2 * s) * width,
                        sinks_.data() + static_cast<size_t>(2 * s + 1) * width, s, 0});
      blocks_[0].live &= ~(1u << s);
    }
    q_scale_.resize(dim);
    // Logits with a standard deviation of 2.5.
    double energy = 0;
    for (const float s : sigma) energy += static_cast<double>(s) * s;
    q_size_ = static_cast<float>(2.5 * std::sqrt(static_cast<double>(shape.head_dim) / energy));
  }

  /// Problem for n_rows query rows; q [n_rows][n_heads][head_dim], out alike.
  AttendProblem Problem(int n_rows, const float* q, const uint16_t* mask, float* out) const {
    AttendProblem problem;
    problem.n_rows = n_rows;
    problem.n_heads = shape_.n_heads;
    problem.n_kv_heads = shape_.n_kv_heads;
    problem.head_dim_k = problem.head_dim_v = shape_.head_dim;
    problem.q = q;
    problem.q_head_stride = problem.out_head_stride = shape_.head_dim;
    problem.q_row_stride = problem.out_row_stride =
        static_cast<ptrdiff_t>(shape_.n_heads) * shape_.head_dim;
    problem.mask = mask;
    problem.mask_row_stride = n_cells_;
    problem.n_cells = n_cells_;
    problem.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    problem.out = out;
    problem.blocks = blocks_;
    problem.exact_rows = exact_;
    problem.rotations = rotations_;
    return problem;
  }

  float q_size() const { return q_size_; }
  size_t packed_bytes() const { return packed_bytes_; }
  int n_cells() const { return n_cells_; }
  const std::vector<AttendBlock>& blocks() const { return blocks_; }

 private:
  static size_t Bytes(const Shape& shape, const std::vector<Tier>& tiers) {
    size_t bytes = 0;
    for (const Tier& tier : tiers) {
      const size_t block =
          MakeBlockLayout(tier.k, Side::kKey, shape.head_dim).block_bytes(shape.n_kv_heads) +
          MakeBlockLayout(tier.v, Side::kValue, shape.head_dim).block_bytes(shape.n_kv_heads);
      bytes += block * static_cast<size_t>((tier.n_tokens + kBlockTokens - 1) / kBlockTokens);
    }
    return bytes;
  }

  Shape shape_;
  Arena arena_;
  std::vector<BlockLayout> layouts_;
  std::vector<std::vector<KeyTable>> tables_;
  std::vector<AttendBlock> blocks_;
  std::vector<uint16_t> sinks_;
  std::vector<ExactRow> exact_;
  std::vector<PendingRotation> rotations_;
  std::vector<float> q_scale_;
  float q_size_ = 1;
  size_t packed_bytes_ = 0;
  int n_cells_ = 0;
};

}  // namespace varve::bench

#endif  // VARVE_BENCH_BENCH_CACHE_H_
