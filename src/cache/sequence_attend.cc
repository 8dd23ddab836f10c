// Attention of a sequence cache straight from its packed codes: at most kTileTokens decoded rows of
// one head exist at a time, and an online softmax joins the tiles.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/parallel.h"
#include "cache/sequence_cache.h"

namespace varve {
namespace {

constexpr int64_t kQueriesATask = 32;

Status Need(bool ok, const char* field, int64_t value, const char* rule) {
  if (ok) return Status();
  return Status(StatusCode::kInvalidArgument,
                std::string(field) + " must be " + rule + ", got " + std::to_string(value));
}

// Running softmax of one query row: max, sum of exp, weighted values.
struct RunningRow {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;

  // Rescales what is there to a new maximum.
  void Raise(float logit, float* accumulator, int dim) {
    if (logit <= max) return;
    const float shrink = std::isinf(max) ? 0.0f : std::exp(max - logit);
    sum *= shrink;
    for (int d = 0; d < dim; ++d) accumulator[d] *= shrink;
    max = logit;
  }
};

float Dot(const float* a, const float* b, int n) {
  // Eight sums, so that the order of additions is fixed and still runs in vectors.
  float sums[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[i % 8] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace

Status SequenceCache::Attend(const SequenceAttendArgs& args) const {
  VARVE_RETURN_IF_ERROR(Need(args.n_queries >= 0, "n_queries", args.n_queries, "at least 0"));
  if (!has_shape())
    return Status(StatusCode::kInvalidState, "the cache is empty: it has no shape to attend with");
  const int64_t n_kv_heads = shape_.n_kv_heads;
  VARVE_RETURN_IF_ERROR(Need(args.n_heads >= n_kv_heads && args.n_heads % n_kv_heads == 0,
                             "n_heads", args.n_heads,
                             ("a multiple of n_kv_heads = " + std::to_string(n_kv_heads)).c_str()));
  VARVE_RETURN_IF_ERROR(Need(args.n_threads >= 1, "n_threads", args.n_threads, "at least 1"));
  VARVE_RETURN_IF_ERROR(Need(!args.causal || args.first_position >= 0, "first_position",
                             args.first_position, "at least 0"));
  if (args.n_queries == 0) return Status();
  if (args.q == nullptr || args.out == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(args.q == nullptr ? "q" : "out") + " is NULL");
  }

  const int dim_k = shape_.head_dim_k;
  const int dim_v = shape_.head_dim_v;
  const int64_t n_rep = args.n_heads / n_kv_heads;
  const int64_t n_chunks = (args.n_queries + kQueriesATask - 1) / kQueriesATask;
  const int64_t n_tasks = shape_.n_rows() * n_chunks;
  VARVE_RETURN_IF_ERROR(
      Need(n_tasks <= std::numeric_limits<int>::max(), "n_queries", args.n_queries, "smaller"));

  // All scratch of a thread, allocated before the work starts: a tile and the rows of one task.
  struct Scratch {
    std::vector<float> tile, logits, accumulator;
    std::vector<RunningRow> rows;
  };
  const size_t task_rows = static_cast<size_t>(n_rep * std::min(kQueriesATask, args.n_queries));
  std::vector<Scratch> scratches(
      static_cast<size_t>(std::max<int64_t>(1, std::min<int64_t>(args.n_threads, n_tasks))));
  for (Scratch& scratch : scratches) {
    scratch.tile.resize(kTileTokens * static_cast<size_t>(std::max(dim_k, dim_v)));
    scratch.logits.resize(kTileTokens * task_rows);
    scratch.accumulator.resize(task_rows * static_cast<size_t>(dim_v));
    scratch.rows.resize(task_rows);
  }

  ParallelFor(
      static_cast<int>(scratches.size()), static_cast<int>(n_tasks), [&](int task, int thread) {
        Scratch& scratch = scratches[static_cast<size_t>(thread)];
        const int64_t row = task / n_chunks;
        const int64_t batch = row / n_kv_heads;
        const int64_t first_query = task % n_chunks * kQueriesATask;
        const int64_t n_queries = std::min(kQueriesATask, args.n_queries - first_query);
        const int64_t n_rows = n_rep * n_queries;
        const auto offset = [&](const std::array<int64_t, 3>& stride, int64_t r) {
          const int64_t head = row % n_kv_heads * n_rep + r / n_queries;
          return batch * stride[0] + head * stride[1] + (first_query + r % n_queries) * stride[2];
        };
        std::fill(scratch.accumulator.begin(), scratch.accumulator.end(), 0.0f);
        std::fill(scratch.rows.begin(), scratch.rows.end(), RunningRow());

        const int64_t visible =
            args.causal ? std::min(n_tokens_, args.first_position + first_query + n_queries)
                        : n_tokens_;
        for (int64_t first = 0; first < visible;) {
          const int n = static_cast<int>(std::min<int64_t>(TileTokens(first), visible - first));
          DecodeTile(Side::kKey, row, first, n, scratch.tile.data());
          bool any = false;
          for (int64_t r = 0; r < n_rows; ++r) {
            float* logits = scratch.logits.data() + r * kTileTokens;
            const float* q = args.q + offset(args.q_stride, r);
            const float* mask =
                args.mask != nullptr ? args.mask + offset(args.mask_stride, r) + first : nullptr;
            const int64_t last =
                args.causal ? args.first_position + first_query + r % n_queries : n_tokens_;
            for (int t = 0; t < n; ++t) {
              const bool masked =
                  first + t > last || (mask != nullptr && std::isinf(mask[t]) && mask[t] < 0);
              if (masked) {
                logits[t] = -std::numeric_limits<float>::infinity();
                continue;
              }
              any = true;
              float logit =
                  args.scale * Dot(q, scratch.tile.data() + static_cast<size_t>(t) * dim_k, dim_k);
              if (args.logit_softcap != 0.0f)
                logit = args.logit_softcap * std::tanh(logit / args.logit_softcap);
              logits[t] = mask != nullptr ? logit + mask[t] : logit;
            }
          }
          if (any) {
            DecodeTile(Side::kValue, row, first, n, scratch.tile.data());
            for (int64_t r = 0; r < n_rows; ++r) {
              float* logits = scratch.logits.data() + r * kTileTokens;
              float* accumulator = scratch.accumulator.data() + r * dim_v;
              RunningRow& running = scratch.rows[static_cast<size_t>(r)];
              running.Raise(*std::max_element(logits, logits + n), accumulator, dim_v);
              for (int t = 0; t < n; ++t) {
                // A masked token takes no part whatever it holds: 0 * NaN would.
                if (std::isinf(logits[t]) && logits[t] < 0) continue;
                const float weight = std::exp(logits[t] - running.max);
                const float* value = scratch.tile.data() + static_cast<size_t>(t) * dim_v;
                running.sum += weight;
                for (int d = 0; d < dim_v; ++d) accumulator[d] += weight * value[d];
              }
            }
          }
          first += n;
        }

        for (int64_t r = 0; r < n_rows; ++r) {
          RunningRow& running = scratch.rows[static_cast<size_t>(r)];
          float* accumulator = scratch.accumulator.data() + r * dim_v;
          if (args.sinks != nullptr) {
            const float sink = args.sinks[row % n_kv_heads * n_rep + r / n_queries];
            running.Raise(sink, accumulator, dim_v);
            running.sum += std::exp(sink - running.max);
          }
          const float inverse = running.sum != 0.0f ? 1.0f / running.sum : 0.0f;
          float* out = args.out + offset(args.out_stride, r);
          for (int d = 0; d < dim_v; ++d) out[d] = accumulator[d] * inverse;
        }
      });
  return Status();
}

}  // namespace varve
