#include "cache/attend_task.h"

#include <algorithm>

#include "cache/attend_mask.h"
#include "codec/codebooks.h"

namespace varve {
namespace {

// From this many batches on a block is unpacked once for all of them.
constexpr int kUnpackBatches = 3;

constexpr int kMaxTileBlocks = 8;

// Logits and weights of this many items leave room for codes in L1.
constexpr int kMaxTileItems = 128;

/// The number of blocks that leaves the fewest items of softmax calls empty.
int TileBlocks(int n_items) {
  int best = 1;
  for (int n = 2; n <= kMaxTileBlocks && n * n_items <= kMaxTileItems; ++n) {
    if (CeilDiv(n * n_items, kMaxSoftmaxItems) * best <
        CeilDiv(best * n_items, kMaxSoftmaxItems) * n)
      best = n;
  }
  return best;
}

size_t Size(int a, int b = 1, int c = 1, int d = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c) *
         static_cast<size_t>(d);
}

/// Lines of a block that are wanted soon, head by head.
struct Ahead {
  const uint8_t* lines = nullptr;
  size_t stride = 0;
  int n_lines = 0;

  Ahead() = default;
  Ahead(const std::byte* block, const BlockLayout& layout, int first_head)
      : lines(reinterpret_cast<const uint8_t*>(block) + Size(first_head) * layout.head_bytes()),
        stride(layout.head_bytes()),
        n_lines(static_cast<int>(layout.head_bytes() / kLineBytes)) {}

  /// Has the next call of a kernel fetch them.
  template <typename Args>
  void Into(Args& args) {
    args.prefetch = lines;
    args.n_prefetch_lines = n_lines;
    lines += stride;
  }
};

/// A call has fetched what it was to fetch.
template <typename Args>
void FetchNoMore(Args& args) {
  args.prefetch = nullptr;
  args.n_prefetch_lines = 0;
}

class Task {
 public:
  Task(const AttendPlan& plan, const TaskRange& range, const PreparedQueries& queries,
       const TaskScratch& scratch, const PartialResult& result)
      : plan_(plan),
        problem_(*plan.problem),
        kernels_(*plan.kernels),
        range_(range),
        queries_(queries),
        scratch_(scratch),
        result_(result),
        n_queries_(queries.n_queries),
        n_batches_(BatchCount(queries.n_queries)),
        n_items_(range.n_kv_heads * queries.n_queries),
        mask_(problem_, range, scratch.bias) {
    for (int batch = 0; batch <= n_batches_; ++batch)
      scratch.batch_start[batch] = BatchStart(n_queries_, batch);
    int item = 0;
    for (int head = 0; head < range.n_kv_heads; ++head) {
      for (int row = 0; row < range.n_rows; ++row) {
        for (int rep = 0; rep < plan.n_rep; ++rep, ++item) {
          const int q_head = (range.first_kv_head + head) * plan.n_rep + rep;
          scratch.bias_slot[item] = q_head % mask_.n_planes() * range.n_rows + row;
          scratch.slopes[item] = problem_.slopes != nullptr ? problem_.slopes[q_head] : 1.0f;
        }
      }
    }
    // The kernel carries octaves; a soft-capped logit comes in units of the cap.
    softmax_.cap = problem_.logit_softcap * 1.4426950408889634f;
  }

  void Run() {
    if (range_.exact_rows) {
      const int n_sinks = static_cast<int>(problem_.exact_rows.size());
      for (int first = 0; first < n_sinks;) {
        const int end = EndOfSinks(first);
        Sinks(first, end);
        first = end;
      }
    }
    int next = range_.first_block;
    while (next < range_.end_block) {
      n_tile_ = 0;
      while (next < range_.end_block && n_tile_ < scratch_.n_tile_blocks) {
        const AttendBlock& block = problem_.blocks[static_cast<size_t>(next)];
        const MaskState state = mask_.Load(block.live, block.first_cell, n_tile_, BiasOf(n_tile_));
        if (state != MaskState::kNone) {
          open_[n_tile_] = state == MaskState::kAll;
          tile_[n_tile_++] = next;
        }
        ++next;
      }
      next_block_ = next;
      for (int i = 0; i < n_tile_; ++i) Keys(i);
      Softmax();
      for (int i = 0; i < n_tile_; ++i) Values(i);
    }
  }

