#include "cache/grouped_cache.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/checked_math.h"

namespace varve {

size_t GroupedCache::GroupOf(int64_t token) const {
  if (token < plan_.n_sinks) return 0;
  return n_sink_groups() + static_cast<size_t>((token - plan_.n_sinks) / plan_.group_size);
}

int64_t GroupedCache::GroupStart(size_t group) const {
  if (group < n_sink_groups()) return 0;
  return plan_.n_sinks + static_cast<int64_t>(group - n_sink_groups()) * plan_.group_size;
}

int64_t GroupedCache::GroupEnd(size_t group) const {
  return group < n_sink_groups() ? plan_.n_sinks : GroupStart(group) + plan_.group_size;
}

size_t GroupedCache::FrontierAt(int tier, int64_t n) const {
  if (tier >= plan_.n_tiers) return 0;
  // Group g (start s, end e) is coded once n >= e + residual; then its age is that of its newest
  // token, n - e, or of its oldest, n - 1 - s, and it belongs in `tier` or below once that is at
  // least the boundary above the tier.
  const int64_t boundary = tier == 0 ? 0 : tier == 1 ? plan_.recent_boundary : plan_.mid_boundary;
  const int64_t from_end =
      plan_.tier_rule == TierRule::kNewest ? boundary : boundary - (plan_.group_size - 1);
  const int64_t reach = n - plan_.n_sinks - std::max(plan_.residual, from_end);
  return reach <= 0 ? 0 : static_cast<size_t>(reach / plan_.group_size);
}

int GroupedCache::FirstTier() const {
  if (plan_.n_tiers == 1) return 0;
  const int64_t age =
      plan_.residual + (plan_.tier_rule == TierRule::kNewest ? 0 : plan_.group_size - 1);
  return static_cast<int>(TierOfAge(age, plan_.recent_boundary, plan_.mid_boundary));
}

int GroupedCache::NextTier(int tier) const {
  return tier == 0 && plan_.mid_boundary == plan_.recent_boundary ? 2 : tier + 1;
}

int GroupedCache::TierOf(size_t coded) const {
  int tier = 0;
  while (tier + 1 < plan_.n_tiers && coded < frontier_[static_cast<size_t>(tier) + 1]) ++tier;
  return tier;
}

size_t GroupedCache::ExactBytesOf(Side side, size_t group) const {
  return static_cast<size_t>(shape().n_rows() * (GroupEnd(group) - GroupStart(group)) *
                             shape().head_dim(side)) *
         ExactBytes(exact_format());
}

Status GroupedCache::Prepare() {
  // The largest thing that is ever allocated is one group of all rows.
  const int64_t widest = std::max(shape().head_dim_k, shape().head_dim_v);
  const int64_t group = std::max<int64_t>(plan_.group_size, plan_.n_sinks);
  size_t elements = 0;
  size_t bytes = 0;
  if (!CheckedMul(static_cast<size_t>(group), static_cast<size_t>(widest), &elements) ||
      !CheckedMul(elements, static_cast<size_t>(shape().n_rows()), &bytes) ||
      bytes > (size_t{1} << 46)) {
    return Status(StatusCode::kSizeOverflow, "one group of " + std::to_string(group) + " tokens, " +
                                                 std::to_string(shape().n_rows()) + " rows of " +
                                                 std::to_string(widest) + " channels is too large");
  }
  tile_.resize(static_cast<size_t>(plan_.group_size) * static_cast<size_t>(widest));
  if (plan_.n_tiers == 0) return Status();
  for (const Side side : {Side::kKey, Side::kValue}) {
    VARVE_RETURN_IF_ERROR(MakeCoder(side, &coders_[static_cast<size_t>(side)]));
  }
  size_t rung_bytes = 0;
  for (int tier = 0; tier < plan_.n_tiers; ++tier) {
    rung_bytes = std::max(
        {rung_bytes, coder(Side::kKey).RowBytes(tier), coder(Side::kValue).RowBytes(tier)});
  }
  for (auto& rung : rungs_) rung.resize(rung_bytes);
  return Status();
}

GroupedCache::Group GroupedCache::MakeExactGroup(size_t group) {
  Group made;
  for (const Side side : {Side::kKey, Side::kValue}) {
    made.slots[static_cast<size_t>(side)] = arena_.Allocate(ExactBytesOf(side, group));
  }
  return made;
}

void GroupedCache::StoreExactTokens(const NewTokens& tokens, size_t group, Group& into) const {
  const int64_t start = GroupStart(group);
  const int64_t end = GroupEnd(group);
  const int64_t first = std::max(start, tokens.first);
  const int64_t last = std::min(end, tokens.end);
  for (int s = 0; s < 2; ++s) {
    const TensorView& tensor = tokens.side(s);
    const int64_t dim = tensor.shape[3];
    const size_t step = ElementBytes(tensor.type);
    const bool same_bits = tensor.type == shape().type && tensor.stride[3] == 1;
    for (int64_t row = 0; row < shape().n_rows(); ++row) {
      std::byte* base = into.slots[static_cast<size_t>(s)].data();
      for (int64_t t = first; t < last; ++t) {
        const size_t element = static_cast<size_t>((row * (end - start) + t - start) * dim);
        const std::byte* from =
            tensor.at(row / shape().n_kv_heads, row % shape().n_kv_heads, t - tokens.first);
        if (same_bits) {
          std::memcpy(base + element * step, from, static_cast<size_t>(dim) * step);
          continue;
        }
        const int64_t stride = tensor.stride[3] * static_cast<int64_t>(step);
        for (int64_t d = 0; d < dim; ++d) {
          StoreExact(exact_format(), LoadElement(tensor.type, from + d * stride), base,
                     element + static_cast<size_t>(d));
        }
      }
    }
  }
}

// A whole group of one row as f32, each number as it would be stored: tokens that were here from
// their exact group, the others from the caller.
void GroupedCache::LoadGroup(const NewTokens& tokens, Side side, size_t group, int64_t row,
                             float* tile) const {
  const int64_t start = GroupStart(group);
  const int64_t end = GroupEnd(group);
  const int64_t dim = shape().head_dim(side);
  const int64_t n_held = std::clamp(tokens.first - start, int64_t{0}, end - start);
  if (n_held > 0) {
    const std::byte* rows = groups_[group].slots[static_cast<size_t>(side)].data();
    const size_t element = static_cast<size_t>(row * (end - start) * dim);
    LoadElements(shape().type, rows + element * ExactBytes(exact_format()),
                 static_cast<size_t>(n_held * dim), tile);
  }
  const TensorView& tensor = tokens.side(static_cast<int>(side));
  for (int64_t t = start + n_held; t < end; ++t) {
    float* out = tile + (t - start) * dim;
    tensor.LoadRow(row / shape().n_kv_heads, row % shape().n_kv_heads, t - tokens.first, out);
    if (tensor.type == shape().type) continue;
    for (int64_t d = 0; d < dim; ++d) {
      out[d] = shape().type == ElementType::kF16 ? F16ToF32(F32ToF16(out[d]))
                                                 : Bf16ToF32(F32ToBf16(out[d]));
    }
  }
}

// The group coded in `tier`, from its exact rows or from the tier that it is in.
GroupedCache::Group GroupedCache::CodeGroup(const NewTokens& tokens, size_t group, int tier) {
  Group made;
  made.tier = tier;
  const bool coded = group < groups_.size() && groups_[group].tier != kExactTier;
  for (const Side side : {Side::kKey, Side::kValue}) {
    GroupCoder& codec = coder(side);
    const size_t s = static_cast<size_t>(side);
    const size_t row_bytes = codec.RowBytes(tier);
    made.slots[s] = arena_.Allocate(row_bytes * static_cast<size_t>(shape().n_rows()));
    for (int64_t row = 0; row < shape().n_rows(); ++row) {
      std::byte* const dst = made.slots[s].data() + static_cast<size_t>(row) * row_bytes;
      const std::byte* src = nullptr;
      int at = 0;
      if (coded) {
        at = groups_[group].tier;
        src = groups_[group].slots[s].data() + static_cast<size_t>(row) * codec.RowBytes(at);
      } else {
        at = FirstTier();
        std::byte* const first_rung = at == tier ? dst : rungs_[0].data();
        LoadGroup(tokens, side, group, row, tile_.data());
        codec.Encode(at, row, tile_.data(), first_rung);
        src = first_rung;
      }
      while (at != tier) {
        const int next = NextTier(at);
        std::byte* const rung = next == tier ? dst : rungs_[src == rungs_[0].data() ? 1 : 0].data();
        codec.Step(at, next, row, src, rung);
        src = rung;
        at = next;
      }
    }
  }
  return made;
}

int64_t GroupedCache::TokensAtFirst(int tier) const {
  int64_t n = plan_.n_sinks + plan_.group_size + plan_.residual;
  while (FrontierAt(tier, n) == 0) ++n;
  return n;
}

void GroupedCache::LearnRows(const NewTokens& tokens) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (plan_.n_tiers == 0 || !coder(side).Learns()) continue;
    const int64_t enough = TokensAtFirst(coder(side).FirstTableTier());
    const TensorView& tensor = tokens.side(static_cast<int>(side));
    const int64_t first = std::max<int64_t>({tokens.first, n_learned_, plan_.n_sinks});
    for (int64_t t = first; t < std::min(tokens.end, enough); ++t) {
      for (int64_t row = 0; row < shape().n_rows(); ++row) {
        tensor.LoadRow(row / shape().n_kv_heads, row % shape().n_kv_heads, t - tokens.first,
                       tile_.data());
        coder(side).Learn(row, tile_.data());
      }
    }
    if (tokens.end >= enough) coder(side).Fit();
  }
}

