// A KV cache of whole sequences: one layer, B batch rows of H KV heads that all hold the same n
// tokens. The base class settles shapes and types, checks input, counts and attends; the methods
// (fp16, uniform, kivi, age_tiered, amc) store.
#ifndef VARVE_CACHE_SEQUENCE_CACHE_H_
#define VARVE_CACHE_SEQUENCE_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/sequence_tensor.h"
#include "cache/slab_arena.h"
#include "codec/amc_channel_order.h"
#include "layout/scheme.h"
#include "policy/settings.h"
#include "session/reader.h"
#include "session/writer.h"

namespace varve {

/// Fixed by the first call.
struct SequenceShape {
  int64_t batch = 0;
  int64_t n_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;
  ElementType type = ElementType::kF16;  ///< what exact rows are stored as

  int64_t n_rows() const { return batch * n_kv_heads; }
  int head_dim(Side side) const { return side == Side::kKey ? head_dim_k : head_dim_v; }
};

/// Counters under the seeds' rules (spec sections 4, 5, 7) and the bytes really held.
struct SequenceStats {
  int64_t n_tokens = 0;
  int64_t tokens_seen = 0;  ///< sum over calls of B*H*S
  std::array<int64_t, 3> tier_tokens = {
      0, 0, 0};                ///< age: recent, mid, old; amc: high, mid, low; over all rows
  int64_t full_seq_bytes = 0;  ///< f16 K and V of the tokens held, over all rows
  int64_t nominal_bytes = 0;   ///< codes only: age_tiered_bytes, amc_kept_bytes, kivi's sum
  double nominal_ratio = 1.0;  ///< full_seq_bytes / nominal_bytes, 1 when empty
  uint64_t stored_bytes = 0;   ///< everything held: slabs with their slack, indices, scratch
  uint64_t payload_bytes = 0;  ///< of it: codes, parameters and exact rows of tokens held
  int64_t seed_nbytes = 0;     ///< what the original reports: its padded buffer of exact rows
  // kivi
  int64_t compressed_key_bytes = 0;
  int64_t compressed_value_bytes = 0;
  int64_t fp16_key_bytes = 0;
  int64_t fp16_value_bytes = 0;
  int64_t residual_fp16_bytes = 0;
  int64_t n_quantized = 0;
  double assigned_avg_bits = 0;
};

/// softmax(softcap(scale * q K^T) + mask) V. Strides in elements.
struct SequenceAttendArgs {
  int64_t n_heads = 0;  ///< a multiple of n_kv_heads
  int64_t n_queries = 0;
  const float* q = nullptr;  ///< [B][n_heads][n_queries][head_dim_k]
  std::array<int64_t, 3> q_stride = {0, 0, 0};
  const float* mask = nullptr;  ///< added to the logits, [B][n_heads][n_queries][n]; null: none
  std::array<int64_t, 3> mask_stride = {0, 0, 0};  ///< 0 shares a plane
  bool causal = false;
  int64_t first_position =
      0;  ///< of query 0, with `causal`: query i sees keys 0 .. first_position + i
  float scale = 1.0f;
  float logit_softcap = 0.0f;    ///< 0: none, else cap * tanh(x / cap)
  const float* sinks = nullptr;  ///< [n_heads] logits that only add to the denominator; null: none
  float* out =
      nullptr;  ///< [B][n_heads][n_queries][head_dim_v]; zeros where nothing is attended to
  std::array<int64_t, 3> out_stride = {0, 0, 0};
  int n_threads = 1;
};

class SequenceCache {
 public:
  /// Tokens of a tile: attention decodes at most this many rows at a time.
  static constexpr int kTileTokens = 32;
  /// What a shape may have: tokens, batch rows times KV heads, channels of a head.
  static constexpr int64_t kMaxTokens = int64_t{1} << 40;
  static constexpr int64_t kMaxRows = int64_t{1} << 31;
  static constexpr int64_t kMaxChannels = 1 << 16;

  virtual ~SequenceCache() = default;
  SequenceCache(const SequenceCache&) = delete;
  SequenceCache& operator=(const SequenceCache&) = delete;

  /// Appends S >= 0 tokens: k [B,H,S,Dk], v [B,H,S,Dv]. All or nothing. Errors: kShapeMismatch,
  /// kNonFinite, kSizeOverflow; throws std::bad_alloc.
  Status Append(const TensorView& k, const TensorView& v);

  /// Removes the newest min(n, n_tokens()) tokens; *removed gets their number. Throws
  /// std::bad_alloc.
  Status Trim(int64_t n, int64_t* removed);

  /// Empties the cache; shapes and types are open again.
  void Clear();

  /// A cache with batch rows `rows` of this one, codes copied as they are; a row may occur more
  /// than once.
  Result<std::unique_ptr<SequenceCache>> SelectRows(std::span<const int64_t> rows) const;

  /// One cache with the batch rows of all, in order. They must be caches of one layer with the same
  /// settings that hold as many tokens in the same tiers. Errors: kIncompatible, kShapeMismatch,
  /// kInvalidState.
  static Result<std::unique_ptr<SequenceCache>> Merge(std::span<const SequenceCache* const> caches);

  Result<std::unique_ptr<SequenceCache>> Clone() const;

  /// Gets the memory for n tokens in all. Before the first call there is no shape yet and nothing
  /// happens.
  Status Reserve(int64_t n);

