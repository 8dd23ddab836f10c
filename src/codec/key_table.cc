#include "codec/key_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "codec/bit_allocation.h"
#include "codec/codebooks.h"
#include "layout/block_layout.h"

namespace varve {
namespace {

/// The channel that RoPE turns together with `channel`, or -1.
int PartnerOf(RopePairing pairing, int n_rope_dims, int channel) {
  if (pairing == RopePairing::kNone || channel >= n_rope_dims) return -1;
  if (pairing == RopePairing::kInterleaved) return channel ^ 1;
  const int half = n_rope_dims / 2;
  return channel < half ? channel + half : channel - half;
}

/// Mean energy a token of each channel, shared by the two channels of a RoPE pair.
std::vector<double> PairMeans(const std::vector<double>& sums, double n, RopePairing pairing,
                              int n_rope_dims, int head_dim) {
  std::vector<double> mean(static_cast<size_t>(head_dim), 1.0);
  if (n <= 0) return mean;
  for (int c = 0; c < head_dim; ++c) {
    const int partner = PartnerOf(pairing, n_rope_dims, c);
    const double own = sums[static_cast<size_t>(c)];
    const double both = partner < 0 ? own : (own + sums[static_cast<size_t>(partner)]) / 2;
    mean[static_cast<size_t>(c)] = both / n;
  }
  // A channel that was silent so far may yet speak: it keeps a scale and a claim on spare bits.
  const double largest = *std::max_element(mean.begin(), mean.end());
  const double least = largest > 0 ? largest * 1e-8 : 1.0;
  for (double& m : mean) m = std::max(m, least);
  return mean;
}

}  // namespace

KeyTable FitKeyTable(const PairEnergies& energies, RopePairing pairing, int n_rope_dims,
                     int head_dim, int average_bits) {
  const std::vector<double> key =
      PairMeans(energies.key, energies.n_keys, pairing, n_rope_dims, head_dim);
  const std::vector<double> query =
      PairMeans(energies.query, energies.n_queries, pairing, n_rope_dims, head_dim);

  // The first channel of a pair leads; equal weights keep a pair together under a stable order.
  std::vector<int16_t> order(static_cast<size_t>(head_dim));
  std::iota(order.begin(), order.end(), static_cast<int16_t>(0));
  const auto weight_of = [&](int16_t c) {
    return key[static_cast<size_t>(c)] * query[static_cast<size_t>(c)];
  };
  const auto leader_of = [&](int16_t c) {
    const int partner = PartnerOf(pairing, n_rope_dims, c);
    return partner < 0 ? static_cast<int>(c) : std::min<int>(c, partner);
  };
  std::sort(order.begin(), order.end(), [&](int16_t a, int16_t b) {
    if (weight_of(a) != weight_of(b)) return weight_of(a) > weight_of(b);
    if (leader_of(a) != leader_of(b)) return leader_of(a) < leader_of(b);
    return a < b;
  });
  std::vector<double> weight(order.size());
  std::transform(order.begin(), order.end(), weight.begin(), weight_of);

  const BlockLayout layout =
      MakeBlockLayout({Codec::kRopePair, static_cast<uint8_t>(average_bits)}, Side::kKey, head_dim);
  const std::vector<int> bits =
      AllocateBits(weight, static_cast<int>(layout.code_bytes / kLineBytes));

  KeyTable table;
  table.head_dim = head_dim;
  if (energies.n_queries > 0) {
    double square = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
      square +=
          weight[i] * (bits[i] == 0 ? 1.0 : static_cast<double>(CodebookOf(bits[i]).distortion));
    }
    table.product_error = static_cast<float>(std::sqrt(square));
  }
  uint32_t byte_offset = 0;
  size_t next = 0;
  for (const int width : kSegmentWidths) {
    const size_t first = table.channel.size();
    for (; next < order.size() && bits[next] == width; ++next) {
      const auto channel = static_cast<size_t>(order[next]);
      table.channel.push_back(order[next]);
      const double sigma = std::sqrt(key[channel]);
      table.scale.push_back(
          static_cast<float>(sigma / static_cast<double>(CodebookOf(width).unit)));
    }
    if (table.channel.size() == first) continue;
    const auto granule = static_cast<size_t>(Granule(Side::kKey, width));
    while ((table.channel.size() - first) % granule != 0) {
      table.channel.push_back(-1);
      table.scale.push_back(1.0f);
    }
    KeySegment& segment = table.segments[static_cast<size_t>(table.n_segments++)];
    segment.bits = static_cast<uint8_t>(width);
    segment.first_channel = static_cast<uint16_t>(first);
    segment.n_channels = static_cast<uint16_t>(table.channel.size() - first);
    segment.byte_offset = byte_offset;
    byte_offset += static_cast<uint32_t>(SegmentBytes(width, segment.n_channels));
  }
  return table;
}

}  // namespace varve
