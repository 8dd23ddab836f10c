// The cache of one layer for a host that addresses it by cell (llama.cpp): any cell may be written,
// rewritten, shifted, copied or forgotten at any time. Blocks of 32 cells walk a ladder of codings
// as they age; attention reads the codes.
//
// Age of a cell: the smaller of its distance to the stream's newest position and the number of
// tokens written since. A block is as old as its newest cell. Blocks are demoted before a batch is
// written, to the ages at its first token, so that the tokens of one batch see each other at the
// recent tier; the bytes depend on the tokens alone, not on how they were cut into batches, once
// the next token has been written.
#ifndef VARVE_CACHE_CELL_CACHE_H_
#define VARVE_CACHE_CELL_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/status.h"
#include "cache/attend.h"
#include "cache/block_store.h"
#include "cache/cell_block.h"
#include "cache/cell_ladder.h"
#include "cache/due_queue.h"
#include "cache/key_statistics.h"
#include "cache/pending_rotation.h"
#include "cache/row_type.h"
#include "policy/settings.h"
#include "session/bytes.h"
#include "session/reader.h"
#include "session/writer.h"

namespace varve {

struct CellShape {
  int32_t n_cells = 0;  ///< a stream
  int32_t n_streams = 1;
  int32_t n_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;  ///< 0: values are the first channels of the keys (MLA)
  RopePairing pairing = RopePairing::kNone;
  int32_t n_rope_dims = 0;
};

struct CellStats {
  int64_t n_tokens = 0;
  std::array<int64_t, 4> tier_tokens{};  ///< recent, mid, old; sinks kept exact count in [3] alone
  uint64_t packed_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t f16_bytes = 0;
  uint64_t n_demotions = 0;
  uint64_t n_promotions = 0;
  double append_seconds = 0.0;
  double retier_seconds = 0.0;
  double attend_seconds = 0.0;
  int last_key_bits = 0;  ///< width of the last stage that keys go down to
};

/// One attention call over the first n_cells cells of a stream; strides in elements, the rest as
/// AttendProblem.
struct CellAttendArgs {
  int stream = 0;
  int n_cells = 0;
  int n_rows = 0;
  int n_heads = 0;
  int head_dim_v = 0;
  const float* q = nullptr;
  ptrdiff_t q_row_stride = 0, q_head_stride = 0;
  const uint16_t* mask = nullptr;
  ptrdiff_t mask_row_stride = 0, mask_head_stride = 0;
  int mask_heads = 1;
  float scale = 1.0f, logit_softcap = 0.0f, max_bias = 0.0f;
  const float* sinks = nullptr;
  float* out = nullptr;
  ptrdiff_t out_row_stride = 0, out_head_stride = 0;
};

class CellCache {
 public:
  /// `settings` are one layer's, overrides resolved. Errors: kInvalidArgument, kSizeOverflow for
  /// the shape, kUnsupported for a method or width that cells cannot have.
  static Result<std::unique_ptr<CellCache>> Create(const Settings& settings, const CellShape& shape,
                                                   MapFunction map = MapPages);

  /// Changes the pairing; kInvalidState once tables were fitted with another one.
  Status SetRope(RopePairing pairing, int32_t n_rope_dims);

  /// Writes rows into the cells index[0..n) (global: stream * n_cells + cell). rows:
  /// [n][n_kv_heads*head_dim], row_stride_bytes apart; positions [n] or null. All or nothing.
  Status Write(Side side, const int64_t* index, const int32_t* positions, const void* rows,
               RowType type, size_t row_stride_bytes, int32_t n, int32_t n_threads);

  /// Decodes rows [n][n_kv_heads*head_dim], pending rotations applied; cells without data are
  /// zeros.
  Status Read(Side side, int64_t first, int32_t n, void* rows, RowType type) const;
  Status Gather(Side side, const int64_t* index, int32_t n, void* rows, RowType type) const;

  /// Copies one side of cells [src_first, src_first+n) of `src`, which may be this cache with
  /// overlapping ranges. Whole blocks at equal offsets keep tier and bytes; other cells are decoded
  /// and written at the entry stage.
  Status CopyFrom(const CellCache& src, int64_t dst_first, int64_t src_first, int32_t n, Side side);

