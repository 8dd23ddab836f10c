// A grouped cache in a session file: its groups in token order as they lie, the ladder's frontiers,
// and what its coders have learned.
#include <algorithm>
#include <string>

#include "base/checked_math.h"
#include "cache/grouped_cache.h"

namespace varve {
namespace {

constexpr int64_t kMaxCounter = int64_t{1} << 62;
constexpr Side kSides[] = {Side::kKey, Side::kValue};

SectionType SectionOf(Side side) {
  return side == Side::kKey ? SectionType::kKeys : SectionType::kValues;
}

const char* NameOf(Side side) { return side == Side::kKey ? "keys" : "values"; }

Status Bad(const std::string& what) { return Status(StatusCode::kBadFormat, what); }

}  // namespace

size_t GroupedCache::n_groups_held() const {
  return n_tokens() > 0 ? GroupOf(n_tokens() - 1) + 1 : 0;
}

int64_t GroupedCache::HeldIn(size_t group) const {
  return std::min(GroupEnd(group), n_tokens()) - GroupStart(group);
}

void GroupedCache::PutPlan(ByteWriter* to) const {
  to->Put(static_cast<int64_t>(plan_.group_size));
  to->Put(static_cast<int64_t>(plan_.n_sinks));
  to->Put(plan_.residual);
  to->Put(static_cast<int64_t>(plan_.n_tiers));
  for (const Side side : kSides) {
    for (int tier = 0; tier < plan_.n_tiers; ++tier) PutCoding(coder(side).Describe(tier), to);
  }
}

Status GroupedCache::CheckPlan(ByteReader* from) const {
  const std::pair<const char*, int64_t> fields[] = {{"group_size", plan_.group_size},
                                                    {"sink_tokens", plan_.n_sinks},
                                                    {"residual", plan_.residual},
                                                    {"n_tiers", plan_.n_tiers}};
  for (const auto& [field, own] : fields) {
    const auto stored = from->Get<int64_t>();
    if (stored == own) continue;
    return Status(StatusCode::kIncompatible, std::string(field) + " is " + std::to_string(stored) +
                                                 " in the session, " + std::to_string(own) +
                                                 " here");
  }
  for (const Side side : kSides) {
    for (int tier = 0; tier < plan_.n_tiers; ++tier) {
      const std::string name =
          std::string("coding of ") + NameOf(side) + " in tier " + std::to_string(tier);
      VARVE_RETURN_IF_ERROR(CheckCoding(coder(side).Describe(tier), name, from));
    }
  }
  return from->done() ? Status() : Bad("coding: has more than its fields");
}

void GroupedCache::SaveSide(Side side, uint32_t index, SessionWriter* writer) const {
  SessionWriter::Section& section = writer->Add(SectionOf(side), index);
  const size_t row_token_bytes =
      static_cast<size_t>(shape().head_dim(side)) * ExactBytes(exact_format());
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::byte* data = groups_[g].slots[static_cast<size_t>(side)].data();
    const auto n_rows = static_cast<size_t>(shape().n_rows());
    if (groups_[g].tier != kExactTier) {
      section.Borrow(data, n_rows * coder(side).RowBytes(groups_[g].tier));
      continue;
    }
    // Rows have room for the whole group; what is not held yet is not written.
    const size_t room = static_cast<size_t>(GroupEnd(g) - GroupStart(g)) * row_token_bytes;
    const size_t held = static_cast<size_t>(HeldIn(g)) * row_token_bytes;
    for (size_t row = 0; row < n_rows; ++row) section.Borrow(data + row * room, held);
  }
}

void GroupedCache::SaveContent(uint32_t index, SessionWriter* writer) const {
  if (!has_shape()) return;
  PutPlan(&writer->Add(SectionType::kCoding, index).own);
  ByteWriter& state = writer->Add(SectionType::kState, index).own;
  for (const size_t frontier : frontier_) state.Put(static_cast<int64_t>(frontier));
  state.Put(n_learned_);
  for (const int64_t counter : MethodCounters()) state.Put(counter);
  if (plan_.n_tiers > 0 && coder(Side::kKey).has_tables()) {
    coder(Side::kKey).SaveTables(&writer->Add(SectionType::kKeyTables, index).own);
  } else if (plan_.n_tiers > 0 && coder(Side::kKey).Learns()) {
    coder(Side::kKey).SaveStatistics(&writer->Add(SectionType::kKeyStatistics, index).own);
  }
  for (const Side side : kSides) SaveSide(side, index, writer);
}

Status GroupedCache::LoadLearned(uint32_t index, SessionReader* reader) {
  if (plan_.n_tiers == 0 || !coder(Side::kKey).Learns()) return Status();
  const bool fitted = reader->Has(SectionType::kKeyTables, index);
  Result<std::vector<std::byte>> bytes =
      reader->Read(fitted ? SectionType::kKeyTables : SectionType::kKeyStatistics, index);
  if (!bytes.ok()) return bytes.status();
  ByteReader from(bytes.value());
  VARVE_RETURN_IF_ERROR(fitted ? coder(Side::kKey).LoadTables(&from)
                               : coder(Side::kKey).LoadStatistics(&from));
  return from.done() ? Status() : Bad("key tables or statistics: more than one for each row");
}

