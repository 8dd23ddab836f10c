// The codecs' promises: fixed points, distortion, special rows, any head size, any width.
#include "codec/block_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/f16.h"
#include "codec/codebooks.h"

namespace varve {
namespace {

constexpr int kHeadDims[] = {1,  2,  3,   5,   8,   16,  33,  40,  64,  72,
                             80, 96, 100, 112, 120, 128, 192, 256, 320, 576};

struct Case {
  Scheme scheme;
  Side side;
};

const std::vector<Case>& AllCases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> list;
    for (const uint8_t bits : {2, 3, 4, 8}) {
      list.push_back({{Codec::kRotated, bits}, Side::kKey});
      list.push_back({{Codec::kRotated, bits}, Side::kValue});
      list.push_back({{Codec::kRopePair, bits}, Side::kKey});
    }
    list.push_back({{Codec::kF16, 16}, Side::kKey});
    list.push_back({{Codec::kF16, 16}, Side::kValue});
    return list;
  }();
  return cases;
}

std::string NameOf(const Case& c, int head_dim) {
  return "codec " + std::to_string(static_cast<int>(c.scheme.codec)) + " bits " +
         std::to_string(c.scheme.bits) + " side " + std::to_string(static_cast<int>(c.side)) +
         " head_dim " + std::to_string(head_dim);
}

/// A key-like distribution: channel energies spread over orders of magnitude, some with a large
/// bias.
std::vector<float> ChannelScales(int head_dim, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> scale(static_cast<size_t>(head_dim));
  for (float& s : scale) s = std::exp(1.2f * normal(random));
  return scale;
}

KeyTable TableFor(const std::vector<float>& channel_scale, int bits) {
  PairEnergies energies;
  for (const float s : channel_scale) {
    energies.key.push_back(static_cast<double>(s) * s);
    energies.query.push_back(1.0);
  }
  energies.n_keys = energies.n_queries = 1;
  const int dim = static_cast<int>(channel_scale.size());
  return FitKeyTable(energies, RopePairing::kHalves, dim / 2 * 2, dim, bits);
}

struct Block {
  BlockLayout layout;
  std::vector<KeyTable> tables;
  std::vector<std::byte> bytes;

  Block(const Case& c, int head_dim, const std::vector<KeyTable>& key_tables, int n_kv_heads)
      : layout(MakeBlockLayout(c.scheme, c.side, head_dim)),
        tables(key_tables),
        bytes(layout.block_bytes(n_kv_heads)) {}

  BlockCoding coding() const { return {&layout, tables.data()}; }
};

void ExpectFixedPoint(const Case& c, int head_dim, const std::vector<float>& row,
                      const std::vector<KeyTable>& tables, int token) {
  Block block(c, head_dim, tables, 1);
  EncodeRow(block.coding(), 1, row.data(), token, block.bytes.data());
  std::vector<float> decoded(row.size());
  DecodeRow(block.coding(), 1, block.bytes.data(), token, decoded.data());
  Block again(c, head_dim, tables, 1);
  EncodeRow(again.coding(), 1, decoded.data(), token, again.bytes.data());
  ASSERT_EQ(block.bytes, again.bytes) << NameOf(c, head_dim) << " through f32";
  for (float& x : decoded) x = F16ToF32(F32ToF16(x));
  Block through_f16(c, head_dim, tables, 1);
  EncodeRow(through_f16.coding(), 1, decoded.data(), token, through_f16.bytes.data());
  ASSERT_EQ(block.bytes, through_f16.bytes) << NameOf(c, head_dim) << " through f16";
}

TEST(BlockCodec, EncodingADecodedRowGivesTheSameBytes) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const int head_dim : kHeadDims) {
    for (const Case& c : AllCases()) {
      const std::vector<float> scales = ChannelScales(head_dim, random);
      std::vector<KeyTable> tables;
      if (c.scheme.codec == Codec::kRopePair) tables.push_back(TableFor(scales, c.scheme.bits));
      for (int trial = 0; trial < 60; ++trial) {
        std::vector<float> row(static_cast<size_t>(head_dim));
        const float gain = std::exp(1.5f * normal(random));
        for (size_t i = 0; i < row.size(); ++i) row[i] = gain * scales[i] * normal(random);
        ASSERT_NO_FATAL_FAILURE(ExpectFixedPoint(c, head_dim, row, tables, trial % kBlockTokens));
      }
    }
  }
}

