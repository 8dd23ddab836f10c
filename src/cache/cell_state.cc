// A cell cache in a session file: its blocks' book-keeping, codes and exact rows as they lie, key
// tables or the statistics before them, and pending rotations. Due times follow from the rest.
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "cache/cell_cache.h"
#include "session/coding.h"
#include "session/key_tables.h"

namespace varve {
namespace {

constexpr int64_t kMaxClock = int64_t{1} << 60;
constexpr int64_t kMaxCounter = int64_t{1} << 60;
/// Of a block in the section cell_blocks, with one number or one for each cell.
constexpr size_t kBlockFixedBytes = 8 * sizeof(uint32_t) + sizeof(int64_t) + 4;

Status Bad(const std::string& what) { return Status(StatusCode::kBadFormat, what); }

template <typename T>
Status CheckSame(const std::string& field, T stored, T own) {
  if (stored == own) return Status();
  return Status(StatusCode::kIncompatible, field + " is " + std::to_string(stored) +
                                               " in the session, " + std::to_string(own) + " here");
}

SectionType SectionOf(Side side) {
  return side == Side::kKey ? SectionType::kKeys : SectionType::kValues;
}

std::string NameOf(Side side) { return side == Side::kKey ? "keys" : "values"; }

bool InRange(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

}  // namespace

std::array<std::pair<const char*, int64_t>, 8> CellCache::Identity() const {
  return {{{"n_cells", shape_.n_cells},
           {"n_streams", shape_.n_streams},
           {"n_kv_heads", shape_.n_kv_heads},
           {"head_dim_k", shape_.head_dim_k},
           {"head_dim_v", shape_.head_dim_v},
           {"rope_kind", static_cast<int64_t>(shape_.pairing)},
           {"n_rope_dims", shape_.n_rope_dims},
           {"sink_tokens", sink_tokens_}}};
}

void CellCache::Save(uint32_t index, SessionWriter* writer) const {
  ByteWriter& identity = writer->Add(SectionType::kCache, index).own;
  for (const auto& [field, value] : Identity()) identity.Put(value);
  identity.Put(ladder(Side::kKey).key_error_limit);

  ByteWriter& coding = writer->Add(SectionType::kCoding, index).own;
  for (const SideLadder& one : ladder_) {
    coding.Put(static_cast<int64_t>(one.stages.size()));
    for (const CellStage& s : one.stages) {
      coding.Put(static_cast<int64_t>(s.tier));
      coding.Put(s.leave_age);
      PutCoding(DescribeBlock(s.layout), &coding);
    }
  }

  ByteWriter& state = writer->Add(SectionType::kState, index).own;
  state.Put(n_demotions_);
  state.Put(n_promotions_);
  state.Put(int64_t{keys_wait_});
  for (const Stream& stream : streams_) {
    int64_t n_blocks = 0;
    for (const CellBlock& block : stream.blocks) n_blocks += block.any_written() != 0 ? 1 : 0;
    state.Put(stream.clock);
    state.Put(stream.newest_position);
    state.Put(n_blocks);
  }

  if (has_tables_) {
    ByteWriter& tables = writer->Add(SectionType::kKeyTables, index).own;
    for (const TableSet& set : tables_) {
      for (const KeyTable& table : set.tables) PutKeyTable(table, &tables);
    }
  } else if (ladder(Side::kKey).needs_tables()) {
    statistics_.Save(&writer->Add(SectionType::kKeyStatistics, index).own);
  }
  SavePayloads(index, writer);
  SaveBlocks(index, writer);

  if (rotations_.size() == 1) return;
  ByteWriter& rotations = writer->Add(SectionType::kCellRotations, index).own;
  rotations.Put(static_cast<uint32_t>(rotations_.pairing()));
  rotations.Put(static_cast<uint32_t>(rotations_.angles().size()));
  rotations.PutAll(rotations_.angles());
  rotations.Put(static_cast<uint32_t>(rotations_.size() - 1));
  for (size_t i = 1; i < rotations_.size(); ++i)
    rotations.Put(rotations_.delta(static_cast<int32_t>(i)));
}

void CellCache::SavePayloads(uint32_t index, SessionWriter* writer) const {
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (side == Side::kValue && !has_values()) continue;
    SessionWriter::Section& payloads = writer->Add(SectionOf(side), index);
    for (const Stream& stream : streams_) {
      for (const CellBlock& block : stream.blocks) {
        const StoreSlot& slot = block.payload[static_cast<size_t>(side)];
        if (slot) payloads.Borrow(slot.data, stage_block_bytes(side, slot.stage));
      }
    }
  }
}

void CellCache::SaveBlocks(uint32_t index, SessionWriter* writer) const {
  ByteWriter& blocks = writer->Add(SectionType::kCellBlocks, index).own;
  SessionWriter::Section& exact_rows = writer->Add(SectionType::kCellExactRows, index);
  for (const Stream& stream : streams_) {
    for (size_t b = 0; b < stream.blocks.size(); ++b) {
      const CellBlock& block = stream.blocks[b];
      if (block.any_written() == 0) continue;
      blocks.Put(static_cast<uint32_t>(b));
      for (const auto* masks : {block.written, block.fresh, block.exact}) {
        blocks.Put(masks[0]);
        blocks.Put(masks[1]);
      }
      blocks.Put(block.positioned);
      blocks.Put(block.newest_clock);
      for (const StoreSlot& slot : block.payload) blocks.Put(slot ? slot.stage : uint8_t{0});
      blocks.Put(uint8_t{block.keys_wait});
      blocks.Put(uint8_t{block.has_detail()});
      // Cells without keys may hold the number of a rotation that is gone.
      const auto rotation = [&](int t) {
        const bool turns =
            block.has_detail() ? (block.written[0] >> t & 1u) != 0 : block.written[0] != 0;
        return turns ? block.rotation(t) : 0;
      };
      if (!block.has_detail()) {
        blocks.Put(block.positioned != 0 ? block.position(0) : 0);
        blocks.Put(rotation(0));
      } else {
        for (int t = 0; t < kBlockTokens; ++t)
          blocks.Put((block.positioned >> t & 1u) != 0 ? block.position(t) : 0);
        for (int t = 0; t < kBlockTokens; ++t) blocks.Put(rotation(t));
      }
    }
    for (const auto& [cell, exact] : stream.exact_cells) {
      for (const std::vector<uint16_t>& row : exact.row)
        exact_rows.Borrow(reinterpret_cast<const std::byte*>(row.data()),
                          row.size() * sizeof(uint16_t));
    }
  }
}

Status CellCache::CheckIdentity(uint32_t index, SessionReader* reader) const {
  Result<std::vector<std::byte>> bytes = reader->Read(SectionType::kCache, index);
  if (!bytes.ok()) return bytes.status();
  ByteReader from(bytes.value());
  for (const auto& [field, own] : Identity())
    VARVE_RETURN_IF_ERROR(CheckSame(field, from.Get<int64_t>(), own));
  VARVE_RETURN_IF_ERROR(
      CheckSame("key_error_limit", from.Get<double>(), ladder(Side::kKey).key_error_limit));
  if (!from.done()) return Bad("cache: not as long as its fields");

  bytes = reader->Read(SectionType::kCoding, index);
  if (!bytes.ok()) return bytes.status();
  ByteReader coding(bytes.value());
  for (const Side side : {Side::kKey, Side::kValue}) {
    const auto& stages = ladder(side).stages;
    const std::string ladder_name = "ladder of " + NameOf(side);
    VARVE_RETURN_IF_ERROR(CheckSame(ladder_name + ": stages", coding.Get<int64_t>(),
                                    static_cast<int64_t>(stages.size())));
    for (size_t s = 0; s < stages.size(); ++s) {
      const std::string name = ladder_name + ", stage " + std::to_string(s);
      VARVE_RETURN_IF_ERROR(
          CheckSame(name + ": tier", coding.Get<int64_t>(), static_cast<int64_t>(stages[s].tier)));
      VARVE_RETURN_IF_ERROR(
          CheckSame(name + ": leave_age", coding.Get<int64_t>(), stages[s].leave_age));
      VARVE_RETURN_IF_ERROR(CheckCoding(DescribeBlock(stages[s].layout), name, &coding));
    }
  }
  return coding.done() ? Status() : Bad("coding: has more than its fields");
}

Status CellCache::LoadLearned(uint32_t index, SessionReader* reader) {
  if (!ladder(Side::kKey).needs_tables()) return Status();
  has_tables_ = reader->Has(SectionType::kKeyTables, index);
  Result<std::vector<std::byte>> bytes =
      reader->Read(has_tables_ ? SectionType::kKeyTables : SectionType::kKeyStatistics, index);
  if (!bytes.ok()) return bytes.status();
  ByteReader from(bytes.value());
  if (!has_tables_) {
    VARVE_RETURN_IF_ERROR(statistics_.Load(&from));
    return from.done() ? Status() : Bad("key_statistics: has more than its fields");
  }
  for (TableSet& set : tables_) {
    const BlockLayout layout =
        MakeBlockLayout({Codec::kRopePair, set.bits}, Side::kKey, shape_.head_dim_k);
    for (int32_t h = 0; h < shape_.n_kv_heads; ++h) {
      Result<KeyTable> table =
          GetKeyTable(layout, std::to_string(set.bits) + " bits, head " + std::to_string(h), &from);
      if (!table.ok()) return table.status();
      set.tables.push_back(std::move(table).value());
    }
  }
  last_key_stage_ = LastKeyStage();
  return from.done() ? Status() : Bad("key_tables: has more than one for each head");
}

Status CellCache::LoadStreams(uint32_t index, SessionReader* reader) {
  Result<std::vector<std::byte>> state_bytes = reader->Read(SectionType::kState, index);
  if (!state_bytes.ok()) return state_bytes.status();
  Result<std::vector<std::byte>> block_bytes = reader->Read(SectionType::kCellBlocks, index);
  if (!block_bytes.ok()) return block_bytes.status();
  ByteReader state(state_bytes.value());
  ByteReader blocks(block_bytes.value());
  n_demotions_ = state.Get<uint64_t>();
  n_promotions_ = state.Get<uint64_t>();
  const auto keys_wait = state.Get<int64_t>();
  if (n_demotions_ > kMaxCounter || n_promotions_ > kMaxCounter ||
      !InRange(keys_wait, 0, has_tables_ ? 0 : 1)) {
    return Bad("state: counters, or keys that wait beside their tables");
  }
  keys_wait_ = keys_wait != 0;
  for (Stream& stream : streams_) {
    stream.clock = state.Get<int64_t>();
    stream.newest_position = state.Get<int64_t>();
    const auto n_blocks = state.Get<int64_t>();
    if (!InRange(stream.clock, 0, kMaxClock) ||
        (stream.newest_position != kNoTime &&
         !InRange(stream.newest_position, -kMaxShift, kMaxShift)) ||
        !InRange(n_blocks, 0, blocks_per_stream_) ||
        static_cast<size_t>(n_blocks) > blocks.n_left() / kBlockFixedBytes) {
      return Bad("state: stream with clock " + std::to_string(stream.clock) + ", newest_position " +
                 std::to_string(stream.newest_position) + ", " + std::to_string(n_blocks) +
                 " blocks");
    }
    int64_t last = -1;
    for (int64_t i = 0; i < n_blocks; ++i) {
      const int64_t number = blocks.Get<uint32_t>();
      if (number <= last || number >= blocks_per_stream_)
        return Bad("cell_blocks: block " + std::to_string(number) + " after " +
                   std::to_string(last));
      GrowStream(stream, static_cast<int32_t>(number));
      const int32_t n_cells = shape_.n_cells - static_cast<int32_t>(number) * kBlockTokens;
      const Status status = LoadBlock(stream.clock, RunMask(0, std::min(n_cells, kBlockTokens)),
                                      stream.blocks[static_cast<size_t>(number)], &blocks);
      if (!status.ok())
        return Bad("cell_blocks: block " + std::to_string(number) + ": " + status.text());
      last = number;
    }
  }
  return state.done() && blocks.done() ? Status() : Bad("state or cell_blocks: more than streams");
}

Status CellCache::LoadBlock(int64_t clock, uint32_t cells, CellBlock& block, ByteReader* from) {
  for (auto* masks : {block.written, block.fresh, block.exact}) {
    masks[0] = from->Get<uint32_t>();
    masks[1] = from->Get<uint32_t>();
  }
  block.positioned = from->Get<uint32_t>();
  block.newest_clock = from->Get<int64_t>();
  for (const Side side : {Side::kKey, Side::kValue}) {
    const auto s = static_cast<size_t>(side);
    const auto stage_index = from->Get<uint8_t>();
    if ((block.written[s] & ~cells) != 0 || (block.fresh[s] & ~block.written[s]) != 0 ||
        (block.exact[s] & ~block.written[s]) != 0 ||
        (side == Side::kValue && !has_values() && block.written[s] != 0)) {
      return Bad("masks of " + NameOf(side) + " name cells that hold nothing");
    }
    if (block.written[s] == 0) {
      if (stage_index != 0) return Bad("a stage without a payload");
      continue;
    }
    if (stage_index >= ladder(side).stages.size() ||
        (stage(side, stage_index).needs_table && !has_tables_)) {
      return Bad("stage " + std::to_string(stage_index) + " of " + NameOf(side));
    }
    auto slot = store_.Allocate(stage_block_bytes(side, stage_index));
    if (!slot.ok()) return slot.status();
    block.payload[s] = slot.value();
    block.payload[s].stage = stage_index;
  }
  const auto keys_wait = from->Get<uint8_t>();
  const auto has_detail = from->Get<uint8_t>();
  if (block.any_written() == 0 || (block.positioned & ~block.any_written()) != 0 ||
      (block.newest_clock != kNoTime && !InRange(block.newest_clock, 0, clock)) ||
      keys_wait > (keys_wait_ ? 1 : 0) || has_detail > 1) {
    return Bad("written " + std::to_string(block.any_written()) + ", positioned " +
               std::to_string(block.positioned) + ", newest_clock " +
               std::to_string(block.newest_clock) + " or flags");
  }
  block.keys_wait = keys_wait != 0;
  if (has_detail == 0) {
    const auto base = from->Get<int32_t>();
    if (!InRange(base, -kMaxShift - kBlockTokens, kMaxShift))
      return Bad("position " + std::to_string(base));
    block.SetBase(base, from->Get<int32_t>());
    return from->ok() ? Status() : Bad("cut short");
  }
  block.Expand();
  for (int t = 0; t < kBlockTokens; ++t) {
    const auto position = from->Get<int32_t>();
    if (!InRange(position, -kMaxShift, kMaxShift))
      return Bad("position " + std::to_string(position));
    const uint32_t positioned = block.positioned;
    block.SetPosition(t, position);
    block.positioned = positioned;
  }
  for (int t = 0; t < kBlockTokens; ++t) block.SetRotation(t, from->Get<int32_t>());
  return from->ok() ? Status() : Bad("cut short");
}

Status CellCache::LoadRotations(uint32_t index, SessionReader* reader) {
  size_t n_rotations = 0;
  if (reader->Has(SectionType::kCellRotations, index)) {
    Result<std::vector<std::byte>> bytes = reader->Read(SectionType::kCellRotations, index);
    if (!bytes.ok()) return bytes.status();
    ByteReader from(bytes.value());
    const auto pairing = from.Get<uint32_t>();
    const auto n_angles = from.Get<uint32_t>();
    if (!InRange(pairing, 1, 2) || !InRange(n_angles, 1, shape_.head_dim_k / 2) || !has_values())
      return Bad("cell_rotations: pairing " + std::to_string(pairing) + " with " +
                 std::to_string(n_angles) + " angles");
    std::vector<double> angles(n_angles);
    from.GetAll(angles);
    for (const double angle : angles) {
      if (!std::isfinite(angle)) return Bad("cell_rotations: an angle is not finite");
    }
    n_rotations = from.Get<uint32_t>();
    int64_t n_keys = 0;
    for (const Stream& stream : streams_) {
      for (const CellBlock& block : stream.blocks) n_keys += std::popcount(block.written[0]);
    }
    if (static_cast<int64_t>(n_rotations) > n_keys)
      return Bad("cell_rotations: " + std::to_string(n_rotations) + " for " +
                 std::to_string(n_keys) + " keys");
    std::vector<int32_t> deltas(n_rotations);
    from.GetAll(deltas);
    if (!from.done()) return Bad("cell_rotations: not as long as its fields");
    for (const int32_t delta : deltas) {
      if (!InRange(delta, -kMaxShift, kMaxShift))
        return Bad("cell_rotations: delta " + std::to_string(delta));
    }
    VARVE_RETURN_IF_ERROR(rotations_.Restore(static_cast<RopePairing>(pairing), std::move(angles),
                                             std::move(deltas)));
  }
  for (const Stream& stream : streams_) {
    for (const CellBlock& block : stream.blocks) {
      for (int t = 0; t < (block.has_detail() ? kBlockTokens : 1); ++t) {
        if (!InRange(block.rotation(t), 0, static_cast<int64_t>(n_rotations)))
          return Bad("cell_blocks: rotation " + std::to_string(block.rotation(t)));
      }
    }
  }
  return Status();
}

Status CellCache::LoadPayloads(uint32_t index, SessionReader* reader) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (side == Side::kValue && !has_values()) continue;
    Result<SectionStream> payloads = reader->Stream(SectionOf(side), index);
    if (!payloads.ok()) return payloads.status();
    for (const Stream& stream : streams_) {
      for (const CellBlock& block : stream.blocks) {
        const StoreSlot& slot = block.payload[static_cast<size_t>(side)];
        if (!slot) continue;
        VARVE_RETURN_IF_ERROR(
            payloads.value().Read(slot.data, stage_block_bytes(side, slot.stage)));
        if (!BlockIsSound(stage(side, slot.stage).layout, shape_.n_kv_heads, slot.data, true))
          return Bad(NameOf(side) + ": a gain is infinite");
      }
    }
    VARVE_RETURN_IF_ERROR(payloads.value().Finish());
  }
  Result<SectionStream> exact_rows = reader->Stream(SectionType::kCellExactRows, index);
  if (!exact_rows.ok()) return exact_rows.status();
  for (Stream& stream : streams_) {
    for (size_t b = 0; b < stream.blocks.size(); ++b) {
      const CellBlock& block = stream.blocks[b];
      for (uint32_t m = block.exact[0] | block.exact[1]; m != 0; m &= m - 1) {
        const int token = std::countr_zero(m);
        ExactCell& exact = stream.exact_cells[static_cast<int32_t>(b) * kBlockTokens + token];
        for (const Side side : {Side::kKey, Side::kValue}) {
          const auto s = static_cast<size_t>(side);
          if ((block.exact[s] >> token & 1u) == 0) continue;
          exact.row[s].resize(row_elements(side));
          VARVE_RETURN_IF_ERROR(
              exact_rows.value().Read(reinterpret_cast<std::byte*>(exact.row[s].data()),
                                      exact.row[s].size() * sizeof(uint16_t)));
        }
      }
    }
  }
  return exact_rows.value().Finish();
}

Result<std::unique_ptr<CellCache>> CellCache::Load(uint32_t index, SessionReader* reader) const {
  VARVE_RETURN_IF_ERROR(CheckIdentity(index, reader));
  std::unique_ptr<CellCache> loaded(
      new CellCache(shape_, ladder_[0], ladder_[1], sink_tokens_, store_.map_function()));
  VARVE_RETURN_IF_ERROR(loaded->LoadLearned(index, reader));
  VARVE_RETURN_IF_ERROR(loaded->LoadStreams(index, reader));
  VARVE_RETURN_IF_ERROR(loaded->LoadRotations(index, reader));
  VARVE_RETURN_IF_ERROR(loaded->LoadPayloads(index, reader));
  for (Stream& stream : loaded->streams_) {
    for (size_t b = 0; b < stream.blocks.size(); ++b) {
      if (stream.blocks[b].any_written() != 0)
        loaded->ScheduleBlock(stream, static_cast<int32_t>(b));
    }
  }
  return loaded;
}

}  // namespace varve
