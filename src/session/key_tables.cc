#include "session/key_tables.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "codec/bit_allocation.h"
#include "codec/block_codec.h"
#include "layout/code_lines.h"

namespace varve {
namespace {

Status Bad(const std::string& name, const std::string& what) {
  return Status(StatusCode::kBadFormat, name + ": key table: " + what);
}

/// The next width must be a smaller one of kSegmentWidths.
bool FollowsWidth(uint32_t bits, int before) {
  return std::any_of(kSegmentWidths.begin(), kSegmentWidths.end(), [&](int width) {
    return static_cast<uint32_t>(width) == bits && width < before;
  });
}

/// Channels of a segment: first the coded ones, then fewer than a granule of padding.
Status CheckChannels(const std::string& name, const KeyTable& table, const KeySegment& segment,
                     std::vector<bool>& seen) {
  int n_padding = 0;
  for (int i = segment.first_channel; i < segment.first_channel + segment.n_channels; ++i) {
    const int channel = table.channel[static_cast<size_t>(i)];
    if (channel == -1) {
      ++n_padding;
      continue;
    }
    if (channel < 0 || channel >= table.head_dim || n_padding > 0 ||
        seen[static_cast<size_t>(channel)]) {
      return Bad(name, "channel[" + std::to_string(i) + "] = " + std::to_string(channel) +
                           " is out of range, out of place or there twice");
    }
    seen[static_cast<size_t>(channel)] = true;
  }
  if (n_padding < Granule(Side::kKey, segment.bits)) return Status();
  return Bad(name, std::to_string(n_padding) + " padding channels in a segment of " +
                       std::to_string(segment.bits) + " bits");
}

bool AllEnergies(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](double x) { return std::isfinite(x) && x >= 0; });
}

}  // namespace

void PutKeyTable(const KeyTable& table, ByteWriter* to) {
  to->Put(static_cast<uint32_t>(table.n_segments));
  to->Put(static_cast<uint32_t>(table.channel.size()));
  to->Put(table.product_error);
  for (int s = 0; s < table.n_segments; ++s) {
    const KeySegment& segment = table.segments[static_cast<size_t>(s)];
    to->Put(uint32_t{segment.bits});
    to->Put(uint32_t{segment.n_channels});
  }
  to->PutAll(table.channel);
  to->PutAll(table.scale);
}

Result<KeyTable> GetKeyTable(const BlockLayout& layout, const std::string& name, ByteReader* from) {
  KeyTable table;
  table.head_dim = layout.head_dim;
  const auto n_segments = from->Get<uint32_t>();
  const auto padded_dim = from->Get<uint32_t>();
  table.product_error = from->Get<float>();
  if (n_segments > kSegmentWidths.size())
    return Bad(name, "n_segments = " + std::to_string(n_segments));
  if (padded_dim > static_cast<uint32_t>(kMaxHeadDim))
    return Bad(name, "padded_dim = " + std::to_string(padded_dim));
  if (!(table.product_error >= 0)) return Bad(name, "product_error is not at least 0");

  uint32_t n_channels = 0;
  size_t n_bytes = 0;
  int bits_before = 9;
  for (; table.n_segments < static_cast<int>(n_segments); ++table.n_segments) {
    const auto bits = from->Get<uint32_t>();
    const auto n = from->Get<uint32_t>();
    if (!FollowsWidth(bits, bits_before) || n == 0 || n > padded_dim - n_channels ||
        n % static_cast<uint32_t>(Granule(Side::kKey, static_cast<int>(bits))) != 0) {
      return Bad(name, "segment " + std::to_string(table.n_segments) + " of " + std::to_string(n) +
                           " channels at " + std::to_string(bits) + " bits");
    }
    KeySegment& segment = table.segments[static_cast<size_t>(table.n_segments)];
    segment.bits = static_cast<uint8_t>(bits);
    segment.first_channel = static_cast<uint16_t>(n_channels);
    segment.n_channels = static_cast<uint16_t>(n);
    segment.byte_offset = static_cast<uint32_t>(n_bytes);
    n_channels += n;
    n_bytes += SegmentBytes(static_cast<int>(bits), static_cast<int>(n));
    bits_before = static_cast<int>(bits);
  }
  if (n_channels != padded_dim || n_bytes > layout.code_bytes) {
    return Bad(name, "segments of " + std::to_string(n_channels) + " channels and " +
                         std::to_string(n_bytes) + " bytes, room for " +
                         std::to_string(padded_dim) + " and " + std::to_string(layout.code_bytes));
  }

  table.channel.resize(padded_dim);
  table.scale.resize(padded_dim);
  from->GetAll(table.channel);
  from->GetAll(table.scale);
  if (!from->ok()) return Bad(name, "cut short");
  std::vector<bool> seen(static_cast<size_t>(table.head_dim));
  for (int s = 0; s < table.n_segments; ++s)
    VARVE_RETURN_IF_ERROR(CheckChannels(name, table, table.segments[static_cast<size_t>(s)], seen));
  for (const float scale : table.scale) {
    if (!std::isfinite(scale) || scale < 0) return Bad(name, "a scale is negative or not finite");
  }
  return table;
}

void PutEnergies(const PairEnergies& energies, ByteWriter* to) {
  to->Put(energies.n_keys);
  to->Put(energies.n_queries);
  to->PutAll(energies.key);
  to->PutAll(energies.query);
}

Status GetEnergies(const std::string& name, ByteReader* from, PairEnergies* energies) {
  energies->n_keys = from->Get<double>();
  energies->n_queries = from->Get<double>();
  from->GetAll(energies->key);
  from->GetAll(energies->query);
  if (from->ok() && AllEnergies({energies->n_keys, energies->n_queries}) &&
      AllEnergies(energies->key) && AllEnergies(energies->query)) {
    return Status();
  }
  return Status(StatusCode::kBadFormat, name + ": energies are cut short, negative or not finite");
}

}  // namespace varve
