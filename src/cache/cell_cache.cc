#include "cache/cell_cache.h"

#include <algorithm>
#include <string>

#include "base/checked_math.h"

namespace varve {
namespace {

constexpr int32_t kMaxKvHeads = 65536;
constexpr int64_t kMinFitTokens = 64;
constexpr int64_t kMaxFitTokens = 4096;
/// Blocks that a stream's book-keeping grows by.
constexpr int32_t kGrowBlocks = 64;

Status CheckField(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return Status(StatusCode::kInvalidArgument, std::string(name) + "=" + std::to_string(value) +
                                                  " must be in " + std::to_string(low) + ".." +
                                                  std::to_string(high));
}

Status CheckRopeFields(RopePairing pairing, int32_t n_rope_dims, int32_t head_dim) {
  VARVE_RETURN_IF_ERROR(CheckField("rope_kind", static_cast<int64_t>(pairing), 0, 2));
  VARVE_RETURN_IF_ERROR(CheckField("n_rope_dims", n_rope_dims, 0, head_dim));
  if (n_rope_dims % 2 != 0) {
    return Status(StatusCode::kInvalidArgument,
                  "n_rope_dims=" + std::to_string(n_rope_dims) + " must be even");
  }
  return Status();
}

Status CheckShape(const CellShape& shape) {
  VARVE_RETURN_IF_ERROR(CheckField("n_cells", shape.n_cells, 1, INT32_MAX - kBlockTokens));
  VARVE_RETURN_IF_ERROR(CheckField("n_streams", shape.n_streams, 1, INT32_MAX));
  VARVE_RETURN_IF_ERROR(CheckField("n_kv_heads", shape.n_kv_heads, 1, kMaxKvHeads));
  VARVE_RETURN_IF_ERROR(CheckField("head_dim_k", shape.head_dim_k, 1, kMaxHeadDim));
  VARVE_RETURN_IF_ERROR(CheckField("head_dim_v", shape.head_dim_v, 0, kMaxHeadDim));
  VARVE_RETURN_IF_ERROR(CheckRopeFields(shape.pairing, shape.n_rope_dims, shape.head_dim_k));
  size_t bytes = 0;
  if (!CheckedMul(static_cast<size_t>(shape.n_cells), static_cast<size_t>(shape.n_streams),
                  &bytes) ||
      !CheckedMul(bytes, static_cast<size_t>(shape.n_kv_heads), &bytes) ||
      !CheckedMul(bytes,
                  static_cast<size_t>(shape.head_dim_k) + static_cast<size_t>(shape.head_dim_v),
                  &bytes) ||
      !CheckedMul(bytes, sizeof(float), &bytes) || bytes > static_cast<size_t>(INT64_MAX)) {
    return Status(StatusCode::kSizeOverflow,
                  "n_cells=" + std::to_string(shape.n_cells) +
                      " x n_streams=" + std::to_string(shape.n_streams) + " x n_kv_heads=" +
                      std::to_string(shape.n_kv_heads) + " rows do not fit the address space");
  }
  return Status();
}

}  // namespace

CellCache::CellCache(const CellShape& shape, SideLadder key_ladder, SideLadder value_ladder,
                     int32_t sink_tokens, MapFunction map)
    : shape_(shape),
      ladder_{std::move(key_ladder), std::move(value_ladder)},
      sink_tokens_(sink_tokens),
      blocks_per_stream_(CeilDiv(shape.n_cells, kBlockTokens)),
      store_(map),
      streams_(static_cast<size_t>(shape.n_streams)),
      statistics_(shape.n_kv_heads, shape.head_dim_k, FitTokens(ladder_[0])) {
  const auto is_exact = [](const SideLadder& l) {
    return l.stages.empty() ||
           (l.stages.size() == 1 && l.stages[0].layout.scheme.codec == Codec::kF16);
  };
  if (is_exact(ladder_[0]) && is_exact(ladder_[1])) sink_tokens_ = 0;
  for (const CellStage& s : ladder_[0].stages) {
    const uint8_t bits = s.layout.scheme.bits;
    const bool known = std::any_of(tables_.begin(), tables_.end(),
                                   [&](const TableSet& t) { return t.bits == bits; });
    if (s.needs_table && !known) tables_.push_back({bits, {}});
  }
  last_key_stage_ = LastKeyStage();
}

int64_t CellCache::FitTokens(const SideLadder& keys) {
  for (const CellStage& s : keys.stages) {
    if (s.leave_age > 0) return std::clamp(s.leave_age, kMinFitTokens, kMaxFitTokens);
  }
  return kMinFitTokens;
}

Result<std::unique_ptr<CellCache>> CellCache::Create(const Settings& settings,
                                                     const CellShape& shape, MapFunction map) {
  VARVE_RETURN_IF_ERROR(CheckShape(shape));
  VARVE_RETURN_IF_ERROR(CheckSettings(settings));
  auto keys = MakeSideLadder(settings, Side::kKey, shape.head_dim_k);
  if (!keys.ok()) return keys.status();
  SideLadder value_ladder;
  if (shape.head_dim_v != 0) {
    auto values = MakeSideLadder(settings, Side::kValue, shape.head_dim_v);
    if (!values.ok()) return values.status();
    value_ladder = std::move(values).value();
  }
  auto cache = std::unique_ptr<CellCache>(new CellCache(
      shape, std::move(keys).value(), std::move(value_ladder), settings.sink_tokens, map));
  cache->value_skip_share_ = static_cast<float>(settings.value_skip_share);
  return cache;
}

Status CellCache::SetRope(RopePairing pairing, int32_t n_rope_dims) {
  VARVE_RETURN_IF_ERROR(CheckRopeFields(pairing, n_rope_dims, shape_.head_dim_k));
  if (pairing == shape_.pairing && n_rope_dims == shape_.n_rope_dims) return Status();
  if (has_tables_) {
    return Status(StatusCode::kInvalidState,
                  "rope_kind=" + std::to_string(static_cast<int>(pairing)) + " n_rope_dims=" +
                      std::to_string(n_rope_dims) + ": key tables were fitted with other pairs");
  }
  shape_.pairing = pairing;
  shape_.n_rope_dims = n_rope_dims;
  return Status();
}

Status CellCache::CheckRange(int64_t first, int64_t n) const {
  const int64_t total = int64_t{shape_.n_cells} * shape_.n_streams;
  if (n < 0)
    return Status(StatusCode::kInvalidArgument, "n=" + std::to_string(n) + " must not be negative");
  if (first < 0 || first > total - n) {
    return Status(StatusCode::kInvalidArgument,
                  "cells " + std::to_string(first) + ".." + std::to_string(first + n - 1) +
                      " are not all in 0.." + std::to_string(total - 1));
  }
  return Status();
}

Status CellCache::CheckSide(Side side) const {
  if (side == Side::kKey || (side == Side::kValue && has_values())) return Status();
  if (side == Side::kValue) {
    return Status(StatusCode::kInvalidArgument,
                  "side=value: head_dim_v is 0, no value rows are stored");
  }
  return Status(StatusCode::kInvalidArgument,
                "side=" + std::to_string(static_cast<int>(side)) + " must be 0 or 1");
}

CellCache::CellPlace CellCache::Locate(int64_t cell) const {
  const auto stream = static_cast<int32_t>(cell / shape_.n_cells);
  const auto in_stream = static_cast<int32_t>(cell % shape_.n_cells);
  return {stream, in_stream / kBlockTokens, in_stream % kBlockTokens};
}

BlockCoding CellCache::Coding(Side side, size_t stage_index) const {
  const CellStage& s = stage(side, stage_index);
  BlockCoding coding;
  coding.layout = &s.layout;
  if (s.needs_table) {
    const auto set = std::find_if(tables_.begin(), tables_.end(), [&](const TableSet& t) {
      return t.bits == s.layout.scheme.bits;
    });
    coding.tables = set->tables.data();
  }
  return coding;
}

size_t CellCache::stage_block_bytes(Side side, size_t stage_index) const {
  return stage(side, stage_index).layout.block_bytes(shape_.n_kv_heads);
}

size_t CellCache::max_block_bytes() const {
  size_t bytes = 0;
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (size_t s = 0; s < ladder(side).stages.size(); ++s)
      bytes = std::max(bytes, stage_block_bytes(side, s));
  }
  return bytes;
}

