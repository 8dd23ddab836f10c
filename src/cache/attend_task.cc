#include "cache/attend_task.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/f16.h"
#include "cache/attend_mask.h"
#include "codec/codebooks.h"
#include "codec/rotation.h"

namespace varve {
namespace {

// Sums may stand this many octaves above their exponent before they are brought down.
constexpr int kMaxOctaves = 60;
// Blocks this far below the largest so far add nothing that f32 could hold.
constexpr int kMinOctaves = -120;

// From this many batches on a block is unpacked once for all of them.
constexpr int kUnpackBatches = 3;

float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

constexpr int kMaxTileBlocks = 8;

int TileBlocks(int n_items) {
  return std::clamp(kMaxSoftmaxItems / std::max(n_items, 1), 1, kMaxTileBlocks);
}

size_t Size(int a, int b = 1, int c = 1, int d = 1) {
  return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c) *
         static_cast<size_t>(d);
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
  const std::byte* Payload(const std::byte* block, const BlockCoding& coding, int head) const {
    return block + Size(range_.first_kv_head + head) * coding.layout->head_bytes();
  }

  void Keys(int tile_index) {
    const AttendBlock& block = BlockAt(tile_index);
    const int view = plan_.block_view[static_cast<size_t>(tile_[tile_index])];
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      const std::byte* payload = Payload(block.k, block.k_coding, head);
      const PreparedHead& prepared = queries_.At(view, head);
      float* logits = scratch_.logits + Size(ItemAt(tile_index, head, 0), kBlockTokens);
      if (prepared.rows != nullptr) {
        LoadF16Tile(payload, problem_.head_dim_k, scratch_.key_tile);
        FloatLogits(prepared.rows, kBlockTokens, logits);
        continue;
      }
      QkArgs args;
      args.runs = &prepared.runs;
      args.codes = reinterpret_cast<const uint8_t*>(payload);
      args.gains = reinterpret_cast<const uint16_t*>(payload + block.k_coding.layout->code_bytes);
      if (block.v != nullptr) {
        const BlockLayout& v = *block.v_coding.layout;
        args.prefetch = reinterpret_cast<const uint8_t*>(Payload(block.v, block.v_coding, head));
        args.n_prefetch_lines = static_cast<int>(v.head_bytes() / kLineBytes);
      }
      if (n_batches_ >= kUnpackBatches) Unpack(prepared, args);
      for (int batch = 0; batch < n_batches_; ++batch) {
        args.queries = prepared.batches + batch;
        args.logits = logits + Size(BatchStart(n_queries_, batch), kBlockTokens);
        if (BatchIsDead(tile_index, head, batch)) {
          std::fill_n(args.logits, Size(args.queries->n, kBlockTokens), 0.0f);
          continue;
        }
        kernels_.qk(args);
        args.prefetch = nullptr;
        args.n_prefetch_lines = 0;
      }
    }
  }

