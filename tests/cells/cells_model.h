// A cell cache as plain as it can be: f32 rows a cell, every block looked at before every write,
// coding by the row codecs alone. The cell cache must agree with it bit for bit.
#ifndef VARVE_TESTS_CELLS_CELLS_MODEL_H_
#define VARVE_TESTS_CELLS_CELLS_MODEL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/checked_math.h"
#include "base/f16.h"
#include "cache/cell_cache.h"
#include "cache/cell_ladder.h"
#include "codec/block_codec.h"

namespace varve::testing {

class CellModel {
 public:
  using Row = std::vector<float>;

  struct Cell {
    bool written[2] = {false, false};
    bool fresh[2] = {false, false};
    Row row[2];  ///< what the packed slot decodes to
    std::optional<Row> exact[2];
    std::optional<int64_t> position;
    int64_t delta = 0;
  };

  CellModel(const Settings& settings, const CellShape& shape)
      : shape_(shape),
        sink_tokens_(settings.sink_tokens),
        cells_(static_cast<size_t>(shape.n_cells) * shape.n_streams) {
    ladder_[0] = MakeSideLadder(settings, Side::kKey, shape.head_dim_k).value();
    if (shape.head_dim_v != 0)
      ladder_[1] = MakeSideLadder(settings, Side::kValue, shape.head_dim_v).value();
    bool f16_only = true;
    for (const SideLadder& ladder : ladder_) {
      for (const CellStage& stage : ladder.stages)
        f16_only = f16_only && stage.layout.scheme.codec == Codec::kF16;
    }
    if (f16_only) sink_tokens_ = 0;
    blocks_per_stream_ = (shape.n_cells + 31) / 32;
    blocks_.resize(static_cast<size_t>(blocks_per_stream_) * shape.n_streams);
    streams_.resize(static_cast<size_t>(shape.n_streams));
    for (const CellStage& stage : ladder_[0].stages) {
      if (stage.leave_age <= 0) continue;
      fit_tokens_ = std::clamp<int64_t>(stage.leave_age, 64, 4096);
      break;
    }
    ResetStatistics();
  }

  void Write(Side side, const std::vector<int64_t>& index, const int32_t* positions,
             const std::vector<Row>& rows) {
    const auto s = static_cast<size_t>(side);
    std::vector<bool> touched(blocks_.size(), false);
    for (const int64_t cell : index) touched[BlockOf(cell)] = true;
    for (int stream = 0; stream < shape_.n_streams; ++stream) {
      bool begins = false;
      std::optional<int64_t> first_position;
      for (size_t i = 0; i < index.size(); ++i) {
        if (index[i] / shape_.n_cells != stream ||
            !Begins(cells_[static_cast<size_t>(index[i])], s))
          continue;
        begins = true;
        if (positions != nullptr)
          first_position = std::min<int64_t>(first_position.value_or(positions[i]), positions[i]);
      }
      if (begins) Demote(stream, first_position, touched);
    }
    const auto entry = static_cast<size_t>(ladder_[s].entry(!tables_.empty()));
    if (side == Side::kKey && tables_.empty()) {
      for (size_t i = 0; i < index.size(); ++i) {
        if (!IsSink(index[i], positions, i)) AddKey(rows[i]);
      }
    }
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (!touched[b]) continue;
      Block& block = blocks_[b];
      if (block.stage[s] < 0) block.stage[s] = static_cast<int>(entry);
      if (block.stage[s] != static_cast<int>(entry)) {
        const auto from = static_cast<size_t>(block.stage[s]);
        ForBlock(b, [&](Cell& cell) {
          if (cell.written[s]) cell.row[s] = Move(side, from, entry, cell.row[s]);
        });
        block.stage[s] = static_cast<int>(entry);
      }
    }
    for (size_t i = 0; i < index.size(); ++i) {
      Cell& cell = cells_[static_cast<size_t>(index[i])];
      Block& block = blocks_[BlockOf(index[i])];
      Stream& stream = streams_[static_cast<size_t>(index[i] / shape_.n_cells)];
      if (Begins(cell, s)) {
        block.newest_clock = ++stream.clock;
        cell.fresh[1 - s] = false;
        cell.position.reset();
      }
      cell.fresh[s] = cell.written[s] = true;
      cell.row[s] = Through(side, static_cast<size_t>(block.stage[s]), rows[i]);
      if (positions != nullptr) {
        cell.position = positions[i];
        stream.newest_position =
            std::max<int64_t>(stream.newest_position.value_or(positions[i]), positions[i]);
      }
      if (side == Side::kKey) cell.delta = 0;
      cell.exact[s].reset();
      if (IsSink(index[i], positions, i)) {
        Row exact = rows[i];
        for (float& x : exact) x = F16ToF32(F32ToF16(x));
        cell.exact[s] = exact;
      }
    }
  }

