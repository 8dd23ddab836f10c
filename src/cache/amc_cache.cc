#include "cache/amc_cache.h"

#include <cstring>
#include <string>
#include <utility>

#include "cache/sequence_methods.h"
#include "codec/amc_saliency.h"

namespace varve {

Status AmcCache::CheckPermutations(const AmcLayerOrder& order) {
  const size_t n = static_cast<size_t>(order.n_kv_heads) * static_cast<size_t>(order.head_dim);
  if (order.n_kv_heads < 1 || order.head_dim < 1 || order.keys.size() != n ||
      order.values.size() != n) {
    return Status(StatusCode::kInvalidArgument,
                  "channel order must be [n_kv_heads][head_dim] for keys and values");
  }
  for (int head = 0; head < order.n_kv_heads; ++head) {
    for (const auto* side : {&order.keys, &order.values}) {
      const std::span<const int32_t> row(side->data() + static_cast<size_t>(head) * order.head_dim,
                                         static_cast<size_t>(order.head_dim));
      VARVE_RETURN_IF_ERROR(
          CheckPermutation(row, side == &order.keys ? "key order" : "value order"));
    }
  }
  return Status();
}

Status AmcCache::SetChannelOrder(const AmcLayerOrder& order) {
  if (n_tokens() > 0) {
    return Status(StatusCode::kInvalidState, "channel order: the cache holds " +
                                                 std::to_string(n_tokens()) +
                                                 " tokens, it must be empty");
  }
  VARVE_RETURN_IF_ERROR(CheckPermutations(order));
  if (has_shape()) VARVE_RETURN_IF_ERROR(CheckOrder(order));
  order_ = order;
  return Status();
}

Status AmcCache::Prepare() {
  if (order_.n_kv_heads > 0) VARVE_RETURN_IF_ERROR(CheckOrder(order_));
  for (int tier = 0; tier < kAmcTiers; ++tier) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const int dim = shape().head_dim(side);
      const AmcTierShape kept = AmcShapeOf(static_cast<AmcTier>(tier), NominalDim(side));
      AffineBlockLayout& layout = layouts_[static_cast<size_t>(tier)][static_cast<size_t>(side)];
      const int rank = std::min(kept.rank, dim);
      const int group =
          settings().amc_groups == AmcGroups::kToken ? rank : settings().amc_group_size;
      layout.shape = {GroupAxis::kChannels, 1, rank, group};
      layout.format = static_cast<ExactFormat>(shape().type);
      layout.n_widths = 1;
      layout.widths[0] = kept.bits;
      scratch_.Fit(layout.shape);
    }
  }
  const int window = settings().amc_threshold_window;
  rows_.reserve(static_cast<size_t>(shape().n_rows()));
  while (rows_.size() < static_cast<size_t>(shape().n_rows())) rows_.emplace_back(window);
  key_.resize(static_cast<size_t>(shape().head_dim_k));
  row_.resize(static_cast<size_t>(std::max(shape().head_dim_k, shape().head_dim_v)) * 2);
  return Status();
}

Status AmcCache::AppendTokens(const TensorView& k, const TensorView& v, int64_t n) {
  const size_t n_rows = rows_.size();
  std::vector<AmcTier> tiers(n_rows * static_cast<size_t>(n));
  std::vector<float> saliencies(n_rows * static_cast<size_t>(n));
  std::vector<AmcRowMemory> memories;
  if (running()) {
    memories.reserve(n_rows);
    for (const AmcRow& row : rows_) memories.push_back(row.memory);
  }
  for (size_t r = 0; r < n_rows; ++r) {
    AmcTier* row_tiers = tiers.data() + r * static_cast<size_t>(n);
    float* row_saliencies = saliencies.data() + r * static_cast<size_t>(n);
    if (running()) {
      RankInWindow(k, static_cast<int64_t>(r), n, memories[r], row_saliencies, row_tiers);
    } else {
      RankInCall(k, static_cast<int64_t>(r), n, row_saliencies, row_tiers);
    }
    const int64_t n_new_sinks = std::clamp<int64_t>(settings().sink_tokens - n_tokens(), 0, n);
    std::fill_n(row_tiers, n_new_sinks, AmcTier::kHigh);
  }

  // Room for all of it first; given back if some of it cannot be had.
  struct Undo {
    AmcCache* cache;
    ~Undo() {
      if (cache != nullptr) cache->DropSpare(cache->n_tokens());
    }
  } undo{this};
  for (size_t r = 0; r < n_rows; ++r)
    MakeRoom(rows_[r], tiers.data() + r * static_cast<size_t>(n), n, n_tokens() + n);
  undo.cache = nullptr;

  for (size_t r = 0; r < n_rows; ++r) {
    for (int64_t t = 0; t < n; ++t) {
      const size_t at = r * static_cast<size_t>(n) + static_cast<size_t>(t);
      WriteToken(k, v, static_cast<int64_t>(r), t, tiers[at], saliencies[at]);
    }
    if (running()) std::swap(rows_[r].memory, memories[r]);
  }
  return Status();
}

