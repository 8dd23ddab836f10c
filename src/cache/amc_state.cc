// An amc cache in a session file: tiers and saliencies by token, records by tier, and what running
// tiering remembers.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/checked_math.h"
#include "cache/amc_cache.h"
#include "session/coding.h"

namespace varve {
namespace {

constexpr int64_t kMaxKeys = int64_t{1} << 62;
constexpr Side kSides[] = {Side::kKey, Side::kValue};
/// Of a row in the section amc_memory: two counts, before the numbers.
constexpr size_t kMemoryFixedBytes = 2 * sizeof(int64_t);

Status Bad(const std::string& what) { return Status(StatusCode::kBadFormat, what); }

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace

void AmcCache::SaveContent(uint32_t index, SessionWriter* writer) const {
  if (has_shape()) {
    ByteWriter& coding = writer->Add(SectionType::kCoding, index).own;
    for (const Side side : kSides) {
      for (size_t tier = 0; tier < kAmcTiers; ++tier)
        PutCoding(DescribeAffine(layout(tier, side)), &coding);
    }
    ByteWriter& tiers = writer->Add(SectionType::kAmcTiers, index).own;
    for (const AmcRow& row : rows_) {
      for (int64_t token = 0; token < n_tokens(); token += 4) {
        unsigned four = 0;
        for (int64_t i = 0; i < std::min<int64_t>(4, n_tokens() - token); ++i)
          four |= static_cast<unsigned>(TierOf(row, token + i)) << (2 * i);
        tiers.Put(static_cast<uint8_t>(four));
      }
    }
    if (running()) {
      SessionWriter::Section& saliencies = writer->Add(SectionType::kAmcSaliencies, index);
      for (const AmcRow& row : rows_) {
        for (int64_t token = 0; token < n_tokens(); token += AmcTokenIndex::kTokens) {
          const int64_t n = std::min(AmcTokenIndex::kTokens, n_tokens() - token);
          saliencies.Borrow(reinterpret_cast<std::byte*>(IndexOf(row, token) + 1),
                            static_cast<size_t>(n) * sizeof(uint16_t));
        }
      }
    }
    ByteWriter& memory = writer->Add(SectionType::kAmcMemory, index).own;
    for (const AmcRow& row : rows_) {
      const RingBuffer& window = row.memory.saliencies;
      memory.Put(static_cast<int64_t>(window.size()));
      memory.Put(row.memory.mean_key.empty() ? int64_t{-1} : row.memory.n_keys);
      for (int i = 0; i < window.size(); ++i) memory.Put(window[i]);
      memory.PutAll(row.memory.mean_key);
    }
    SessionWriter::Section& records = writer->Add(SectionType::kAmcRecords, index);
    for (const AmcRow& row : rows_) {
      for (size_t tier = 0; tier < kAmcTiers; ++tier) {
        for (int64_t at = 0; at < row.n_records[tier]; at += AmcRow::kRecordsAChunk) {
          const int64_t n = std::min(AmcRow::kRecordsAChunk, row.n_records[tier] - at);
          records.Borrow(Record(row, tier, at), static_cast<size_t>(n) * RecordBytes(tier));
        }
      }
    }
  }
  if (order_.n_kv_heads == 0) return;
  ByteWriter& order = writer->Add(SectionType::kAmcChannelOrder, index).own;
  order.Put(static_cast<int32_t>(order_.n_kv_heads));
  order.Put(static_cast<int32_t>(order_.head_dim));
  order.PutAll(order_.keys);
  order.PutAll(order_.values);
}

Status AmcCache::TakeOrder(uint32_t index, SessionReader* reader) {
  Status differs(StatusCode::kIncompatible,
                 "amc_channel_order: the session's order is not the one here");
  if (!reader->Has(SectionType::kAmcChannelOrder, index))
    return order_.n_kv_heads == 0 ? Status() : differs;
  Result<std::vector<std::byte>> bytes = reader->Read(SectionType::kAmcChannelOrder, index);
  if (!bytes.ok()) return bytes.status();
  ByteReader from(bytes.value());
  AmcLayerOrder order;
  order.n_kv_heads = from.Get<int32_t>();
  order.head_dim = from.Get<int32_t>();
  const size_t n = from.n_left() / (2 * sizeof(int32_t));
  order.keys.resize(n);
  order.values.resize(n);
  from.GetAll(order.keys);
  from.GetAll(order.values);
  if (!from.done()) return Bad("amc_channel_order: not as long as its fields");
  if (const Status checked = CheckPermutations(order); !checked.ok())
    return Bad("amc_channel_order: " + checked.text());
  const bool same = order.n_kv_heads == order_.n_kv_heads && order.head_dim == order_.head_dim &&
                    order.keys == order_.keys && order.values == order_.values;
  if (order_.n_kv_heads != 0 && !same) return differs;
  order_ = std::move(order);
  return Status();
}

Status AmcCache::LoadTiers(uint32_t index, SessionReader* reader) {
  Result<std::vector<std::byte>> tier_bytes = reader->Read(SectionType::kAmcTiers, index);
  if (!tier_bytes.ok()) return tier_bytes.status();
  const size_t row_bytes = static_cast<size_t>(CeilDiv<int64_t>(n_tokens(), 4));
  size_t wanted = 0;
  if (!CheckedMul(row_bytes, rows_.size(), &wanted) || wanted != tier_bytes.value().size())
    return Bad("amc_tiers: not a row of " + std::to_string(row_bytes) + " bytes for each head");
  std::vector<std::byte> saliency_bytes;
  if (running()) {
    Result<std::vector<std::byte>> read = reader->Read(SectionType::kAmcSaliencies, index);
    if (!read.ok()) return read.status();
    saliency_bytes = std::move(read).value();
    const size_t n_elements = rows_.size() * static_cast<size_t>(n_tokens());
    if (saliency_bytes.size() != n_elements * sizeof(uint16_t))
      return Bad("amc_saliencies: not one for each token and head");
    if (settings().reject_non_finite &&
        !ExactAreFinite(ExactFormat::kF16, saliency_bytes.data(), n_elements)) {
      return Bad("amc_saliencies: one is not finite");
    }
  }

  const auto n = static_cast<size_t>(n_tokens());
  std::vector<AmcTier> tiers(n);
  for (size_t r = 0; r < rows_.size(); ++r) {
    const std::byte* packed = tier_bytes.value().data() + r * row_bytes;
    for (size_t i = 0; i < row_bytes * 4; ++i) {
      const auto tier = std::to_integer<unsigned>(packed[i / 4]) >> (i % 4 * 2) & 3u;
      if (i >= n ? tier != 0 : tier >= kAmcTiers)
        return Bad("amc_tiers: token " + std::to_string(i) + " is in tier " + std::to_string(tier));
      if (i < n) tiers[i] = static_cast<AmcTier>(tier);
    }
    MakeRoom(rows_[r], tiers.data(), n_tokens(), n_tokens());
    for (size_t i = 0; i < n; ++i) {
      const float saliency =
          running() ? LoadExact(ExactFormat::kF16, saliency_bytes.data(), r * n + i) : 0.0f;
      EnterToken(rows_[r], static_cast<int64_t>(i), tiers[i], saliency);
    }
  }
  return Status();
}

Status AmcCache::LoadRecords(uint32_t index, SessionReader* reader) {
  Result<SectionStream> stream = reader->Stream(SectionType::kAmcRecords, index);
  if (!stream.ok()) return stream.status();
  const bool may_be_nan = !settings().reject_non_finite;
  for (AmcRow& row : rows_) {
    for (size_t tier = 0; tier < kAmcTiers; ++tier) {
      for (int64_t at = 0; at < row.n_records[tier]; ++at) {
        std::byte* record = Record(row, tier, at);
        VARVE_RETURN_IF_ERROR(stream.value().Read(record, RecordBytes(tier)));
        const std::byte* values = record + layout(tier, Side::kKey).bytes();
        if (!AffineBlockIsSound(layout(tier, Side::kKey), record, may_be_nan) ||
            !AffineBlockIsSound(layout(tier, Side::kValue), values, may_be_nan)) {
          return Bad("amc_records: record " + std::to_string(at) + " of tier " +
                     std::to_string(tier) +
                     " has numbers that no token leads to (not finite, or lo above hi)");
        }
      }
    }
  }
  return stream.value().Finish();
}

Status AmcCache::LoadContent(uint32_t index, SessionReader* reader) {
  VARVE_RETURN_IF_ERROR(TakeOrder(index, reader));
  if (!has_shape()) return Status();
  Result<std::vector<std::byte>> memory = reader->Read(SectionType::kAmcMemory, index);
  if (!memory.ok()) return memory.status();
  // Rows are made only when the file has something for each.
  if (memory.value().size() / kMemoryFixedBytes < static_cast<size_t>(shape().n_rows()))
    return Bad("amc_memory: cut short");
  if (const Status prepared = Prepare(); !prepared.ok()) return Bad(prepared.text());

  Result<std::vector<std::byte>> coding = reader->Read(SectionType::kCoding, index);
  if (!coding.ok()) return coding.status();
  ByteReader records(coding.value());
  for (const Side side : kSides) {
    for (size_t tier = 0; tier < kAmcTiers; ++tier) {
      const std::string name = std::string("coding of ") +
                               (side == Side::kKey ? "keys" : "values") + " in tier " +
                               std::to_string(tier);
      VARVE_RETURN_IF_ERROR(CheckCoding(DescribeAffine(layout(tier, side)), name, &records));
    }
  }
  if (!records.done()) return Bad("coding: has more than its fields");

  ByteReader from(memory.value());
  for (AmcRow& row : rows_) {
    const auto n_saliencies = from.Get<int64_t>();
    const auto n_keys = from.Get<int64_t>();
    if (n_saliencies < 0 || n_saliencies > (running() ? settings().amc_threshold_window : 0) ||
        n_keys < -1 || n_keys > kMaxKeys || (n_keys >= 0 && !remembers_keys())) {
      return Bad("amc_memory: " + std::to_string(n_saliencies) +
                 " saliencies, n_keys = " + std::to_string(n_keys));
    }
    std::vector<float> window(static_cast<size_t>(n_saliencies));
    from.GetAll(window);
    if (n_keys >= 0) {
      row.memory.n_keys = n_keys;
      row.memory.mean_key.resize(static_cast<size_t>(shape().head_dim_k));
      from.GetAll(row.memory.mean_key);
    }
    if (!from.ok()) return Bad("amc_memory: cut short");
    if (settings().reject_non_finite && !(AllFinite(window) && AllFinite(row.memory.mean_key))) {
      return Bad("amc_memory: a number is not finite");
    }
    for (const float saliency : window) row.memory.saliencies.Push(saliency);
  }
  if (!from.done()) return Bad("amc_memory: has more than its rows");
  VARVE_RETURN_IF_ERROR(LoadTiers(index, reader));
  return LoadRecords(index, reader);
}

}  // namespace varve
