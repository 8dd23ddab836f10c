#include "codec/key_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "codec/codebooks.h"
#include "layout/block_layout.h"

namespace varve {
namespace {

PairEnergies Energies(int head_dim, double spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  PairEnergies energies;
  energies.n_keys = 100;
  energies.n_queries = 400;
  for (int i = 0; i < head_dim; ++i) {
    energies.key.push_back(100 * std::exp(spread * normal(random)));
    energies.query.push_back(400 * std::exp(spread * normal(random)));
  }
  return energies;
}

TEST(KeyTable, HoldsEachChannelAtMostOnceInsideThePayload) {
  for (const int head_dim : {1, 6, 40, 64, 80, 96, 128, 256, 576}) {
    for (const int bits : {2, 3, 4, 8}) {
      const KeyTable table = FitKeyTable(Energies(head_dim, 1.5, 4), RopePairing::kHalves,
                                         head_dim / 2 * 2, head_dim, bits);
      std::set<int> seen;
      size_t next_channel = 0;
      size_t next_byte = 0;
      int widest = 9;
      for (int s = 0; s < table.n_segments; ++s) {
        const KeySegment& segment = table.segments[static_cast<size_t>(s)];
        EXPECT_LT(segment.bits, widest);
        widest = segment.bits;
        EXPECT_EQ(segment.first_channel, next_channel);
        EXPECT_EQ(segment.byte_offset, next_byte);
        EXPECT_EQ(segment.n_channels % Granule(Side::kKey, segment.bits), 0);
        next_channel += segment.n_channels;
        next_byte += SegmentBytes(segment.bits, segment.n_channels);
      }
      EXPECT_EQ(next_channel, table.channel.size());
      EXPECT_EQ(next_channel, table.scale.size());
      EXPECT_LE(next_byte, MakeBlockLayout({Codec::kRopePair, static_cast<uint8_t>(bits)},
                                           Side::kKey, head_dim)
                               .code_bytes);
      for (const int16_t channel : table.channel) {
        if (channel < 0) continue;
        EXPECT_LT(channel, head_dim);
        EXPECT_TRUE(seen.insert(channel).second) << channel;
      }
      if (bits == 8) {
        EXPECT_EQ(seen.size(), static_cast<size_t>(head_dim));
      }
    }
  }
}

TEST(KeyTable, TheChannelsOfARopePairShareTheirScale) {
  for (const RopePairing pairing : {RopePairing::kInterleaved, RopePairing::kHalves}) {
    const int head_dim = 64;
    const int n_rope_dims = 48;
    const KeyTable table =
        FitKeyTable(Energies(head_dim, 1.0, 8), pairing, n_rope_dims, head_dim, 4);
    std::vector<double> sigma(64, 0.0);
    for (int s = 0; s < table.n_segments; ++s) {
      const KeySegment& segment = table.segments[static_cast<size_t>(s)];
      for (int i = segment.first_channel; i < segment.first_channel + segment.n_channels; ++i) {
        const auto at = static_cast<size_t>(i);
        if (table.channel[at] < 0) continue;
        sigma[static_cast<size_t>(table.channel[at])] =
            static_cast<double>(table.scale[at]) *
            static_cast<double>(CodebookOf(segment.bits).unit);
      }
    }
    for (int i = 0; i < n_rope_dims / 2; ++i) {
      const auto a = static_cast<size_t>(pairing == RopePairing::kInterleaved ? 2 * i : i);
      const auto b = static_cast<size_t>(
          pairing == RopePairing::kInterleaved ? 2 * i + 1 : i + n_rope_dims / 2);
      if (sigma[a] > 0 && sigma[b] > 0) {
        EXPECT_NEAR(sigma[a], sigma[b], 1e-5 * sigma[a]);
      }
    }
  }
}

TEST(KeyTable, QueryEnergyDrawsBitsAndKeyEnergySetsTheScale) {
  PairEnergies energies;
  energies.n_keys = 10;
  energies.n_queries = 10;
  energies.key.assign(32, 10.0);
  energies.query.assign(32, 10.0);
  for (size_t i = 0; i < 4; ++i) energies.query[i] = 10.0 * 1e4;
  const KeyTable table = FitKeyTable(energies, RopePairing::kNone, 0, 32, 2);
  ASSERT_GT(table.n_segments, 0);
  EXPECT_EQ(table.segments[0].bits, 8);
  EXPECT_EQ(std::set<int>(table.channel.begin(), table.channel.begin() + 4),
            (std::set<int>{0, 1, 2, 3}));
  EXPECT_FLOAT_EQ(table.scale[0] * CodebookOf(8).unit, 1.0f);
}

TEST(KeyTable, WithoutAnyEnergyAllChannelsCountAlike) {
  PairEnergies energies;
  energies.key.assign(64, 0.0);
  energies.query.assign(64, 0.0);
  const KeyTable table = FitKeyTable(energies, RopePairing::kHalves, 64, 64, 4);
  ASSERT_EQ(table.n_segments, 1);
  EXPECT_EQ(table.segments[0].bits, 4);
  EXPECT_EQ(table.segments[0].n_channels, 64);
}

}  // namespace
}  // namespace varve