// Everything that can fail comes before the first change: coded groups are made beside the present
// ones and exact rows are written behind the tokens held, then all of it is put in place at once.
Status GroupedCache::AppendTokens(const TensorView& k, const TensorView& v, int64_t n) {
  const NewTokens tokens{&k, &v, n_tokens(), n_tokens() + n};
  std::array<size_t, kAgeTiers> frontier = frontier_;
  for (int tier = 0; tier < plan_.n_tiers; ++tier) {
    const size_t t = static_cast<size_t>(tier);
    frontier[t] = std::max(frontier_[t], FrontierAt(tier, tokens.end));
  }
  const size_t n_groups = GroupOf(tokens.end - 1) + 1;

  // Learning is taken back when something below fails.
  struct Undo {
    GroupedCache* cache;
    std::array<bool, 2> learns = {false, false};
    ~Undo() {
      for (size_t s = 0; cache != nullptr && s < learns.size(); ++s) {
        if (learns[s]) cache->coders_[s]->RollBack();
      }
    }
  } undo{this};
  for (size_t s = 0; plan_.n_tiers > 0 && s < coders_.size(); ++s) {
    if (!coders_[s]->Learns()) continue;
    coders_[s]->BeginLearning();
    undo.learns[s] = true;
  }
  LearnRows(tokens);

  std::vector<std::pair<size_t, Group>> coded;
  size_t n_coded = 0;
  for (int tier = plan_.n_tiers - 1, handled = 0; tier >= 0; --tier) {
    const size_t t = static_cast<size_t>(tier);
    const size_t from = std::max(frontier_[t], static_cast<size_t>(handled));
    if (frontier[t] > from) n_coded += frontier[t] - from;
    handled = static_cast<int>(std::max(static_cast<size_t>(handled), frontier[t]));
  }
  coded.reserve(n_coded);
  size_t handled = 0;
  for (int tier = plan_.n_tiers - 1; tier >= 0; --tier) {
    const size_t t = static_cast<size_t>(tier);
    for (size_t g = std::max(frontier_[t], handled); g < frontier[t]; ++g) {
      const size_t group = g + n_sink_groups();
      coded.emplace_back(group, CodeGroup(tokens, group, tier));
    }
    handled = std::max(handled, frontier[t]);
  }

  std::vector<std::pair<size_t, Group>> exact;
  const size_t first_exact = std::max(GroupOf(tokens.first), frontier[0] + n_sink_groups());
  const size_t n_exact_sinks = n_sink_groups() > 0 && tokens.first < plan_.n_sinks ? 1 : 0;
  exact.reserve(n_exact_sinks + (n_groups > first_exact ? n_groups - first_exact : 0));
  const auto store_exact = [&](size_t group) {
    if (group < groups_.size()) {
      StoreExactTokens(tokens, group, groups_[group]);
      return;
    }
    exact.emplace_back(group, MakeExactGroup(group));
    StoreExactTokens(tokens, group, exact.back().second);
  };
  if (n_exact_sinks > 0) store_exact(0);
  for (size_t group = std::max(first_exact, n_exact_sinks); group < n_groups; ++group)
    store_exact(group);
  if (groups_.capacity() < n_groups)
    groups_.reserve(std::max(n_groups, groups_.capacity() * 3 / 2));

  undo.cache = nullptr;
  for (size_t s = 0; s < coders_.size(); ++s) {
    if (undo.learns[s]) coders_[s]->EndLearning();
  }
  n_learned_ = std::max(n_learned_, tokens.end);
  if (n_groups > groups_.size()) groups_.resize(n_groups);
  for (auto& [group, made] : coded) groups_[group] = std::move(made);
  for (auto& [group, made] : exact) groups_[group] = std::move(made);
  const int64_t coded_before = n_coded_tokens();
  frontier_ = frontier;
  OnCoded(coded_before, n_coded_tokens());
  return Status();
}

