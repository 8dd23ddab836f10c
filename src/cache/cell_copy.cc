// CellCache::CopyFrom: everything is read and reserved first, so ranges may overlap and a failure
// changes nothing.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/scope_exit.h"
#include "cache/cell_cache.h"

namespace varve {

/// What one destination block gets.
struct CellCache::CopyBlock {
  int32_t stream = 0;
  int32_t block = 0;
  uint32_t cells = 0;    ///< covered by the copy
  uint32_t written = 0;  ///< of them, those the source has
  uint32_t positioned = 0;
  uint32_t exact = 0;
  bool whole = false;       ///< the payload's bytes are taken as they are
  bool keeps_rows = false;  ///< the payload that moves has rows the copy does not cover
  int64_t source_age = 0;   ///< clock age of the source block
  std::array<int32_t, kBlockTokens> position{};
  std::array<int32_t, kBlockTokens> rotation{};
  StoreSlot slot;           ///< the new payload; null: written in place, or none
  std::vector<float> rows;  ///< [32][row_elements], empty when whole
  std::map<int32_t, ExactCell> exact_cells;
};

/// How caches differ, settled once a call.
struct CellCache::CopyRules {
  bool adopt_tables = false;  ///< this cache has no key tables yet and takes the source's
  bool same_tables = false;   ///< packed keys mean the same on both sides
  bool keep_rotations =
      false;  ///< pending rotations can move along; else they are applied to the rows
};

bool CellCache::TablesEqual(const CellCache& other) const {
  if (tables_.size() != other.tables_.size()) return false;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].bits != other.tables_[i].bits ||
        tables_[i].tables.size() != other.tables_[i].tables.size()) {
      return false;
    }
    for (size_t h = 0; h < tables_[i].tables.size(); ++h) {
      const KeyTable& a = tables_[i].tables[h];
      const KeyTable& b = other.tables_[i].tables[h];
      if (a.channel != b.channel || a.scale != b.scale || a.n_segments != b.n_segments)
        return false;
      for (int s = 0; s < a.n_segments; ++s) {
        if (a.segments[static_cast<size_t>(s)].bits != b.segments[static_cast<size_t>(s)].bits ||
            a.segments[static_cast<size_t>(s)].n_channels !=
                b.segments[static_cast<size_t>(s)].n_channels) {
          return false;
        }
      }
    }
  }
  return true;
}

CellCache::CopyRules CellCache::RulesFor(const CellCache& src) const {
  CopyRules rules;
  if (&src == this) {
    rules.same_tables = rules.keep_rotations = true;
    return rules;
  }
  const bool same_widths =
      std::equal(tables_.begin(), tables_.end(), src.tables_.begin(), src.tables_.end(),
                 [](const TableSet& a, const TableSet& b) { return a.bits == b.bits; });
  rules.adopt_tables = !has_tables_ && src.has_tables_ && same_widths;
  rules.same_tables = rules.adopt_tables || (has_tables_ && src.has_tables_ && TablesEqual(src));
  rules.keep_rotations = src.rotations_.size() == 1 || rotations_.size() == 1 ||
                         (rotations_.pairing() == src.rotations_.pairing() &&
                          rotations_.angles() == src.rotations_.angles());
  return rules;
}

bool CellCache::TakesBytes(const CellCache& src, const CopyRules& rules, Side side,
                           size_t stage_index) const {
  const auto& stages = ladder(side).stages;
  return stage_index < stages.size() &&
         stages[stage_index].layout.scheme == src.stage(side, stage_index).layout.scheme &&
         (!stages[stage_index].needs_table || rules.same_tables);
}

Status CellCache::PlanCopy(const CellCache& src, const CopyRules& rules, int64_t dst_first,
                           int64_t src_first, int32_t n, Side side,
                           std::vector<CopyBlock>& copies) {
  const auto s = static_cast<size_t>(side);
  const size_t elements = row_elements(side);
  for (int32_t i = 0; i < n;) {
    CopyBlock& copy = copies.emplace_back();
    const CellPlace to = Locate(dst_first + i);
    const CellPlace from = src.Locate(src_first + i);
    copy.stream = to.stream;
    copy.block = to.block;
    const Stream& src_stream = src.streams_[static_cast<size_t>(from.stream)];
    const CellBlock* src_block = static_cast<size_t>(from.block) < src_stream.blocks.size()
                                     ? &src_stream.blocks[static_cast<size_t>(from.block)]
                                     : nullptr;
    const int32_t exists = std::min(kBlockTokens, shape_.n_cells - to.block * kBlockTokens);
    const int32_t src_exists =
        std::min(kBlockTokens, src.shape_.n_cells - from.block * kBlockTokens);
    copy.whole = to.token == 0 && from.token == 0 && exists == src_exists && n - i >= exists &&
                 (rules.keep_rotations || side == Side::kValue) && src_block != nullptr &&
                 src_block->payload[s] && TakesBytes(src, rules, side, src_block->payload[s].stage);
    if (src_block != nullptr && src_block->written[s] != 0) {
      copy.source_age = src_stream.clock - src_block->newest_clock;
    }
    for (; i < n; ++i) {
      const CellPlace cell = Locate(dst_first + i);
      if (cell.stream != to.stream || cell.block != to.block) break;
      PlanCopyCell(src, rules, src_first + i, cell.token, side, elements, copy);
    }
    if (copy.whole) {
      const StoreSlot& payload = src_block->payload[s];
      auto slot = store_.Allocate(stage_block_bytes(side, payload.stage));
      if (!slot.ok()) return slot.status();
      copy.slot = slot.value();
      copy.slot.stage = payload.stage;
      std::memcpy(copy.slot.data, payload.data, stage_block_bytes(side, payload.stage));
    }
  }
  return Status();
}