Status AmcCache::KeepTokens(int64_t n) {
  // The mean key starts again from what is still known: the decoded keys of the last window.
  for (size_t r = 0; r < rows_.size(); ++r) {
    AmcRow& row = rows_[r];
    for (int64_t token = n_tokens() - 1; token >= n; --token) {
      --row.n_records[static_cast<size_t>(TierOf(row, token))];
    }
    if (!running()) continue;
    row.memory.saliencies.Clear();
    const int64_t first = std::max<int64_t>(0, n - settings().amc_threshold_window);
    for (int64_t token = first; token < n; ++token)
      row.memory.saliencies.Push(SaliencyOf(row, token));
    if (!remembers_keys()) continue;
    row.memory.n_keys = 0;
    std::fill(row.memory.mean_key.begin(), row.memory.mean_key.end(), 0.0f);
    for (int64_t token = first; token < n; ++token) {
      DecodeToken(Side::kKey, static_cast<int64_t>(r), token, key_.data(), row_.data());
      Remember(row.memory, key_.data());
    }
  }
  DropSpare(n);
  return Status();
}

void AmcCache::Reset() {
  rows_ = std::vector<AmcRow>();
  scratch_ = AffineScratch();
  key_ = std::vector<float>();
  row_ = std::vector<float>();
}

Status AmcCache::CopyRows(std::span<const BatchRow> picked) {
  const int64_t n_heads = shape().n_kv_heads;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const BatchRow& from = picked[r / static_cast<size_t>(n_heads)];
    const auto& other = static_cast<const AmcCache&>(*from.cache);
    const AmcRow& source =
        other.rows_[static_cast<size_t>(from.row * n_heads) + r % static_cast<size_t>(n_heads)];
    AmcRow& copy = rows_[r];
    for (size_t tier = 0; tier < kAmcTiers; ++tier) {
      CopySlots(source.chunks[tier], ChunkBytes(tier), copy.chunks[tier]);
    }
    CopySlots(source.indices, IndexBytes(), copy.indices);
    copy.n_records = source.n_records;
    copy.memory = source.memory;
  }
  return Status();
}

bool AmcCache::IsLaidOutAs(const SequenceCache& other) const {
  const AmcLayerOrder& order = static_cast<const AmcCache&>(other).order_;
  return order_.n_kv_heads == order.n_kv_heads && order_.keys == order.keys &&
         order_.values == order.values;
}

Status AmcCache::ReserveTokens(int64_t n) {
  const size_t n_new =
      static_cast<size_t>((n - n_tokens() + AmcTokenIndex::kTokens - 1) / AmcTokenIndex::kTokens) *
      rows_.size();
  arena_.Reserve(IndexBytes(), n_new);
  return Status();
}

int AmcCache::TileTokens(int64_t first) const {
  // With a channel order the last row of a tile is where a token is put before its channels go to
  // their places.
  const int most = order_.n_kv_heads > 0 ? kTileTokens - 1 : kTileTokens;
  return static_cast<int>(std::min<int64_t>(most, n_tokens() - first));
}

void AmcCache::FillStats(SequenceStats* stats) const {
  stats->stored_bytes += rows_.capacity() * sizeof(AmcRow) +
                         (key_.capacity() + row_.capacity()) * sizeof(float) +
                         scratch_.held_bytes();
  for (const AmcRow& row : rows_) {
    for (size_t tier = 0; tier < kAmcTiers; ++tier) {
      stats->tier_tokens[tier] += row.n_records[tier];
      stats->payload_bytes += static_cast<uint64_t>(row.n_records[tier]) * RecordBytes(tier);
      stats->stored_bytes += row.chunks[tier].size() * sizeof(Slot);
    }
    stats->payload_bytes += row.indices.size() * IndexBytes();
    stats->stored_bytes += row.indices.size() * sizeof(Slot) +
                           row.memory.saliencies.capacity_bytes() +
                           row.memory.mean_key.capacity() * sizeof(float);
  }
  if (!has_shape()) return;
  for (const Side side : {Side::kKey, Side::kValue}) {
    stats->nominal_bytes += AmcKeptBytes(stats->tier_tokens, NominalDim(side)) / 2;
  }
}