Status GroupedCache::KeepTokens(int64_t n) {
  const size_t n_groups = n > 0 ? GroupOf(n - 1) + 1 : 0;
  const size_t n_whole = n_groups > 0 && GroupEnd(n_groups - 1) > n ? n_groups - 1 : n_groups;
  if (n_whole < n_groups && groups_[n_whole].tier != kExactTier) {
    // The group that is cut goes back to exact rows: what its codes say, precision that was lost
    // stays lost.
    Group cut = MakeExactGroup(n_whole);
    const int64_t start = GroupStart(n_whole);
    for (const Side side : {Side::kKey, Side::kValue}) {
      const size_t dim = static_cast<size_t>(shape().head_dim(side));
      const Group& from = groups_[n_whole];
      for (int64_t row = 0; row < shape().n_rows(); ++row) {
        const std::byte* payload = from.slots[static_cast<size_t>(side)].data() +
                                   static_cast<size_t>(row) * coder(side).RowBytes(from.tier);
        coder(side).Decode(from.tier, row, payload, 0, static_cast<int>(n - start), tile_.data());
        const size_t base = static_cast<size_t>(row) * static_cast<size_t>(plan_.group_size) * dim;
        for (size_t i = 0; i < static_cast<size_t>(n - start) * dim; ++i) {
          StoreExact(exact_format(), RoundToStorage(tile_[i]),
                     cut.slots[static_cast<size_t>(side)].data(), base + i);
        }
      }
    }
    groups_[n_whole] = std::move(cut);
  }
  groups_.erase(groups_.begin() + static_cast<ptrdiff_t>(n_groups), groups_.end());
  const int64_t coded_before = n_coded_tokens();
  const size_t n_full = n_whole > n_sink_groups() ? n_whole - n_sink_groups() : 0;
  for (size_t& frontier : frontier_) frontier = std::min(frontier, n_full);
  OnCoded(coded_before, n_coded_tokens());
  return Status();
}