  /// The row without its pending rotation.
  Row Unrotated(Side side, int64_t index) const {
    const auto s = static_cast<size_t>(side);
    const Cell& cell = cells_[static_cast<size_t>(index)];
    if (!cell.written[s]) return Row(RowElements(side), 0.0f);
    return cell.exact[s] ? *cell.exact[s] : cell.row[s];
  }

  void Forget(int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; ++i) cells_[static_cast<size_t>(i)] = Cell();
    for (size_t b = 0; b < blocks_.size(); ++b) Settle(b);
    const bool empty = std::none_of(cells_.begin(), cells_.end(),
                                    [](const Cell& c) { return c.written[0] || c.written[1]; });
    if (!empty) return;
    for (Stream& stream : streams_) stream = Stream();
    tables_.clear();
    keys_wait_ = false;
    ResetStatistics();
  }

  void Shift(int64_t first, const std::vector<int32_t>& delta) {
    for (size_t i = 0; i < delta.size(); ++i) {
      Cell& cell = cells_[static_cast<size_t>(first) + i];
      if (!cell.written[0]) continue;
      cell.delta += delta[i];
      if (cell.position) *cell.position += delta[i];
    }
    for (size_t s = 0; s < streams_.size(); ++s) {
      streams_[s].newest_position.reset();
      for (int64_t c = 0; c < shape_.n_cells; ++c) {
        const auto& position =
            cells_[s * static_cast<size_t>(shape_.n_cells) + static_cast<size_t>(c)].position;
        if (position)
          streams_[s].newest_position =
              std::max(streams_[s].newest_position.value_or(*position), *position);
      }
    }
  }

  void Copy(int64_t dst_first, int64_t src_first, int64_t n, Side side) {
    if (dst_first == src_first) return;
    const auto s = static_cast<size_t>(side);
    const std::vector<Cell> src(cells_);
    const std::vector<Block> src_blocks(blocks_);
    const std::vector<Stream> src_streams(streams_);
    const auto entry = static_cast<int>(ladder_[s].entry(!tables_.empty()));
    for (int64_t i = 0; i < n;) {
      const size_t b = BlockOf(dst_first + i);
      const size_t from_b = BlockOf(src_first + i);
      Block& block = blocks_[b];
      Stream& stream = streams_[static_cast<size_t>((dst_first + i) / shape_.n_cells)];
      int64_t run = 0;
      while (i + run < n && BlockOf(dst_first + i + run) == b) ++run;
      const bool whole = TokenOf(dst_first + i) == 0 && TokenOf(src_first + i) == 0 &&
                         run == CellsIn(b) && CellsIn(from_b) == run &&
                         src_blocks[from_b].stage[s] >= 0;
      bool any = false;
      for (int64_t k = 0; k < run; ++k)
        any = any || src[static_cast<size_t>(src_first + i + k)].written[s];
      if (whole) {
        block.stage[s] = src_blocks[from_b].stage[s];
      } else if (any) {
        if (block.stage[s] < 0) block.stage[s] = entry;
        if (block.stage[s] != entry) {
          const auto from = static_cast<size_t>(block.stage[s]);
          block.stage[s] = entry;
          ForBlock(b, [&](Cell& cell) {
            if (cell.written[s])
              cell.row[s] = Move(side, from, static_cast<size_t>(entry), cell.row[s]);
          });
        }
      }
      for (int64_t k = 0; k < run; ++k) {
        const Cell& from = src[static_cast<size_t>(src_first + i + k)];
        Cell& to = cells_[static_cast<size_t>(dst_first + i + k)];
        to.exact[s] = from.exact[s];
        if (side == Side::kKey) to.position.reset();
        if (!from.written[s]) {
          to.written[s] = to.fresh[s] = false;
          if (side == Side::kKey) to.delta = 0;
          continue;
        }
        if (Begins(to, s)) {
          to.fresh[1 - s] = false;
          if (!whole) block.newest_clock = ++stream.clock;
        }
        to.written[s] = to.fresh[s] = true;
        if (side == Side::kKey) {
          to.delta = from.delta;
          to.position = from.position;
          if (to.position)
            stream.newest_position =
                std::max(stream.newest_position.value_or(*to.position), *to.position);
        }
        to.row[s] = whole ? from.row[s]
                          : Through(side, static_cast<size_t>(block.stage[s]),
                                    from.exact[s] ? *from.exact[s] : from.row[s]);
      }
      if (whole && any) {
        const int64_t age = src_streams[static_cast<size_t>(src_first / shape_.n_cells)].clock -
                            src_blocks[from_b].newest_clock;
        const int64_t clock = stream.clock - age;
        bool keys = false;
        ForBlock(b, [&](Cell& cell) { keys = keys || cell.written[0]; });
        block.newest_clock =
            side == Side::kKey || !keys ? clock : std::max(block.newest_clock, clock);
      }
      Settle(b);
      i += run;
    }
  }

  void AddQueries(const float* q, int n_rows, int n_heads, float scale) {
    if (!tables_.empty() || !ladder_[0].needs_tables()) return;
    const int n_rep = n_heads / shape_.n_kv_heads;
    for (int r = 0; r < n_rows && n_query_rows_ < fit_tokens_; ++r, ++n_query_rows_) {
      for (int h = 0; h < n_heads; ++h) {
        PairEnergies& e = energies_[static_cast<size_t>(h / n_rep)];
        for (int c = 0; c < shape_.head_dim_k; ++c) {
          const double x = static_cast<double>(scale) *
                           q[(static_cast<size_t>(r) * n_heads + h) * shape_.head_dim_k + c];
          e.query[static_cast<size_t>(c)] += x * x;
        }
        e.n_queries += 1;
        ++n_query_vectors_;
      }
    }
  }

  const Cell& cell(int64_t index) const { return cells_[static_cast<size_t>(index)]; }
  int stage(Side side, int64_t index) const {
    return blocks_[BlockOf(index)].stage[static_cast<size_t>(side)];
  }
  int tier(Side side, int64_t index) const {
    return ladder_[static_cast<size_t>(side)].stages[static_cast<size_t>(stage(side, index))].tier;
  }
  bool has_tables() const { return !tables_.empty(); }

  size_t RowElements(Side side) const {
    return static_cast<size_t>(shape_.n_kv_heads) *
           (side == Side::kKey ? shape_.head_dim_k : shape_.head_dim_v);
  }

 private:
  struct Block {
    int stage[2] = {-1, -1};
    int64_t newest_clock = 0;
  };
  struct Stream {
    int64_t clock = 0;
    std::optional<int64_t> newest_position;
  };

  size_t BlockOf(int64_t cell) const {
    return static_cast<size_t>(cell / shape_.n_cells * blocks_per_stream_ +
                               cell % shape_.n_cells / 32);
  }
  int64_t TokenOf(int64_t cell) const { return cell % shape_.n_cells % 32; }
  int64_t CellsIn(size_t block) const {
    return std::min<int64_t>(
        32, shape_.n_cells - static_cast<int64_t>(block) % blocks_per_stream_ * 32);
  }

  template <typename F>
  void ForBlock(size_t block, F f) {
    const auto stream = static_cast<int64_t>(block) / blocks_per_stream_;
    const int64_t first =
        stream * shape_.n_cells + static_cast<int64_t>(block) % blocks_per_stream_ * 32;
    for (int64_t i = first; i < first + CellsIn(block); ++i) f(cells_[static_cast<size_t>(i)]);
  }

  static bool Begins(const Cell& cell, size_t s) { return cell.fresh[s] || !cell.fresh[1 - s]; }

  bool IsSink(int64_t index, const int32_t* positions, size_t i) const {
    return (positions != nullptr ? positions[i] : index % shape_.n_cells) < sink_tokens_;
  }

  void Settle(size_t b) {
    bool any[2] = {false, false};
    ForBlock(b, [&](Cell& cell) {
      any[0] = any[0] || cell.written[0];
      any[1] = any[1] || cell.written[1];
    });
    for (const size_t s : {size_t{0}, size_t{1}}) {
      if (!any[s]) blocks_[b].stage[s] = -1;
    }
  }

  BlockCoding CodingOf(Side side, size_t stage_index) const {
    const CellStage& stage = ladder_[static_cast<size_t>(side)].stages[stage_index];
    BlockCoding coding;
    coding.layout = &stage.layout;
    if (stage.needs_table) {
      for (const auto& [bits, tables] : tables_) {
        if (bits == stage.layout.scheme.bits) coding.tables = tables.data();
      }
    }
    return coding;
  }

  /// One zeroed block of a stage, 64-byte aligned.
  class Block64 {
   public:
    Block64(const BlockCoding& coding, int n_kv_heads)
        : bytes_(coding.layout->block_bytes(n_kv_heads) + kLineBytes) {}
    std::byte* data() {
      const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
      return bytes_.data() + (RoundUp<uintptr_t>(at, kLineBytes) - at);
    }

   private:
    std::vector<std::byte> bytes_;
  };

  Row Code(Side side, size_t stage_index, const Row& row) const {
    const BlockCoding coding = CodingOf(side, stage_index);
    Block64 block(coding, shape_.n_kv_heads);
    Row out(row.size());
    EncodeRow(coding, shape_.n_kv_heads, row.data(), 7, block.data());
    DecodeRow(coding, shape_.n_kv_heads, block.data(), 7, out.data());
    return out;
  }

  /// A row that stands at one stage, moved to another. Coding is a fixed point, so encoding the
  /// decoded row gives the codes it came from.
  Row Move(Side side, size_t from_stage, size_t to_stage, const Row& row) const {
    const BlockCoding from = CodingOf(side, from_stage);
    const BlockCoding to = CodingOf(side, to_stage);
    Block64 source(from, shape_.n_kv_heads);
    Block64 target(to, shape_.n_kv_heads);
    Row out(row.size());
    EncodeRow(from, shape_.n_kv_heads, row.data(), 7, source.data());
    RepackBlock(from, to, shape_.n_kv_heads, source.data(), target.data());
    DecodeRow(to, shape_.n_kv_heads, target.data(), 7, out.data());
    return out;
  }

  Row Through(Side side, size_t stage_index, Row row) const {
    const SideLadder& ladder = ladder_[static_cast<size_t>(side)];
    if (static_cast<int>(stage_index) != ladder.entry(!tables_.empty()))
      ADD_FAILURE() << "not written at entry";
    row = Code(side, 0, row);
    for (size_t s = 1; s <= stage_index; ++s) row = Move(side, s - 1, s, row);
    return row;
  }

  bool Ready() const {
    return energies_[0].n_keys >= static_cast<double>(fit_tokens_) && n_query_vectors_ >= 32;
  }

  void AddKey(const Row& row) {
    if (energies_[0].n_keys >= static_cast<double>(fit_tokens_)) return;
    for (size_t h = 0; h < energies_.size(); ++h) {
      for (size_t c = 0; c < energies_[h].key.size(); ++c) {
        const double x = row[h * energies_[h].key.size() + c];
        energies_[h].key[c] += x * x;
      }
      energies_[h].n_keys += 1;
    }
  }

  void Fit() {
    for (const CellStage& stage : ladder_[0].stages) {
      const int bits = stage.layout.scheme.bits;
      if (!stage.needs_table ||
          std::any_of(tables_.begin(), tables_.end(), [&](auto& t) { return t.first == bits; })) {
        continue;
      }
      std::vector<KeyTable> tables;
      for (const PairEnergies& e : energies_) {
        tables.push_back(
            FitKeyTable(e, shape_.pairing, shape_.n_rope_dims, shape_.head_dim_k, bits));
      }
      tables_.emplace_back(bits, std::move(tables));
    }
  }

  /// Whether a head's table of this stage predicts more error of a logit than the ladder allows.
  bool ErrsTooMuch(const CellStage& stage) const {
    if (!stage.needs_table || ladder_[0].key_error_limit <= 0) return false;
    for (const auto& [bits, tables] : tables_) {
      if (bits != stage.layout.scheme.bits) continue;
      for (const KeyTable& table : tables) {
        if (table.product_error > ladder_[0].key_error_limit) return true;
      }
    }
    return false;
  }

  void Demote(int stream_index, std::optional<int64_t> first_position,
              const std::vector<bool>& touched) {
    const Stream& stream = streams_[static_cast<size_t>(stream_index)];
    std::optional<int64_t> newest = stream.newest_position;
    if (first_position) newest = std::max(newest.value_or(*first_position), *first_position);
    if (keys_wait_ && Ready() && tables_.empty()) Fit();
    for (int pass = 0; pass < 2; ++pass) {
      for (int b = 0; b < blocks_per_stream_; ++b) {
        const auto at = static_cast<size_t>(stream_index * blocks_per_stream_ + b);
        Block& block = blocks_[at];
        if (touched[at] || (block.stage[0] < 0 && block.stage[1] < 0)) continue;
        int64_t age = stream.clock + 1 - block.newest_clock;
        std::optional<int64_t> position;
        ForBlock(at, [&](Cell& c) {
          if (c.position) position = std::max(position.value_or(*c.position), *c.position);
        });
        if (position && newest) age = std::min(age, *newest - *position);
        for (const size_t s : {size_t{0}, size_t{1}}) {
          if (block.stage[s] < 0) continue;
          while (true) {
            const auto& stages = ladder_[s].stages;
            const auto stage = static_cast<size_t>(block.stage[s]);
            if (stages[stage].leave_age > age) break;
            if (stages[stage + 1].needs_table && tables_.empty()) {
              if (pass == 0 && Ready()) Fit();
              if (tables_.empty()) {
                keys_wait_ = true;
                break;
              }
            }
            if (s == 0 && stage >= static_cast<size_t>(ladder_[0].entry(true)) &&
                ErrsTooMuch(stages[stage + 1])) {
              break;
            }
            block.stage[s] = static_cast<int>(stage + 1);
            if (stages[stage].layout.scheme == stages[stage + 1].layout.scheme) continue;
            ForBlock(at, [&](Cell& c) {
              if (c.written[s]) c.row[s] = Move(static_cast<Side>(s), stage, stage + 1, c.row[s]);
            });
          }
        }
      }
    }
  }

  void ResetStatistics() {
    energies_.assign(static_cast<size_t>(shape_.n_kv_heads), PairEnergies());
    for (PairEnergies& e : energies_) {
      e.key.assign(static_cast<size_t>(shape_.head_dim_k), 0.0);
      e.query.assign(static_cast<size_t>(shape_.head_dim_k), 0.0);
    }
    n_query_rows_ = n_query_vectors_ = 0;
  }

  CellShape shape_;
  int64_t sink_tokens_;
  SideLadder ladder_[2];
  std::vector<Cell> cells_;
  std::vector<Block> blocks_;
  std::vector<Stream> streams_;
  int blocks_per_stream_ = 0;
  int64_t fit_tokens_ = 64;
  bool keys_wait_ = false;
  std::vector<std::pair<int, std::vector<KeyTable>>> tables_;
  std::vector<PairEnergies> energies_;
  int64_t n_query_rows_ = 0;
  int64_t n_query_vectors_ = 0;
};

}  // namespace varve::testing

#endif  // VARVE_TESTS_CELLS_CELLS_MODEL_H_