 private:
  const AttendBlock& BlockAt(int tile_index) const {
    return problem_.blocks[static_cast<size_t>(tile_[tile_index])];
  }
  const float** BiasOf(int tile_index) const {
    return scratch_.bias_of + static_cast<ptrdiff_t>(tile_index) * mask_.n_planes() * range_.n_rows;
  }
  int ItemAt(int tile_index, int head, int query) const {
    return tile_index * n_items_ + head * n_queries_ + query;
  }
  const float* ItemBias(int tile_index, int item) const {
    return BiasOf(tile_index)[scratch_.bias_slot[item]];
  }
  /// Of the range's first head.
  const std::byte* Payload(const std::byte* block, const BlockLayout& layout) const {
    return block + Size(range_.first_kv_head) * layout.head_bytes();
  }

  void Keys(int tile_index) {
    const AttendBlock& block = BlockAt(tile_index);
    const BlockLayout& layout = *block.k_coding.layout;
    const PreparedHead* prepared =
        &queries_.At(plan_.block_view[static_cast<size_t>(tile_[tile_index])], 0);
    const std::byte* payload = Payload(block.k, layout);
    float* logits = scratch_.logits + Size(ItemAt(tile_index, 0, 0), kBlockTokens);
    if (prepared->rows != nullptr) {
      for (int head = 0; head < range_.n_kv_heads; ++head, ++prepared) {
        LoadF16Tile(payload + Size(head) * layout.head_bytes(), problem_.head_dim_k,
                    scratch_.key_tile);
        FloatLogits(prepared->rows, kBlockTokens, logits);
        logits += n_queries_ * kBlockTokens;
      }
      return;
    }
    Ahead values;
    if (block.v != nullptr) values = {block.v, *block.v_coding.layout, range_.first_kv_head};
    QkArgs args;
    args.logits = logits;
    for (int head = 0; head < range_.n_kv_heads; ++head, ++prepared) {
      args.runs = &prepared->runs;
      args.codes = reinterpret_cast<const uint8_t*>(payload);
      args.gains = reinterpret_cast<const uint16_t*>(payload + layout.code_bytes);
      args.queries = prepared->batches;
      payload += layout.head_bytes();
      values.Into(args);
      if (n_batches_ >= kUnpackBatches) Unpack(*prepared, args);
      for (int batch = 0; batch < n_batches_; ++batch, ++args.queries) {
        if (BatchIsDead(tile_index, head, batch)) {
          std::fill_n(args.logits, Size(args.queries->n, kBlockTokens), 0.0f);
        } else {
          kernels_.qk(args);
          FetchNoMore(args);
        }
        args.logits += args.queries->n * kBlockTokens;
      }
    }
  }

  bool BatchIsDead(int tile_index, int head, int batch) const {
    if (open_[tile_index]) return false;
    for (int query = scratch_.batch_start[batch]; query < scratch_.batch_start[batch + 1];
         ++query) {
      if (ItemBias(tile_index, head * n_queries_ + query) != mask_.dead()) return false;
    }
    return true;
  }

  void Unpack(const PreparedHead& prepared, QkArgs& args) const {
    bool packed = false;
    for (int r = 0; r < prepared.runs.n_runs; ++r)
      packed = packed || prepared.runs.run[r].bits != 8;
    if (!packed) return;
    for (int r = 0; r < prepared.runs.n_runs; ++r) {
      UnpackArgs unpack;
      unpack.side = Side::kKey;
      unpack.bits = prepared.runs.run[r].bits;
      unpack.n_lines = 2 * prepared.runs.run[r].n_quads;
      unpack.codes = args.codes + prepared.runs.run[r].byte_offset;
      unpack.lines = scratch_.key_lines + prepared.unpacked_runs.run[r].byte_offset;
      kernels_.unpack(unpack);
    }
    args.runs = &prepared.unpacked_runs;
    args.codes = scratch_.key_lines;
  }

  void LoadF16Tile(const std::byte* payload, int head_dim, float* tile) const {
    kernels_.rows->from_f16(reinterpret_cast<const uint16_t*>(payload), tile,
                            kBlockTokens * head_dim);
  }