void GroupedCache::Reset() {
  groups_ = std::vector<Group>();
  frontier_ = {0, 0, 0};
  n_learned_ = 0;
  for (auto& one : coders_) one.reset();
  tile_ = std::vector<float>();
  for (auto& rung : rungs_) rung = std::vector<std::byte>();
}

Status GroupedCache::CopyRows(std::span<const BatchRow> rows) {
  const auto& first = static_cast<const GroupedCache&>(*rows[0].cache);
  const int64_t n_heads = shape().n_kv_heads;
  groups_.reserve(first.groups_.size());
  for (size_t group = 0; group < first.groups_.size(); ++group) {
    Group copy;
    copy.tier = first.groups_[group].tier;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const size_t s = static_cast<size_t>(side);
      const size_t row_bytes = copy.tier == kExactTier ? ExactBytesOf(side, group) /
                                                             static_cast<size_t>(shape().n_rows())
                                                       : coder(side).RowBytes(copy.tier);
      const size_t batch_bytes = row_bytes * static_cast<size_t>(n_heads);
      copy.slots[s] = arena_.Allocate(batch_bytes * rows.size());
      for (size_t b = 0; b < rows.size(); ++b) {
        const auto& from = static_cast<const GroupedCache&>(*rows[b].cache);
        std::memcpy(
            copy.slots[s].data() + b * batch_bytes,
            from.groups_[group].slots[s].data() + static_cast<size_t>(rows[b].row) * batch_bytes,
            batch_bytes);
      }
    }
    groups_.push_back(std::move(copy));
  }
  frontier_ = first.frontier_;
  n_learned_ = first.n_learned_;
  for (size_t s = 0; s < coders_.size(); ++s) {
    if (coders_[s] == nullptr) continue;
    for (const BatchRow& from : rows) {
      std::vector<int64_t> kv_rows;
      for (int64_t h = 0; h < n_heads; ++h) kv_rows.push_back(from.row * n_heads + h);
      coders_[s]->CopyState(*static_cast<const GroupedCache&>(*from.cache).coders_[s], kv_rows);
    }
  }
  return Status();
}

bool GroupedCache::IsLaidOutAs(const SequenceCache& other) const {
  const auto& grouped = static_cast<const GroupedCache&>(other);
  return frontier_ == grouped.frontier_ && n_learned_ == grouped.n_learned_;
}

