#include "cache/attend_query.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <span>

#include "codec/codebooks.h"
#include "codec/rotation.h"

namespace varve {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kWidePeak = 32639.0f;  // 127 * 256 + 127: both bytes stay in range
constexpr float kNarrowPeak = 127.0f;

// Root mean square logit error, in octaves and for a token of gain 1, that 8-bit queries may cause:
// 0.0014 nats. Tokens of twice the mean gain still keep an output within 0.3 %.
constexpr float kNarrowError = 0.002f;

// Narrow runs have sums of their own to bring to floats, which costs as much as this many quads
// save.
constexpr int kMinNarrowQuads = 6;

/// R^T q for a pending rotation R: the key's missing turn, taken by the query instead.
void TurnBack(const PendingRotation& rotation, float* q) {
  if (rotation.cos.empty() || rotation.pairing == RopePairing::kNone) return;
  const int half = rotation.n_dims / 2;
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

QkRuns RunsOf(const KeyView& view, int kv_head) {
  QkRuns runs;
  if (view.tables == nullptr) {
    runs.n_runs = 1;
    runs.n_quads = view.layout->padded_dim / 4;
    runs.run[0] = {view.layout->scheme.bits, runs.n_quads, 0};
    return runs;
  }
  const KeyTable& table = view.tables[kv_head];
  runs.n_runs = table.n_segments;
  for (int s = 0; s < table.n_segments; ++s) {
    const KeySegment& segment = table.segments[static_cast<size_t>(s)];
    runs.run[s] = {segment.bits, segment.n_channels / 4, segment.byte_offset};
    runs.n_quads += segment.n_channels / 4;
  }
  return runs;
}

/// Decides how many trailing runs may take 8-bit queries. Only rope_pair's gains are near 1 by
/// construction, so only there can the error be told beforehand.
void SplitRuns(const KeyView& view, std::span<const float> run_peak, float allowed_error,
               QkRuns& runs) {
  runs.n_wide_runs = runs.n_runs;
  runs.n_wide_quads = runs.n_quads;
  if (view.tables == nullptr) return;
  float peak = 0;
  float energy = 0;
  while (runs.n_wide_runs > 0) {
    const int last = runs.n_wide_runs - 1;
    const QkRun& run = runs.run[last];
    const float level = CodebookOf(run.bits).rms_level;
    peak = std::max(peak, run_peak[static_cast<size_t>(last)]);
    energy += static_cast<float>(4 * run.n_quads) * level * level;
    const float step = peak / kNarrowPeak;
    if (energy * step * step / 12 > allowed_error * allowed_error) break;
    runs.n_wide_runs = last;
    runs.n_wide_quads -= run.n_quads;
  }
  if (runs.n_quads - runs.n_wide_quads < kMinNarrowQuads) {
    runs.n_wide_runs = runs.n_runs;
    runs.n_wide_quads = runs.n_quads;
  }
}

QkRuns UnpackedRuns(const QkRuns& runs) {
  QkRuns unpacked = runs;
  size_t byte_offset = 0;
  for (int r = 0; r < runs.n_runs; ++r) {
    unpacked.run[r].bits = 8;
    unpacked.run[r].byte_offset = byte_offset;
    byte_offset += static_cast<size_t>(runs.run[r].n_quads) * 2 * kLineBytes;
  }
  return unpacked;
}

/// Largest integer of a wide query: a sum of n_channels products with levels of at most 127 fits 32
/// bits.
float WidePeak(int n_channels) {
  return std::min(
      kWidePeak,
      std::floor(2147483647.0f / (127.0f * static_cast<float>(std::max(n_channels, 1)))) - 1);
}

float Largest(const float* first, const float* end) {
  float largest = 0;
  for (; first != end; ++first) largest = std::max(largest, *first);
  return largest;
}

float InverseStep(float peak, float limit) { return peak > 0 ? limit / peak : 0.0f; }

}  // namespace

namespace {

size_t OperandBytes(const AttendPlan& plan, int n_queries) {
  return static_cast<size_t>(plan.max_view_channels) * 2 * static_cast<size_t>(n_queries) +
         static_cast<size_t>(BatchCount(n_queries)) * kLineBytes;
}

}  // namespace

void PreparedQueries::Take(const AttendPlan& plan, int kv_heads, int queries, Bump& memory) {
  n_kv_heads = kv_heads;
  n_queries = queries;
  const size_t n = plan.views.size() * static_cast<size_t>(kv_heads);
  runs = memory.Take<QkRuns>(n);
  unpacked_runs = memory.Take<QkRuns>(n);
  batches = memory.Take<QkQueries>(n * static_cast<size_t>(BatchCount(queries)));
  operands = memory.Take<std::byte>(n * RoundUp(OperandBytes(plan, queries), kLineBytes));
  const bool any_float = std::any_of(plan.views.begin(), plan.views.end(),
                                     [](const KeyView& v) { return v.is_float(); });
  rows = memory.Take<float>(any_float ? n * static_cast<size_t>(queries) *
                                            static_cast<size_t>(plan.problem->head_dim_k)
                                      : 0);
}

PreparedView PreparedQueries::At(const AttendPlan& plan, int view) const {
  const auto first = static_cast<size_t>(view * n_kv_heads);
  PreparedView at;
  if (plan.views[static_cast<size_t>(view)].is_float()) {
    at.rows = rows + first * static_cast<size_t>(n_queries * plan.problem->head_dim_k);
  } else {
    at.runs = runs + first;
    at.unpacked_runs = unpacked_runs + first;
    at.batches = batches + first * static_cast<size_t>(BatchCount(n_queries));
  }
  return at;
}

void PrepareScratch::Take(const AttendPlan& plan, int queries, Bump& memory) {
  const auto channels = static_cast<size_t>(plan.max_view_channels);
  peaks = memory.Take<RunPeaks>(static_cast<size_t>(queries));
  turned = memory.Take<float>(static_cast<size_t>(plan.problem->head_dim_k));
  stored = memory.Take<float>(channels * static_cast<size_t>(queries));
  integers = memory.Take<int16_t>(channels * kMaxQkQueries);
}

void PrepareHead(const AttendPlan& plan, const TaskRange& range, int view_index, int kv_head,
                 const PrepareScratch& scratch, PreparedQueries& prepared) {
  const AttendProblem& problem = *plan.problem;
  const RowKernels& rows = *plan.kernels->rows;
  const KeyView& view = plan.views[static_cast<size_t>(view_index)];
  const int n_queries = prepared.n_queries;
  const int global_head = range.first_kv_head + kv_head;
  const auto slot = static_cast<size_t>(view_index * prepared.n_kv_heads + kv_head);
  const float scale =
      problem.logit_softcap != 0 ? problem.scale / problem.logit_softcap : problem.scale * kLog2E;

  const auto row_of = [&](int query) {
    return problem.q + (range.first_row + query / plan.n_rep) * problem.q_row_stride +
           (global_head * plan.n_rep + query % plan.n_rep) * problem.q_head_stride;
  };
  const PendingRotation& rotation = problem.rotations[static_cast<size_t>(view.rotation)];
  const auto load = [&](int query, float* out) {
    std::copy_n(row_of(query), problem.head_dim_k, out);
    TurnBack(rotation, out);
  };
  if (view.is_float()) {
    float* first_row = prepared.rows + slot * static_cast<size_t>(n_queries * problem.head_dim_k);
    for (int query = 0; query < n_queries; ++query) {
      float* row = first_row + static_cast<ptrdiff_t>(query) * problem.head_dim_k;
      load(query, row);
      for (int i = 0; i < problem.head_dim_k; ++i) row[i] *= scale;
    }
    return;
  }

  QkRuns& runs = *new (prepared.runs + slot) QkRuns(RunsOf(view, global_head));
  const int n_channels = 4 * runs.n_quads;
  RunPeaks peaks{};
  for (int query = 0; query < n_queries; ++query) {
    float* stored = scratch.stored + static_cast<ptrdiff_t>(query) * n_channels;
    if (view.tables == nullptr) {
      load(query, stored);
      rows.rotate(stored, problem.head_dim_k, HadamardSize(problem.head_dim_k),
                  scale / CodebookOf(view.layout->scheme.bits).unit);
      std::fill(stored + problem.head_dim_k, stored + n_channels, 0.0f);
    } else {
      const KeyTable& table = view.tables[global_head];
      const float* q = row_of(query);
      if (!rotation.cos.empty()) {
        load(query, scratch.turned);
        q = scratch.turned;
      }
      rows.gather(q, table.channel.data(), table.scale.data(), scale, stored, n_channels);
    }
    RunPeaks& own = scratch.peaks[query];
    int first = 0;
    for (int r = 0; r < runs.n_runs; ++r) {
      own[static_cast<size_t>(r)] = rows.peak(stored + first, 4 * runs.run[r].n_quads);
      peaks[static_cast<size_t>(r)] =
          std::max(peaks[static_cast<size_t>(r)], own[static_cast<size_t>(r)]);
      first += 4 * runs.run[r].n_quads;
    }
  }
  const float unit =
      problem.logit_softcap != 0 ? problem.logit_softcap * kLog2E : 1.0f;  // octaves a logit unit
  SplitRuns(view, peaks, kNarrowError / unit, runs);
  new (prepared.unpacked_runs + slot) QkRuns(UnpackedRuns(runs));

  const int n_wide = 4 * runs.n_wide_quads;
  const float wide_limit = WidePeak(n_wide);
  const int n_batches = BatchCount(n_queries);
  QkQueries* batches = prepared.batches + slot * static_cast<size_t>(n_batches);
  std::byte* operand =
      prepared.operands + slot * RoundUp(OperandBytes(plan, n_queries), kLineBytes);
  for (int b = 0; b < n_batches; ++b) {
    const int first = BatchStart(n_queries, b);
    QkQueries& batch = *new (batches + b) QkQueries;
    QkPackArgs pack;
    pack.runs = &runs;
    pack.n = BatchStart(n_queries, b + 1) - first;
    pack.q = scratch.integers;
    pack.queries = &batch;
    pack.operand = operand;
    for (int n = 0; n < pack.n; ++n) {
      const float* stored = scratch.stored + static_cast<ptrdiff_t>(first + n) * n_channels;
      int16_t* integers = scratch.integers + static_cast<ptrdiff_t>(n) * n_channels;
      const float* own = scratch.peaks[first + n].data();
      const float wide_peak = Largest(own, own + runs.n_wide_runs);
      const float narrow_peak = Largest(own + runs.n_wide_runs, own + runs.n_runs);
      rows.to_integers(stored, InverseStep(wide_peak, wide_limit), integers, n_wide);
      rows.to_integers(stored + n_wide, InverseStep(narrow_peak, kNarrowPeak), integers + n_wide,
                       n_channels - n_wide);
      batch.wide_scale[n] = wide_peak / wide_limit;
      batch.narrow_scale[n] = narrow_peak / kNarrowPeak;
    }
    plan.kernels->qk_pack(pack);
    operand += RoundUp(QkOperandBytes(runs, pack.n), kLineBytes);
  }
}

}  // namespace varve
