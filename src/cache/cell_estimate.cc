// What a cell cache will hold, found by running its book-keeping alone: blocks, slots and pages
// without any memory.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/checked_math.h"
#include "cache/cell_cache.h"

namespace varve {

/// Walks the blocks of one stream down the ladders, slot by slot, as CellCache does when tokens
/// come in order.
class CellCache::Estimate {
 public:
  Estimate(const CellCache& cache, int last_key_bits)
      : cache_(cache), last_key_stage_(LastKeyStage(cache.ladder(Side::kKey), last_key_bits)) {}

  void Run(int64_t n_tokens) {
    for (int64_t left = n_tokens; left > 0; left -= cache_.shape_.n_cells) {
      RunStream(std::min<int64_t>(left, cache_.shape_.n_cells));
    }
  }

  uint64_t bytes(int64_t n_tokens) const {
    uint64_t bytes = 0;
    for (const auto& [slot_bytes, slots] : classes_) bytes += slots.held_bytes();
    const int64_t n_cells = cache_.shape_.n_cells;
    const size_t exact_elements =
        cache_.row_elements(Side::kKey) + cache_.row_elements(Side::kValue);
    for (int64_t left = n_tokens; left > 0; left -= n_cells) {
      const int64_t n = std::min(left, n_cells);
      bytes += static_cast<uint64_t>(std::min<int64_t>(n, cache_.sink_tokens_)) *
               ExactCellBytes(exact_elements);
      const auto n_blocks = static_cast<int32_t>(CeilDiv<int64_t>(n, kBlockTokens));
      const auto grown = static_cast<size_t>(cache_.GrownBlocks(n_blocks - 1));
      bytes += grown * (sizeof(CellBlock) + DueQueue::kBytesPerBlock);
    }
    bytes += cache_.statistics_.held_bytes() + cache_.rotations_.held_bytes();
    if (fitted_) {
      const auto dim = RoundUp<size_t>(static_cast<size_t>(cache_.shape_.head_dim_k), 4);
      bytes += cache_.tables_.size() * static_cast<size_t>(cache_.shape_.n_kv_heads) *
               (sizeof(KeyTable) + dim * (sizeof(int16_t) + sizeof(float)));
    }
    return bytes;
  }

 private:
  static size_t LastKeyStage(const SideLadder& keys, int last_key_bits) {
    auto last = static_cast<size_t>(keys.entry(true));
    const bool limited = keys.key_error_limit > 0;
    while (last + 1 < keys.stages.size() &&
           (!limited || keys.stages[last + 1].layout.scheme.bits >= last_key_bits))
      ++last;
    return last;
  }

  struct Held {
    SlotMap::Slot slot;
    size_t stage;
  };
  struct Block {
    int64_t newest;  ///< token of the stream
    Held side[2];
  };

  SlotMap& ClassOf(Side side, size_t stage) {
    const size_t bytes = cache_.stage_block_bytes(side, stage);
    return classes_.try_emplace(bytes, bytes).first->second;
  }

  Held Take(Side side, size_t stage) {
    SlotMap& slots = ClassOf(side, stage);
    auto slot = slots.Take();
    if (!slot) {
      slots.MarkMapped(slots.NextSlab());
      slot = slots.Take();
    }
    return {*slot, stage};
  }

  struct Move {
    size_t block;
    Side side;
    size_t stage;
  };

