#include "cache/attend_task.h"

#include <algorithm>

#include "cache/attend_mask.h"
#include "codec/codebooks.h"

namespace varve {
namespace {

constexpr int kMaxTileBlocks = 8;

// Logits and weights of this many items leave room for codes in L1.
constexpr int kMaxTileItems = 128;

// A result without blocks stands at 2^0, if the first of them lie no further below. All but unusual
// logits then meet the same power of two from the first block to the last merge.
constexpr int kMaxFirstDrop = 40;

/// The number of blocks whose items fill softmax's groups best.
int TileBlocks(int n_items) {
  int best = 1;
  for (int n = 2; n <= kMaxTileBlocks && n * n_items <= kMaxTileItems; ++n) {
    if (CeilDiv(n * n_items, kSoftmaxGroup) * best < CeilDiv(best * n_items, kSoftmaxGroup) * n)
      best = n;
  }
  return best;
}

size_t Size(int a, int b = 1, int c = 1, int d = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c) *
         static_cast<size_t>(d);
}

bool Unpacks(const AttendPlan& plan, int n_queries) {
  return n_queries >= plan.kernels->unpack_from;
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
        unpacks_(Unpacks(plan, queries.n_queries)),
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
    for (int tile_index = 1; tile_index < scratch.n_tile_blocks; ++tile_index)
      std::copy_n(scratch.slopes, n_items_, scratch.slopes + ItemAt(tile_index, 0, 0));
    softmax_.logits = scratch.logits;
    softmax_.bias = scratch.item_bias;
    softmax_.slope = scratch.slopes;
    softmax_.v_gains = scratch.item_gains;
    softmax_.weights = scratch.weights;
    softmax_.exponent = scratch.exponents;
    softmax_.sum = scratch.sums;
    softmax_.unit = scratch.units;
    softmax_.room = scratch.softmax_room;
    softmax_.base = scratch.bases;
    softmax_.share = scratch.shares;
    softmax_.factor = scratch.factors;
    result.Clear();
    std::fill_n(scratch.bases, Size(scratch.n_tile_blocks, n_items_), 0);
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
          packed_[n_tile_] = HasPackedValues(block);
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
    const int view = plan_.block_view[static_cast<size_t>(tile_[tile_index])];
    if (view != view_) prepared_ = queries_.At(plan_, view);
    view_ = view;
    const PreparedView& prepared = prepared_;
    if (prepared.rows != nullptr) {
      FloatKeys(tile_index, prepared.rows);
      return;
    }
    FetchGains(tile_index);
    const BlockLayout& layout = *block.k_coding.layout;
    const std::byte* payload = Payload(block.k, layout);
    QkArgs args;
    args.runs = prepared.runs;
    args.codes = reinterpret_cast<const uint8_t*>(payload);
    args.gains = reinterpret_cast<const uint16_t*>(payload + layout.code_bytes);
    args.head_stride = layout.head_bytes();
    args.queries = prepared.batches;
    args.logits = scratch_.logits + Size(ItemAt(tile_index, 0, 0), kBlockTokens);
    if (tile_index + 1 < n_tile_) {
      ReadNext(BlockAt(tile_index + 1), Side::kKey, args);
    } else {
      ReadNext(BlockAt(0), Side::kValue, args);
    }
    if (n_batches_ == 1 && !unpacks_ && open_[tile_index]) {
      args.n_heads = range_.n_kv_heads;
      kernels_.qk(args);
      return;
    }
    for (int head = 0; head < range_.n_kv_heads; ++head)
      KeysOfHead(tile_index, head, prepared, args);
  }

  /// Tells a kernel what is read after its call.
  template <typename Args>
  void ReadNext(const AttendBlock& block, Side side, Args& args) const {
    if (side == Side::kValue && block.v == nullptr) return;
    const BlockLayout& layout =
        side == Side::kKey ? *block.k_coding.layout : *block.v_coding.layout;
    args.next =
        reinterpret_cast<const uint8_t*>(Payload(side == Side::kKey ? block.k : block.v, layout));
    args.next_stride = layout.head_bytes();
  }