TEST(BlockCodec, FixedPointHoldsForRowsThatAreNothingLikeGaussian) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const int head_dim : {8, 40, 64, 96, 128, 256}) {
    for (const Case& c : AllCases()) {
      const std::vector<float> scales = ChannelScales(head_dim, random);
      std::vector<KeyTable> tables;
      if (c.scheme.codec == Codec::kRopePair) tables.push_back(TableFor(scales, c.scheme.bits));
      std::vector<float> row(static_cast<size_t>(head_dim));
      for (int shape = 0; shape < 60; ++shape) {
        for (size_t i = 0; i < row.size(); ++i) {
          const float index = static_cast<float>(i);
          switch (shape % 6) {
            case 0:  // constant: one spike once rotated
              row[i] = 1.0f + 0.037f * static_cast<float>(shape);
              break;
            case 1:  // one spike in the channels
              row[i] =
                  i == static_cast<size_t>(shape) % row.size() ? 100.0f : 0.01f * normal(random);
              break;
            case 2:
              row[i] = std::exp(2.5f * normal(random)) * (i % 2 == 0 ? 1.0f : -1.0f);
              break;
            case 3:
              row[i] = index - 3.0f;
              break;
            case 4:
              row[i] = i % 7 == 0 ? 30.0f + normal(random) : 0.0f;
              break;
            default:
              row[i] = std::pow(normal(random), 5.0f);
          }
        }
        ASSERT_NO_FATAL_FAILURE(ExpectFixedPoint(c, head_dim, row, tables, shape % kBlockTokens))
            << "shape " << shape % 6;
      }
    }
  }
}

TEST(BlockCodec, RotatedDistortionIsWithinThreePercentOfTheScalarOptimum) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const std::pair<int, double> optimum[] = {{2, 0.1175}, {3, 0.03454}, {4, 0.009497}};
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const auto& [bits, distortion] : optimum) {
      const Case c{{Codec::kRotated, static_cast<uint8_t>(bits)}, Side::kValue};
      Block block(c, head_dim, {}, 1);
      double error = 0;
      double energy = 0;
      std::vector<float> row(static_cast<size_t>(head_dim));
      std::vector<float> decoded(row.size());
      for (int trial = 0; trial < 2000; ++trial) {
        for (float& x : row) x = normal(random);
        EncodeRow(block.coding(), 1, row.data(), trial % 32, block.bytes.data());
        DecodeRow(block.coding(), 1, block.bytes.data(), trial % 32, decoded.data());
        for (size_t i = 0; i < row.size(); ++i) {
          error += std::pow(static_cast<double>(row[i] - decoded[i]), 2);
          energy += static_cast<double>(row[i]) * row[i];
        }
      }
      EXPECT_LT(error / energy, 1.03 * distortion) << bits << " bits, head_dim " << head_dim;
      EXPECT_GT(error / energy, 0.85 * distortion) << bits << " bits, head_dim " << head_dim;
    }
  }
}

TEST(BlockCodec, ConstantRowsKeepTheirValue) {
  // Rotated, a constant row is one spike; coding it at its root mean square alone would lose it.
  for (const uint8_t bits : {2, 3, 4, 8}) {
    const Case c{{Codec::kRotated, bits}, Side::kValue};
    Block block(c, 64, {}, 1);
    const std::vector<float> row(64, 1.5f);
    std::vector<float> decoded(64);
    EncodeRow(block.coding(), 1, row.data(), 5, block.bytes.data());
    DecodeRow(block.coding(), 1, block.bytes.data(), 5, decoded.data());
    double error = 0;
    for (const float x : decoded) error += std::pow(static_cast<double>(x) - 1.5, 2) / (64 * 2.25);
    EXPECT_LT(error, bits == 2   ? 0.9
                     : bits == 3 ? 0.5
                     : bits == 4 ? 0.15
                                 : 1e-4)
        << static_cast<int>(bits);
  }
}

