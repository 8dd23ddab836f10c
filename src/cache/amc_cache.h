// AMC: what is kept of a token depends on its saliency. Records of the three tiers lie in three
// streams a row, in token order; a small index says which tier each token is in and where its chunk
// of 64 tokens starts in the streams.
#ifndef VARVE_CACHE_AMC_CACHE_H_
#define VARVE_CACHE_AMC_CACHE_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"
#include "codec/group_affine_block.h"
#include "policy/amc_policy.h"

namespace varve {

// Index of 64 tokens of a row.
struct AmcTokenIndex {
  static constexpr int64_t kTokens = 64;

  std::array<int64_t, kAmcTiers> first_record;  // of each stream, at the first of the tokens
  std::array<uint8_t, kTokens / 4> tiers;

  AmcTier tier(int64_t i) const {
    return static_cast<AmcTier>((tiers[static_cast<size_t>(i / 4)] >> (i % 4 * 2)) & 3);
  }
  void set_tier(int64_t i, AmcTier tier) {
    uint8_t& four = tiers[static_cast<size_t>(i / 4)];
    const int shift = static_cast<int>(i % 4 * 2);
    four = static_cast<uint8_t>((four & ~(3 << shift)) | (static_cast<int>(tier) << shift));
  }
};

// What running tiering knows of a row: the last saliencies and, with query saliency, the mean key.
struct AmcRowMemory {
  explicit AmcRowMemory(int window) : saliencies(window) {}

  RingBuffer saliencies;
  std::vector<float> mean_key;
  int64_t n_keys = 0;
};

struct AmcRow {
  static constexpr int64_t kRecordsAChunk = 32;

  explicit AmcRow(int window) : memory(window) {}

  std::array<std::vector<Slot>, kAmcTiers> chunks;
  std::array<int64_t, kAmcTiers> n_records = {0, 0, 0};
  std::vector<Slot> indices;
  AmcRowMemory memory;
};

class AmcCache final : public SequenceCache {
 public:
  explicit AmcCache(const Settings& settings) : SequenceCache(settings) {}

  Status SetChannelOrder(const AmcLayerOrder& order) override;

 protected:
  Status Prepare() override;
  Status AppendTokens(const TensorView& k, const TensorView& v, int64_t n) override;
  Status KeepTokens(int64_t n) override;
  void Reset() override;
  Status CopyRows(std::span<const BatchRow> picked) override;
  bool IsLaidOutAs(const SequenceCache& other) const override;
  Status ReserveTokens(int64_t n) override;
  int TileTokens(int64_t first) const override;
  void DecodeTile(Side side, int64_t row, int64_t first, int n, float* tile) const override {
    const int64_t dim = shape().head_dim(side);
    float* spare = tile + (kTileTokens - 1) * dim;
    for (int t = 0; t < n; ++t) DecodeToken(side, row, first + t, tile + t * dim, spare);
  }

  void FillTokenTiers(int64_t row, uint8_t* tiers) const override {
    for (int64_t token = 0; token < n_tokens(); ++token) {
      tiers[token] = static_cast<uint8_t>(TierOf(rows_[static_cast<size_t>(row)], token));
    }
  }

  void FillStats(SequenceStats* stats) const override;
  void SaveContent(uint32_t index, SessionWriter* writer) const override;
  Status LoadContent(uint32_t index, SessionReader* reader) override;

  std::unique_ptr<SequenceCache> MakeEmpty() const override {
    auto cache = std::make_unique<AmcCache>(settings());
    cache->order_ = order_;
    return cache;
  }

 private:
  bool running() const { return settings().amc_tiering == AmcTiering::kRunning; }

  bool remembers_keys() const { return running() && settings().amc_use_query_saliency; }

  int NominalDim(Side side) const {
    const bool nominal = settings().head_dim.has_value() && !settings().head_dim_check;
    return nominal ? *settings().head_dim : shape().head_dim(side);
  }

  static Status CheckPermutations(const AmcLayerOrder& order);
  Status CheckOrder(const AmcLayerOrder& order) const;