  void FloatLogits(const float* rows, int n_tokens, float* logits) const {
    for (int query = 0; query < n_queries_; ++query) {
      kernels_.rows->dot(rows + Size(query, problem_.head_dim_k), scratch_.key_tile,
                         problem_.head_dim_k, n_tokens, problem_.head_dim_k,
                         logits + Size(query, kBlockTokens));
    }
  }

  /// Turns the tile's logits into weights, and the results' exponents and sums into what they are
  /// with them.
  void Softmax() {
    SoftmaxArgs& args = softmax_;
    args.open = args.cap == 0;
    for (int i = 0; i < n_tile_; ++i) args.open = args.open && open_[i] && HasPackedValues(i);
    int pending = 0;
    int first = 0;  // tile item of args' first
    for (int tile_index = 0; tile_index < n_tile_; ++tile_index) {
      const float* const* bias_of = BiasOf(tile_index);
      Gains gains = GainsOf(tile_index);
      for (int item = 0; item < n_items_; gains.at += gains.stride) {
        for (const int end = item + n_queries_; item < end; ++item) {
          args.v_gains[pending] = gains.at;
          args.unit[pending] = gains.unit;
          if (!args.open) {
            args.bias[pending] = bias_of[scratch_.bias_slot[item]];
            args.slope[pending] = scratch_.slopes[item];
          }
          if (++pending < kMaxSoftmaxItems) continue;
          Flush(first, pending);
          first += pending;
          pending = 0;
        }
      }
    }
    if (pending > 0) Flush(first, pending);
  }

  /// Runs softmax over n tile items and enters their weights into the result.
  void Flush(int first, int n) {
    SoftmaxArgs& args = softmax_;
    args.n_items = n;
    args.logits = scratch_.logits + Size(first, kBlockTokens);
    args.weights = scratch_.weights + Size(first, static_cast<int>(kLineBytes));
    kernels_.softmax(args);
    // Runs of items whose results are neighbours: those of one block.
    for (int i = 0; i < n;) {
      const int item = (first + i) % n_items_;
      const int run = std::min(n - i, n_items_ - item);
      const BlockWeights weights = {args.exponent + i, args.sum + i, args.unit + i,
                                    scratch_.factors + first + i};
      if (!result_.Add(item, run, weights)) AddUnusual(item, run, first + i, weights);
      i += run;
    }
  }

  /// Add() where exponents lie far apart: earlier blocks of the tile have yet to add their values,
  /// so they are brought down with the result.
  void AddUnusual(int item, int n, int tile_item, const BlockWeights& weights) const {
    for (int i = 0; i < n; ++i) {
      const float shrink = result_.AddOne(item + i, i, weights);
      if (shrink == 1.0f) continue;
      for (int earlier = item + i; earlier < tile_item + i; earlier += n_items_)
        scratch_.factors[earlier] *= shrink;
    }
  }

  /// Gains of a block's packed values, `stride` numbers from one head to the next, and what a level
  /// is worth; null for plain rows.
  struct Gains {
    const uint16_t* at = nullptr;
    size_t stride = 0;
    float unit = 1.0f;
  };

  Gains GainsOf(int tile_index) const {
    if (!HasPackedValues(tile_index)) return {};
    const AttendBlock& block = BlockAt(tile_index);
    const BlockLayout& layout = *block.v_coding.layout;
    return {reinterpret_cast<const uint16_t*>(Payload(block.v, layout) + layout.code_bytes),
            layout.head_bytes() / sizeof(uint16_t), 1.0f / CodebookOf(layout.scheme.bits).unit};
  }

  bool HasPackedValues(int tile_index) const {
    if (exact_tile_) return false;
    const AttendBlock& block = BlockAt(tile_index);
    return block.v != nullptr && block.v_coding.layout->scheme.codec != Codec::kF16;
  }