  bool BatchIsDead(int tile_index, int head, int batch) const {
    if (open_[tile_index]) return false;
    for (int query = BatchStart(n_queries_, batch); query < BatchStart(n_queries_, batch + 1);
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
    int pending = 0;
    int first = 0;  // tile item of args' first
    const auto flush = [&] {
      args.n_items = pending;
      args.logits = scratch_.logits + Size(first, kBlockTokens);
      args.weights = scratch_.weights + Size(first, static_cast<int>(kLineBytes));
      kernels_.softmax(args);
      // Runs of items whose results are neighbours: those of one block.
      for (int i = 0; i < pending;) {
        const int item = first % n_items_;
        const int n = std::min(pending - i, n_items_ - item);
        Account(item, first, n, i);
        first += n;
        i += n;
      }
      pending = 0;
    };
    for (int tile_index = 0; tile_index < n_tile_; ++tile_index) {
      const float* const* bias_of = BiasOf(tile_index);
      int item = 0;
      for (int head = 0; head < range_.n_kv_heads; ++head) {
        float unit = 1.0f;
        const uint16_t* gains = GainsOf(tile_index, head, unit);
        for (int query = 0; query < n_queries_; ++query, ++item) {
          args.bias[pending] = bias_of[scratch_.bias_slot[item]];
          args.slope[pending] = scratch_.slopes[item];
          args.v_gains[pending] = gains;
          unit_[pending] = unit;
          if (++pending == kMaxSoftmaxItems) flush();
        }
      }
    }
    if (pending > 0) flush();
  }

  /// Gains of packed values, and what a level is worth; null for plain rows.
  const uint16_t* GainsOf(int tile_index, int head, float& unit) const {
    if (exact_tile_) return nullptr;
    const AttendBlock& block = BlockAt(tile_index);
    if (block.v == nullptr || block.v_coding.layout->scheme.codec == Codec::kF16) return nullptr;
    const BlockLayout& layout = *block.v_coding.layout;
    unit = 1.0f / CodebookOf(layout.scheme.bits).unit;
    return reinterpret_cast<const uint16_t*>(Payload(block.v, block.v_coding, head) +
                                             layout.code_bytes);
  }

  /// Takes the weights of tile items tile_item .. + n, softmax_'s from `at` on, into results item
  /// .. + n, and sets the factors that their values enter with.
  void Account(int item, int tile_item, int n, int at) {
    const int32_t* exponent = softmax_.exponent + at;
    const float* sum = softmax_.sum + at;
    const float* unit = unit_ + at;
    float* factors = scratch_.factors + tile_item;
    for (int i = 0; i < n; ++i)
      unit_[at + i] *= softmax_.v_gains[at + i] != nullptr ? softmax_.unit[at + i] : 1.0f;
    int unusual = 0;
    for (int i = 0; i < n; ++i) {
      const int64_t octaves = static_cast<int64_t>(exponent[i]) - result_.exponent[item + i];
      unusual |= static_cast<int>(octaves < kMinOctaves) | static_cast<int>(octaves > kMaxOctaves);
    }
    if (unusual == 0) {
      for (int i = 0; i < n; ++i) {
        const float factor = PowerOfTwo(exponent[i] - result_.exponent[item + i]);
        result_.sum[item + i] += sum[i] * factor;
        factors[i] = factor * unit[i];
      }
      return;
    }
    for (int i = 0; i < n; ++i)
      factors[i] = AccountOne(item + i, tile_item + i, exponent[i], sum[i]) * unit[i];
  }

  float AccountOne(int item, int tile_item, int32_t exponent, float sum) const {
    if (exponent == kNoExponent) {
      if (std::isnan(sum)) result_.sum[item] = sum;
      return 0.0f;
    }
    int32_t& base = result_.exponent[item];
    if (base == kNoExponent) base = exponent;
    if (exponent - base > kMaxOctaves) {
      const int drop = base - exponent;
      const float shrink = drop < kMinOctaves ? 0.0f : PowerOfTwo(drop);
      Scale(item, shrink);
      // Earlier blocks of the tile have yet to add their values.
      for (int earlier = item; earlier < tile_item; earlier += n_items_)
        scratch_.factors[earlier] *= shrink;
      base = exponent;
    }
    const int octaves = exponent - base;
    if (octaves < kMinOctaves) return 0.0f;
    const float factor = PowerOfTwo(octaves);
    result_.sum[item] += sum * factor;
    return factor;
  }

  void Scale(int item, float factor) const {
    result_.sum[item] *= factor;
    float* rotated = result_.rotated + Size(item, result_.value_channels);
    for (int i = 0; i < result_.value_channels; ++i) rotated[i] *= factor;
    float* plain = result_.plain + Size(item, result_.plain_channels);
    for (int i = 0; i < result_.plain_channels; ++i) plain[i] *= factor;
  }

  void Values(int tile_index) {
    const AttendBlock& block = BlockAt(tile_index);
    for (int head = 0; head < range_.n_kv_heads; ++head) {
      if (block.v == nullptr) {
        DecodeHead(block.k_coding, range_.first_kv_head + head,
                   Payload(block.k, block.k_coding, head), scratch_.key_tile);
        PlainValues(tile_index, head, scratch_.key_tile, problem_.head_dim_k, kBlockTokens);
        continue;
      }
      const std::byte* payload = Payload(block.v, block.v_coding, head);
      const BlockLayout& layout = *block.v_coding.layout;
      if (layout.scheme.codec == Codec::kF16) {
        LoadF16Tile(payload, problem_.head_dim_v, scratch_.value_tile);
        PlainValues(tile_index, head, scratch_.value_tile, problem_.head_dim_v, kBlockTokens);
        continue;
      }
      PvArgs args;
      args.bits = layout.scheme.bits;
      args.n_vectors = layout.padded_dim / 16;
      args.codes = reinterpret_cast<const uint8_t*>(payload);
      if (next_block_ + tile_index < range_.end_block) {
        const AttendBlock& next = problem_.blocks[static_cast<size_t>(next_block_ + tile_index)];
        args.prefetch = reinterpret_cast<const uint8_t*>(Payload(next.k, next.k_coding, head));
        args.n_prefetch_lines = static_cast<int>(next.k_coding.layout->head_bytes() / kLineBytes);
      }
      if (n_batches_ >= kUnpackBatches && args.bits != 8) {
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
      for (int batch = 0; batch < n_batches_; ++batch) {
        const int first = BatchStart(n_queries_, batch);
        const int item = ItemAt(tile_index, head, first);
        args.n = BatchStart(n_queries_, batch + 1) - first;
        args.weights = scratch_.weights + Size(item, static_cast<int>(kLineBytes));
        float any = 0;
        for (int n = 0; n < args.n; ++n) {
          args.factor[n] = scratch_.factors[item + n];
          any = std::max(any, args.factor[n]);
          args.out[n] =
              result_.rotated + Size(head * n_queries_ + first + n, result_.value_channels);
        }
        if (any == 0) continue;
        kernels_.pv(args);
        args.prefetch = nullptr;
        args.n_prefetch_lines = 0;
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
  int next_block_ = 0;                 ///< first block past the tile
  int tile_[kMaxTileBlocks] = {};      ///< indices of the tile's blocks
  bool open_[kMaxTileBlocks] = {};     ///< all queries attend to all cells of the block
  float unit_[kMaxSoftmaxItems] = {};  ///< worth of a value level for them
  SoftmaxArgs softmax_;
};

}  // namespace

void PartialResult::Take(const AttendPlan& plan, int items, Bump& memory) {
  n_items = items;
  value_channels = 16 * plan.value_vectors;
  plain_channels = plan.plain_values ? plan.problem->head_dim_v : 0;
  exponent = memory.Take<int32_t>(Size(items));
  sum = memory.Take<float>(Size(items));
  rotated = memory.Take<float>(Size(items, value_channels));
  plain = memory.Take<float>(Size(items, plain_channels));
}

void PartialResult::Clear() const {
  std::fill_n(exponent, n_items, kNoExponent);
  std::fill_n(sum, n_items, 0.0f);
  std::fill_n(rotated, Size(n_items, value_channels), 0.0f);
  std::fill_n(plain, Size(n_items, plain_channels), 0.0f);
}

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

void MergePartial(const PartialResult& from, const PartialResult& to) {
  for (int item = 0; item < to.n_items; ++item) {
    if (std::isnan(from.sum[item])) to.sum[item] = from.sum[item];
    if (from.exponent[item] == kNoExponent) continue;
    const int32_t top = std::max(from.exponent[item], to.exponent[item]);
    const auto share = [&](int32_t exponent) {
      return exponent == kNoExponent || exponent - top < kMinOctaves ? 0.0f
                                                                     : PowerOfTwo(exponent - top);
    };
    const float keep = share(to.exponent[item]);
    const float add = share(from.exponent[item]);
    to.exponent[item] = top;
    to.sum[item] = to.sum[item] * keep + from.sum[item] * add;
    const auto merge = [&](const float* source, float* target, int n) {
      source += Size(item, n);
      target += Size(item, n);
      for (int i = 0; i < n; ++i) target[i] = target[i] * keep + source[i] * add;
    };
    merge(from.rotated, to.rotated, to.value_channels);
    merge(from.plain, to.plain, to.plain_channels);
  }
}

void WriteOutput(const AttendPlan& plan, const TaskRange& range, const PartialResult& result,
                 int kv_head, int query) {
  const AttendProblem& problem = *plan.problem;
  const int item = kv_head * range.n_rows * plan.n_rep + query;
  const int head = (range.first_kv_head + kv_head) * plan.n_rep + query % plan.n_rep;
  float* out = problem.out + (range.first_row + query / plan.n_rep) * problem.out_row_stride +
               head * problem.out_head_stride;
  double sum = static_cast<double>(result.sum[item]);
  const int32_t exponent = result.exponent[item];
  if (problem.sinks != nullptr && exponent != kNoExponent) {
    sum += std::exp2(static_cast<double>(problem.sinks[head]) * 1.4426950408889634 -
                     static_cast<double>(exponent));
  }
  const float inverse = sum == 0 ? 0.0f : static_cast<float>(1.0 / sum);
  float* rotated = result.rotated + Size(item, result.value_channels);
  if (result.value_channels > 0) {
    plan.kernels->rows->rotate(rotated, problem.head_dim_v, HadamardSize(problem.head_dim_v), 1.0f);
  }
  const float* plain = result.plain + Size(item, result.plain_channels);
  for (int i = 0; i < problem.head_dim_v; ++i) {
    float value = 0;
    if (result.value_channels > 0) value += rotated[i];
    if (result.plain_channels > 0) value += plain[i];
    out[i] = value * inverse;
  }
}

}  // namespace varve
