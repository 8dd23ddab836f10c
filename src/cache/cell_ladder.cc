#include "cache/cell_ladder.h"

#include <algorithm>
#include <string>

namespace varve {
namespace {

constexpr int kStagingBits = 8;

struct TierPlan {
  int tier;
  int bits;
  int64_t leave_age;
  const char* field;
};

std::vector<TierPlan> PlanTiers(const Settings& settings, Side side) {
  if (settings.method == Method::kFp16) return {{0, 16, kNeverLeaves, "method"}};
  if (settings.method == Method::kUniform) {
    return {{0, UniformBits(settings, side), kNeverLeaves, "uniform_bits"}};
  }
  return {{0, AgeTierBits(settings, AgeTier::kRecent, side, true), settings.age_recent_boundary,
           "age_bits_recent"},
          {1, AgeTierBits(settings, AgeTier::kMid, side, true), settings.age_mid_boundary,
           "age_bits_mid"},
          {2, AgeTierBits(settings, AgeTier::kOld, side, true), kNeverLeaves, "age_bits_old"}};
}

Scheme SchemeForBits(int bits, Side side) {
  if (bits == 16) return {Codec::kF16, 16};
  if (bits == kStagingBits || side == Side::kValue)
    return {Codec::kRotated, static_cast<uint8_t>(bits)};
  return {Codec::kRopePair, static_cast<uint8_t>(bits)};
}

CellStage MakeStage(Scheme scheme, Side side, int head_dim, int tier, int64_t leave_age) {
  return {MakeBlockLayout(scheme, side, head_dim), tier, leave_age,
          scheme.codec == Codec::kRopePair};
}

}  // namespace

bool SideLadder::needs_tables() const {
  return std::any_of(stages.begin(), stages.end(),
                     [](const CellStage& s) { return s.needs_table; });
}

Result<SideLadder> MakeSideLadder(const Settings& settings, Side side, int head_dim) {
  if (settings.method == Method::kKivi || settings.method == Method::kAmc) {
    return Status(StatusCode::kUnsupported, std::string("method=") + MethodName(settings.method) +
                                                ": a cell cache takes fp16, uniform or age_tiered");
  }
  if (settings.method != Method::kFp16 && settings.codec == CodecChoice::kGroupAffine) {
    return Status(
        StatusCode::kUnsupported,
        "codec=group_affine: groups of consecutive tokens do not survive rewritten cells; a cell "
        "cache takes auto or per_token");
  }
  SideLadder ladder;
  if (side == Side::kKey && settings.method == Method::kAgeTiered)
    ladder.key_error_limit = settings.key_error_limit;
  int64_t last_leave_age = 0;
  for (const TierPlan& plan : PlanTiers(settings, side)) {
    if (plan.bits != 2 && plan.bits != 3 && plan.bits != 4 && plan.bits != 8 && plan.bits != 16) {
      return Status(StatusCode::kUnsupported,
                    std::string(plan.field) + (side == Side::kKey ? " (keys)=" : " (values)=") +
                        std::to_string(plan.bits) + ": a cell cache takes 2, 3, 4, 8 or 16");
    }
    if (plan.leave_age <= last_leave_age) continue;
    last_leave_age = plan.leave_age;
    const Scheme scheme = SchemeForBits(plan.bits, side);
    if (ladder.stages.empty() && scheme.codec == Codec::kRopePair) {
      ladder.stages.push_back(MakeStage({Codec::kRotated, kStagingBits}, side, head_dim, 0, 0));
    }
    ladder.stages.push_back(MakeStage(scheme, side, head_dim, plan.tier, plan.leave_age));
  }
  return ladder;
}

}  // namespace varve