  /// The arguments of one head, without its batch, from those of all heads.
  template <typename Args>
  void TakeHead(int head, Args& args) const {
    args.codes += Size(head) * args.head_stride;
    args.n_heads = 1;
    if (head + 1 == range_.n_kv_heads) return;
    args.next = args.codes + args.head_stride;
    args.next_stride = args.head_stride;
  }

  void KeysOfHead(int tile_index, int head, const PreparedView& prepared, QkArgs args) {
    TakeHead(head, args);
    args.runs += head;
    args.gains += Size(head) * args.head_stride / sizeof(uint16_t);
    if (unpacks_) Unpack(prepared.unpacked_runs[head], args);
    for (int batch = 0; batch < n_batches_; ++batch) {
      const int item = head * n_queries_ + scratch_.batch_start[batch];
      const int n = scratch_.batch_start[batch + 1] - scratch_.batch_start[batch];
      QkArgs call = args;
      call.queries += head * n_batches_ + batch;
      call.logits += item * kBlockTokens;
      if (BatchIsDead(tile_index, head, batch)) {
        std::fill_n(call.logits, Size(n, kBlockTokens), 0.0f);
      } else {
        kernels_.qk(call);
        args.next_stride = 0;
      }
    }
  }

  void FloatKeys(int tile_index, const float* rows) {
    const AttendBlock& block = BlockAt(tile_index);
    const BlockLayout& layout = *block.k_coding.layout;
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      LoadF16Tile(Payload(block.k, layout) + Size(head) * layout.head_bytes(), problem_.head_dim_k,
                  scratch_.key_tile);
      FloatLogits(rows + Size(head * n_queries_, problem_.head_dim_k), kBlockTokens,
                  scratch_.logits + Size(ItemAt(tile_index, head, 0), kBlockTokens));
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

  /// Turns one head's codes into product lines of bytes.
  void Unpack(const QkRuns& unpacked, QkArgs& args) const {
    const QkRuns& packed = *args.runs;
    bool bytes = true;
    for (int r = 0; r < packed.n_runs; ++r) bytes = bytes && packed.run[r].bits == 8;
    if (bytes) return;
    for (int r = 0; r < packed.n_runs; ++r) {
      UnpackArgs unpack;
      unpack.side = Side::kKey;
      unpack.bits = packed.run[r].bits;
      unpack.n_lines = 2 * packed.run[r].n_quads;
      unpack.codes = args.codes + packed.run[r].byte_offset;
      unpack.lines = scratch_.key_lines + unpacked.run[r].byte_offset;
      kernels_.unpack(unpack);
    }
    args.runs = &unpacked;
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
    softmax_.n_items = n_tile_ * n_items_;
    softmax_.open = softmax_.cap == 0;
    for (int i = 0; i < n_tile_; ++i) {
      softmax_.open = softmax_.open && open_[i] && packed_[i];
      const Gains gains = GainsOf(i);
      if (gains.stride != gains_stride_) SetGainOffsets(gains.stride);
      const uint16_t** v_gains = scratch_.item_gains + ItemAt(i, 0, 0);
      for (int item = 0; item < n_items_; ++item)
        v_gains[item] = gains.at + scratch_.gain_offset[item];
      std::fill_n(scratch_.units + ItemAt(i, 0, 0), n_items_, gains.unit);
    }
    if (!softmax_.open) {
      for (int tile_index = 0; tile_index < n_tile_; ++tile_index) {
        for (int item = 0; item < n_items_; ++item)
          scratch_.item_bias[ItemAt(tile_index, 0, item)] = ItemBias(tile_index, item);
      }
    }
    kernels_.softmax(softmax_);
    if (fresh_) Begin();
    for (int tile_index = 0; tile_index < n_tile_; ++tile_index) {
      const int first = ItemAt(tile_index, 0, 0);
      const BlockWeights weights = {scratch_.exponents + first, scratch_.sums + first,
                                    scratch_.units + first, scratch_.factors + first};
      if (softmax_.near) {
        result_.AddShares(scratch_.shares + first);
      } else {
        AddUnusual(tile_index, weights);
      }
      if (problem_.value_skip_share > 0) result_.PassOver(problem_.value_skip_share, weights);
    }
    if (!softmax_.near) SetBases();
  }

  /// The first weights of a result: it takes its place at 2^0, or where they are.
  void Begin() {
    fresh_ = false;
    const int32_t* e = scratch_.exponents;
    softmax_.near = softmax_.near && *std::min_element(e, e + softmax_.n_items) >= -kMaxFirstDrop;
    if (softmax_.near) std::fill_n(result_.exponent, n_items_, 0);
  }

  /// Adds a block's weights where exponents lie far apart: earlier blocks of the tile have yet to
  /// add their values, so they are brought down with the result.
  void AddUnusual(int tile_index, const BlockWeights& weights) const {
    for (int item = 0; item < n_items_; ++item) {
      const float shrink = result_.AddOne(item, weights);
      if (shrink == 1.0f) continue;
      for (int earlier = 0; earlier < tile_index; ++earlier)
        scratch_.factors[ItemAt(earlier, 0, item)] *= shrink;
    }
  }

  /// Tells softmax what the result stands at.
  void SetBases() const {
    for (int tile_index = 0; tile_index < scratch_.n_tile_blocks; ++tile_index)
      std::copy_n(result_.exponent, n_items_, scratch_.bases + ItemAt(tile_index, 0, 0));
  }

  /// Gains of a block's packed values, `stride` numbers from one head to the next, and what a level
  /// is worth; null for plain rows.
  struct Gains {
    const uint16_t* at = nullptr;
    size_t stride = 0;
    float unit = 1.0f;
  };

  Gains GainsOf(int tile_index) const {
    if (!packed_[tile_index]) return {};
    const AttendBlock& block = BlockAt(tile_index);
    const BlockLayout& layout = *block.v_coding.layout;
    return {reinterpret_cast<const uint16_t*>(Payload(block.v, layout) + layout.code_bytes),
            layout.head_bytes() / sizeof(uint16_t), 1.0f / CodebookOf(layout.scheme.bits).unit};
  }

  void SetGainOffsets(size_t stride) {
    gains_stride_ = stride;
    for (int item = 0; item < n_items_; ++item)
      scratch_.gain_offset[item] = Size(item / n_queries_) * stride;
  }

  /// Softmax wants the values' gains before pv comes to their codes.
  void FetchGains(int tile_index) const {
    Gains gains = GainsOf(tile_index);
    if (gains.at == nullptr) return;
    for (int head = 0; head < range_.n_kv_heads; ++head, gains.at += gains.stride)
      __builtin_prefetch(gains.at);
  }

  static bool HasPackedValues(const AttendBlock& block) {
    return block.v != nullptr && block.v_coding.layout->scheme.codec != Codec::kF16;
  }

  void Values(int tile_index) {
    if (!packed_[tile_index]) {
      UnpackedValues(tile_index);
      return;
    }
    const AttendBlock& block = BlockAt(tile_index);
    const BlockLayout& layout = *block.v_coding.layout;
    const int first_item = ItemAt(tile_index, 0, 0);
    PvArgs args;
    args.bits = layout.scheme.bits;
    args.n_vectors = layout.padded_dim / 16;
    args.codes = reinterpret_cast<const uint8_t*>(Payload(block.v, layout));
    args.head_stride = layout.head_bytes();
    args.n = n_queries_;
    args.weights = scratch_.weights + Size(first_item, static_cast<int>(kLineBytes));
    args.factors = scratch_.factors + first_item;
    args.out = result_.rotated;
    args.out_stride = result_.value_channels;
    if (tile_index + 1 < n_tile_) {
      ReadNext(BlockAt(tile_index + 1), Side::kValue, args);
    } else if (next_block_ < range_.end_block) {
      ReadNext(problem_.blocks[static_cast<size_t>(next_block_)], Side::kKey, args);
    }
    if (n_batches_ == 1 && !unpacks_) {
      args.n_heads = range_.n_kv_heads;
      kernels_.pv(args);
      return;
    }
    for (int head = 0; head < range_.n_kv_heads; ++head) ValuesOfHead(head, args);
  }

  void ValuesOfHead(int head, PvArgs args) {
    TakeHead(head, args);
    if (unpacks_ && args.bits != 8) UnpackValues(args);
    for (int batch = 0; batch < n_batches_; ++batch) {
      const int item = head * n_queries_ + scratch_.batch_start[batch];
      PvArgs call = args;
      call.n = scratch_.batch_start[batch + 1] - scratch_.batch_start[batch];
      call.weights = static_cast<const std::byte*>(args.weights) + Size(item) * kLineBytes;
      call.factors += item;
      call.out += item * args.out_stride;
      kernels_.pv(call);
      args.next_stride = 0;
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
    result_.UsePlain();
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
    open_[0] = packed_[0] = false;
    std::fill_n(scratch_.logits, Size(n_items_, kBlockTokens), 0.0f);
    if (n_tokens > static_cast<int>(rows.size())) {
      std::fill_n(scratch_.key_tile, Size(n_tokens, problem_.head_dim_k), 0.0f);
    }
    const float* rows_of_view = queries_.At(plan_, plan_.exact_view[Size(first)]).rows;
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      load(&ExactRow::k, head, problem_.head_dim_k, scratch_.key_tile);
      FloatLogits(rows_of_view + Size(head * n_queries_, problem_.head_dim_k), n_tokens,
                  scratch_.logits + Size(ItemAt(0, head, 0), kBlockTokens));
    }
    Softmax();
    const bool values_in_keys = rows[0].v == nullptr;
    const int head_dim = values_in_keys ? problem_.head_dim_k : problem_.head_dim_v;
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      load(values_in_keys ? &ExactRow::k : &ExactRow::v, head, head_dim, scratch_.value_tile);
      PlainValues(0, head, scratch_.value_tile, head_dim, n_tokens);
    }
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
  bool unpacks_;       ///< a block, once for all queries of a head
  bool fresh_ = true;  ///< nothing is in the result yet
  int n_items_;
  MaskReader mask_;
  int n_tile_ = 0;
  int next_block_ = 0;                ///< first block past the tile
  int tile_[kMaxTileBlocks] = {};     ///< indices of the tile's blocks
  bool open_[kMaxTileBlocks] = {};    ///< all queries attend to all cells of the block
  bool packed_[kMaxTileBlocks] = {};  ///< the block's values are packed
  int view_ = -1;                     ///< of prepared_
  PreparedView prepared_;
  size_t gains_stride_ = SIZE_MAX;  ///< of scratch_.gain_offset
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
  bias = memory.Take<float>(Size(n_tile_blocks, n_planes, rows, kBlockTokens));
  bias_slot = memory.Take<int32_t>(Size(n_items));
  batch_start = memory.Take<int32_t>(Size(BatchCount(rows * plan.n_rep) + 1));
  const size_t n_grouped = RoundUp(Size(n_tile_items), Size(kSoftmaxGroup));
  slopes = memory.Take<float>(n_grouped);
  item_bias = memory.Take<const float*>(n_grouped);
  item_gains = memory.Take<const uint16_t*>(n_grouped);
  gain_offset = memory.Take<size_t>(Size(n_items));
  exponents = memory.Take<int32_t>(n_grouped);
  sums = memory.Take<float>(n_grouped);
  bases = memory.Take<int32_t>(n_grouped);
  shares = memory.Take<float>(n_grouped);
  factors = memory.Take<float>(n_grouped);
  units = memory.Take<float>(n_grouped);
  softmax_room = memory.Take<float>(2 * n_grouped);
  bias_of = memory.Take<const float*>(Size(n_tile_blocks, n_planes, rows));
  const bool unpacks = Unpacks(plan, rows * plan.n_rep);
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