void CellCache::PlanCopyCell(const CellCache& src, const CopyRules& rules, int64_t src_cell,
                             int token, Side side, size_t elements, CopyBlock& copy) {
  const auto s = static_cast<size_t>(side);
  const auto t = static_cast<size_t>(token);
  const uint32_t bit = uint32_t{1} << token;
  copy.cells |= bit;
  const CellPlace from = src.Locate(src_cell);
  const Stream& stream = src.streams_[static_cast<size_t>(from.stream)];
  if (static_cast<size_t>(from.block) >= stream.blocks.size()) return;
  const CellBlock& block = stream.blocks[static_cast<size_t>(from.block)];
  if ((block.written[s] >> from.token & 1) == 0) return;
  copy.written |= bit;
  if ((block.positioned >> from.token & 1) != 0) {
    copy.positioned |= bit;
    copy.position[t] = block.position(from.token);
  }
  const int32_t rotation = block.rotation(from.token);
  if (rules.keep_rotations && rotation != 0) {
    copy.rotation[t] = &src == this ? rotation : rotations_.Intern(src.rotations_.delta(rotation));
  }
  if ((block.exact[s] >> from.token & 1) != 0 &&
      (rules.keep_rotations || rotation == 0 || side == Side::kValue)) {
    copy.exact |= bit;
    copy.exact_cells[copy.block * kBlockTokens + token].row[s] =
        stream.exact_cells.find(from.block * kBlockTokens + from.token)->second.row[s];
  }
  if (copy.whole) return;
  copy.rows.resize(kBlockTokens * elements);
  float* row = copy.rows.data() + t * elements;
  if (rules.keep_rotations || side == Side::kValue) {
    src.DecodeCell(side, stream, from.block, from.token, row);
  } else {
    src.ReadCell(side, src_cell, row);
  }
}

Status CellCache::PrepareCopy(Side side, const CopyRules& rules, CopyBlock& copy) {
  const auto s = static_cast<size_t>(side);
  Stream& stream = streams_[static_cast<size_t>(copy.stream)];
  GrowStream(stream, copy.block);
  CellBlock& block = stream.blocks[static_cast<size_t>(copy.block)];
  const auto entry = static_cast<size_t>(ladder(side).entry(has_tables_ || rules.adopt_tables));
  if (!copy.whole && copy.written != 0 && (!block.payload[s] || block.payload[s].stage != entry)) {
    auto slot = store_.Allocate(stage_block_bytes(side, entry));
    if (!slot.ok()) return slot.status();
    copy.slot = slot.value();
    copy.slot.stage = static_cast<uint8_t>(entry);
    copy.keeps_rows = block.payload[s] && (block.written[s] & ~copy.cells) != 0;
  }
  if (side == Side::kKey && CopyNeedsDetail(block, copy)) block.Expand();
  return Status();
}

bool CellCache::CopyNeedsDetail(const CellBlock& block, const CopyBlock& copy) const {
  if (copy.written == 0) return false;
  // Cells outside the copy, and value rows whose keys it takes away, keep what they have.
  const uint32_t others = block.any_written() & ~copy.written;
  int32_t rotation = others != 0 ? block.rotation(std::countr_zero(others))
                                 : copy.rotation[std::countr_zero(copy.written)];
  const uint32_t anchors = block.positioned & others;
  bool anchored = anchors != 0;
  int64_t base =
      anchored ? int64_t{block.position(std::countr_zero(anchors))} - std::countr_zero(anchors) : 0;
  for (uint32_t m = copy.written; m != 0; m &= m - 1) {
    const int t = std::countr_zero(m);
    if (copy.rotation[static_cast<size_t>(t)] != rotation) return true;
    if ((copy.positioned >> t & 1) == 0) continue;
    const int64_t cell_base = int64_t{copy.position[static_cast<size_t>(t)]} - t;
    if (anchored && cell_base != base) return true;
    anchored = true;
    base = cell_base;
  }
  return false;
}