  /// Tokens [first, first + n) of one side: out `type` [B][H][n][head_dim].
  Status Decode(Side side, int64_t first, int64_t n, ElementType type, std::byte* out) const;

  Status Attend(const SequenceAttendArgs& args) const;

  /// Tier of every token of a row, as it is stored; kExactTier for exact rows. tiers [n_tokens].
  Status TokenTiers(int64_t row, std::span<uint8_t> tiers) const;
  static constexpr uint8_t kExactTier = 3;

  SequenceStats Stats() const;

  /// Describes this cache as cache number `index` of a session. The writer points at its packed
  /// bytes: the cache must stay as it is until they are written.
  void Save(uint32_t index, SessionWriter* writer) const;
  /// A cache with these settings and the content of cache `index` of a session. Errors:
  /// kIncompatible (names the field, both values), kBadFormat, kChecksumMismatch, kUnsupported,
  /// kIoError.
  Result<std::unique_ptr<SequenceCache>> Load(uint32_t index, SessionReader* reader) const;
  static constexpr SessionKind kSessionKind = SessionKind::kSequence;

  /// Order in which AMC keeps channels; only while no tokens are held. Errors: kUnsupported (other
  /// methods), kInvalidState, kInvalidArgument.
  virtual Status SetChannelOrder(const AmcLayerOrder& order);

  /// Tiers of the groups, the partial last one included (age_tiered, uniform, kivi; empty
  /// elsewhere).
  virtual std::vector<uint8_t> GroupTiers() const { return {}; }

  const Settings& settings() const { return settings_; }
  const SequenceShape& shape() const { return shape_; }
  bool has_shape() const { return has_shape_; }
  int64_t n_tokens() const { return n_tokens_; }
  void set_layer(int layer, int n_layers) {
    layer_ = layer;
    n_layers_ = n_layers;
  }
  ElementType output_type() const { return shape_.type; }

 protected:
  explicit SequenceCache(Settings settings) : settings_(std::move(settings)) {}

  /// Called once, before the first AppendTokens, with shape() set.
  virtual Status Prepare() = 0;
  /// Stores `n` > 0 checked tokens after n_tokens(); n_tokens() grows after it returns OK.
  virtual Status AppendTokens(const TensorView& k, const TensorView& v, int64_t n) = 0;
  /// Keeps the first `n` < n_tokens() tokens.
  virtual Status KeepTokens(int64_t n) = 0;
  virtual void Reset() = 0;
  /// A batch row of a cache.
  struct BatchRow {
    const SequenceCache* cache;
    int64_t row;
  };
  /// Copies into an empty cache whose shape() is set: batch row b is rows[b], of a cache of this
  /// class.
  virtual Status CopyRows(std::span<const BatchRow> rows) = 0;
  /// Whether the tokens of both are in the same tiers, so that their rows can lie side by side.
  virtual bool IsLaidOutAs(const SequenceCache& other) const = 0;
  virtual Status ReserveTokens(int64_t n) = 0;
  /// Exact f32 reconstruction of tokens [first, first+n) of one (batch, head) row; n <=
  /// TileTokens(first).
  virtual void DecodeTile(Side side, int64_t row, int64_t first, int n, float* tile) const = 0;
  /// Tokens from `first` that one DecodeTile may take: 1..kTileTokens.
  virtual int TileTokens(int64_t first) const = 0;
  virtual void FillTokenTiers(int64_t row, uint8_t* tiers) const = 0;
  virtual void FillStats(SequenceStats* stats) const = 0;
  virtual std::unique_ptr<SequenceCache> MakeEmpty() const = 0;
  /// Adds the sections of a method.
  virtual void SaveContent(uint32_t index, SessionWriter* writer) const = 0;
  /// Reads them into an empty cache whose shape and number of tokens are set; Prepare() has not
  /// been called.
  virtual Status LoadContent(uint32_t index, SessionReader* reader) = 0;
  /// Type that exact rows are stored as: bf16 if both are, else f16 (spec section 4).
  virtual ElementType StorageType(ElementType k, ElementType v) const;
  /// Bytes of exact K and V that the original's padded buffer has room for, in tokens.
  virtual int64_t SeedCapacityTokens(int64_t before, int64_t capacity, int64_t n_new) const;

  /// f32 -> storage: the seeds' age_tiered and amc go through f16 unless bf16_direct.
  float RoundToStorage(float x) const;

  SlabArena arena_;

 private:
  Status CheckTensors(const TensorView& k, const TensorView& v) const;
  Status CheckFinite(const TensorView& tensor, const char* name, ElementType storage) const;
  bool ThroughF16() const;
  Status SettleShape(const TensorView& k, const TensorView& v);

  Result<std::unique_ptr<SequenceCache>> CopyOf(std::span<const BatchRow> rows) const;
  Status CheckMerge(const SequenceCache& other) const;

  // sequence_state.cc
  Status LoadShape(ByteReader* from);

  Settings settings_;
  int layer_ = 0;
  int n_layers_ = 1;
  SequenceShape shape_;
  bool has_shape_ = false;
  int64_t n_tokens_ = 0;
  int64_t tokens_seen_ = 0;
  int64_t seed_capacity_ = 0;
};

/// Builds the cache that the settings of one layer ask for. Errors: those of CheckSettings;
/// kUnsupported.
Result<std::unique_ptr<SequenceCache>> MakeSequenceCache(const Settings& settings, int layer,
                                                         int n_layers);

}  // namespace varve

#endif  // VARVE_CACHE_SEQUENCE_CACHE_H_