  Status Forget(int64_t first, int32_t n);

  /// Turns the keys of cells [first, first+n) by delta[i] positions; the codes stay.
  Status Shift(int64_t first, const int32_t* delta, int32_t n, const RopeShift& rope);

  Status Attend(const CellAttendArgs& args, int n_threads);

  CellStats Stats() const;

  /// As SequenceCache::Save and Load; times spent are not kept.
  void Save(uint32_t index, SessionWriter* writer) const;
  Result<std::unique_ptr<CellCache>> Load(uint32_t index, SessionReader* reader) const;
  static constexpr SessionKind kSessionKind = SessionKind::kCells;

  const CellShape& shape() const { return shape_; }
  int head_dim(Side side) const {
    return side == Side::kKey ? shape_.head_dim_k : shape_.head_dim_v;
  }
  size_t row_elements(Side side) const {
    return static_cast<size_t>(shape_.n_kv_heads) * static_cast<size_t>(head_dim(side));
  }
  bool has_tables() const { return has_tables_; }

  /// Bytes of packed payload of a cell's block, empty if there are none. For tests of what is
  /// stored.
  std::span<const std::byte> Payload(Side side, int64_t cell) const;

 private:
  friend class CellEstimate;

  struct ExactCell {
    std::vector<uint16_t> row[2];
  };
  struct Stream {
    std::vector<CellBlock> blocks;
    DueQueue due;
    std::map<int32_t, ExactCell> exact_cells;  ///< by cell of the stream
    int64_t clock = 0;                         ///< tokens begun
    int64_t newest_position = kNoTime;
  };
  struct CellPlace {
    int32_t stream;
    int32_t block;
    int token;
  };
  /// Key tables of one width.
  struct TableSet {
    uint8_t bits;
    std::vector<KeyTable> tables;  ///< [n_kv_heads]
  };
  struct WriteCall {
    Side side;
    const int64_t* index;
    const int32_t* positions;
    const std::byte* rows;
    RowType type;
    size_t row_stride_bytes;
    int32_t n;
    int32_t n_threads;

    const std::byte* row(int32_t r) const {
      return rows + static_cast<size_t>(r) * row_stride_bytes;
    }
  };
  struct Touch;      // one block of a Write call
  struct CopyBlock;  // one block of a CopyFrom call
  struct CopyRules;
  struct Demotion;  // one block on its way down

  CellCache(const CellShape& shape, SideLadder key_ladder, SideLadder value_ladder,
            int32_t sink_tokens, MapFunction map);

  Status CheckRange(int64_t first, int64_t n) const;
  Status CheckSide(Side side) const;
  CellPlace Locate(int64_t cell) const;
  bool has_values() const { return shape_.head_dim_v != 0; }
  const SideLadder& ladder(Side side) const { return ladder_[static_cast<size_t>(side)]; }
  const CellStage& stage(Side side, size_t index) const { return ladder(side).stages[index]; }
  int entry_stage(Side side) const { return ladder(side).entry(has_tables_); }
  BlockCoding Coding(Side side, size_t stage_index) const;
  size_t stage_block_bytes(Side side, size_t stage_index) const;
  size_t max_block_bytes() const;
  uint32_t ExactMask(const CellBlock& block) const {
    return has_values() ? block.exact[0] & block.exact[1] : block.exact[0];
  }

  static uint32_t RunMask(int token, int n) {
    return (n >= 32 ? ~uint32_t{0} : (uint32_t{1} << n) - 1) << token;
  }
  static size_t KeyTableBytes(const KeyTable& table) {
    return sizeof(KeyTable) + table.channel.size() * sizeof(int16_t) +
           table.scale.size() * sizeof(float);
  }
  static size_t ExactCellBytes(size_t n_elements) {
    constexpr size_t kMapNodeBytes = 4 * sizeof(void*);
    return kMapNodeBytes + sizeof(std::pair<const int32_t, ExactCell>) +
           n_elements * sizeof(uint16_t);
  }