void CellCache::GrowStream(Stream& stream, int32_t block) {
  if (static_cast<size_t>(block) < stream.blocks.size()) return;
  const auto grown =
      static_cast<size_t>(std::min(RoundUp(block + 1, kGrowBlocks), blocks_per_stream_));
  stream.due.Reserve(grown);
  stream.blocks.reserve(grown);
  stream.blocks.resize(grown);
}

void CellCache::DropExact(Stream& stream, CellBlock& block, int32_t cell, size_t side) {
  const uint32_t bit = uint32_t{1} << (cell % kBlockTokens);
  if ((block.exact[side] & bit) == 0) return;
  block.exact[side] &= ~bit;
  const auto found = stream.exact_cells.find(cell);
  if ((block.exact[1 - side] & bit) == 0) {
    stream.exact_cells.erase(found);
  } else {
    found->second.row[side] = {};
  }
}

void CellCache::AttachExact(Stream& stream, CellBlock& block, size_t side,
                            std::map<int32_t, ExactCell>& exact_cells) {
  while (!exact_cells.empty()) {
    auto node = exact_cells.extract(exact_cells.begin());
    const int32_t cell = node.key();
    block.exact[side] |= uint32_t{1} << (cell % kBlockTokens);
    const auto inserted = stream.exact_cells.insert(std::move(node));
    if (!inserted.inserted)
      inserted.position->second.row[side] = std::move(inserted.node.mapped().row[side]);
  }
}

