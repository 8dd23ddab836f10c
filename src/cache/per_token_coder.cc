#include "cache/per_token_coder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "session/key_tables.h"

namespace varve {
namespace {

Scheme SchemeOf(Side side, int bits) {
  if (bits == 16) return {Codec::kF16, 16};
  const bool rotated = side == Side::kValue || bits == 8;
  return {rotated ? Codec::kRotated : Codec::kRopePair, static_cast<uint8_t>(bits)};
}

size_t TableBytes(const KeyTable& table) {
  return sizeof(table) + table.channel.capacity() * sizeof(int16_t) +
         table.scale.capacity() * sizeof(float);
}

}  // namespace

PerTokenCoder::PerTokenCoder(Side side, int head_dim, int64_t n_rows, std::span<const int> bits,
                             const Settings& settings)
    : head_dim_(head_dim),
      n_rows_(n_rows),
      pairing_(static_cast<RopePairing>(settings.rope)),
      n_rope_dims_(std::min(settings.rope_dims.value_or(head_dim), head_dim)),
      n_tiers_(bits.size()) {
  for (size_t tier = 0; tier < bits.size(); ++tier) {
    layouts_[tier] = MakeBlockLayout(SchemeOf(side, bits[tier]), side, head_dim);
    needs_tables_ = needs_tables_ || layouts_[tier].scheme.codec == Codec::kRopePair;
  }
}

Status PerTokenCoder::CheckHeadDim(int head_dim) {
  if (head_dim <= kMaxHeadDim) return Status();
  return Status(StatusCode::kUnsupported, "codec=per_token: heads have at most " +
                                              std::to_string(kMaxHeadDim) + " channels, got " +
                                              std::to_string(head_dim));
}

std::vector<PairEnergies> PerTokenCoder::NoEnergies() const {
  PairEnergies none;
  none.key.resize(static_cast<size_t>(head_dim_));
  none.query.resize(static_cast<size_t>(head_dim_));
  return std::vector<PairEnergies>(static_cast<size_t>(n_rows_), none);
}

int PerTokenCoder::FirstTableTier() const {
  size_t tier = 0;
  while (tier < n_tiers_ && layouts_[tier].scheme.codec != Codec::kRopePair) ++tier;
  return static_cast<int>(tier);
}

BlockCoding PerTokenCoder::CodingOf(int tier, int64_t row) const {
  const size_t t = static_cast<size_t>(tier);
  const bool table = layouts_[t].scheme.codec == Codec::kRopePair;
  return {&layouts_[t], table ? &learned_.tables[t][static_cast<size_t>(row)] : nullptr};
}

void PerTokenCoder::Encode(int tier, int64_t row, const float* tile, std::byte* payload) {
  const BlockCoding coding = CodingOf(tier, row);
  std::fill_n(payload, RowBytes(tier), std::byte{0});
  for (int token = 0; token < kBlockTokens; ++token) {
    EncodeRow(coding, 1, tile + static_cast<ptrdiff_t>(token) * head_dim_, token, payload);
  }
}

void PerTokenCoder::Step(int from_tier, int to_tier, int64_t row, const std::byte* src,
                         std::byte* dst) {
  std::fill_n(dst, RowBytes(to_tier), std::byte{0});
  RepackBlock(CodingOf(from_tier, row), CodingOf(to_tier, row), 1, src, dst);
}

void PerTokenCoder::Decode(int tier, int64_t row, const std::byte* payload, int first, int n,
                           float* tile) const {
  const BlockCoding coding = CodingOf(tier, row);
  for (int token = first; token < first + n; ++token) {
    DecodeRow(coding, 1, payload, token, tile + static_cast<ptrdiff_t>(token - first) * head_dim_);
  }
}

void PerTokenCoder::BeginLearning() {
  saved_ = learned_;
  if (learned_.energies.empty()) learned_.energies = NoEnergies();
}

void PerTokenCoder::Learn(int64_t row, const float* values) {
  PairEnergies& energies = learned_.energies[static_cast<size_t>(row)];
  for (size_t d = 0; d < energies.key.size(); ++d) {
    energies.key[d] += static_cast<double>(values[d]) * static_cast<double>(values[d]);
  }
  energies.n_keys += 1;
}

void PerTokenCoder::Fit() {
  for (size_t tier = 0; tier < n_tiers_; ++tier) {
    const Scheme scheme = layouts_[tier].scheme;
    if (scheme.codec != Codec::kRopePair) continue;
    for (const PairEnergies& energies : learned_.energies) {
      learned_.tables[tier].push_back(
          FitKeyTable(energies, pairing_, n_rope_dims_, head_dim_, scheme.bits));
    }
  }
  learned_.fitted = true;
}

void PerTokenCoder::EndLearning() noexcept {
  saved_ = Learned();
  if (learned_.fitted) learned_.energies = std::vector<PairEnergies>();
}

void PerTokenCoder::RollBack() noexcept {
  learned_ = std::move(saved_);
  saved_ = Learned();
}

CodingRecord PerTokenCoder::Describe(int tier) const {
  return DescribeBlock(layouts_[static_cast<size_t>(tier)]);
}

bool PerTokenCoder::IsSound(int tier, const std::byte* payload, bool may_be_nan) const {
  return BlockIsSound(layouts_[static_cast<size_t>(tier)], 1, payload, may_be_nan);
}

void PerTokenCoder::SaveTables(ByteWriter* to) const {
  for (const auto& tables : learned_.tables) {
    for (const KeyTable& table : tables) PutKeyTable(table, to);
  }
}

Status PerTokenCoder::LoadTables(ByteReader* from) {
  for (size_t tier = 0; tier < n_tiers_; ++tier) {
    if (layouts_[tier].scheme.codec != Codec::kRopePair) continue;
    for (int64_t row = 0; row < n_rows_; ++row) {
      Result<KeyTable> table = GetKeyTable(
          layouts_[tier], "tier " + std::to_string(tier) + ", row " + std::to_string(row), from);
      if (!table.ok()) return table.status();
      learned_.tables[tier].push_back(std::move(table).value());
    }
  }
  learned_.fitted = true;
  return Status();
}

void PerTokenCoder::SaveStatistics(ByteWriter* to) const {
  for (const PairEnergies& energies : learned_.energies) PutEnergies(energies, to);
}

Status PerTokenCoder::LoadStatistics(ByteReader* from) {
  // Nothing learned yet is nothing written; and nothing is allocated that the file does not fill.
  if (from->n_left() == 0) return Status();
  const size_t row_bytes = static_cast<size_t>(2 + 2 * head_dim_) * sizeof(double);
  if (from->n_left() / row_bytes < static_cast<size_t>(n_rows_))
    return Status(StatusCode::kBadFormat, "key statistics are cut short");
  learned_.energies = NoEnergies();
  for (size_t row = 0; row < learned_.energies.size(); ++row) {
    VARVE_RETURN_IF_ERROR(GetEnergies("row " + std::to_string(row), from, &learned_.energies[row]));
  }
  return Status();
}

size_t PerTokenCoder::held_bytes() const {
  size_t bytes = 0;
  for (const Learned* one : {&learned_, &saved_}) {
    for (const PairEnergies& energies : one->energies) {
      bytes +=
          sizeof(energies) + (energies.key.capacity() + energies.query.capacity()) * sizeof(double);
    }
    for (const auto& tables : one->tables) {
      for (const KeyTable& table : tables) bytes += TableBytes(table);
    }
  }
  return bytes;
}

void PerTokenCoder::CopyState(const GroupCoder& other, std::span<const int64_t> rows) {
  const Learned& from = static_cast<const PerTokenCoder&>(other).learned_;
  learned_.fitted = from.fitted;
  for (const int64_t row : rows) {
    const size_t r = static_cast<size_t>(row);
    if (r < from.energies.size()) learned_.energies.push_back(from.energies[r]);
    for (size_t tier = 0; tier < n_tiers_; ++tier) {
      if (r < from.tables[tier].size()) learned_.tables[tier].push_back(from.tables[tier][r]);
    }
  }
}

}  // namespace varve
