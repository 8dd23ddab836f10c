#include "cache/attend_plan.h"

#include <algorithm>

namespace varve {
namespace {

int StoredChannels(const KeyView& view, int n_kv_heads) {
  if (view.tables == nullptr) return view.layout->padded_dim;
  int most = 0;
  for (int h = 0; h < n_kv_heads; ++h)
    most = std::max(most, static_cast<int>(view.tables[h].channel.size()));
  return most;
}

}  // namespace

AttendPlan MakePlan(const AttendProblem& problem, const KernelSet& kernels) {
  AttendPlan plan;
  plan.problem = &problem;
  plan.kernels = &kernels;
  plan.n_rep = problem.n_heads / problem.n_kv_heads;
  const auto view_of = [&](KeyView view) {
    if (view.is_float()) view = {nullptr, nullptr, view.rotation};
    // The last view first: neighbours in the cache are mostly of one tier.
    for (size_t i = plan.views.size(); i-- > 0;) {
      if (plan.views[i] == view) return static_cast<int>(i);
    }
    plan.views.push_back(view);
    if (!view.is_float())
      plan.max_view_channels =
          std::max(plan.max_view_channels, StoredChannels(view, problem.n_kv_heads));
    return static_cast<int>(plan.views.size()) - 1;
  };
  plan.block_view.reserve(problem.blocks.size());
  const AttendBlock* previous = nullptr;
  for (const AttendBlock& block : problem.blocks) {
    const bool same = previous != nullptr && previous->k_coding.layout == block.k_coding.layout &&
                      previous->k_coding.tables == block.k_coding.tables &&
                      previous->rotation == block.rotation;
    plan.block_view.push_back(
        same ? plan.block_view.back()
             : view_of({block.k_coding.layout, block.k_coding.tables, block.rotation}));
    previous = &block;
    const bool packed_v = block.v != nullptr && block.v_coding.layout->scheme.codec != Codec::kF16;
    if (packed_v) {
      plan.value_vectors = block.v_coding.layout->padded_dim / 16;
    } else {
      plan.plain_values = plan.float_tiles = true;
    }
    if (plan.views[static_cast<size_t>(plan.block_view.back())].is_float()) plan.float_tiles = true;
  }
  for (const ExactRow& row : problem.exact_rows) {
    plan.exact_view.push_back(view_of({nullptr, nullptr, row.rotation}));
    plan.plain_values = plan.float_tiles = true;
  }
  return plan;
}

}  // namespace varve