  // cell_cache.cc
  static int64_t FitTokens(const SideLadder& keys);
  void GrowStream(Stream& stream, int32_t block);
  void DropExact(Stream& stream, CellBlock& block, int32_t cell, size_t side);
  /// Moves the rows of one side in; the entries are emptied.
  static void AttachExact(Stream& stream, CellBlock& block, size_t side,
                          std::map<int32_t, ExactCell>& exact_cells);
  void ForgetCells(Stream& stream, int32_t block, uint32_t cells);
  void ResetIfEmpty();
  size_t held_side_bytes() const;

  // cell_write.cc
  Status CheckWrite(const WriteCall& call) const;
  Status WriteChecked(const WriteCall& call);
  std::vector<Touch> PlanTouches(const WriteCall& call, std::vector<int32_t>& order) const;
  bool BeginsToken(const CellBlock& block, size_t side, uint32_t bit) const;
  Status DemoteBefore(const WriteCall& call, std::span<const Touch> touches);
  bool NeedsDetail(const CellBlock& block, const Touch& touch, const WriteCall& call) const;
  Status PrepareWrite(const WriteCall& call, std::vector<Touch>& touches);
  Status PrepareTouch(const WriteCall& call, Touch& touch);
  void EncodeTouch(const WriteCall& call, const Touch& touch, std::byte* scratch);
  void CommitPayload(const WriteCall& call, Touch& touch);
  void CommitRow(const WriteCall& call, int32_t row);
  bool WantsExact(int32_t cell, const int32_t* positions, int32_t row) const;
  /// Codes a row through all stages up to stage_index. scratch: two blocks.
  void EncodeEntryRow(Side side, size_t stage_index, const float* row, int token, std::byte* block,
                      std::byte* scratch) const;
  /// Takes tokens that stand at stage 0 in the first block of scratch through all stages up to
  /// stage_index into `block`.
  void StepEntryRows(Side side, size_t stage_index, uint32_t tokens, std::byte* block,
                     std::byte* scratch) const;
  void GatherKeys(const WriteCall& call);
  size_t ScratchBytes() const;  ///< a thread: one f32 row and two blocks
  Status GrowScratch(int n_threads, int n_tasks);

  // retier.cc
  int64_t BlockAge(const CellBlock& block, int64_t clock, int64_t newest_position) const;
  int64_t NextLeaveAge(const CellBlock& block) const;
  void ScheduleBlock(Stream& stream, int32_t block);
  /// After positions moved: finds the stream's newest position and every block's due time anew.
  void RescheduleStream(Stream& stream);
  void FitTables();
  void AdoptTables(std::vector<TableSet> tables);
  /// The stage in which keys stay for good: the last one before a table that predicts too much
  /// error.
  size_t LastKeyStage() const;
  bool NextNeedsTable(size_t key_stage) const {
    const auto& stages = ladder(Side::kKey).stages;
    return key_stage + 1 < stages.size() && stages[key_stage + 1].needs_table;
  }
  /// Whether going down from one stage to another leaves the bytes as they are.
  bool BytesStay(Side side, size_t from, size_t to) const;
  size_t TargetStage(const CellBlock& block, Side side, int64_t age) const;
  std::vector<int32_t> TakeDue(Stream& stream, int64_t clock, int64_t newest_position,
                               std::span<const int32_t> keep);
  /// Demotes what is due at this clock and newest position, blocks of `keep` (sorted) excepted.
  Status DemoteDue(Stream& stream, int64_t clock, int64_t newest_position,
                   std::span<const int32_t> keep, int n_threads);
  Status DemoteBlocks(Stream& stream, std::span<const int32_t> due, int64_t clock,
                      int64_t newest_position, int n_threads);
  void RepackDown(const CellBlock& block, Side side, const Demotion& demotion,
                  std::byte* scratch) const;

  // cell_read.cc
  Status CheckRead(Side side, int32_t n, const void* rows, RowType type) const;
  /// Row of one cell as packed or exact, without its pending rotation; zeros if not written.
  void DecodeCell(Side side, const Stream& stream, int32_t block, int token, float* row) const;
  void ReadCell(Side side, int64_t cell, float* row) const;

