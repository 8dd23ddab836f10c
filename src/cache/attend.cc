#include "cache/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "base/parallel.h"

namespace varve {
namespace {

/// R^T q for a pending rotation R: the key's missing turn, taken by the query instead.
void TurnBack(const PendingRotation& rotation, float* q) {
  const int half = rotation.n_dims / 2;
  if (rotation.cos.empty() || rotation.pairing == RopePairing::kNone) return;
  const bool interleaved = rotation.pairing == RopePairing::kInterleaved;
  for (int i = 0; i < half; ++i) {
    float& a = q[interleaved ? 2 * i : i];
    float& b = q[interleaved ? 2 * i + 1 : i + half];
    const float cos = rotation.cos[static_cast<size_t>(i)];
    const float sin = rotation.sin[static_cast<size_t>(i)];
    const float turned = a * cos + b * sin;
    b = b * cos - a * sin;
    a = turned;
  }
}

class HeadAttention {
 public:
  HeadAttention(const AttendProblem& problem, int kv_head, float* scratch)
      : problem_(problem), kv_head_(kv_head), n_rep_(problem.n_heads / problem.n_kv_heads) {
    tile_k_ = scratch;
    tile_v_ = tile_k_ + kBlockTokens * problem.head_dim_k;
    queries_ = tile_v_ + kBlockTokens * problem.head_dim_v;
    sums_ = queries_ +
            static_cast<ptrdiff_t>(problem.rotations.size()) * n_queries() * problem.head_dim_k;
    states_ = sums_ + static_cast<ptrdiff_t>(n_queries()) * problem.head_dim_v;
  }

  static size_t ScratchFloats(const AttendProblem& problem) {
    const auto queries = static_cast<size_t>(problem.n_rows) *
                         static_cast<size_t>(problem.n_heads / problem.n_kv_heads);
    const auto dim_k = static_cast<size_t>(problem.head_dim_k);
    const auto dim_v = static_cast<size_t>(problem.head_dim_v);
    return kBlockTokens * (dim_k + dim_v) +
           queries * (problem.rotations.size() * dim_k + dim_v + 2);
  }

  void Run() {
    Prepare();
    for (const ExactRow& row : problem_.exact_rows) {
      for (int i = 0; i < problem_.head_dim_k; ++i) {
        tile_k_[i] = F16ToF32(row.k[kv_head_ * problem_.head_dim_k + i]);
      }
      for (int i = 0; i < problem_.head_dim_v; ++i) {
        tile_v_[i] =
            row.v != nullptr ? F16ToF32(row.v[kv_head_ * problem_.head_dim_v + i]) : tile_k_[i];
      }
      Tile(1u, row.cell, row.rotation);
    }
    for (const AttendBlock& block : problem_.blocks) {
      if (block.live == 0) continue;
      const size_t head = static_cast<size_t>(kv_head_);
      DecodeHead(block.k_coding, kv_head_, block.k + head * block.k_coding.layout->head_bytes(),
                 tile_k_);
      if (block.v != nullptr) {
        DecodeHead(block.v_coding, kv_head_, block.v + head * block.v_coding.layout->head_bytes(),
                   tile_v_);
      } else {
        for (int t = 0; t < kBlockTokens; ++t) {
          std::copy_n(tile_k_ + t * problem_.head_dim_k, problem_.head_dim_v,
                      tile_v_ + t * problem_.head_dim_v);
        }
      }
      Tile(block.live, block.first_cell, block.rotation);
    }
    Finish();
  }

 private:
  int n_queries() const { return problem_.n_rows * n_rep_; }
  int head_of(int query) const { return kv_head_ * n_rep_ + query % n_rep_; }

  float* QueryOf(int rotation, int query) {
    return queries_ +
           (static_cast<ptrdiff_t>(rotation) * n_queries() + query) * problem_.head_dim_k;
  }