TEST(BlockCodec, ZeroRowsDecodeToZeroAndNonFiniteOnesToNan) {
  for (const int head_dim : {1, 40, 64, 128}) {
    for (const Case& c : AllCases()) {
      std::vector<KeyTable> tables;
      const auto dim = static_cast<size_t>(head_dim);
      if (c.scheme.codec == Codec::kRopePair)
        tables.push_back(TableFor(std::vector<float>(dim, 1.0f), c.scheme.bits));
      Block block(c, head_dim, tables, 1);
      std::vector<float> row(dim, 0.0f);
      std::vector<float> decoded(dim, 7.0f);
      EncodeRow(block.coding(), 1, row.data(), 0, block.bytes.data());
      DecodeRow(block.coding(), 1, block.bytes.data(), 0, decoded.data());
      EXPECT_EQ(decoded, row) << NameOf(c, head_dim);
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        row.assign(dim, 1.0f);
        row[dim / 2] = bad;
        EncodeRow(block.coding(), 1, row.data(), 1, block.bytes.data());
        DecodeRow(block.coding(), 1, block.bytes.data(), 1, decoded.data());
        if (c.scheme.codec == Codec::kF16) {
          EXPECT_FALSE(std::isfinite(decoded[dim / 2]));
        } else {
          for (const float x : decoded) ASSERT_TRUE(std::isnan(x)) << NameOf(c, head_dim);
        }
      }
    }
  }
}

TEST(BlockCodec, EveryTokenAndHeadHasItsOwnPlace) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const int n_kv_heads = 3;
  for (const int head_dim : {33, 64, 96}) {
    for (const Case& c : AllCases()) {
      std::vector<KeyTable> tables;
      for (int h = 0; h < n_kv_heads; ++h) {
        if (c.scheme.codec == Codec::kRopePair)
          tables.push_back(TableFor(ChannelScales(head_dim, random), c.scheme.bits));
      }
      Block block(c, head_dim, tables, n_kv_heads);
      for (std::byte& b : block.bytes) b = std::byte{0xa5};
      const auto width = static_cast<size_t>(n_kv_heads * head_dim);
      std::vector<std::vector<float>> alone;
      for (int token = 0; token < kBlockTokens; ++token) {
        std::vector<float> row(width);
        for (float& x : row) x = normal(random);
        EncodeRow(block.coding(), n_kv_heads, row.data(), token, block.bytes.data());
        alone.emplace_back(width);
        DecodeRow(block.coding(), n_kv_heads, block.bytes.data(), token, alone.back().data());
      }
      for (int token = 0; token < kBlockTokens; ++token) {
        std::vector<float> row(width);
        DecodeRow(block.coding(), n_kv_heads, block.bytes.data(), token, row.data());
        EXPECT_EQ(row, alone[static_cast<size_t>(token)])
            << NameOf(c, head_dim) << " token " << token;
      }
      for (int head = 0; head < n_kv_heads; ++head) {
        std::vector<float> tile(static_cast<size_t>(kBlockTokens * head_dim));
        DecodeHead(block.coding(), head,
                   block.bytes.data() + static_cast<size_t>(head) * block.layout.head_bytes(),
                   tile.data());
        for (int token = 0; token < kBlockTokens; ++token) {
          for (int i = 0; i < head_dim; ++i) {
            ASSERT_EQ(tile[static_cast<size_t>(token * head_dim + i)],
                      alone[static_cast<size_t>(token)][static_cast<size_t>(head * head_dim + i)])
                << NameOf(c, head_dim);
          }
        }
      }
    }
  }
}