Status AmcCache::CheckOrder(const AmcLayerOrder& order) const {
  if (order.n_kv_heads == shape().n_kv_heads && order.head_dim == shape().head_dim_k &&
      order.head_dim == shape().head_dim_v) {
    return Status();
  }
  return Status(StatusCode::kShapeMismatch,
                "channel order is for " + std::to_string(order.n_kv_heads) + " heads of " +
                    std::to_string(order.head_dim) + " channels, the cache holds " +
                    std::to_string(shape().n_kv_heads) + " of " +
                    std::to_string(shape().head_dim_k) + " and " +
                    std::to_string(shape().head_dim_v));
}

void AmcCache::RoundRow(float* values, size_t n) const {
  for (size_t d = 0; d < n; ++d) {
    values[d] = shape().type == ElementType::kF16 ? F16ToF32(F32ToF16(values[d]))
                                                  : Bf16ToF32(F32ToBf16(values[d]));
  }
}

void AmcCache::RankInCall(const TensorView& k, int64_t row, int64_t n, float* saliencies,
                          AmcTier* tiers) {
  const int dim = shape().head_dim_k;
  std::vector<float> mean;
  if (settings().amc_use_query_saliency) {
    std::vector<double> sum(static_cast<size_t>(dim));
    for (int64_t t = 0; t < n; ++t) {
      LoadKey(k, row, t, key_.data());
      for (int d = 0; d < dim; ++d)
        sum[static_cast<size_t>(d)] += static_cast<double>(key_[static_cast<size_t>(d)]);
    }
    for (const double one : sum) mean.push_back(static_cast<float>(one / static_cast<double>(n)));
  }
  for (int64_t t = 0; t < n; ++t) {
    LoadKey(k, row, t, key_.data());
    saliencies[t] = Saliency(mean.empty() ? nullptr : mean.data());
  }
  std::vector<uint32_t> order;
  AssignAmcTiers({saliencies, static_cast<size_t>(n)}, settings().amc_k_high, settings().amc_k_mid,
                 order, tiers);
}

void AmcCache::RankInWindow(const TensorView& k, int64_t row, int64_t n, AmcRowMemory& memory,
                            float* saliencies, AmcTier* tiers) {
  const AmcThresholds base = {1.0 - settings().amc_k_high,
                              1.0 - settings().amc_k_high - settings().amc_k_mid};
  for (int64_t t = 0; t < n; ++t) {
    LoadKey(k, row, t, key_.data());
    if (settings().amc_use_query_saliency) Remember(memory, key_.data());
    const float saliency =
        Saliency(settings().amc_use_query_saliency ? memory.mean_key.data() : nullptr);
    saliencies[t] = F16ToF32(F32ToF16(std::min(saliency, 65504.0f)));
    memory.saliencies.Push(saliencies[t]);
    const AmcThresholds thresholds =
        settings().amc_adaptive_thresholds
            ? AdaptAmcThresholds(memory.saliencies, base, *settings().amc_calib_variance,
                                 settings().amc_gamma)
            : base;
    tiers[t] = TierByRank(memory.saliencies, thresholds);
  }
}

float AmcCache::Saliency(const float* query) const {
  const int dim = shape().head_dim_k;
  const bool clamp = settings().amc_saliency_clamp;
  if (query == nullptr) return MagnitudeSaliency(key_.data(), dim, clamp);
  return QueryAwareSaliency(key_.data(), query, dim, settings().amc_query_alpha, clamp);
}

void AmcCache::Remember(AmcRowMemory& memory, const float* key) const {
  memory.mean_key.resize(static_cast<size_t>(shape().head_dim_k));
  ++memory.n_keys;
  const float rate =
      1.0f / static_cast<float>(std::min<int64_t>(memory.n_keys, settings().amc_threshold_window));
  for (size_t d = 0; d < memory.mean_key.size(); ++d)
    memory.mean_key[d] += (key[d] - memory.mean_key[d]) * rate;
}

void AmcCache::MakeRoom(AmcRow& row, const AmcTier* tiers, int64_t n, int64_t n_all) {
  std::array<int64_t, kAmcTiers> wanted = row.n_records;
  for (int64_t t = 0; t < n; ++t) ++wanted[static_cast<size_t>(tiers[t])];
  const auto grow = [&](std::vector<Slot>& slots, int64_t n_slots, size_t bytes) {
    while (static_cast<int64_t>(slots.size()) < n_slots) slots.push_back(arena_.Allocate(bytes));
  };
  for (size_t tier = 0; tier < kAmcTiers; ++tier) {
    grow(row.chunks[tier], (wanted[tier] + AmcRow::kRecordsAChunk - 1) / AmcRow::kRecordsAChunk,
         ChunkBytes(tier));
  }
  grow(row.indices, (n_all + AmcTokenIndex::kTokens - 1) / AmcTokenIndex::kTokens, IndexBytes());
}