  const AffineBlockLayout& layout(size_t tier, Side side) const {
    return layouts_[tier][static_cast<size_t>(side)];
  }
  size_t RecordBytes(size_t tier) const {
    return layout(tier, Side::kKey).bytes() + layout(tier, Side::kValue).bytes();
  }
  size_t ChunkBytes(size_t tier) const { return RecordBytes(tier) * AmcRow::kRecordsAChunk; }
  // With running tiers each token's saliency, as f16, follows the index.
  size_t IndexBytes() const {
    return sizeof(AmcTokenIndex) + (running() ? AmcTokenIndex::kTokens * sizeof(uint16_t) : 0);
  }

  // amc_state.cc
  Status TakeOrder(uint32_t index, SessionReader* reader);
  Status LoadTiers(uint32_t index, SessionReader* reader);
  Status LoadRecords(uint32_t index, SessionReader* reader);

  static AmcTokenIndex* IndexOf(const AmcRow& row, int64_t token) {
    return reinterpret_cast<AmcTokenIndex*>(
        row.indices[static_cast<size_t>(token / AmcTokenIndex::kTokens)].data());
  }
  static AmcTier TierOf(const AmcRow& row, int64_t token) {
    return IndexOf(row, token)->tier(token % AmcTokenIndex::kTokens);
  }
  static float SaliencyOf(const AmcRow& row, int64_t token) {
    return LoadExact(ExactFormat::kF16, reinterpret_cast<std::byte*>(IndexOf(row, token) + 1),
                     static_cast<size_t>(token % AmcTokenIndex::kTokens));
  }

  std::byte* Record(const AmcRow& row, size_t tier, int64_t record) const {
    return row.chunks[tier][static_cast<size_t>(record / AmcRow::kRecordsAChunk)].data() +
           static_cast<size_t>(record % AmcRow::kRecordsAChunk) * RecordBytes(tier);
  }

  // A key as it is stored, in f32.
  void LoadKey(const TensorView& k, int64_t row, int64_t token, float* key) const {
    k.LoadRow(row / shape().n_kv_heads, row % shape().n_kv_heads, token, key);
    RoundRow(key, static_cast<size_t>(shape().head_dim_k));
  }

  void RoundRow(float* values, size_t n) const;
  void RankInCall(const TensorView& k, int64_t row, int64_t n, float* saliencies, AmcTier* tiers);
  void RankInWindow(const TensorView& k, int64_t row, int64_t n, AmcRowMemory& memory,
                    float* saliencies, AmcTier* tiers);

  // Of key_, with the query if there is one.
  float Saliency(const float* query) const;

  // The mean of all keys up to a window of them, then one that forgets at that rate.
  void Remember(AmcRowMemory& memory, const float* key) const;

  // Makes room for n tokens behind those of the row's tiers; with them there are n_all.
  void MakeRoom(AmcRow& row, const AmcTier* tiers, int64_t n, int64_t n_all);
  // Gives back what n tokens do not need.
  void DropSpare(int64_t n);

  /// Enters the row's next token, number `token`, into its index and returns the place of its
  /// record.
  std::byte* EnterToken(AmcRow& row, int64_t token, AmcTier tier, float saliency);
  void WriteToken(const TensorView& k, const TensorView& v, int64_t r, int64_t t, AmcTier tier,
                  float saliency);
  const int32_t* Order(Side side, int64_t row) const;
  void DecodeToken(Side side, int64_t r, int64_t token, float* out, float* spare) const;
  void CopySlots(const std::vector<Slot>& from, size_t bytes, std::vector<Slot>& to);

  AmcLayerOrder order_;
  std::array<std::array<AffineBlockLayout, 2>, kAmcTiers> layouts_;  // [tier][side]
  std::vector<AmcRow> rows_;
  AffineScratch scratch_;
  std::vector<float> key_;  // one key
  std::vector<float> row_;  // one row and its permutation
};

}  // namespace varve

#endif  // VARVE_CACHE_AMC_CACHE_H_
