// The per-token codecs as the coder of a grouped cache: rope_pair keys and rotated values in blocks
// of 32 tokens. Each row (batch, KV head) has a key table of its own, fitted once from the first
// keys that pass.
#ifndef VARVE_CACHE_PER_TOKEN_CODER_H_
#define VARVE_CACHE_PER_TOKEN_CODER_H_

#include <array>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/group_coder.h"
#include "codec/block_codec.h"
#include "policy/settings.h"

namespace varve {

class PerTokenCoder : public GroupCoder {
 public:
  /// The row codecs work on the stack: kUnsupported past kMaxHeadDim channels.
  static Status CheckHeadDim(int head_dim);

  /// bits: one width a tier, each 2, 3, 4, 8 or 16. 16 is exact f16 rows, 8 is rotated on both
  /// sides.
  PerTokenCoder(Side side, int head_dim, int64_t n_rows, std::span<const int> bits,
                const Settings& settings);

  size_t RowBytes(int tier) const override {
    return layouts_[static_cast<size_t>(tier)].head_bytes();
  }
  void Encode(int tier, int64_t row, const float* tile, std::byte* payload) override;
  void Step(int from_tier, int to_tier, int64_t row, const std::byte* src, std::byte* dst) override;
  void Decode(int tier, int64_t row, const std::byte* payload, int first, int n,
              float* tile) const override;
  bool Learns() const override { return needs_tables_ && !learned_.fitted; }
  int FirstTableTier() const override;
  void BeginLearning() override;
  void Learn(int64_t row, const float* values) override;
  void Fit() override;
  void EndLearning() noexcept override;
  void RollBack() noexcept override;
  CodingRecord Describe(int tier) const override;
  bool IsSound(int tier, const std::byte* payload, bool may_be_nan) const override;
  bool has_tables() const override { return learned_.fitted; }
  void SaveTables(ByteWriter* to) const override;
  Status LoadTables(ByteReader* from) override;
  void SaveStatistics(ByteWriter* to) const override;
  Status LoadStatistics(ByteReader* from) override;
  size_t held_bytes() const override;
  void CopyState(const GroupCoder& other, std::span<const int64_t> rows) override;

 private:
  struct Learned {
    bool fitted = false;
    std::vector<PairEnergies> energies;           // [n_rows], from the first row until fitted
    std::array<std::vector<KeyTable>, 3> tables;  // [tier][n_rows], of rope_pair tiers
  };

  BlockCoding CodingOf(int tier, int64_t row) const;

  std::vector<PairEnergies> NoEnergies() const;

  int head_dim_;
  int64_t n_rows_;
  RopePairing pairing_;
  int n_rope_dims_;
  bool needs_tables_ = false;
  std::array<BlockLayout, 3> layouts_;
  size_t n_tiers_;
  Learned learned_;
  Learned saved_;
};

}  // namespace varve

#endif  // VARVE_CACHE_PER_TOKEN_CODER_H_
