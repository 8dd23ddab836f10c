// Demotion: which blocks are due, down to which stage, and the re-encoding on the way; and the fit
// of the key tables.
#include <algorithm>
#include <chrono>
#include <string>

#include "base/parallel.h"
#include "base/scope_exit.h"
#include "cache/cell_cache.h"

namespace varve {

/// One block on its way down.
struct CellCache::Demotion {
  int32_t block = 0;
  size_t target[2] = {0, 0};  ///< stage a side ends in
  StoreSlot slot[2];          ///< its payload there; null when the bytes stay
};

namespace {

/// Blocks re-encoded before their old payloads are freed, so that a large demotion does not double
/// the cache.
constexpr size_t kDemotionsAtOnce = 64;

}  // namespace

int64_t CellCache::BlockAge(const CellBlock& block, int64_t clock, int64_t newest_position) const {
  const int64_t clock_age = clock - block.newest_clock;
  const int64_t position = block.newest_position();
  if (position == kNoTime || newest_position == kNoTime) return clock_age;
  return std::min(clock_age, newest_position - position);
}

int64_t CellCache::NextLeaveAge(const CellBlock& block) const {
  int64_t leave_age = kNeverLeaves;
  for (const Side side : {Side::kKey, Side::kValue}) {
    const StoreSlot& slot = block.payload[static_cast<size_t>(side)];
    if (!slot || (side == Side::kKey && (block.keys_wait || slot.stage >= last_key_stage_)))
      continue;
    leave_age = std::min(leave_age, stage(side, slot.stage).leave_age);
  }
  return leave_age;
}

void CellCache::ScheduleBlock(Stream& stream, int32_t block_index) {
  const CellBlock& block = stream.blocks[static_cast<size_t>(block_index)];
  const int64_t leave_age = NextLeaveAge(block);
  if (leave_age == kNeverLeaves) {
    stream.due.Remove(block_index);
  } else {
    stream.due.Put(DueQueue::Order::kClock, block_index, block.newest_clock + leave_age);
  }
}

void CellCache::RescheduleStream(Stream& stream) {
  stream.newest_position = kNoTime;
  for (size_t b = 0; b < stream.blocks.size(); ++b) {
    if (stream.blocks[b].any_written() == 0) continue;
    stream.newest_position = std::max(stream.newest_position, stream.blocks[b].newest_position());
    ScheduleBlock(stream, static_cast<int32_t>(b));
  }
}

void CellCache::FitTables() {
  std::vector<TableSet> fitted;
  for (const TableSet& set : tables_) {
    TableSet next{set.bits, {}};
    for (int h = 0; h < shape_.n_kv_heads; ++h) {
      next.tables.push_back(FitKeyTable(statistics_.energies(h), shape_.pairing, shape_.n_rope_dims,
                                        shape_.head_dim_k, set.bits));
    }
    fitted.push_back(std::move(next));
  }
  AdoptTables(std::move(fitted));
}

void CellCache::AdoptTables(std::vector<TableSet> tables) {
  tables_ = std::move(tables);
  has_tables_ = true;
  keys_wait_ = false;
  last_key_stage_ = LastKeyStage();
  for (Stream& stream : streams_) {
    for (size_t b = 0; b < stream.blocks.size(); ++b) {
      if (!stream.blocks[b].keys_wait) continue;
      stream.blocks[b].keys_wait = false;
      ScheduleBlock(stream, static_cast<int32_t>(b));
    }
  }
}

size_t CellCache::LastKeyStage() const {
  const SideLadder& keys = ladder(Side::kKey);
  // The width that tokens are written at is the user's choice; the limit is about stepping down.
  const auto entry = static_cast<size_t>(keys.entry(true));
  for (size_t s = entry + 1; s < keys.stages.size() && keys.key_error_limit > 0; ++s) {
    if (!keys.stages[s].needs_table) continue;
    if (least_key_bits_) {
      if (has_tables_ && keys.stages[s].layout.scheme.bits < *least_key_bits_) return s - 1;
      continue;
    }
    for (const TableSet& set : tables_) {
      if (set.bits != keys.stages[s].layout.scheme.bits) continue;
      for (const KeyTable& table : set.tables) {
        if (static_cast<double>(table.product_error) > keys.key_error_limit) return s - 1;
      }
    }
  }
  return keys.stages.size() - 1;
}

size_t CellCache::TargetStage(const CellBlock& block, Side side, int64_t age) const {
  const StoreSlot& slot = block.payload[static_cast<size_t>(side)];
  if (!slot) return 0;
  size_t target = slot.stage;
  while (stage(side, target).leave_age <= age &&
         (side == Side::kValue || target < last_key_stage_) &&
         (has_tables_ || !stage(side, target + 1).needs_table))
    ++target;
  return target;
}

std::vector<int32_t> CellCache::TakeDue(Stream& stream, int64_t clock, int64_t newest_position,
                                        std::span<const int32_t> keep) {
  std::vector<int32_t> due;
  due.reserve(stream.blocks.size());
  for (const DueQueue::Order order : {DueQueue::Order::kClock, DueQueue::Order::kPosition}) {
    const int64_t now = order == DueQueue::Order::kClock ? clock : newest_position;
    for (int32_t b = stream.due.PopDue(order, now); b >= 0; b = stream.due.PopDue(order, now)) {
      if (std::binary_search(keep.begin(), keep.end(), b)) continue;
      const CellBlock& block = stream.blocks[static_cast<size_t>(b)];
      const int64_t leave_age = NextLeaveAge(block);
      if (leave_age == kNeverLeaves) continue;
      if (BlockAge(block, clock, newest_position) >= leave_age) {
        due.push_back(b);
      } else if (clock - block.newest_clock < leave_age) {
        stream.due.Put(DueQueue::Order::kClock, b, block.newest_clock + leave_age);
      } else {
        stream.due.Put(DueQueue::Order::kPosition, b, block.newest_position() + leave_age);
      }
    }
  }
  return due;
}

Status CellCache::DemoteDue(Stream& stream, int64_t clock, int64_t newest_position,
                            std::span<const int32_t> keep, int n_threads) {
  if (keys_wait_ && statistics_.ready()) FitTables();
  if (!stream.due.HasDue(clock, newest_position)) return Status();
  const auto start = std::chrono::steady_clock::now();
  std::vector<int32_t> due = TakeDue(stream, clock, newest_position, keep);
  std::sort(due.begin(), due.end());
  const ScopeExit reschedule([&] {
    for (const int32_t b : due) ScheduleBlock(stream, b);
    retier_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  Status status;
  for (size_t begin = 0; begin < due.size() && status.ok(); begin += kDemotionsAtOnce) {
    const size_t n = std::min(kDemotionsAtOnce, due.size() - begin);
    status = DemoteBlocks(stream, std::span<const int32_t>(due).subspan(begin, n), clock,
                          newest_position, n_threads);
  }
  return status;
}

bool CellCache::BytesStay(Side side, size_t from, size_t to) const {
  for (; from < to; ++from) {
    if (stage(side, from).layout.scheme != stage(side, from + 1).layout.scheme) return false;
  }
  return true;
}

Status CellCache::DemoteBlocks(Stream& stream, std::span<const int32_t> due, int64_t clock,
                               int64_t newest_position, int n_threads) {
  for (const int32_t b : due) {
    CellBlock& block = stream.blocks[static_cast<size_t>(b)];
    const StoreSlot& keys = block.payload[0];
    if (has_tables_ || !keys || !NextNeedsTable(keys.stage)) continue;
    if (BlockAge(block, clock, newest_position) < stage(Side::kKey, keys.stage).leave_age) continue;
    if (statistics_.ready()) {
      FitTables();
    } else {
      block.keys_wait = keys_wait_ = true;
    }
  }

  std::vector<Demotion> demotions;
  demotions.reserve(due.size());
  Status status = GrowScratch(n_threads, static_cast<int>(due.size()));
  for (const int32_t b : due) {
    if (!status.ok()) break;
    const CellBlock& block = stream.blocks[static_cast<size_t>(b)];
    Demotion demotion;
    demotion.block = b;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const auto s = static_cast<size_t>(side);
      if (!block.payload[s]) continue;
      demotion.target[s] = TargetStage(block, side, BlockAge(block, clock, newest_position));
      if (BytesStay(side, block.payload[s].stage, demotion.target[s])) continue;
      auto slot = store_.Allocate(stage_block_bytes(side, demotion.target[s]));
      if (!slot.ok()) {
        status = slot.status();
        break;
      }
      demotion.slot[s] = slot.value();
    }
    if (status.ok()) {
      demotions.push_back(demotion);
    } else {
      store_.Free(demotion.slot[0]);
    }
  }

  const int n_repacked = store_.has_memory() ? static_cast<int>(demotions.size()) : 0;
  ParallelFor(n_threads, n_repacked, [&](int task, int thread) {
    const Demotion& demotion = demotions[static_cast<size_t>(task)];
    const CellBlock& block = stream.blocks[static_cast<size_t>(demotion.block)];
    std::byte* scratch = scratch_.data() + ScratchBytes() * static_cast<size_t>(thread);
    for (const Side side : {Side::kKey, Side::kValue}) RepackDown(block, side, demotion, scratch);
  });

  for (Demotion& demotion : demotions) {
    CellBlock& block = stream.blocks[static_cast<size_t>(demotion.block)];
    for (const size_t s : {size_t{0}, size_t{1}}) {
      if (!block.payload[s]) continue;
      if (demotion.slot[s]) {
        store_.Free(block.payload[s]);
        block.payload[s] = demotion.slot[s];
        ++n_demotions_;
      }
      block.payload[s].stage = static_cast<uint8_t>(demotion.target[s]);
    }
  }
  return status;
}

void CellCache::RepackDown(const CellBlock& block, Side side, const Demotion& demotion,
                           std::byte* scratch) const {
  const auto s = static_cast<size_t>(side);
  if (!demotion.slot[s]) return;
  size_t last = demotion.target[s];
  while (BytesStay(side, last - 1, last)) --last;
  const std::byte* from = block.payload[s].data;
  size_t from_stage = block.payload[s].stage;
  std::byte* spare[2] = {scratch, scratch + max_block_bytes()};
  for (size_t next = from_stage + 1; next <= last; ++next) {
    if (BytesStay(side, next - 1, next)) continue;
    std::byte* to = next == last ? demotion.slot[s].data : spare[0];
    RepackBlock(Coding(side, from_stage), Coding(side, next), shape_.n_kv_heads, from, to);
    from = to;
    from_stage = next;
    std::swap(spare[0], spare[1]);
  }
}

}  // namespace varve