  /// Demotes what is due among the first n_closed blocks: all new slots are taken before any old
  /// one is released.
  void Demote(std::vector<Block>& blocks, size_t n_closed, int64_t token) {
    if (!fitted_ && FitDue(blocks, n_closed, token)) fitted_ = true;
    std::vector<Move> moves;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const auto& stages = cache_.ladder(side).stages;
      const auto s = static_cast<size_t>(side);
      for (size_t stage = 0; stage + 1 < stages.size(); ++stage) {
        for (size_t& next = next_[s][stage]; next < n_closed; ++next) {
          if (blocks[next].side[s].stage > stage) continue;
          if (blocks[next].side[s].stage < stage) break;
          const size_t target = Target(side, stage, token - blocks[next].newest);
          if (target == stage) break;
          moves.push_back({next, side, target});
        }
      }
    }
    if (moves.empty()) return;
    std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) {
      return a.block != b.block ? a.block < b.block : a.side < b.side;
    });
    std::vector<std::pair<size_t, SlotMap::Slot>> released;
    for (const Move& move : moves) {
      Held& held = blocks[move.block].side[static_cast<size_t>(move.side)];
      if (!cache_.BytesStay(move.side, held.stage, move.stage)) {
        released.emplace_back(cache_.stage_block_bytes(move.side, held.stage), held.slot);
        held = Take(move.side, move.stage);
      }
      held.stage = move.stage;
    }
    for (const auto& [bytes, slot] : released) classes_.at(bytes).Release(slot);
    for (auto& [bytes, slots] : classes_) {
      slots.Reclaim([](uint32_t, size_t, size_t) {}, [](uint32_t) {});
    }
  }

  size_t Target(Side side, size_t stage, int64_t age) const {
    const auto& stages = cache_.ladder(side).stages;
    while (stages[stage].leave_age <= age && (side == Side::kValue || stage < last_key_stage_) &&
           (fitted_ || !stages[stage + 1].needs_table))
      ++stage;
    return stage;
  }

  bool FitDue(const std::vector<Block>& blocks, size_t n_closed, int64_t token) const {
    const auto& stages = cache_.ladder(Side::kKey).stages;
    const int64_t n_keys = token - std::min<int64_t>(token, cache_.sink_tokens_);
    if (n_closed == 0 || n_keys < cache_.statistics_.target_tokens()) return false;
    for (size_t s = 0; s + 1 < stages.size(); ++s) {
      if (stages[s + 1].needs_table) return token - blocks.front().newest >= stages[s].leave_age;
    }
    return false;
  }

  void RunStream(int64_t n) {
    std::vector<Block> blocks;
    for (auto& side : next_) std::fill(std::begin(side), std::end(side), 0);
    for (int64_t token = 0; token < n; ++token) {
      // The block that a call writes to is never demoted by it.
      const bool begins_block = token % kBlockTokens == 0;
      Demote(blocks, begins_block ? blocks.size() : blocks.size() - 1, token);
      if (begins_block) {
        Block block{token, {}};
        block.side[0] =
            Take(Side::kKey, static_cast<size_t>(cache_.ladder(Side::kKey).entry(fitted_)));
        if (cache_.has_values()) block.side[1] = Take(Side::kValue, 0);
        blocks.push_back(block);
      }
      blocks.back().newest = token;
    }
  }

  const CellCache& cache_;
  const size_t last_key_stage_;
  bool fitted_ = false;
  std::map<size_t, SlotMap> classes_;
  size_t next_[2][4] = {};
};

Result<uint64_t> EstimateCellBytes(const Settings& settings, const CellShape& shape,
                                   int64_t n_tokens, int last_key_bits) {
  auto cache = CellCache::Create(settings, shape);
  if (!cache.ok()) return cache.status();
  return cache.value()->EstimateBytes(n_tokens, last_key_bits);
}

Result<uint64_t> CellCache::EstimateBytes(int64_t n_tokens, int last_key_bits) const {
  const int64_t total = int64_t{shape_.n_cells} * shape_.n_streams;
  if (n_tokens < 0 || n_tokens > total) {
    return Status(StatusCode::kInvalidArgument, "n_tokens=" + std::to_string(n_tokens) +
                                                    " must be in 0.." + std::to_string(total));
  }
  Estimate estimate(*this, last_key_bits);
  estimate.Run(n_tokens);
  return estimate.bytes(n_tokens);
}

}  // namespace varve