  // cell_shift.cc
  static constexpr int64_t kMaxShift = INT32_MAX - kBlockTokens;
  Status CheckShift(int64_t first, const int32_t* delta, int32_t n) const;
  /// Shift by decoding and writing anew: where values are channels of the keys, or the pairs do not
  /// start at channel 0, turning q is not enough.
  Status ShiftRows(int64_t first, const int32_t* delta, int32_t n, const RopeShift& rope,
                   const std::vector<double>& angles);
  /// Drops rotations that no key is behind by; the vectors hold rotations_.size() entries, so
  /// nothing is allocated.
  void CompactRotations(std::vector<bool>& used, std::vector<int32_t>& renumbered);

  // cell_copy.cc
  bool TablesEqual(const CellCache& other) const;
  CopyRules RulesFor(const CellCache& src) const;
  bool TakesBytes(const CellCache& src, const CopyRules& rules, Side side,
                  size_t stage_index) const;
  Status PlanCopy(const CellCache& src, const CopyRules& rules, int64_t dst_first,
                  int64_t src_first, int32_t n, Side side, std::vector<CopyBlock>& copies);
  void PlanCopyCell(const CellCache& src, const CopyRules& rules, int64_t src_cell, int token,
                    Side side, size_t elements, CopyBlock& copy);
  Status PrepareCopy(Side side, const CopyRules& rules, CopyBlock& copy);
  bool CopyNeedsDetail(const CellBlock& block, const CopyBlock& copy) const;
  void CommitCopy(Side side, CopyBlock& copy);

  // cell_state.cc
  std::array<std::pair<const char*, int64_t>, 8> Identity() const;
  void SavePayloads(uint32_t index, SessionWriter* writer) const;
  void SaveBlocks(uint32_t index, SessionWriter* writer) const;
  Status CheckIdentity(uint32_t index, SessionReader* reader) const;
  Status LoadLearned(uint32_t index, SessionReader* reader);
  Status LoadStreams(uint32_t index, SessionReader* reader);
  /// The book-keeping of one block of which `cells` exist, and room for its payloads.
  Status LoadBlock(int64_t clock, uint32_t cells, CellBlock& block, ByteReader* from);
  Status LoadRotations(uint32_t index, SessionReader* reader);
  Status LoadPayloads(uint32_t index, SessionReader* reader);

  // cell_attend.cc
  Status CheckAttend(const CellAttendArgs& args) const;
  void ListBlocks(const Stream& stream, int32_t n_cells, std::vector<AttendBlock>& blocks) const;
  void ListExactRows(const Stream& stream, int32_t n_cells, std::vector<ExactRow>& rows) const;

  CellShape shape_;
  std::array<SideLadder, 2> ladder_;
  int32_t sink_tokens_ = 0;
  int32_t blocks_per_stream_ = 0;
  BlockStore store_;
  std::vector<Stream> streams_;
  KeyStatistics statistics_;
  bool has_tables_ = false;
  bool keys_wait_ = false;     ///< some block waits for tables
  size_t last_key_stage_ = 0;  ///< keys go down no further; the ladder's end until tables say else
  /// In an estimate, if there is a key_error_limit: keys take no narrower stage, whatever their
  /// tables say.
  std::optional<int> least_key_bits_;
  std::vector<TableSet> tables_;
  RotationSet rotations_;
  AlignedBuffer scratch_;

  uint64_t n_demotions_ = 0;
  uint64_t n_promotions_ = 0;
  double append_seconds_ = 0.0;
  double retier_seconds_ = 0.0;
  double attend_seconds_ = 0.0;
  float value_skip_share_ = 0.0f;
};

/// What an estimate supposes to be written.
struct CellWorkload {
  int64_t n_tokens = 0;  ///< of each stream, in order: token t goes to cell t mod n_cells, as under
                         ///< a host's sliding window
  int32_t n_batch = 1;   ///< tokens a call
  int32_t n_decoded = 0;  ///< the last of them, which came one a call
  int last_key_bits = 0;  ///< CellStats::last_key_bits of a run; 0: no limit held keys back
};

/// CellCache::Stats().packed_bytes after this work, each token with its query rows. Found by a
/// cache that keeps its books without memory. Errors as Create, and kInvalidArgument for the work.
[[nodiscard]] Result<uint64_t> EstimateCellBytes(const Settings& settings, const CellShape& shape,
                                                 const CellWorkload& work);

}  // namespace varve

#endif  // VARVE_CACHE_CELL_CACHE_H_
