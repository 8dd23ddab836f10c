// CellCache::Shift: keys are turned by remembering the angle.
#include <string>

#include "cache/cell_cache.h"

namespace varve {

void CellCache::CompactRotations(std::vector<bool>& used, std::vector<int32_t>& renumbered) {
  for (const Stream& stream : streams_) {
    for (const CellBlock& block : stream.blocks) {
      for (uint32_t m = block.written[0]; m != 0; m &= m - 1) {
        used[static_cast<size_t>(block.rotation(std::countr_zero(m)))] = true;
      }
    }
  }
  rotations_.Keep(used, renumbered);
  for (Stream& stream : streams_) {
    for (CellBlock& block : stream.blocks) block.RenumberRotations(renumbered);
  }
}

Status CellCache::CheckShift(int64_t first, const int32_t* delta, int32_t n) const {
  VARVE_RETURN_IF_ERROR(CheckRange(first, n));
  if (n > 0 && delta == nullptr) return Status(StatusCode::kInvalidArgument, "delta is NULL");
  for (int32_t i = 0; i < n; ++i) {
    if (delta[i] == 0) continue;
    const CellPlace place = Locate(first + i);
    const Stream& stream = streams_[static_cast<size_t>(place.stream)];
    if (static_cast<size_t>(place.block) >= stream.blocks.size()) continue;
    const CellBlock& block = stream.blocks[static_cast<size_t>(place.block)];
    if ((block.written[0] >> place.token & 1) == 0) continue;
    const int64_t pending = int64_t{rotations_.delta(block.rotation(place.token))} + delta[i];
    const int64_t position = (block.positioned >> place.token & 1) != 0
                                 ? int64_t{block.position(place.token)} + delta[i]
                                 : 0;
    if (pending < -kMaxShift || pending > kMaxShift || position > kMaxShift ||
        position < -kMaxShift) {
      return Status(StatusCode::kInvalidArgument,
                    "delta[" + std::to_string(i) + "]=" + std::to_string(delta[i]) +
                        ": the sum of shifts or the position leaves 31 bits");
    }
  }
  return Status();
}

Status CellCache::ShiftRows(int64_t first, const int32_t* delta, int32_t n, const RopeShift& rope,
                            const std::vector<double>& angles) {
  std::vector<int64_t> index;
  std::vector<int32_t> positions;
  std::vector<float> rows;
  const size_t elements = row_elements(Side::kKey);
  for (int32_t i = 0; i < n; ++i) {
    const CellPlace place = Locate(first + i);
    const Stream& stream = streams_[static_cast<size_t>(place.stream)];
    if (delta[i] == 0 || static_cast<size_t>(place.block) >= stream.blocks.size()) continue;
    const CellBlock& block = stream.blocks[static_cast<size_t>(place.block)];
    if ((block.written[0] >> place.token & 1) == 0) continue;
    index.push_back(first + i);
    positions.push_back(
        (block.positioned >> place.token & 1) != 0 ? block.position(place.token) + delta[i] : -1);
    rows.resize(rows.size() + elements);
    float* row = rows.data() + rows.size() - elements;
    ReadCell(Side::kKey, first + i, row);
    TurnKeyRow(rope.pairing, angles, rope.first_dim, delta[i], shape_.n_kv_heads, shape_.head_dim_k,
               row);
  }
  return Write(Side::kKey, index.data(), positions.data(), rows.data(), RowType::kF32,
               elements * sizeof(float), static_cast<int32_t>(index.size()), 1);
}

Status CellCache::Shift(int64_t first, const int32_t* delta, int32_t n, const RopeShift& rope) {
  auto angles = RopeAnglesPerPosition(rope, shape_.head_dim_k);
  if (!angles.ok()) return angles.status();
  VARVE_RETURN_IF_ERROR(CheckShift(first, delta, n));
  if (!has_values() || rope.first_dim != 0) return ShiftRows(first, delta, n, rope, angles.value());
  std::vector<bool> used(rotations_.size(), false);
  std::vector<int32_t> renumbered(rotations_.size(), 0);
  CompactRotations(used, renumbered);
  VARVE_RETURN_IF_ERROR(rotations_.SetAngles(rope.pairing, std::move(angles).value()));

  struct Move {
    CellBlock* block;
    int token;
    int32_t rotation;
    int32_t delta;
  };
  std::vector<Move> moves;
  for (int32_t i = 0; i < n; ++i) {
    const CellPlace place = Locate(first + i);
    Stream& stream = streams_[static_cast<size_t>(place.stream)];
    if (delta[i] == 0 || static_cast<size_t>(place.block) >= stream.blocks.size()) continue;
    CellBlock& block = stream.blocks[static_cast<size_t>(place.block)];
    if ((block.written[0] >> place.token & 1) == 0) continue;
    const int32_t rotation =
        rotations_.Intern(rotations_.delta(block.rotation(place.token)) + delta[i]);
    moves.push_back({&block, place.token, rotation, delta[i]});
  }
  for (size_t begin = 0; begin < moves.size();) {
    size_t end = begin;
    uint32_t moved = 0;
    bool uniform = true;
    for (; end < moves.size() && moves[end].block == moves[begin].block; ++end) {
      moved |= uint32_t{1} << moves[end].token;
      uniform = uniform && moves[end].delta == moves[begin].delta &&
                moves[end].rotation == moves[begin].rotation;
    }
    CellBlock& block = *moves[begin].block;
    if (!uniform || (block.any_written() & ~moved) != 0) block.Expand();
    begin = end;
  }
  used.assign(rotations_.size(), false);
  renumbered.assign(rotations_.size(), 0);

  for (size_t begin = 0; begin < moves.size();) {
    CellBlock& block = *moves[begin].block;
    if (!block.has_detail()) {
      block.MoveAll(moves[begin].delta, moves[begin].rotation);
      while (begin < moves.size() && moves[begin].block == &block) ++begin;
      continue;
    }
    const Move& move = moves[begin++];
    block.SetRotation(move.token, move.rotation);
    if ((block.positioned >> move.token & 1) != 0)
      block.SetPosition(move.token, block.position(move.token) + move.delta);
  }
  for (Stream& stream : streams_) RescheduleStream(stream);
  CompactRotations(used, renumbered);
  return Status();
}

}  // namespace varve