Status CellCache::Forget(int64_t first, int32_t n) {
  VARVE_RETURN_IF_ERROR(CheckRange(first, n));
  int64_t left = n;
  for (int64_t cell = first; left > 0;) {
    const CellPlace place = Locate(cell);
    const int32_t block_end = std::min((place.block + 1) * kBlockTokens, shape_.n_cells);
    const int64_t run =
        std::min<int64_t>(left, block_end - (place.block * kBlockTokens + place.token));
    Stream& stream = streams_[static_cast<size_t>(place.stream)];
    if (static_cast<size_t>(place.block) < stream.blocks.size()) {
      ForgetCells(stream, place.block, RunMask(place.token, static_cast<int>(run)));
    }
    cell += run;
    left -= run;
  }
  store_.Reclaim();
  ResetIfEmpty();
  return Status();
}

void CellCache::ForgetCells(Stream& stream, int32_t block_index, uint32_t cells) {
  CellBlock& block = stream.blocks[static_cast<size_t>(block_index)];
  for (const size_t side : {size_t{0}, size_t{1}}) {
    for (uint32_t m = block.exact[side] & cells; m != 0; m &= m - 1) {
      DropExact(stream, block, block_index * kBlockTokens + std::countr_zero(m), side);
    }
    block.written[side] &= ~cells;
    block.fresh[side] &= ~cells;
    if (block.written[side] == 0) store_.Free(block.payload[side]);
  }
  block.positioned &= ~cells;
  if (block.any_written() != 0) {
    ScheduleBlock(stream, block_index);
    return;
  }
  block.Collapse();
  block.newest_clock = kNoTime;
  block.keys_wait = false;
  stream.due.Remove(block_index);
}

void CellCache::ResetIfEmpty() {
  for (const Stream& stream : streams_) {
    for (const CellBlock& block : stream.blocks) {
      if (block.any_written() != 0) return;
    }
  }
  for (Stream& stream : streams_) stream = Stream();
  statistics_.Reset();
  for (TableSet& set : tables_) set.tables.clear();
  has_tables_ = keys_wait_ = false;
  last_key_stage_ = LastKeyStage();
  rotations_.Clear();
}

std::span<const std::byte> CellCache::Payload(Side side, int64_t cell) const {
  const CellPlace place = Locate(cell);
  const Stream& stream = streams_[static_cast<size_t>(place.stream)];
  if (static_cast<size_t>(place.block) >= stream.blocks.size()) return {};
  const StoreSlot& slot =
      stream.blocks[static_cast<size_t>(place.block)].payload[static_cast<size_t>(side)];
  if (!slot) return {};
  return {slot.data, stage_block_bytes(side, slot.stage)};
}

CellStats CellCache::Stats() const {
  CellStats stats;
  stats.n_demotions = n_demotions_;
  stats.n_promotions = n_promotions_;
  stats.append_seconds = append_seconds_;
  stats.retier_seconds = retier_seconds_;
  stats.attend_seconds = attend_seconds_;
  stats.last_key_bits = stage(Side::kKey, last_key_stage_).layout.scheme.bits;
  stats.packed_bytes = store_.held_bytes() + held_side_bytes();
  stats.payload_bytes = store_.live_bytes();
  for (const Stream& stream : streams_) {
    for (const auto& [cell, exact] : stream.exact_cells) {
      stats.payload_bytes += (exact.row[0].size() + exact.row[1].size()) * sizeof(uint16_t);
    }
    for (const CellBlock& block : stream.blocks) {
      const int n_written = std::popcount(block.any_written());
      if (n_written == 0) continue;
      const int n_exact = std::popcount(ExactMask(block));
      const Side side = block.payload[0] ? Side::kKey : Side::kValue;
      const auto tier =
          static_cast<size_t>(stage(side, block.payload[static_cast<size_t>(side)].stage).tier);
      stats.n_tokens += n_written;
      stats.tier_tokens[tier] += n_written - n_exact;
      stats.tier_tokens[3] += n_exact;
      stats.f16_bytes +=
          2 * (static_cast<size_t>(std::popcount(block.written[0])) * row_elements(Side::kKey) +
               static_cast<size_t>(std::popcount(block.written[1])) * row_elements(Side::kValue));
    }
  }
  return stats;
}

size_t CellCache::held_side_bytes() const {
  size_t bytes = rotations_.held_bytes() + statistics_.held_bytes();
  for (const TableSet& set : tables_) {
    for (const KeyTable& table : set.tables) bytes += KeyTableBytes(table);
  }
  for (const Stream& stream : streams_) {
    bytes += stream.blocks.capacity() * sizeof(CellBlock) + stream.due.held_bytes();
    for (const CellBlock& block : stream.blocks)
      bytes += block.has_detail() ? sizeof(CellDetail) : 0;
    for (const auto& [cell, exact] : stream.exact_cells) {
      bytes += ExactCellBytes(exact.row[0].size() + exact.row[1].size());
    }
  }
  return bytes;
}

}  // namespace varve