  void Values(int tile_index) {
    if (!HasPackedValues(tile_index)) {
      UnpackedValues(tile_index);
      return;
    }
    const AttendBlock& block = BlockAt(tile_index);
    const BlockLayout& layout = *block.v_coding.layout;
    const std::byte* payload = Payload(block.v, layout);
    Ahead keys;
    if (next_block_ + tile_index < range_.end_block) {
      const AttendBlock& next = problem_.blocks[static_cast<size_t>(next_block_ + tile_index)];
      keys = {next.k, *next.k_coding.layout, range_.first_kv_head};
    }
    PvArgs args;
    args.n_vectors = layout.padded_dim / 16;
    args.out_stride = result_.value_channels;
    args.out = result_.rotated;
    int item = ItemAt(tile_index, 0, 0);
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      args.bits = layout.scheme.bits;
      args.codes = reinterpret_cast<const uint8_t*>(payload);
      payload += layout.head_bytes();
      keys.Into(args);
      if (n_batches_ >= kUnpackBatches && args.bits != 8) UnpackValues(args);
      for (int batch = 0; batch < n_batches_; ++batch) {
        args.n = scratch_.batch_start[batch + 1] - scratch_.batch_start[batch];
        args.weights = scratch_.weights + Size(item, static_cast<int>(kLineBytes));
        args.factors = scratch_.factors + item;
        if (std::any_of(args.factors, args.factors + args.n, [](float f) { return f != 0; })) {
          kernels_.pv(args);
          FetchNoMore(args);
        }
        item += args.n;
        args.out += args.n * args.out_stride;
      }
    }
  }

  void UnpackValues(PvArgs& args) const {
    UnpackArgs unpack;
    unpack.side = Side::kValue;
    unpack.bits = args.bits;
    unpack.n_lines = 8 * args.n_vectors;
    unpack.codes = args.codes;
    unpack.lines = scratch_.value_lines;
    kernels_.unpack(unpack);
    args.bits = 8;
    args.codes = scratch_.value_lines;
  }

  /// Values that are plain rows, or channels of the keys.
  void UnpackedValues(int tile_index) {
    const AttendBlock& block = BlockAt(tile_index);
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      if (block.v == nullptr) {
        const BlockLayout& layout = *block.k_coding.layout;
        DecodeHead(block.k_coding, range_.first_kv_head + head,
                   Payload(block.k, layout) + Size(head) * layout.head_bytes(), scratch_.key_tile);
        PlainValues(tile_index, head, scratch_.key_tile, problem_.head_dim_k, kBlockTokens);
      } else {
        const BlockLayout& layout = *block.v_coding.layout;
        LoadF16Tile(Payload(block.v, layout) + Size(head) * layout.head_bytes(),
                    problem_.head_dim_v, scratch_.value_tile);
        PlainValues(tile_index, head, scratch_.value_tile, problem_.head_dim_v, kBlockTokens);
      }
    }
  }

  void PlainValues(int tile_index, int head, const float* tile, int stride, int n_tokens) const {
    for (int query = 0; query < n_queries_; ++query) {
      const int item = ItemAt(tile_index, head, query);
      const float factor = scratch_.factors[item];
      if (factor == 0) continue;
      kernels_.rows->add_weighted(
          scratch_.logits + Size(item, kBlockTokens), tile, stride, n_tokens, problem_.head_dim_v,
          factor, result_.plain + Size(head * n_queries_ + query, result_.plain_channels));
    }
  }

  /// Sinks from `first` on that fit one tile: ascending cells within a block's width, of one
  /// rotation.
  int EndOfSinks(int first) const {
    const auto rows = problem_.exact_rows;
    const auto at = [&](int i) -> const ExactRow& { return rows[static_cast<size_t>(i)]; };
    int end = first + 1;
    while (end < static_cast<int>(rows.size()) && at(end).cell > at(end - 1).cell &&
           at(end).cell - at(first).cell < kBlockTokens && at(end).rotation == at(first).rotation) {
      ++end;
    }
    return end;
  }

  void Sinks(int first, int end) {
    const auto rows = problem_.exact_rows.subspan(Size(first), Size(end - first));
    const int first_cell = rows[0].cell;
    uint32_t live = 0;
    for (const ExactRow& row : rows) live |= 1u << (row.cell - first_cell);
    if (mask_.Load(live, first_cell, 0, BiasOf(0)) == MaskState::kNone) return;
    const int n_tokens = rows.back().cell - first_cell + 1;
    const auto load = [&](const uint16_t* ExactRow::*side, int head, int head_dim, float* tile) {
      for (const ExactRow& row : rows) {
        kernels_.rows->from_f16(row.*side + Size(range_.first_kv_head + head, head_dim),
                                tile + Size(row.cell - first_cell, head_dim), head_dim);
      }
    };
    n_tile_ = 1;
    exact_tile_ = true;
    std::fill_n(scratch_.logits, Size(n_items_, kBlockTokens), 0.0f);
    if (n_tokens > static_cast<int>(rows.size())) {
      std::fill_n(scratch_.key_tile, Size(n_tokens, problem_.head_dim_k), 0.0f);
    }
    const int view = plan_.exact_view[Size(first)];
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      load(&ExactRow::k, head, problem_.head_dim_k, scratch_.key_tile);
      FloatLogits(queries_.At(view, head).rows, n_tokens,
                  scratch_.logits + Size(ItemAt(0, head, 0), kBlockTokens));
    }
    Softmax();
    const bool values_in_keys = rows[0].v == nullptr;
    const int head_dim = values_in_keys ? problem_.head_dim_k : problem_.head_dim_v;
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      load(values_in_keys ? &ExactRow::k : &ExactRow::v, head, head_dim, scratch_.value_tile);
      PlainValues(0, head, scratch_.value_tile, head_dim, n_tokens);
    }
    exact_tile_ = false;
  }

  const AttendPlan& plan_;
  const AttendProblem& problem_;
  const KernelSet& kernels_;
  const TaskRange& range_;
  const PreparedQueries& queries_;
  const TaskScratch& scratch_;
  const PartialResult& result_;
  int n_queries_;
  int n_batches_;
  int n_items_;
  MaskReader mask_;
  bool exact_tile_ = false;
  int n_tile_ = 0;
  int next_block_ = 0;              ///< first block past the tile
  int tile_[kMaxTileBlocks] = {};   ///< indices of the tile's blocks
  bool open_[kMaxTileBlocks] = {};  ///< all queries attend to all cells of the block
  SoftmaxArgs softmax_;
};

}  // namespace