TEST(BlockCodec, RepackingIsAsGoodAsCodingTheDecodedRows) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  const int head_dim = 64;
  const int n_kv_heads = 2;
  for (const Case& from : AllCases()) {
    for (const Case& to : AllCases()) {
      if (from.side != to.side) continue;
      const std::vector<float> scales = ChannelScales(head_dim, random);
      const std::vector<KeyTable> from_tables(
          2, TableFor(scales, from.scheme.bits == 16 ? 4 : from.scheme.bits));
      const std::vector<KeyTable> to_tables(
          2, TableFor(scales, to.scheme.bits == 16 ? 4 : to.scheme.bits));
      Block source(from, head_dim, from_tables, n_kv_heads);
      Block target(to, head_dim, to_tables, n_kv_heads);
      std::vector<float> row(static_cast<size_t>(n_kv_heads * head_dim));
      for (int token = 0; token < kBlockTokens; ++token) {
        for (size_t i = 0; i < row.size(); ++i) row[i] = scales[i % scales.size()] * normal(random);
        EncodeRow(source.coding(), n_kv_heads, row.data(), token, source.bytes.data());
      }
      RepackBlock(source.coding(), target.coding(), n_kv_heads, source.bytes.data(),
                  target.bytes.data());
      Block direct(to, head_dim, to_tables, n_kv_heads);
      double repacked_error = 0;
      double direct_error = 0;
      double energy = 0;
      std::vector<float> repacked(row.size());
      std::vector<float> coded(row.size());
      for (int token = 0; token < kBlockTokens; ++token) {
        DecodeRow(source.coding(), n_kv_heads, source.bytes.data(), token, row.data());
        EncodeRow(direct.coding(), n_kv_heads, row.data(), token, direct.bytes.data());
        DecodeRow(direct.coding(), n_kv_heads, direct.bytes.data(), token, coded.data());
        DecodeRow(target.coding(), n_kv_heads, target.bytes.data(), token, repacked.data());
        for (size_t i = 0; i < row.size(); ++i) {
          direct_error += std::pow(static_cast<double>(row[i] - coded[i]), 2);
          repacked_error += std::pow(static_cast<double>(row[i] - repacked[i]), 2);
          energy += static_cast<double>(row[i]) * row[i];
        }
      }
      EXPECT_NEAR(repacked_error, direct_error, 0.02 * direct_error + 1e-9 * energy)
          << NameOf(from, head_dim) << " to " << NameOf(to, head_dim);
    }
  }
}

TEST(BlockCodec, RepackingSomeTokensGivesThemTheBytesOfRepackingAll) {
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  const int n_kv_heads = 2;
  for (const int head_dim : {40, 64, 128, 512}) {
    for (const Case& from : AllCases()) {
      for (const Case& to : AllCases()) {
        if (from.side != to.side) continue;
        const std::vector<float> scales = ChannelScales(head_dim, random);
        const auto tables_of = [&](const Case& c) {
          return std::vector<KeyTable>(2,
                                       TableFor(scales, c.scheme.bits == 16 ? 4 : c.scheme.bits));
        };
        Block source(from, head_dim, tables_of(from), n_kv_heads);
        Block all(to, head_dim, tables_of(to), n_kv_heads);
        Block some(to, head_dim, tables_of(to), n_kv_heads);
        std::vector<float> row(static_cast<size_t>(n_kv_heads * head_dim));
        for (int token = 0; token < kBlockTokens; ++token) {
          for (size_t i = 0; i < row.size(); ++i)
            row[i] = scales[i % scales.size()] * std::pow(normal(random), token % 4 == 0 ? 5 : 1);
          EncodeRow(source.coding(), n_kv_heads, row.data(), token, source.bytes.data());
        }
        RepackBlock(source.coding(), all.coding(), n_kv_heads, source.bytes.data(),
                    all.bytes.data());
        // In two parts, the second over the codes of a block that holds the first.
        for (const uint32_t tokens : {0x80010210u, ~0x80010210u}) {
          RepackRows(source.coding(), some.coding(), n_kv_heads, tokens, source.bytes.data(),
                     some.bytes.data());
        }
        ASSERT_EQ(some.bytes, all.bytes)
            << NameOf(from, head_dim) << " to " << NameOf(to, head_dim);

        // What comes out is a fixed point of the rows' own coding.
        Block again(to, head_dim, tables_of(to), n_kv_heads);
        for (int token = 0; token < kBlockTokens; ++token) {
          DecodeRow(all.coding(), n_kv_heads, all.bytes.data(), token, row.data());
          for (float& x : row) x = F16ToF32(F32ToF16(x));
          EncodeRow(again.coding(), n_kv_heads, row.data(), token, again.bytes.data());
        }
        ASSERT_EQ(again.bytes, all.bytes)
            << NameOf(from, head_dim) << " to " << NameOf(to, head_dim);
      }
    }
  }
}

}  // namespace
}  // namespace varve