void AmcCache::DropSpare(int64_t n) {
  const auto shrink = [](std::vector<Slot>& slots, int64_t n_slots) {
    if (static_cast<int64_t>(slots.size()) > n_slots)
      slots.erase(slots.begin() + n_slots, slots.end());
  };
  for (AmcRow& row : rows_) {
    for (size_t tier = 0; tier < kAmcTiers; ++tier) {
      shrink(row.chunks[tier],
             (row.n_records[tier] + AmcRow::kRecordsAChunk - 1) / AmcRow::kRecordsAChunk);
    }
    shrink(row.indices, (n + AmcTokenIndex::kTokens - 1) / AmcTokenIndex::kTokens);
  }
}

std::byte* AmcCache::EnterToken(AmcRow& row, int64_t token, AmcTier tier, float saliency) {
  const int64_t in_index = token % AmcTokenIndex::kTokens;
  AmcTokenIndex* index = IndexOf(row, token);
  if (in_index == 0) index->first_record = row.n_records;
  index->set_tier(in_index, tier);
  if (running()) {
    StoreExact(ExactFormat::kF16, saliency, reinterpret_cast<std::byte*>(index + 1),
               static_cast<size_t>(in_index));
  }
  const size_t tier_index = static_cast<size_t>(tier);
  return Record(row, tier_index, row.n_records[tier_index]++);
}

void AmcCache::WriteToken(const TensorView& k, const TensorView& v, int64_t r, int64_t t,
                          AmcTier tier, float saliency) {
  const size_t tier_index = static_cast<size_t>(tier);
  std::byte* record = EnterToken(rows_[static_cast<size_t>(r)], n_tokens() + t, tier, saliency);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const TensorView& tensor = side == Side::kKey ? k : v;
    const size_t dim = static_cast<size_t>(shape().head_dim(side));
    tensor.LoadRow(r / shape().n_kv_heads, r % shape().n_kv_heads, t, row_.data());
    RoundRow(row_.data(), dim);
    const float* kept = row_.data();
    if (const int32_t* order = Order(side, r); order != nullptr) {
      for (size_t d = 0; d < dim; ++d) row_[dim + d] = row_[static_cast<size_t>(order[d])];
      kept = row_.data() + dim;
    }
    EncodeAffineBlock(layout(tier_index, side), kept, scratch_, record);
    record += layout(tier_index, side).bytes();
  }
}

const int32_t* AmcCache::Order(Side side, int64_t row) const {
  if (order_.n_kv_heads == 0) return nullptr;
  const auto& orders = side == Side::kKey ? order_.keys : order_.values;
  return orders.data() +
         static_cast<size_t>(row % shape().n_kv_heads) * static_cast<size_t>(order_.head_dim);
}

void AmcCache::DecodeToken(Side side, int64_t r, int64_t token, float* out, float* spare) const {
  const AmcRow& row = rows_[static_cast<size_t>(r)];
  const AmcTokenIndex* index = IndexOf(row, token);
  const AmcTier tier = TierOf(row, token);
  const size_t tier_index = static_cast<size_t>(tier);
  int64_t record = index->first_record[tier_index];
  for (int64_t i = 0; i < token % AmcTokenIndex::kTokens; ++i)
    record += index->tier(i) == tier ? 1 : 0;
  const std::byte* block = Record(row, tier_index, record);
  if (side == Side::kValue) block += layout(tier_index, Side::kKey).bytes();
  const AffineBlockLayout& kept = layout(tier_index, side);
  const int32_t* order = Order(side, r);
  DecodeAffineBlock(kept, block, 0, 1, order != nullptr ? spare : out);
  const int dim = shape().head_dim(side);
  if (order == nullptr) {
    std::fill(out + kept.shape.dim, out + dim, 0.0f);
    return;
  }
  std::fill(out, out + dim, 0.0f);
  for (int d = 0; d < kept.shape.dim; ++d) out[order[d]] = spare[d];
}

void AmcCache::CopySlots(const std::vector<Slot>& from, size_t bytes, std::vector<Slot>& to) {
  to.reserve(from.size());
  for (const Slot& slot : from) {
    to.push_back(arena_.Allocate(bytes));
    std::memcpy(to.back().data(), slot.data(), bytes);
  }
}

Result<std::unique_ptr<SequenceCache>> MakeAmcCache(const Settings& settings, int layer) {
  auto cache = std::make_unique<AmcCache>(settings);
  if (!settings.amc_channel_order.empty()) {
    Result<AmcLayerOrder> order = ReadAmcLayerOrder(settings.amc_channel_order, layer);
    if (!order.ok()) return order.status();
    VARVE_RETURN_IF_ERROR(cache->SetChannelOrder(order.value()));
  }
  return std::unique_ptr<SequenceCache>(std::move(cache));
}

}  // namespace varve
