// CellCache::Attend: the list of blocks, exact rows and rotations that a call takes part with, for
// the attention core.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "cache/cell_cache.h"

namespace varve {
namespace {

/// ALiBi slopes (arXiv 2108.12409, section 3), as FLASH_ATTN_EXT: 2^(-max_bias*(h+1)/n) for the
/// first n heads, n the largest power of two, odd steps of half that for the rest.
std::vector<float> AlibiSlopes(float max_bias, int n_heads) {
  int n_power = 1;
  while (2 * n_power <= n_heads) n_power *= 2;
  const float m0 = std::pow(2.0f, -max_bias / static_cast<float>(n_power));
  const float m1 = std::pow(2.0f, -max_bias / 2.0f / static_cast<float>(n_power));
  std::vector<float> slopes(static_cast<size_t>(n_heads));
  for (int h = 0; h < n_heads; ++h) {
    slopes[static_cast<size_t>(h)] = h < n_power
                                         ? std::pow(m0, static_cast<float>(h + 1))
                                         : std::pow(m1, static_cast<float>(2 * (h - n_power) + 1));
  }
  return slopes;
}

Status Bad(const char* field, int64_t value, const std::string& why) {
  return Status(StatusCode::kInvalidArgument,
                std::string(field) + "=" + std::to_string(value) + " " + why);
}

}  // namespace

Status CellCache::CheckAttend(const CellAttendArgs& args) const {
  if (args.stream < 0 || args.stream >= shape_.n_streams) {
    return Bad("stream", args.stream, "must be in 0.." + std::to_string(shape_.n_streams - 1));
  }
  if (args.n_cells < 0 || args.n_cells > shape_.n_cells) {
    return Bad("n_cells", args.n_cells, "must be in 0.." + std::to_string(shape_.n_cells));
  }
  if (args.n_rows < 0) return Bad("n_rows", args.n_rows, "must not be negative");
  if (args.n_heads < 1 || args.n_heads % shape_.n_kv_heads != 0) {
    return Bad("n_heads", args.n_heads,
               "must be a multiple of n_kv_heads=" + std::to_string(shape_.n_kv_heads));
  }
  const bool width_fits = has_values()
                              ? args.head_dim_v == shape_.head_dim_v
                              : args.head_dim_v >= 1 && args.head_dim_v <= shape_.head_dim_k;
  if (!width_fits) {
    return Bad("head_dim_v", args.head_dim_v,
               has_values() ? "must be " + std::to_string(shape_.head_dim_v)
                            : "must be in 1.." + std::to_string(shape_.head_dim_k));
  }
  if (args.n_rows > 0 && (args.q == nullptr || args.out == nullptr)) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(args.q == nullptr ? "q" : "out") + " is NULL");
  }
  if (args.mask != nullptr && args.mask_heads < 1)
    return Bad("mask_heads", args.mask_heads, "must be at least 1");
  return Status();
}

void CellCache::ListBlocks(const Stream& stream, int32_t n_cells,
                           std::vector<AttendBlock>& blocks) const {
  BlockCoding codings[2][4];
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (size_t s = 0; s < ladder(side).stages.size(); ++s)
      codings[static_cast<size_t>(side)][s] = Coding(side, s);
  }
  const size_t n_blocks = std::min(
      stream.blocks.size(), static_cast<size_t>((n_cells + kBlockTokens - 1) / kBlockTokens));
  blocks.reserve(n_blocks);
  for (size_t b = 0; b < n_blocks; ++b) {
    const CellBlock& block = stream.blocks[b];
    uint32_t live = block.written[0] & ~ExactMask(block);
    if (has_values()) live &= block.written[1];
    const int32_t first_cell = static_cast<int32_t>(b) * kBlockTokens;
    if (first_cell + kBlockTokens > n_cells) live &= RunMask(0, n_cells - first_cell);
    if (live == 0) continue;
    AttendBlock entry;
    entry.k = block.payload[0].data;
    entry.k_coding = codings[0][block.payload[0].stage];
    if (has_values()) {
      entry.v = block.payload[1].data;
      entry.v_coding = codings[1][block.payload[1].stage];
    }
    entry.first_cell = first_cell;
    while (live != 0) {
      entry.rotation = block.rotation(std::countr_zero(live));
      entry.live = block.uniform_rotation() ? live : 0;
      for (uint32_t m = block.uniform_rotation() ? 0 : live; m != 0; m &= m - 1) {
        if (block.rotation(std::countr_zero(m)) == entry.rotation) entry.live |= m & (~m + 1);
      }
      live &= ~entry.live;
      blocks.push_back(entry);
    }
  }
}

void CellCache::ListExactRows(const Stream& stream, int32_t n_cells,
                              std::vector<ExactRow>& rows) const {
  for (const auto& [cell, exact] : stream.exact_cells) {
    if (cell >= n_cells) break;
    const CellBlock& block = stream.blocks[static_cast<size_t>(cell / kBlockTokens)];
    const int token = cell % kBlockTokens;
    if ((ExactMask(block) >> token & 1) == 0) continue;
    ExactRow row;
    row.k = exact.row[0].data();
    row.v = has_values() ? exact.row[1].data() : nullptr;
    row.cell = cell;
    row.rotation = block.rotation(token);
    rows.push_back(row);
  }
}

Status CellCache::Attend(const CellAttendArgs& args, int n_threads) {
  const auto start = std::chrono::steady_clock::now();
  VARVE_RETURN_IF_ERROR(CheckAttend(args));
  if (args.n_rows == 0) return Status();
  const Stream& stream = streams_[static_cast<size_t>(args.stream)];
  // One scratch a calling thread, shared by all layers, so that a model's layers do not each keep
  // their own.
  thread_local std::vector<std::byte> scratch;
  thread_local std::vector<AttendBlock> blocks;
  thread_local std::vector<ExactRow> exact_rows;
  blocks.clear();
  exact_rows.clear();
  ListBlocks(stream, args.n_cells, blocks);
  ListExactRows(stream, args.n_cells, exact_rows);
  std::vector<float> slopes;
  if (args.max_bias > 0.0f) slopes = AlibiSlopes(args.max_bias, args.n_heads);

  AttendProblem problem;
  problem.n_rows = args.n_rows;
  problem.n_heads = args.n_heads;
  problem.n_kv_heads = shape_.n_kv_heads;
  problem.head_dim_k = shape_.head_dim_k;
  problem.head_dim_v = args.head_dim_v;
  problem.q = args.q;
  problem.q_row_stride = args.q_row_stride;
  problem.q_head_stride = args.q_head_stride;
  problem.mask = args.mask;
  problem.mask_row_stride = args.mask_row_stride;
  problem.mask_head_stride = args.mask_head_stride;
  problem.mask_heads = args.mask_heads;
  problem.n_cells = args.n_cells;
  problem.scale = args.scale;
  problem.logit_softcap = args.logit_softcap;
  problem.slopes = slopes.empty() ? nullptr : slopes.data();
  problem.sinks = args.sinks;
  problem.out = args.out;
  problem.out_row_stride = args.out_row_stride;
  problem.out_head_stride = args.out_head_stride;
  problem.value_skip_share = value_skip_share_;
  problem.blocks = blocks;
  problem.exact_rows = exact_rows;
  problem.rotations = rotations_.rotations();
  varve::Attend(problem, n_threads, scratch);

  if (!has_tables_ && ladder(Side::kKey).needs_tables()) {
    statistics_.AddQueries(args.q, args.q_row_stride, args.q_head_stride, args.n_rows, args.n_heads,
                           args.scale);
  }
  attend_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return Status();
}

}  // namespace varve