  void Prepare() {
    for (int query = 0; query < n_queries(); ++query) {
      const float* q = problem_.q + query / n_rep_ * problem_.q_row_stride +
                       head_of(query) * problem_.q_head_stride;
      for (size_t r = 0; r < problem_.rotations.size(); ++r) {
        float* turned = QueryOf(static_cast<int>(r), query);
        std::copy_n(q, problem_.head_dim_k, turned);
        TurnBack(problem_.rotations[r], turned);
      }
      states_[2 * query] = -INFINITY;
      states_[2 * query + 1] = 0;
    }
    std::fill_n(sums_, static_cast<ptrdiff_t>(n_queries()) * problem_.head_dim_v, 0.0f);
  }

  void Tile(uint32_t live, int first_cell, int rotation) {
    for (int query = 0; query < n_queries(); ++query) {
      const int head = head_of(query);
      const float slope = problem_.slopes != nullptr ? problem_.slopes[head] : 1.0f;
      const uint16_t* mask = nullptr;
      if (problem_.mask != nullptr) {
        mask = problem_.mask + query / n_rep_ * problem_.mask_row_stride +
               head % problem_.mask_heads * problem_.mask_head_stride;
      }
      const float* q = QueryOf(rotation, query);
      for (int t = 0; t < kBlockTokens; ++t) {
        const int cell = first_cell + t;
        if ((live >> t & 1u) == 0 || cell >= problem_.n_cells) continue;
        const float bias = mask != nullptr ? F16ToF32(mask[cell]) : 0.0f;
        if (bias == -INFINITY) continue;
        const float* k = tile_k_ + t * problem_.head_dim_k;
        float dot = 0;
        for (int i = 0; i < problem_.head_dim_k; ++i) dot += q[i] * k[i];
        float logit = dot * problem_.scale;
        if (problem_.logit_softcap != 0) {
          logit = problem_.logit_softcap * std::tanh(logit / problem_.logit_softcap);
        }
        Add(query, logit + slope * bias, tile_v_ + t * problem_.head_dim_v);
      }
    }
  }

  void Add(int query, float logit, const float* v) {
    float& max = states_[2 * query];
    float& sum = states_[2 * query + 1];
    float* total = sums_ + static_cast<ptrdiff_t>(query) * problem_.head_dim_v;
    float weight = 1;
    if (logit > max) {
      const float shrink = std::exp(max - logit);
      for (int i = 0; i < problem_.head_dim_v; ++i) total[i] *= shrink;
      sum *= shrink;
      max = logit;
    } else {
      weight = std::exp(logit - max);
    }
    sum += weight;
    for (int i = 0; i < problem_.head_dim_v; ++i) total[i] += weight * v[i];
  }

  void Finish() {
    for (int query = 0; query < n_queries(); ++query) {
      const int head = head_of(query);
      const float max = states_[2 * query];
      float sum = states_[2 * query + 1];
      float factor = 1;
      if (problem_.sinks != nullptr) {
        const float sink = problem_.sinks[head];
        const float top = std::max(max, sink);
        factor = std::exp(max - top);
        sum = sum * factor + std::exp(sink - top);
      }
      const float* total = sums_ + static_cast<ptrdiff_t>(query) * problem_.head_dim_v;
      float* out =
          problem_.out + query / n_rep_ * problem_.out_row_stride + head * problem_.out_head_stride;
      const float inverse = sum == 0 ? 0.0f : factor / sum;
      for (int i = 0; i < problem_.head_dim_v; ++i) out[i] = total[i] * inverse;
    }
  }

  const AttendProblem& problem_;
  int kv_head_;
  int n_rep_;
  float* tile_k_;
  float* tile_v_;
  float* queries_;
  float* sums_;
  float* states_;
};

}  // namespace

void Attend(const AttendProblem& problem, int n_threads, std::vector<std::byte>& scratch) {
  const size_t bytes = HeadAttention::ScratchFloats(problem) * sizeof(float);
  const size_t needed = bytes * static_cast<size_t>(problem.n_kv_heads);
  if (scratch.size() < needed) scratch.resize(needed);
  ParallelFor(n_threads, problem.n_kv_heads, [&](int kv_head, int) {
    auto* floats = reinterpret_cast<float*>(scratch.data() + bytes * static_cast<size_t>(kv_head));
    HeadAttention(problem, kv_head, floats).Run();
  });
}

}  // namespace varve