Status GroupedCache::ReserveTokens(int64_t n) {
  const size_t n_groups = GroupOf(n - 1) + 1;
  if (n_groups <= groups_.size()) return Status();
  groups_.reserve(n_groups);
  const size_t n_new = n_groups - groups_.size();
  for (const Side side : {Side::kKey, Side::kValue}) {
    const size_t bytes = plan_.n_tiers == 0 ? ExactBytesOf(side, n_sink_groups())
                                            : coder(side).RowBytes(plan_.n_tiers - 1) *
                                                  static_cast<size_t>(shape().n_rows());
    arena_.Reserve(bytes, n_new);
  }
  return Status();
}

int GroupedCache::TileTokens(int64_t first) const {
  const int64_t end = std::min(GroupEnd(GroupOf(first)), n_tokens());
  return static_cast<int>(std::min<int64_t>(kTileTokens, end - first));
}

void GroupedCache::DecodeTile(Side side, int64_t row, int64_t first, int n, float* tile) const {
  const size_t index = GroupOf(first);
  const Group& group = groups_[index];
  const int64_t start = GroupStart(index);
  const int in_group = static_cast<int>(first - start);
  const std::byte* payload = group.slots[static_cast<size_t>(side)].data();
  if (group.tier != kExactTier) {
    payload += static_cast<size_t>(row) * coder(side).RowBytes(group.tier);
    coder(side).Decode(group.tier, row, payload, in_group, n, tile);
    return;
  }
  const size_t dim = static_cast<size_t>(shape().head_dim(side));
  const size_t element_bytes = ExactBytes(exact_format());
  payload += static_cast<size_t>(row * (GroupEnd(index) - start)) * dim * element_bytes;
  const bool sink = index < n_sink_groups();
  if (plan_.exact_tail || sink || plan_.n_tiers == 0) {
    LoadElements(shape().type, payload + static_cast<size_t>(in_group) * dim * element_bytes,
                 static_cast<size_t>(n) * dim, tile);
    return;
  }
  const int64_t age = plan_.tier_rule == TierRule::kNewest ? 0 : n_tokens() - 1 - start;
  const int tier =
      plan_.n_tiers == 1
          ? 0
          : static_cast<int>(TierOfAge(age, plan_.recent_boundary, plan_.mid_boundary));
  coder(side).RoundTrip(tier, payload, static_cast<int>(n_tokens() - start), in_group, n, tile);
}

std::vector<uint8_t> GroupedCache::GroupTiers() const {
  std::vector<uint8_t> tiers;
  tiers.reserve(groups_.size());
  for (size_t index = 0; index < groups_.size(); ++index) {
    int tier = groups_[index].tier;
    if (tier == kExactTier && !plan_.exact_tail && index >= n_sink_groups() && plan_.n_tiers > 0) {
      const int64_t age =
          plan_.tier_rule == TierRule::kNewest ? 0 : n_tokens() - 1 - GroupStart(index);
      tier = plan_.n_tiers == 1
                 ? 0
                 : static_cast<int>(TierOfAge(age, plan_.recent_boundary, plan_.mid_boundary));
    }
    tiers.push_back(static_cast<uint8_t>(tier));
  }
  return tiers;
}

void GroupedCache::FillTokenTiers(int64_t, uint8_t* tiers) const {
  for (int64_t token = 0; token < n_tokens(); ++token) {
    tiers[token] = static_cast<uint8_t>(groups_[GroupOf(token)].tier);
  }
}

void GroupedCache::FillStats(SequenceStats* stats) const {
  stats->stored_bytes += groups_.capacity() * sizeof(Group) + tile_.capacity() * sizeof(float);
  for (const auto& rung : rungs_) stats->stored_bytes += rung.capacity();
  for (const auto& one : coders_) {
    if (one != nullptr) stats->stored_bytes += one->held_bytes();
  }
  const uint64_t n_rows = static_cast<uint64_t>(shape().n_rows());
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (int tier = 0; tier < plan_.n_tiers; ++tier) {
      const size_t t = static_cast<size_t>(tier);
      const size_t deeper = tier + 1 < plan_.n_tiers ? frontier_[t + 1] : 0;
      if (frontier_[t] == deeper) continue;
      stats->payload_bytes += (frontier_[t] - deeper) * coder(side).RowBytes(tier) * n_rows;
    }
    const int64_t exact = n_tokens() - n_coded_tokens();
    stats->payload_bytes +=
        n_rows * static_cast<uint64_t>(exact * shape().head_dim(side)) * ExactBytes(exact_format());
  }
}

}  // namespace varve
