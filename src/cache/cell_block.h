// What a cell cache knows about 32 cells beside their codes. Kept small (about 3 bytes a cell):
// consecutive positions and equal shifts are one number a block.
#ifndef VARVE_CACHE_CELL_BLOCK_H_
#define VARVE_CACHE_CELL_BLOCK_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "cache/block_store.h"
#include "layout/block_layout.h"

namespace varve {

inline constexpr int64_t kNoTime = std::numeric_limits<int64_t>::min() / 4;

/// Positions and pending rotations cell by cell, for blocks where one number does not do.
struct CellDetail {
  std::array<int32_t, kBlockTokens> position{};
  std::array<int32_t, kBlockTokens> rotation{};
};

/// 32 cells of one stream. Masks have one bit a cell; [2] is key side, value side.
class CellBlock {
 public:
  StoreSlot payload[2];
  uint32_t written[2] = {0, 0};
  /// Sides that the cell's present token has been given. Writing a side twice begins a new token;
  /// writing the other side joins it.
  uint32_t fresh[2] = {0, 0};
  uint32_t exact[2] = {0, 0};  ///< kept as an exact f16 row too
  uint32_t positioned = 0;     ///< has a position
  int64_t newest_clock = kNoTime;
  bool keys_wait = false;  ///< due, but there are no key tables yet

  uint32_t any_written() const { return written[0] | written[1]; }

  int32_t position(int t) const {
    return detail_ ? detail_->position[static_cast<size_t>(t)] : base_position_ + t;
  }
  int32_t rotation(int t) const {
    return detail_ ? detail_->rotation[static_cast<size_t>(t)] : rotation_;
  }
  bool uniform_rotation() const { return detail_ == nullptr; }
  bool has_detail() const { return detail_ != nullptr; }

  /// Newest position among positioned cells; kNoTime if there is none.
  int64_t newest_position() const {
    if (positioned == 0) return kNoTime;
    if (!detail_) return int64_t{base_position_} + 31 - std::countl_zero(positioned);
    int64_t newest = kNoTime;
    for (uint32_t m = positioned; m != 0; m &= m - 1) {
      newest =
          std::max<int64_t>(newest, detail_->position[static_cast<size_t>(std::countr_zero(m))]);
    }
    return newest;
  }

  /// Gives every cell numbers of its own; may throw std::bad_alloc, the block being as before.
  void Expand() {
    if (detail_) return;
    auto detail = std::make_unique<CellDetail>();
    for (int t = 0; t < kBlockTokens; ++t) {
      detail->position[static_cast<size_t>(t)] = base_position_ + t;
      detail->rotation[static_cast<size_t>(t)] = rotation_;
    }
    detail_ = std::move(detail);
  }

  /// Goes back to one number a block once no cell is written.
  void Collapse() {
    detail_.reset();
    base_position_ = rotation_ = 0;
  }

  /// Sets cell t. Without detail all positioned cells, or all cells, move along.
  void SetPosition(int t, int32_t position) {
    if (detail_) {
      detail_->position[static_cast<size_t>(t)] = position;
    } else {
      base_position_ = position - t;
    }
    positioned |= uint32_t{1} << t;
  }
  void SetRotation(int t, int32_t rotation) {
    if (detail_) {
      detail_->rotation[static_cast<size_t>(t)] = rotation;
    } else {
      rotation_ = rotation;
    }
  }

  /// Moves all cells at once; there must be no detail.
  void MoveAll(int32_t delta, int32_t rotation) {
    if (positioned != 0) base_position_ += delta;
    rotation_ = rotation;
  }

  /// Sets the one number of all cells; there must be no detail.
  void SetBase(int32_t position, int32_t rotation) {
    base_position_ = position;
    rotation_ = rotation;
  }

  /// Takes new rotation numbers, renumbered[old]. Cells without keys may hold any number, so those
  /// get 0.
  void RenumberRotations(std::span<const int32_t> renumbered) {
    const auto renumber = [&](int32_t r) {
      return static_cast<size_t>(r) < renumbered.size() ? renumbered[static_cast<size_t>(r)] : 0;
    };
    rotation_ = renumber(rotation_);
    if (!detail_) return;
    for (int32_t& r : detail_->rotation) r = renumber(r);
  }

 private:
  int32_t base_position_ = 0;  ///< of cell 0 when there is no detail
  int32_t rotation_ = 0;
  std::unique_ptr<CellDetail> detail_;
};

}  // namespace varve

#endif  // VARVE_CACHE_CELL_BLOCK_H_
