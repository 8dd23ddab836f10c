#include <array>

#include "cache/affine_coder.h"
#include "cache/grouped_cache.h"
#include "cache/per_token_coder.h"
#include "cache/sequence_methods.h"

namespace varve {
namespace {

class AgeTieredCache final : public GroupedCache {
 public:
  explicit AgeTieredCache(const Settings& settings) : GroupedCache(settings, Plan(settings)) {}

 protected:
  Status MakeCoder(Side side, std::unique_ptr<GroupCoder>* coder) const override {
    if (settings().codec == CodecChoice::kPerToken) {
      VARVE_RETURN_IF_ERROR(PerTokenCoder::CheckHeadDim(shape().head_dim(side)));
      *coder = std::make_unique<PerTokenCoder>(side, shape().head_dim(side), shape().n_rows(),
                                               Bits(side), settings());
      return Status();
    }
    const bool along_tokens = side == Side::kKey || settings().value_axis == ValueAxis::kChannel;
    const int size = settings().age_group_size;
    const GroupShape groups{along_tokens ? GroupAxis::kTokens : GroupAxis::kChannels, size,
                            shape().head_dim(side), size};
    *coder = std::make_unique<AffineCoder>(groups, exact_format(), true, Bits(side),
                                           settings().retier == RetierRule::kExact);
    return Status();
  }

  std::unique_ptr<SequenceCache> MakeEmpty() const override {
    return std::make_unique<AgeTieredCache>(settings());
  }

  void FillStats(SequenceStats* stats) const override {
    GroupedCache::FillStats(stats);
    const auto by_age =
        TokensByAge(n_tokens(), settings().age_recent_boundary, settings().age_mid_boundary);
    for (size_t tier = 0; tier < by_age.size(); ++tier)
      stats->tier_tokens[tier] = shape().n_rows() * by_age[tier];
    for (const Side side : {Side::kKey, Side::kValue}) {
      const bool nominal_dim = settings().head_dim.has_value() && !settings().head_dim_check;
      const int dim = nominal_dim ? *settings().head_dim : shape().head_dim(side);
      stats->nominal_bytes += AgeTieredBytes(stats->tier_tokens, Bits(side), dim) / 2;
    }
  }

 private:
  static GroupPlan Plan(const Settings& settings) {
    GroupPlan plan;
    plan.group_size =
        settings.codec == CodecChoice::kPerToken ? kBlockTokens : settings.age_group_size;
    plan.n_sinks = settings.sink_tokens;
    plan.n_tiers = kAgeTiers;
    plan.recent_boundary = settings.age_recent_boundary;
    plan.mid_boundary = settings.age_mid_boundary;
    plan.tier_rule = settings.tier_rule;
    plan.exact_tail = settings.exact_tail;
    return plan;
  }

  std::array<int, kAgeTiers> Bits(Side side) const {
    const bool per_token = settings().codec == CodecChoice::kPerToken;
    return {AgeTierBits(settings(), AgeTier::kRecent, side, per_token),
            AgeTierBits(settings(), AgeTier::kMid, side, per_token),
            AgeTierBits(settings(), AgeTier::kOld, side, per_token)};
  }
};

}  // namespace

std::unique_ptr<SequenceCache> MakeAgeTieredCache(const Settings& settings) {
  return std::make_unique<AgeTieredCache>(settings);
}

}  // namespace varve
