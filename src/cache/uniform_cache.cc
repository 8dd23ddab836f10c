#include <array>

#include "cache/affine_coder.h"
#include "cache/grouped_cache.h"
#include "cache/per_token_coder.h"
#include "cache/sequence_methods.h"

namespace varve {
namespace {

class UniformCache final : public GroupedCache {
 public:
  explicit UniformCache(const Settings& settings) : GroupedCache(settings, Plan(settings)) {}

 protected:
  Status MakeCoder(Side side, std::unique_ptr<GroupCoder>* coder) const override {
    if (settings().codec == CodecChoice::kPerToken) {
      VARVE_RETURN_IF_ERROR(PerTokenCoder::CheckHeadDim(shape().head_dim(side)));
      *coder =
          std::make_unique<PerTokenCoder>(side, shape().head_dim(side), shape().n_rows(),
                                          std::array{UniformBits(settings(), side)}, settings());
      return Status();
    }
    const bool along_tokens = side == Side::kKey || settings().value_axis == ValueAxis::kChannel;
    const int size = settings().uniform_group_size;
    const GroupShape groups{along_tokens ? GroupAxis::kTokens : GroupAxis::kChannels, size,
                            shape().head_dim(side), size};
    const std::array bits = {UniformBits(settings(), side)};
    *coder = std::make_unique<AffineCoder>(groups, exact_format(), true, bits, false);
    return Status();
  }

  std::unique_ptr<SequenceCache> MakeEmpty() const override {
    return std::make_unique<UniformCache>(settings());
  }

  void FillStats(SequenceStats* stats) const override {
    GroupedCache::FillStats(stats);
    const int64_t n = shape().n_rows() * n_tokens();
    stats->tier_tokens[0] = n;
    for (const Side side : {Side::kKey, Side::kValue}) {
      stats->nominal_bytes +=
          n * ((shape().head_dim(side) * UniformBits(settings(), side) + 7) / 8);
    }
  }

 private:
  static GroupPlan Plan(const Settings& settings) {
    GroupPlan plan;
    plan.group_size =
        settings.codec == CodecChoice::kPerToken ? kBlockTokens : settings.uniform_group_size;
    plan.n_sinks = settings.sink_tokens;
    plan.exact_tail = settings.exact_tail;
    return plan;
  }
};

}  // namespace

std::unique_ptr<SequenceCache> MakeUniformCache(const Settings& settings) {
  return std::make_unique<UniformCache>(settings);
}

}  // namespace varve
