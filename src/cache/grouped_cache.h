// A sequence cache in groups of consecutive tokens: first the sink tokens, exact; then groups of
// group_size tokens, the coded ones before the exact ones. A group is exact until it is full (and,
// with a residual, until enough newer tokens are there), then it is coded and walks down the ladder
// of tiers, one rung at a time whatever the chunking, so the bytes depend only on the tokens.
// uniform, kivi, age_tiered and fp16 are plans of this one cache.
#ifndef VARVE_CACHE_GROUPED_CACHE_H_
#define VARVE_CACHE_GROUPED_CACHE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/group_coder.h"
#include "cache/sequence_cache.h"
#include "codec/group_affine_block.h"
#include "policy/age_policy.h"

namespace varve {

/// What tells the methods apart.
struct GroupPlan {
  int group_size = 32;
  int n_sinks = 0;
  int64_t residual = 0;         ///< newest tokens that are never coded
  int n_tiers = 1;              ///< 0: nothing is ever coded (fp16)
  int64_t recent_boundary = 0;  ///< with 3 tiers
  int64_t mid_boundary = 0;
  TierRule tier_rule = TierRule::kNewest;
  bool exact_tail = true;  ///< false: a group that is not full reads as if it were coded
};

class GroupedCache : public SequenceCache {
 public:
  std::vector<uint8_t> GroupTiers() const override;

 protected:
  GroupedCache(Settings settings, const GroupPlan& plan)
      : SequenceCache(std::move(settings)), plan_(plan) {}

  /// The coder of one side; shape() is set. Null only when nothing is ever coded.
  virtual Status MakeCoder(Side side, std::unique_ptr<GroupCoder>* coder) const = 0;
  /// Tokens [0, n) that are coded went from n_before to n_after.
  virtual void OnCoded(int64_t /*n_before*/, int64_t /*n_after*/) {}

  Status Prepare() override;
  Status AppendTokens(const TensorView& k, const TensorView& v, int64_t n) override;
  Status KeepTokens(int64_t n) override;
  void Reset() override;
  Status CopyRows(std::span<const BatchRow> rows) override;
  bool IsLaidOutAs(const SequenceCache& other) const override;
  Status ReserveTokens(int64_t n) override;
  void DecodeTile(Side side, int64_t row, int64_t first, int n, float* tile) const override;
  int TileTokens(int64_t first) const override;
  void FillTokenTiers(int64_t row, uint8_t* tiers) const override;
  void FillStats(SequenceStats* stats) const override;
  void SaveContent(uint32_t index, SessionWriter* writer) const override;
  Status LoadContent(uint32_t index, SessionReader* reader) override;
  /// Counters that a method keeps beside the groups.
  virtual std::array<int64_t, 2> MethodCounters() const { return {0, 0}; }
  virtual void SetMethodCounters(const std::array<int64_t, 2>& /*counters*/) {}

  ExactFormat exact_format() const { return static_cast<ExactFormat>(shape().type); }
  /// Tokens before the first exact group, sinks not counted.
  int64_t n_coded_tokens() const { return static_cast<int64_t>(frontier_[0]) * plan_.group_size; }
  const GroupPlan& plan() const { return plan_; }

 private:
  struct Group {
    int tier = kExactTier;
    std::array<Slot, 2> slots;  // by Side
  };
  struct NewTokens {
    const TensorView* k;
    const TensorView* v;
    int64_t first;  // position of their token 0
    int64_t end;

    const TensorView& side(int s) const { return s == 0 ? *k : *v; }
  };

  size_t n_sink_groups() const { return plan_.n_sinks > 0 ? 1 : 0; }
  size_t GroupOf(int64_t token) const;
  int64_t GroupStart(size_t group) const;
  int64_t GroupEnd(size_t group) const;
  /// Coded groups that belong in `tier` or below when n tokens are held.
  size_t FrontierAt(int tier, int64_t n) const;
  /// Tier in which a group is first coded.
  int FirstTier() const;
  int NextTier(int tier) const;
  int TierOf(size_t coded) const;
  size_t ExactBytesOf(Side side, size_t group) const;
  const GroupCoder& coder(Side side) const { return *coders_[static_cast<size_t>(side)]; }
  GroupCoder& coder(Side side) { return *coders_[static_cast<size_t>(side)]; }

  Group MakeExactGroup(size_t group);
  void StoreExactTokens(const NewTokens& tokens, size_t group, Group& into) const;
  void LoadGroup(const NewTokens& tokens, Side side, size_t group, int64_t row, float* tile) const;
  /// Tokens held when the first group reaches `tier`, sinks included.
  int64_t TokensAtFirst(int tier) const;
  /// Shows new rows to the coders that learn, and lets them fit once they have seen enough.
  void LearnRows(const NewTokens& tokens);
  Group CodeGroup(const NewTokens& tokens, size_t group, int tier);

  // grouped_state.cc
  /// Tokens of a group that are held.
  int64_t HeldIn(size_t group) const;
  size_t n_groups_held() const;
  void PutPlan(ByteWriter* to) const;
  Status CheckPlan(ByteReader* from) const;
  void SaveSide(Side side, uint32_t index, SessionWriter* writer) const;
  Status LoadLearned(uint32_t index, SessionReader* reader);
  Status LoadState(uint32_t index, SessionReader* reader);
  bool SideBytes(Side side, size_t* bytes) const;
  Status LoadSide(Side side, uint32_t index, SessionReader* reader);
  Status LoadPayload(Side side, size_t group, SectionStream* stream);

  GroupPlan plan_;
  std::array<std::unique_ptr<GroupCoder>, 2> coders_;
  std::vector<Group> groups_;
  std::array<size_t, kAgeTiers> frontier_ = {
      0, 0, 0};  // coded groups, sinks not counted, in a tier >= index
  std::vector<float> tile_;
  int64_t n_learned_ = 0;  // tokens that the coders have seen
  std::array<std::vector<std::byte>, 2> rungs_;
};

}  // namespace varve

#endif  // VARVE_CACHE_GROUPED_CACHE_H_
