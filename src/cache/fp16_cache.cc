#include "cache/grouped_cache.h"
#include "cache/sequence_methods.h"

namespace varve {
namespace {

class Fp16Cache final : public GroupedCache {
 public:
  explicit Fp16Cache(const Settings& settings) : GroupedCache(settings, Plan()) {}

 protected:
  Status MakeCoder(Side, std::unique_ptr<GroupCoder>*) const override { return Status(); }
  std::unique_ptr<SequenceCache> MakeEmpty() const override {
    return std::make_unique<Fp16Cache>(settings());
  }

  void FillStats(SequenceStats* stats) const override {
    GroupedCache::FillStats(stats);
    stats->tier_tokens[0] = shape().n_rows() * n_tokens();
    stats->nominal_bytes = stats->full_seq_bytes;
  }

 private:
  static GroupPlan Plan() {
    GroupPlan plan;
    plan.n_tiers = 0;
    return plan;
  }
};

}  // namespace

std::unique_ptr<SequenceCache> MakeFp16Cache(const Settings& settings) {
  return std::make_unique<Fp16Cache>(settings);
}

}  // namespace varve