void CellCache::CommitCopy(Side side, CopyBlock& copy) {
  const auto s = static_cast<size_t>(side);
  Stream& stream = streams_[static_cast<size_t>(copy.stream)];
  CellBlock& block = stream.blocks[static_cast<size_t>(copy.block)];
  if (copy.slot) {
    if (copy.keeps_rows) {
      if (block.payload[s].stage > copy.slot.stage) ++n_promotions_;
      RepackBlock(Coding(side, block.payload[s].stage), Coding(side, copy.slot.stage),
                  shape_.n_kv_heads, block.payload[s].data, copy.slot.data);
    }
    store_.Free(block.payload[s]);
    block.payload[s] = copy.slot;
    copy.slot = StoreSlot{};
  }
  const size_t elements = row_elements(side);
  const uint32_t gone = copy.cells & ~copy.written;
  for (uint32_t m = copy.cells; m != 0; m &= m - 1) {
    DropExact(stream, block, copy.block * kBlockTokens + std::countr_zero(m), s);
  }
  block.written[s] &= ~gone;
  block.fresh[s] &= ~gone;
  if (side == Side::kKey) block.positioned &= ~gone;
  for (uint32_t m = copy.written; m != 0; m &= m - 1) {
    const int token = std::countr_zero(m);
    const uint32_t bit = m & (~m + 1);
    if (BeginsToken(block, s, bit)) {
      block.fresh[1 - s] &= ~bit;
      if (!copy.whole) block.newest_clock = ++stream.clock;
    }
    block.fresh[s] |= bit;
    block.written[s] |= bit;
    if (side == Side::kKey) {
      block.positioned &= ~bit;
      if ((copy.positioned & bit) != 0) {
        block.SetPosition(token, copy.position[static_cast<size_t>(token)]);
        stream.newest_position =
            std::max<int64_t>(stream.newest_position, copy.position[static_cast<size_t>(token)]);
      }
      block.SetRotation(token, copy.rotation[static_cast<size_t>(token)]);
    }
    if (!copy.whole) {
      EncodeEntryRow(side, block.payload[s].stage,
                     copy.rows.data() + static_cast<size_t>(token) * elements, token,
                     block.payload[s].data, scratch_.data());
    }
  }
  if (copy.whole && copy.written != 0) {
    const int64_t clock = stream.clock - copy.source_age;
    block.newest_clock =
        side == Side::kKey || block.written[0] == 0 ? clock : std::max(block.newest_clock, clock);
    block.keys_wait = block.keys_wait && side == Side::kValue;
  }
  AttachExact(stream, block, s, copy.exact_cells);
  // Gives an emptied side's payload back and finds the block's due time anew.
  ForgetCells(stream, copy.block, 0);
}

Status CellCache::CopyFrom(const CellCache& src, int64_t dst_first, int64_t src_first, int32_t n,
                           Side side) {
  VARVE_RETURN_IF_ERROR(CheckSide(side));
  VARVE_RETURN_IF_ERROR(CheckRange(dst_first, n));
  VARVE_RETURN_IF_ERROR(src.CheckRange(src_first, n));
  if (src.shape_.n_kv_heads != shape_.n_kv_heads || src.head_dim(side) != head_dim(side)) {
    return Status(StatusCode::kShapeMismatch, "rows are [" + std::to_string(src.shape_.n_kv_heads) +
                                                  "][" + std::to_string(src.head_dim(side)) +
                                                  "] in the source and [" +
                                                  std::to_string(shape_.n_kv_heads) + "][" +
                                                  std::to_string(head_dim(side)) + "] here");
  }
  if (n == 0 || (&src == this && dst_first == src_first)) return Status();
  const CopyRules rules = RulesFor(src);
  if (&src != this && rules.keep_rotations && src.rotations_.size() > 1 && rotations_.size() == 1) {
    VARVE_RETURN_IF_ERROR(rotations_.SetAngles(src.rotations_.pairing(), src.rotations_.angles()));
  }
  std::vector<TableSet> adopted;
  if (rules.adopt_tables) adopted = src.tables_;
  VARVE_RETURN_IF_ERROR(GrowScratch(1, 1));

  std::vector<CopyBlock> copies;
  const ScopeExit release([&] {
    for (CopyBlock& copy : copies) store_.Free(copy.slot);
    store_.Reclaim();
  });
  VARVE_RETURN_IF_ERROR(PlanCopy(src, rules, dst_first, src_first, n, side, copies));
  for (CopyBlock& copy : copies) VARVE_RETURN_IF_ERROR(PrepareCopy(side, rules, copy));
  if (rules.adopt_tables) AdoptTables(std::move(adopted));
  for (CopyBlock& copy : copies) CommitCopy(side, copy);
  return Status();
}

}  // namespace varve
