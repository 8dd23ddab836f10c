// The mask of a block, read once for all heads. Internal to src/cache/attend*.
#ifndef VARVE_CACHE_ATTEND_MASK_H_
#define VARVE_CACHE_ATTEND_MASK_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/f16.h"
#include "cache/attend_plan.h"

namespace varve {

/// What a block's cells are to the queries of a task.
enum class MaskState { kNone, kSome, kAll };

/// Biases in octaves, with -inf where a cell takes no part.
class MaskReader {
 public:
  /// bias: [tile blocks][planes][rows][32].
  MaskReader(const AttendProblem& problem, const TaskRange& range, float* bias)
      : problem_(problem),
        range_(range),
        n_planes_(problem.mask != nullptr ? problem.mask_heads : 1),
        bias_(bias) {
    for (float& x : dead_) x = -INFINITY;
  }

  int n_planes() const { return n_planes_; }

  /// Stands for the bias of a query that attends to no cell of a block.
  const float* dead() const { return dead_; }

  /// Reads the mask of the 32 cells from first_cell on. bias_of: [planes][rows], null where all
  /// cells take part unbiased. False if no query attends to any of them.
  MaskState Load(uint32_t live, int first_cell, int tile_index, const float** bias_of) {
    const int n_cells = problem_.n_cells - first_cell;
    if (n_cells <= 0) return MaskState::kNone;
    if (n_cells < kBlockTokens) live &= (1u << n_cells) - 1;
    if (live == 0) return MaskState::kNone;
    bool any = false;
    bool all = true;
    for (int plane = 0; plane < n_planes_; ++plane) {
      for (int row = 0; row < range_.n_rows; ++row) {
        const int at = plane * range_.n_rows + row;
        float* bias =
            bias_ +
            (static_cast<ptrdiff_t>(tile_index) * n_planes_ * range_.n_rows + at) * kBlockTokens;
        bias_of[at] = Row(live, first_cell, plane, range_.first_row + row, bias);
        any = any || bias_of[at] != dead_;
        all = all && bias_of[at] == nullptr;
      }
    }
    return all ? MaskState::kAll : any ? MaskState::kSome : MaskState::kNone;
  }

 private:
  static constexpr uint64_t kFourMasked = 0xfc00fc00fc00fc00u;

  /// Whether the block's cells hold `four`, four at a time.
  static bool AllAre(uint64_t four, const uint16_t* mask) {
    uint64_t different = 0;
    for (int i = 0; i < kBlockTokens; i += 4) {
      uint64_t held;
      std::memcpy(&held, mask + i, sizeof held);
      different |= held ^ four;
    }
    return different == 0;
  }

  const float* Row(uint32_t live, int first_cell, int plane, int row, float* bias) const {
    if (problem_.mask == nullptr) {
      if (live == ~0u) return nullptr;
      for (int t = 0; t < kBlockTokens; ++t) bias[t] = (live >> t & 1u) != 0 ? 0.0f : -INFINITY;
      return bias;
    }
    const uint16_t* mask = problem_.mask + plane * problem_.mask_head_stride +
                           row * problem_.mask_row_stride + first_cell;
    if (live == ~0u) {
      if (AllAre(0, mask)) return nullptr;
      if (AllAre(kFourMasked, mask)) return dead_;
    }
    bool any = false;
    for (int t = 0; t < kBlockTokens; ++t) {
      const bool takes_part = (live >> t & 1u) != 0 && mask[t] != 0xfc00;
      bias[t] = takes_part ? F16ToF32(mask[t]) * 1.4426950408889634f : -INFINITY;
      any = any || takes_part;
    }
    return any ? bias : dead_;
  }

  const AttendProblem& problem_;
  const TaskRange& range_;
  int n_planes_;
  float* bias_;
  float dead_[kBlockTokens];
};

}  // namespace varve

#endif  // VARVE_CACHE_ATTEND_MASK_H_