void TaskScratch::Take(const AttendPlan& plan, int kv_heads, int rows, Bump& memory) {
  const AttendProblem& problem = *plan.problem;
  const int n_items = kv_heads * rows * plan.n_rep;
  n_tile_blocks = TileBlocks(n_items);
  const int n_tile_items = n_tile_blocks * n_items;
  const int n_planes = problem.mask != nullptr ? problem.mask_heads : 1;
  logits = memory.Take<float>(Size(n_tile_items, kBlockTokens));
  weights = memory.Take<std::byte>(Size(n_tile_items) * kLineBytes);
  factors = memory.Take<float>(Size(n_tile_items));
  bias = memory.Take<float>(Size(n_tile_blocks, n_planes, rows, kBlockTokens));
  bias_slot = memory.Take<int32_t>(Size(n_items));
  batch_start = memory.Take<int32_t>(Size(BatchCount(rows * plan.n_rep) + 1));
  slopes = memory.Take<float>(Size(n_items));
  bias_of = memory.Take<const float*>(Size(n_tile_blocks, n_planes, rows));
  const bool unpacks = BatchCount(rows * plan.n_rep) >= kUnpackBatches;
  key_lines = memory.Take<uint8_t>(unpacks ? Size(plan.max_view_channels, kBlockTokens) : 0);
  value_lines = memory.Take<uint8_t>(unpacks ? Size(16 * plan.value_vectors, kBlockTokens) : 0);
  key_tile = memory.Take<float>(plan.float_tiles ? Size(problem.head_dim_k, kBlockTokens) : 0);
  value_tile = memory.Take<float>(
      plan.float_tiles ? Size(std::max(problem.head_dim_v, problem.head_dim_k), kBlockTokens) : 0);
}

void RunTask(const AttendPlan& plan, const TaskRange& range, const PreparedQueries& queries,
             const TaskScratch& scratch, const PartialResult& result) {
  Task(plan, range, queries, scratch, result).Run();
}

}  // namespace varve