Status GroupedCache::LoadState(uint32_t index, SessionReader* reader) {
  Result<std::vector<std::byte>> bytes = reader->Read(SectionType::kState, index);
  if (!bytes.ok()) return bytes.status();
  ByteReader from(bytes.value());
  // Groups are coded only once they are full, and none is in a lower tier than the one before it.
  int64_t most = std::max<int64_t>(0, n_tokens() - plan_.n_sinks) / plan_.group_size;
  for (int tier = 0; tier < kAgeTiers; ++tier) {
    const auto frontier = from.Get<int64_t>();
    if (tier >= plan_.n_tiers) most = 0;
    if (frontier < 0 || frontier > most) {
      return Bad("frontier[" + std::to_string(tier) + "] must be in 0.." + std::to_string(most) +
                 ", got " + std::to_string(frontier));
    }
    frontier_[static_cast<size_t>(tier)] = static_cast<size_t>(frontier);
    most = frontier;
  }
  n_learned_ = from.Get<int64_t>();
  if (n_learned_ < n_tokens() || n_learned_ > kMaxTokens) {
    return Bad("n_learned must be in " + std::to_string(n_tokens()) + ".." +
               std::to_string(kMaxTokens) + ", got " + std::to_string(n_learned_));
  }
  std::array<int64_t, 2> counters = {from.Get<int64_t>(), from.Get<int64_t>()};
  for (const int64_t counter : counters) {
    if (counter < 0 || counter > kMaxCounter)
      return Bad("a counter of bytes is " + std::to_string(counter));
  }
  SetMethodCounters(counters);
  if (!from.done()) return Bad("state: not as long as its fields");

  if (plan_.n_tiers == 0 || !coder(Side::kKey).Learns()) return Status();
  const int table_tier = coder(Side::kKey).FirstTableTier();
  if (frontier_[static_cast<size_t>(table_tier)] > 0 || n_learned_ >= TokensAtFirst(table_tier))
    return Bad("tier " + std::to_string(table_tier) + " needs key tables, and there are none");
  return Status();
}

bool GroupedCache::SideBytes(Side side, size_t* bytes) const {
  const auto n_rows = static_cast<size_t>(shape().n_rows());
  // Cannot overflow: the shape was checked with eight bytes an element.
  *bytes = n_rows * static_cast<size_t>((n_tokens() - n_coded_tokens()) * shape().head_dim(side)) *
           ExactBytes(exact_format());
  for (int tier = 0; tier < plan_.n_tiers; ++tier) {
    const size_t t = static_cast<size_t>(tier);
    const size_t deeper = tier + 1 < plan_.n_tiers ? frontier_[t + 1] : 0;
    size_t tier_bytes = 0;
    if (!CheckedMul(coder(side).RowBytes(tier), n_rows, &tier_bytes) ||
        !CheckedMul(tier_bytes, frontier_[t] - deeper, &tier_bytes) ||
        !CheckedAdd(*bytes, tier_bytes, bytes)) {
      return false;
    }
  }
  return true;
}

Status GroupedCache::LoadPayload(Side side, size_t group, SectionStream* stream) {
  const bool may_be_nan = !settings().reject_non_finite;
  const auto n_rows = static_cast<size_t>(shape().n_rows());
  const int tier = groups_[group].tier;
  Slot& slot = groups_[group].slots[static_cast<size_t>(side)];
  bool sound = true;
  if (tier != kExactTier) {
    const size_t row_bytes = coder(side).RowBytes(tier);
    slot = arena_.Allocate(n_rows * row_bytes);
    VARVE_RETURN_IF_ERROR(stream->Read(slot.data(), n_rows * row_bytes));
    for (size_t row = 0; row < n_rows; ++row) {
      sound = sound && coder(side).IsSound(tier, slot.data() + row * row_bytes, may_be_nan);
    }
  } else {
    slot = arena_.Allocate(ExactBytesOf(side, group));
    const size_t row_bytes = ExactBytesOf(side, group) / n_rows;
    const size_t n_held = static_cast<size_t>(HeldIn(group) * shape().head_dim(side));
    for (size_t row = 0; row < n_rows; ++row) {
      std::byte* to = slot.data() + row * row_bytes;
      VARVE_RETURN_IF_ERROR(stream->Read(to, n_held * ExactBytes(exact_format())));
      sound = sound && (may_be_nan || ExactAreFinite(exact_format(), to, n_held));
    }
  }
  if (sound) return Status();
  return Bad(std::string(NameOf(side)) + ": group " + std::to_string(group) +
             " has numbers that no token leads to (not finite, or lo above hi)");
}

Status GroupedCache::LoadSide(Side side, uint32_t index, SessionReader* reader) {
  Result<SectionStream> stream = reader->Stream(SectionOf(side), index);
  if (!stream.ok()) return stream.status();
  size_t bytes = 0;
  if (!SideBytes(side, &bytes)) return Bad("n_tokens = " + std::to_string(n_tokens()));
  // From here on the file has at least a byte for every group.
  VARVE_RETURN_IF_ERROR(stream.value().ExpectBytes(bytes));
  if (groups_.empty()) {
    groups_.resize(n_groups_held());
    for (size_t coded = 0; coded < frontier_[0]; ++coded)
      groups_[coded + n_sink_groups()].tier = TierOf(coded);
  }
  for (size_t group = 0; group < groups_.size(); ++group)
    VARVE_RETURN_IF_ERROR(LoadPayload(side, group, &stream.value()));
  return stream.value().Finish();
}

Status GroupedCache::LoadContent(uint32_t index, SessionReader* reader) {
  if (!has_shape()) return Status();
  VARVE_RETURN_IF_ERROR(Prepare());
  Result<std::vector<std::byte>> coding = reader->Read(SectionType::kCoding, index);
  if (!coding.ok()) return coding.status();
  ByteReader from(coding.value());
  VARVE_RETURN_IF_ERROR(CheckPlan(&from));
  VARVE_RETURN_IF_ERROR(LoadLearned(index, reader));
  VARVE_RETURN_IF_ERROR(LoadState(index, reader));
  for (const Side side : kSides) VARVE_RETURN_IF_ERROR(LoadSide(side, index, reader));
  return Status();
}

}  // namespace varve
