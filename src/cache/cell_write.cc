// CellCache::Write: plan, demote what is due, reserve everything that can fail, then encode and
// commit.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/checked_math.h"
#include "base/parallel.h"
#include "base/scope_exit.h"
#include "cache/cell_cache.h"
#include "kernels/kernel_set.h"

namespace varve {
namespace {

bool HasPosition(const int32_t* positions, int32_t row) {
  return positions != nullptr && positions[row] >= 0;
}

/// A row as f32: where it lies, or in `buffer`.
const float* RowAsFloats(RowType type, const std::byte* row, size_t n, float* buffer) {
  const auto address = reinterpret_cast<uintptr_t>(row);
  if (type == RowType::kF32 && address % alignof(float) == 0)
    return reinterpret_cast<const float*>(row);
  if (type == RowType::kF16 && address % alignof(uint16_t) == 0) {
    ActiveKernels().rows->from_f16(reinterpret_cast<const uint16_t*>(row), buffer,
                                   static_cast<int>(n));
  } else {
    LoadRow(type, row, n, buffer);
  }
  return buffer;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

/// The rows of a Write call that fall into one block, and what was reserved for them.
struct CellCache::Touch {
  int32_t stream = 0;
  int32_t block = 0;
  std::span<const int32_t> rows;  ///< row numbers of the call, in order
  uint32_t cells = 0;
  StoreSlot slot;           ///< where the payload moves to; null: it is written in place
  bool keeps_rows = false;  ///< the payload that moves has rows that this call does not replace
  bool collapse = false;    ///< detail is no longer needed
  std::map<int32_t, ExactCell> exact_cells;  ///< new exact rows, by cell of the stream
};

bool CellCache::WantsExact(int32_t cell, const int32_t* positions, int32_t row) const {
  return (HasPosition(positions, row) ? positions[row] : cell) < sink_tokens_;
}

Status CellCache::CheckWrite(const WriteCall& call) const {
  VARVE_RETURN_IF_ERROR(CheckSide(call.side));
  if (call.n < 0)
    return Status(StatusCode::kInvalidArgument,
                  "n=" + std::to_string(call.n) + " must not be negative");
  if (call.n == 0) return Status();
  if (call.index == nullptr || call.rows == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(call.index == nullptr ? "index" : "rows") + " is NULL");
  }
  if (static_cast<unsigned>(call.type) > 2) {
    return Status(StatusCode::kInvalidArgument,
                  "type=" + std::to_string(static_cast<int>(call.type)) +
                      " must be 0 (f32), 1 (f16) or 2 (bf16)");
  }
  const size_t row_bytes = row_elements(call.side) * RowTypeBytes(call.type);
  if (call.n > 1 && call.row_stride_bytes < row_bytes) {
    return Status(StatusCode::kShapeMismatch,
                  "row_stride_bytes=" + std::to_string(call.row_stride_bytes) +
                      " is less than a row of " + std::to_string(row_bytes) + " bytes");
  }
  for (int32_t i = 0; i < call.n; ++i) {
    VARVE_RETURN_IF_ERROR(CheckRange(call.index[i], 1));
    if (call.positions != nullptr && call.positions[i] > kMaxShift) {
      return Status(StatusCode::kInvalidArgument,
                    "positions[" + std::to_string(i) + "]=" + std::to_string(call.positions[i]) +
                        " must be at most " + std::to_string(kMaxShift));
    }
  }
  return Status();
}

std::vector<CellCache::Touch> CellCache::PlanTouches(const WriteCall& call,
                                                     std::vector<int32_t>& order) const {
  const auto block_of = [&](int32_t row) {
    const CellPlace place = Locate(call.index[row]);
    return int64_t{place.stream} * blocks_per_stream_ + place.block;
  };
  order.resize(static_cast<size_t>(call.n));
  std::iota(order.begin(), order.end(), 0);
  const auto by_block = [&](int32_t a, int32_t b) { return block_of(a) < block_of(b); };
  if (!std::is_sorted(order.begin(), order.end(), by_block))
    std::stable_sort(order.begin(), order.end(), by_block);

  std::vector<Touch> touches;
  for (size_t begin = 0; begin < order.size();) {
    Touch touch;
    const CellPlace place = Locate(call.index[order[begin]]);
    touch.stream = place.stream;
    touch.block = place.block;
    size_t end = begin;
    for (; end < order.size(); ++end) {
      const CellPlace other = Locate(call.index[order[end]]);
      if (other.stream != place.stream || other.block != place.block) break;
      touch.cells |= uint32_t{1} << other.token;
    }
    touch.rows = std::span<const int32_t>(order).subspan(begin, end - begin);
    touches.push_back(std::move(touch));
    begin = end;
  }
  return touches;
}

bool CellCache::BeginsToken(const CellBlock& block, size_t side, uint32_t bit) const {
  return (block.fresh[side] & bit) != 0 || (block.fresh[1 - side] & bit) == 0;
}

Status CellCache::DemoteBefore(const WriteCall& call, std::span<const Touch> touches) {
  const auto side = static_cast<size_t>(call.side);
  for (size_t begin = 0; begin < touches.size();) {
    const int32_t s = touches[begin].stream;
    Stream& stream = streams_[static_cast<size_t>(s)];
    int64_t n_begun = 0;
    int64_t first_position = INT64_MAX;
    std::vector<int32_t> keep;
    for (; begin < touches.size() && touches[begin].stream == s; ++begin) {
      const Touch& touch = touches[begin];
      keep.push_back(touch.block);
      const CellBlock* block = static_cast<size_t>(touch.block) < stream.blocks.size()
                                   ? &stream.blocks[static_cast<size_t>(touch.block)]
                                   : nullptr;
      for (const int32_t row : touch.rows) {
        const uint32_t bit = uint32_t{1} << Locate(call.index[row]).token;
        if (block != nullptr && !BeginsToken(*block, side, bit)) continue;
        ++n_begun;
        if (HasPosition(call.positions, row))
          first_position = std::min<int64_t>(first_position, call.positions[row]);
      }
    }
    if (n_begun == 0) continue;
    if (keys_wait_) statistics_.AddWait(n_begun);
    const int64_t newest = first_position == INT64_MAX
                               ? stream.newest_position
                               : std::max(stream.newest_position, first_position);
    VARVE_RETURN_IF_ERROR(DemoteDue(stream, stream.clock + 1, newest, keep, call.n_threads));
  }
  return Status();
}

bool CellCache::NeedsDetail(const CellBlock& block, const Touch& touch,
                            const WriteCall& call) const {
  const uint32_t others = block.any_written() & ~touch.cells;
  if (block.has_detail()) {
    if (others != 0) return true;
  } else if (call.side == Side::kKey && others != 0 && block.rotation(0) != 0) {
    return true;
  }
  const uint32_t positioned = block.positioned & others;
  bool anchored = positioned != 0;
  int64_t anchor =
      anchored ? block.position(std::countr_zero(positioned)) - std::countr_zero(positioned) : 0;
  for (const int32_t row : touch.rows) {
    if (!HasPosition(call.positions, row)) continue;
    const int64_t base = int64_t{call.positions[row]} - Locate(call.index[row]).token;
    if (anchored && base != anchor) return true;
    anchored = true;
    anchor = base;
  }
  return false;
}

Status CellCache::PrepareTouch(const WriteCall& call, Touch& touch) {
  const auto side = static_cast<size_t>(call.side);
  Stream& stream = streams_[static_cast<size_t>(touch.stream)];
  GrowStream(stream, touch.block);
  CellBlock& block = stream.blocks[static_cast<size_t>(touch.block)];

  const auto entry = static_cast<size_t>(entry_stage(call.side));
  if (!block.payload[side] || block.payload[side].stage != entry) {
    auto slot = store_.Allocate(stage_block_bytes(call.side, entry));
    if (!slot.ok()) return slot.status();
    touch.slot = slot.value();
    touch.slot.stage = static_cast<uint8_t>(entry);
    touch.keeps_rows = block.payload[side] && (block.written[side] & ~touch.cells) != 0;
  }
  if (NeedsDetail(block, touch, call)) {
    block.Expand();
  } else {
    touch.collapse = block.has_detail() && call.positions != nullptr && call.side == Side::kKey;
  }
  const size_t n = row_elements(call.side);
  for (const int32_t row : touch.rows) {
    const int32_t cell = touch.block * kBlockTokens + Locate(call.index[row]).token;
    touch.exact_cells.erase(cell);
    if (!WantsExact(cell, call.positions, row)) continue;
    std::vector<float> wide(n);
    LoadRow(call.type, call.row(row), n, wide.data());
    std::vector<uint16_t> exact(n);
    bool fits = true;
    for (size_t i = 0; i < n; ++i) {
      exact[i] = F32ToF16(wide[i]);
      fits = fits && (std::isfinite(F16ToF32(exact[i])) || !std::isfinite(wide[i]));
    }
    if (fits) touch.exact_cells[cell].row[side] = std::move(exact);
  }
  return Status();
}

void CellCache::StepEntryRows(Side side, size_t stage_index, uint32_t tokens, std::byte* block,
                              std::byte* scratch) const {
  while (BytesStay(side, stage_index - 1, stage_index)) --stage_index;
  std::byte* from = scratch;
  std::byte* spare = scratch + max_block_bytes();
  size_t from_stage = 0;
  for (size_t next = 1; next <= stage_index; ++next) {
    if (BytesStay(side, next - 1, next)) continue;
    std::byte* to = next == stage_index ? block : spare;
    RepackRows(Coding(side, from_stage), Coding(side, next), shape_.n_kv_heads, tokens, from, to);
    spare = std::exchange(from, to);
    from_stage = next;
  }
}

void CellCache::EncodeEntryRow(Side side, size_t stage_index, const float* row, int token,
                               std::byte* block, std::byte* scratch) const {
  const bool steps = !BytesStay(side, 0, stage_index);
  EncodeRow(Coding(side, steps ? 0 : stage_index), shape_.n_kv_heads, row, token,
            steps ? scratch : block);
  if (steps) StepEntryRows(side, stage_index, uint32_t{1} << token, block, scratch);
}

void CellCache::EncodeTouch(const WriteCall& call, const Touch& touch, std::byte* scratch) {
  const auto side = static_cast<size_t>(call.side);
  const CellBlock& block =
      streams_[static_cast<size_t>(touch.stream)].blocks[static_cast<size_t>(touch.block)];
  const StoreSlot& target = touch.slot ? touch.slot : block.payload[side];
  if (touch.keeps_rows) {
    RepackBlock(Coding(call.side, block.payload[side].stage), Coding(call.side, target.stage),
                shape_.n_kv_heads, block.payload[side].data, target.data);
  }
  const size_t n = row_elements(call.side);
  auto* buffer = reinterpret_cast<float*>(scratch);
  std::byte* staging = scratch + RoundUp(n * sizeof(float), kLineBytes);
  const bool steps = !BytesStay(call.side, 0, target.stage);
  const BlockCoding coding = Coding(call.side, steps ? 0 : target.stage);
  for (const int32_t r : touch.rows) {
    const float* row = RowAsFloats(call.type, call.row(r), n, buffer);
    EncodeRow(coding, shape_.n_kv_heads, row, Locate(call.index[r]).token,
              steps ? staging : target.data);
  }
  if (steps) StepEntryRows(call.side, target.stage, touch.cells, target.data, staging);
}

void CellCache::CommitPayload(const WriteCall& call, Touch& touch) {
  const auto side = static_cast<size_t>(call.side);
  CellBlock& block =
      streams_[static_cast<size_t>(touch.stream)].blocks[static_cast<size_t>(touch.block)];
  if (touch.slot) {
    if (block.payload[side] && block.payload[side].stage > touch.slot.stage) ++n_promotions_;
    store_.Free(block.payload[side]);
    block.payload[side] = touch.slot;
  }
  if (touch.collapse) block.Collapse();
}

void CellCache::CommitRow(const WriteCall& call, int32_t row) {
  const auto side = static_cast<size_t>(call.side);
  const CellPlace place = Locate(call.index[row]);
  Stream& stream = streams_[static_cast<size_t>(place.stream)];
  CellBlock& block = stream.blocks[static_cast<size_t>(place.block)];
  const uint32_t bit = uint32_t{1} << place.token;
  if (BeginsToken(block, side, bit)) {
    block.newest_clock = ++stream.clock;
    block.fresh[1 - side] &= ~bit;
    block.positioned &= ~bit;
  }
  block.fresh[side] |= bit;
  block.written[side] |= bit;
  if (HasPosition(call.positions, row)) {
    block.SetPosition(place.token, call.positions[row]);
    stream.newest_position = std::max<int64_t>(stream.newest_position, call.positions[row]);
  }
  if (call.side == Side::kKey) block.SetRotation(place.token, 0);
  DropExact(stream, block, place.block * kBlockTokens + place.token, side);
}

Status CellCache::Write(Side side, const int64_t* index, const int32_t* positions, const void* rows,
                        RowType type, size_t row_stride_bytes, int32_t n, int32_t n_threads) {
  const WriteCall call{
      side, index,    positions, static_cast<const std::byte*>(rows), type, row_stride_bytes,
      n,    n_threads};
  VARVE_RETURN_IF_ERROR(CheckWrite(call));
  return n == 0 ? Status() : WriteChecked(call);
}

Status CellCache::WriteChecked(const WriteCall& call) {
  const auto start = std::chrono::steady_clock::now();
  const double retier_before = retier_seconds_;
  const Side side = call.side;
  std::vector<int32_t> order;
  std::vector<Touch> touches = PlanTouches(call, order);
  ScopeExit undo([&] {
    for (Touch& touch : touches) {
      store_.Free(touch.slot);
      Stream& stream = streams_[static_cast<size_t>(touch.stream)];
      if (static_cast<size_t>(touch.block) < stream.blocks.size())
        ScheduleBlock(stream, touch.block);
    }
    store_.Reclaim();
  });
  VARVE_RETURN_IF_ERROR(PrepareWrite(call, touches));
  undo.Cancel();

  const size_t per_thread = ScratchBytes();
  const int n_encoded = store_.has_memory() ? static_cast<int>(touches.size()) : 0;
  ParallelFor(call.n_threads, n_encoded, [&](int task, int thread) {
    EncodeTouch(call, touches[static_cast<size_t>(task)],
                scratch_.data() + per_thread * static_cast<size_t>(thread));
  });
  if (side == Side::kKey && !has_tables_ && ladder(Side::kKey).needs_tables()) GatherKeys(call);
  for (Touch& touch : touches) CommitPayload(call, touch);
  for (int32_t row = 0; row < call.n; ++row) CommitRow(call, row);
  for (Touch& touch : touches) {
    Stream& stream = streams_[static_cast<size_t>(touch.stream)];
    AttachExact(stream, stream.blocks[static_cast<size_t>(touch.block)], static_cast<size_t>(side),
                touch.exact_cells);
    ScheduleBlock(stream, touch.block);
  }
  store_.Reclaim();
  append_seconds_ += SecondsSince(start) - (retier_seconds_ - retier_before);
  return Status();
}

size_t CellCache::ScratchBytes() const {
  const size_t row = RoundUp(
      std::max(row_elements(Side::kKey), row_elements(Side::kValue)) * sizeof(float), kLineBytes);
  return row + 2 * max_block_bytes();
}

Status CellCache::PrepareWrite(const WriteCall& call, std::vector<Touch>& touches) {
  VARVE_RETURN_IF_ERROR(DemoteBefore(call, touches));
  VARVE_RETURN_IF_ERROR(GrowScratch(call.n_threads, static_cast<int>(touches.size())));
  for (Touch& touch : touches) VARVE_RETURN_IF_ERROR(PrepareTouch(call, touch));
  return Status();
}

Status CellCache::GrowScratch(int n_threads, int n_tasks) {
  if (!store_.has_memory()) return Status();
  const size_t n = static_cast<size_t>(std::clamp(n_threads, 1, std::max(n_tasks, 1)));
  size_t bytes = 0;
  if (!CheckedMul(n, ScratchBytes(), &bytes) || !scratch_.Grow(bytes)) {
    return Status(StatusCode::kOutOfMemory,
                  "no memory for the scratch of " + std::to_string(n) + " threads");
  }
  return Status();
}

void CellCache::GatherKeys(const WriteCall& call) {
  auto* buffer = scratch_.as<float>();
  for (int32_t r = 0; r < call.n; ++r) {
    const CellPlace place = Locate(call.index[r]);
    if (WantsExact(place.block * kBlockTokens + place.token, call.positions, r)) continue;
    statistics_.AddKey(RowAsFloats(call.type, call.row(r), row_elements(Side::kKey), buffer));
  }
}

}  // namespace varve
