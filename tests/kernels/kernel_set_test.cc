// Every kernel of the list at every level that this machine has, against the portable one: the same
// bits where sums are integers or the order of operations is fixed, and nothing past the ends of
// the buffers.
#include "kernels/kernel_set.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/f16.h"
#include "codec/codebooks.h"
#include "codec/rotation.h"
#include "kernels/guarded_buffer.h"
#include "layout/code_lines.h"

namespace varve {
namespace {

constexpr int kTokens = kBlockTokens;

class Kernels : public testing::TestWithParam<Isa> {
 protected:
  const KernelSet& set() const { return KernelsOf(GetParam()); }
  const KernelSet& reference() const { return KernelsOf(Isa::kScalar); }
  uint8_t Byte() { return static_cast<uint8_t>(random_()); }
  float Normal() { return std::normal_distribution<float>()(random_); }

  std::mt19937 random_{17};
};

std::string NameOf(const testing::TestParamInfo<Isa>& info) { return IsaName(info.param); }

std::vector<Isa> LevelsOfThisCpu() {
  std::vector<Isa> levels;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= DetectIsa()) levels.push_back(isa);
  }
  return levels;
}

INSTANTIATE_TEST_SUITE_P(Levels, Kernels, testing::ValuesIn(LevelsOfThisCpu()), NameOf);

/// Levels of a whole segment by the layout's definition.
int LevelAt(Side side, int bits, const uint8_t* segment, int channel, int token) {
  const unsigned code = GetCode(segment, bits, PositionOf(side, channel, token));
  if (bits == 8)
    return side == Side::kKey ? static_cast<int>(code) - 128 : static_cast<int8_t>(code);
  return LevelOf(CodebookOf(bits), code);
}

TEST_P(Kernels, UnpackGivesTheLevelsOfTheLayout) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (const int bits : {2, 3, 4, 6, 8}) {
      for (const int granules : {1, 2, 5}) {
        const int channels = granules * Granule(side, bits);
        GuardedBuffer<uint8_t> codes(SegmentBytes(bits, channels));
        for (uint8_t& b : codes) b = Byte();
        GuardedBuffer<uint8_t> lines(static_cast<size_t>(channels) * kTokens);
        UnpackArgs args;
        args.side = side;
        args.bits = bits;
        args.n_lines = channels / 2;
        args.codes = codes.data();
        args.lines = lines.data();
        set().unpack(args);
        for (int c = 0; c < channels; ++c) {
          for (int t = 0; t < kTokens; ++t) {
            const CodePosition at = PositionOf(side, c, t);
            const uint8_t got =
                lines[static_cast<size_t>(at.line) * kLineBytes + static_cast<size_t>(at.byte)];
            const int level = LevelAt(side, bits, codes.data(), c, t);
            ASSERT_EQ(side == Side::kKey ? got - 128 : static_cast<int8_t>(got), level)
                << bits << " bits, channel " << c;
          }
        }
      }
    }
  }
}

struct QkCase {
  std::vector<int> bits;   ///< a run each, widest first
  std::vector<int> quads;  ///< in whole granules
  int n_wide_runs;
};

TEST_P(Kernels, QkEqualsTheSumOverItsLevelsToTheBit) {
  const QkCase cases[] = {{{8}, {1}, 1},
                          {{8}, {144}, 1},
                          {{4}, {3}, 1},
                          {{3}, {4}, 1},
                          {{2}, {2}, 0},
                          {{6}, {2}, 1},
                          {{8, 6, 4, 3, 2}, {1, 4, 7, 8, 10}, 4},
                          {{8, 4, 2}, {3, 11, 14}, 2},
                          {{6, 3, 2}, {6, 12, 6}, 1},
                          {{4, 2}, {5, 4}, 0}};
  for (const QkCase& c : cases) {
    for (int n = 1; n <= kMaxQkQueries; ++n) {
      for (const bool extreme : {false, true}) {
        QkRuns runs;
        size_t bytes = 0;
        for (size_t r = 0; r < c.bits.size(); ++r) {
          runs.run[runs.n_runs++] = {c.bits[r], c.quads[r], bytes};
          bytes += SegmentBytes(c.bits[r], 4 * c.quads[r]);
          runs.n_quads += c.quads[r];
          if (static_cast<int>(r) < c.n_wide_runs) runs.n_wide_quads += c.quads[r];
        }
        runs.n_wide_runs = c.n_wide_runs;
        GuardedBuffer<uint8_t> codes(bytes);
        for (uint8_t& b : codes) b = extreme ? 0xff : Byte();
        GuardedBuffer<uint16_t> gains(kTokens);
        for (uint16_t& g : gains) g = F32ToF16(std::fabs(Normal()));
        const auto channels = static_cast<size_t>(4 * runs.n_quads);
        // All sums of products with levels of at most 127 fit 32 bits.
        const int wide = std::min(
            32639, static_cast<int>(2147483647.0 / (127.0 * static_cast<double>(channels))) - 1);
        GuardedBuffer<int16_t> q(static_cast<size_t>(n) * channels);
        for (size_t i = 0; i < q.size(); ++i) {
          const int limit = static_cast<int>(i % channels) < 4 * runs.n_wide_quads ? wide : 127;
          q[i] = static_cast<int16_t>(
              extreme ? (i % 3 == 0 ? -limit : limit)
                      : static_cast<int>(random_() % static_cast<unsigned>(2 * limit + 1)) - limit);
        }
        QkQueries queries;
        GuardedBuffer<std::array<std::byte, 64>> operand(QkOperandBytes(runs, n) / 64 + 1);
        set().qk_pack({&runs, n, q.data(), &queries, operand.data()});
        for (int i = 0; i < n; ++i) {
          queries.wide_scale[i] = 1.0f / 65536.0f * static_cast<float>(i + 1);
          queries.narrow_scale[i] = 1.0f / 3000.0f;
        }
        GuardedBuffer<float> logits(static_cast<size_t>(n) * kTokens);
        QkArgs args;
        args.runs = &runs;
        args.codes = codes.data();
        args.gains = gains.data();
        args.queries = &queries;
        args.logits = logits.data();
        args.next = codes.data();
        args.next_stride = 3 * kLineBytes;
        set().qk(args);
        for (int i = 0; i < n; ++i) {
          for (int t = 0; t < kTokens; ++t) {
            int64_t sums[2] = {0, 0};
            size_t channel = 0;
            for (int r = 0; r < runs.n_runs; ++r) {
              for (int k = 0; k < 4 * runs.run[r].n_quads; ++k, ++channel) {
                sums[r < runs.n_wide_runs ? 0 : 1] +=
                    LevelAt(Side::kKey, runs.run[r].bits, codes.data() + runs.run[r].byte_offset, k,
                            t) *
                    q[static_cast<size_t>(i) * channels + channel];
              }
            }
            const float expected = (static_cast<float>(sums[0]) * queries.wide_scale[i] +
                                    static_cast<float>(sums[1]) * queries.narrow_scale[i]) *
                                   F16ToF32(gains[static_cast<size_t>(t)]);
            ASSERT_EQ(logits[static_cast<size_t>(i * kTokens + t)], expected)
                << c.bits.size() << " runs, query " << i << " of " << n << ", token " << t
                << (extreme ? ", extreme" : "");
          }
        }
      }
    }
  }
}

/// softmax and pv of one level in a row, since they share the order of the weights.
/// Arguments of softmax with their arrays, between guard pages.
struct SoftmaxItems {
  explicit SoftmaxItems(int n) {
    args.n_items = n;
    args.bias = bias.data();
    args.slope = slope.data();
    args.v_gains = v_gains.data();
    args.exponent = exponent.data();
    args.sum = sum.data();
    args.unit = unit.data();
    args.room = room.data();
  }

  SoftmaxArgs args;
  GuardedBuffer<const float*> bias{kSoftmaxGroup};
  GuardedBuffer<float> slope{kSoftmaxGroup};
  GuardedBuffer<const uint16_t*> v_gains{kSoftmaxGroup};
  GuardedBuffer<int32_t> exponent{kSoftmaxGroup};
  GuardedBuffer<float> sum{kSoftmaxGroup};
  GuardedBuffer<float> unit{kSoftmaxGroup};
  GuardedBuffer<float> room{2 * kSoftmaxGroup};
};

TEST_P(Kernels, SoftmaxAndPvAgreeWithTheReferenceToTheBit) {
  for (const int bits : {2, 3, 4, 8}) {
    for (const int n_vectors : {1, 2, 5, 8}) {
      for (int n = 1; n <= kMaxPvQueries; ++n) {
        for (int mode = 0; mode < 6; ++mode) {
          GuardedBuffer<uint8_t> codes(SegmentBytes(bits, 16 * n_vectors));
          for (uint8_t& b : codes) b = mode == 5 ? (bits == 8 ? 0x7f : 0xff) : Byte();
          GuardedBuffer<uint16_t> gains(kTokens);
          for (uint16_t& g : gains) g = F32ToF16(std::fabs(Normal()));
          GuardedBuffer<float> bias(kTokens);
          for (size_t t = 0; t < bias.size(); ++t)
            bias[t] = t % 3 == 0 ? -INFINITY : 0.5f * Normal();
          std::vector<float> logits(static_cast<size_t>(n) * kTokens);
          for (float& x : logits) x = 4 * Normal();
          const auto run = [&](const KernelSet& kernels, GuardedBuffer<float>& in_out,
                               GuardedBuffer<float>& out, SoftmaxItems& items) {
            GuardedBuffer<std::array<std::byte, 64>> weights(static_cast<size_t>(n));
            std::copy(logits.begin(), logits.end(), in_out.begin());
            SoftmaxArgs& args = items.args;
            args.logits = in_out.data();
            args.weights = weights.data();
            args.cap = mode == 3 ? 8.0f : 0.0f;
            args.open = mode == 0 || mode == 5;
            for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
              const bool biased = mode == 1 || (mode == 2 && i % 2 == 0) || args.open;
              items.bias[i] = biased ? bias.data() : nullptr;
              items.slope[i] = 0.25f;
              items.unit[i] = 0.5f;
              items.v_gains[i] = mode == 4 && i == 0 ? nullptr : gains.data();
            }
            kernels.softmax(args);
            PvArgs pv;
            pv.bits = bits;
            pv.n_vectors = n_vectors;
            pv.codes = codes.data();
            pv.n = n;
            pv.weights = weights.data();
            std::fill(out.begin(), out.end(), 0.25f);
            float factors[kMaxPvQueries];
            for (int i = 0; i < n; ++i)
              factors[i] = args.v_gains[i] != nullptr ? args.unit[i] : 0.0f;
            pv.factors = factors;
            pv.out = out.data();
            pv.out_stride = 16 * n_vectors;
            if (mode == 4) std::memset(weights.data(), 0, 64);
            kernels.pv(pv);
          };
          const size_t outputs = static_cast<size_t>(n * 16 * n_vectors);
          GuardedBuffer<float> got_logits(logits.size());
          GuardedBuffer<float> want_logits(logits.size());
          GuardedBuffer<float> got(outputs);
          GuardedBuffer<float> want(outputs);
          SoftmaxItems got_items(n);
          SoftmaxItems want_items(n);
          run(set(), got_logits, got, got_items);
          run(reference(), want_logits, want, want_items);
          for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
            ASSERT_EQ(got_items.exponent[i], want_items.exponent[i]) << "mode " << mode;
            ASSERT_EQ(got_items.sum[i], want_items.sum[i]) << "mode " << mode;
            ASSERT_EQ(got_items.unit[i], want_items.unit[i]) << "mode " << mode;
          }
          if (mode == 4) {
            for (size_t t = 0; t < kTokens; ++t) ASSERT_EQ(got_logits[t], want_logits[t]);
          }
          for (size_t i = 0; i < outputs; ++i)
            ASSERT_EQ(got[i], want[i]) << bits << " bits, mode " << mode << ", output " << i;
        }
      }
    }
  }
}

TEST_P(Kernels, SoftmaxTellsWhatItMet) {
  GuardedBuffer<float> logits(5 * kTokens);
  GuardedBuffer<float> none(kTokens);
  GuardedBuffer<float> first_masked(kTokens);
  GuardedBuffer<uint16_t> gains(kTokens);
  GuardedBuffer<uint16_t> nan_gain(kTokens);
  std::fill(logits.begin(), logits.end(), 1.0f);
  std::fill(none.begin(), none.end(), -INFINITY);
  std::fill(first_masked.begin(), first_masked.end(), 0.0f);
  first_masked[0] = -INFINITY;
  std::fill(gains.begin(), gains.end(), F32ToF16(1.0f));
  std::copy(gains.begin(), gains.end(), nan_gain.begin());
  nan_gain[0] = 0x7e00;
  GuardedBuffer<std::array<std::byte, 64>> weights(5);
  SoftmaxItems items(5);
  SoftmaxArgs& args = items.args;
  args.logits = logits.data();
  args.weights = weights.data();
  for (size_t i = 0; i < 5; ++i) {
    items.v_gains[i] = i >= 3 ? nan_gain.data() : gains.data();
    items.slope[i] = 1;
  }
  items.bias[0] = none.data();  // nothing takes part
  logits[kTokens] = NAN;        // 1: a NaN takes part
  logits[2 * kTokens] = NAN;    // 2: a NaN does not
  items.bias[2] = first_masked.data();
  items.bias[4] = first_masked.data();  // 4: the NaN gain does not, 3: it does
  set().softmax(args);
  EXPECT_EQ(args.exponent[0], kNoExponent);
  EXPECT_EQ(args.sum[0], 0.0f);
  EXPECT_TRUE(std::isnan(args.sum[1]));
  EXPECT_EQ(args.exponent[2], 1);
  EXPECT_EQ(args.sum[2], 31.0f);
  EXPECT_TRUE(std::isnan(args.sum[3]));
  EXPECT_EQ(args.exponent[4], 1);
  EXPECT_EQ(args.sum[4], 31.0f);
}

TEST_P(Kernels, PackAgreesWithTheReferenceToTheBit) {
  for (int trial = 0; trial < 400; ++trial) {
    PackCodeArgs args;
    const int widths[] = {8, 6, 4, 3, 2};
    int next = 0;
    for (const int bits : widths) {
      if (trial % 6 == 5 ? bits != 8 : (random_() & 1u) == 0) continue;
      const Codebook& book = CodebookOf(bits);
      PackRun& run = args.run[args.n_runs++];
      run = {bits, next, 1 + static_cast<int>(random_() % 40), 1.0f / (book.unit * book.unit)};
      next += run.n_channels;
      args.nominal +=
          static_cast<float>(run.n_channels) * book.rms_level * book.rms_level * run.weight;
      args.has_coarse = args.has_coarse || bits <= 4;
    }
    if (args.n_runs == 0) continue;
    args.allowed_error = 0.1f;
    args.window_low = 0.9f;
    args.window_high = 1.1f;
    GuardedBuffer<float> y(static_cast<size_t>(next + kPackSlack));
    for (int r = 0; r < args.n_runs; ++r) {
      for (int i = 0; i < args.run[r].n_channels; ++i) {
        y[static_cast<size_t>(args.run[r].first_channel + i)] =
            CodebookOf(args.run[r].bits).unit * 3 * Normal();
      }
    }
    if (trial % 50 == 7) y[0] = NAN;
    if (trial % 50 == 8) std::fill(y.begin(), y.end(), 0.0f);
    GuardedBuffer<uint8_t> got(static_cast<size_t>(next + kPackSlack));
    GuardedBuffer<uint8_t> want(static_cast<size_t>(next + kPackSlack));
    args.y = y.data();
    PackCodeArgs expected = args;
    args.codes = got.data();
    expected.codes = want.data();
    set().pack_code(args);
    reference().pack_code(expected);
    ASSERT_EQ(args.gain, expected.gain) << trial;
    ASSERT_EQ(args.settled, expected.settled) << trial;
    for (size_t i = 0; i < static_cast<size_t>(next); ++i) ASSERT_EQ(got[i], want[i]) << trial;

    // The codes are the nearest ones at the gain.
    const float gain = F16ToF32(args.gain);
    for (int r = 0; r < args.n_runs && std::isfinite(gain) && gain > 0; ++r) {
      for (int i = args.run[r].first_channel;
           i < args.run[r].first_channel + args.run[r].n_channels; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(got[at], CodeOf(CodebookOf(args.run[r].bits), y[at] * (1.0f / gain))) << trial;
      }
    }

    if (args.gain == 0x7e00) continue;
    const PackSums sums = set().pack_try(args, 0.7f);
    const PackSums expected_sums = reference().pack_try(expected, 0.7f);
    ASSERT_EQ(std::memcmp(&sums, &expected_sums, sizeof sums), 0) << trial;
  }
}

TEST_P(Kernels, StoreAndLoadKeepEveryCodeInItsPlace) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (const int bits : {2, 3, 4, 6, 8}) {
      for (const int channels : {1, 3, 16, 20, 33}) {
        const int granule = Granule(side, bits);
        const int padded = (channels + granule - 1) / granule * granule;
        GuardedBuffer<uint8_t> segment(SegmentBytes(bits, padded));
        for (uint8_t& b : segment) b = Byte();
        std::vector<std::vector<uint8_t>> codes;
        for (int t = 0; t < kTokens; ++t) {
          GuardedBuffer<uint8_t> row(static_cast<size_t>(channels + kPackSlack));
          const unsigned low = bits == 8 ? 1 : 0;
          for (uint8_t& c : row) c = static_cast<uint8_t>(low + random_() % ((1u << bits) - low));
          set().pack_store({side, bits, channels, row.data(), t, segment.data()});
          codes.emplace_back(row.begin(), row.begin() + channels);
        }
        GuardedBuffer<uint8_t> lines(static_cast<size_t>(padded) * kTokens);
        set().unpack({side, bits, padded / 2, segment.data(), lines.data()});
        GuardedBuffer<float> scale(static_cast<size_t>(channels));
        for (float& s : scale) s = std::fabs(Normal());
        for (int t = 0; t < kTokens; ++t) {
          GuardedBuffer<float> out(static_cast<size_t>(channels));
          set().pack_load({side, channels, lines.data(), t, scale.data(), 0.5f, out.data()});
          for (int c = 0; c < channels; ++c) {
            const auto at = static_cast<size_t>(c);
            const unsigned code = codes[static_cast<size_t>(t)][at];
            ASSERT_EQ(out[at],
                      static_cast<float>(LevelOf(CodebookOf(bits), code)) * (0.5f * scale[at]))
                << bits << " bits, token " << t << ", channel " << c;
          }
        }
      }
    }
  }
}

TEST_P(Kernels, TilesAgreeWithTheReferenceToTheBit) {
  const TileKernels& tile = *set().tile;
  const TileKernels& plain = *reference().tile;
  for (int trial = 0; trial < 120; ++trial) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const int widths[] = {8, 6, 4, 3, 2};
      const int bits = widths[trial % 5];
      const int channels = 1 + static_cast<int>(random_() % 150);
      const int granule = Granule(side, bits);
      const int padded = (channels + granule - 1) / granule * granule;
      const auto tile_size = static_cast<size_t>(channels * kTileTokens);

      GuardedBuffer<uint8_t> lines(static_cast<size_t>((channels + 15) / 16 * 16 * kTokens));
      for (uint8_t& b : lines) b = Byte();
      GuardedBuffer<float> scale(static_cast<size_t>(channels));
      for (float& s : scale) s = std::fabs(Normal()) + 0.01f;
      GuardedBuffer<float> gain(kTileTokens);
      for (float& g : gain) g = std::exp(3 * Normal());
      GuardedBuffer<float> got(tile_size);
      GuardedBuffer<float> want(tile_size);
      const auto expect_same = [&](const char* what) {
        for (size_t i = 0; i < tile_size; ++i)
          ASSERT_EQ(got[i], want[i]) << what << " at " << i << " of " << channels << " channels";
      };
      for (const float* scales : std::array<const float*, 2>{nullptr, scale.data()}) {
        TileLoadArgs load{side, channels, lines.data(), trial % 2, gain.data(), scales, got.data()};
        tile.load(load);
        load.out = want.data();
        plain.load(load);
        ASSERT_NO_FATAL_FAILURE(expect_same("load"));
      }
      tile.rotate(got.data(), channels, HadamardSize(channels), 0.7f);
      plain.rotate(want.data(), channels, HadamardSize(channels), 0.7f);
      ASSERT_NO_FATAL_FAILURE(expect_same("rotate"));

      GuardedBuffer<int16_t> channel(static_cast<size_t>(channels));
      for (int16_t& c : channel)
        c = static_cast<int16_t>(static_cast<int>(random_() % static_cast<unsigned>(channels + 1)) -
                                 1);
      GuardedBuffer<float> source(tile_size);
      for (float& x : source) x = Normal();
      tile.gather(source.data(), channel.data(), scale.data(), got.data(), channels);
      plain.gather(source.data(), channel.data(), scale.data(), want.data(), channels);
      ASSERT_NO_FATAL_FAILURE(expect_same("gather"));

      GuardedBuffer<uint8_t> codes(static_cast<size_t>(channels) * kTokens);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(random_() % (1u << bits));
      GuardedBuffer<uint8_t> segment(SegmentBytes(bits, padded));
      for (uint8_t& b : segment) b = Byte();
      tile.store({side, bits, channels, codes.data(), segment.data()});
      for (int c = 0; c < padded; ++c) {
        for (int t = 0; t < kTokens; ++t) {
          const unsigned flip = bits == 8 && side == Side::kValue && c < channels ? 0x80u : 0u;
          const unsigned code =
              c < channels ? codes[static_cast<size_t>(c * kTokens + t)] ^ flip : 0u;
          ASSERT_EQ(GetCode(segment.data(), bits, PositionOf(side, c, t)), code)
              << bits << " bits, channel " << c << " of " << channels << ", token " << t;
        }
      }
    }
  }
}

TEST_P(Kernels, CodingATileIsCodingItsRows) {
  for (int trial = 0; trial < 200; ++trial) {
    TileCodeArgs args;
    PackCodeArgs& row = args.row;
    int next = 0;
    for (const int bits : {8, 6, 4, 3, 2}) {
      if (trial % 6 == 5 ? bits != 8 : (random_() & 1u) == 0) continue;
      const Codebook& book = CodebookOf(bits);
      PackRun& run = row.run[row.n_runs++];
      run = {bits, next, 1 + static_cast<int>(random_() % 70), 1.0f / (book.unit * book.unit)};
      next += run.n_channels;
      row.nominal +=
          static_cast<float>(run.n_channels) * book.rms_level * book.rms_level * run.weight;
      row.has_coarse = row.has_coarse || bits <= 4;
    }
    if (row.n_runs == 0) continue;
    row.keep_norm = trial % 2 == 0;
    row.allowed_error = trial % 3 == 0 ? 0.02f : 0.2f;
    row.window_low = 0.8f;
    row.window_high = 1.2f;
    const auto channels = static_cast<size_t>(next);
    GuardedBuffer<float> y(channels * kTileTokens);
    for (int r = 0; r < row.n_runs; ++r) {
      const Codebook& book = CodebookOf(row.run[r].bits);
      const auto first = static_cast<size_t>(row.run[r].first_channel);
      for (size_t i = first; i < first + static_cast<size_t>(row.run[r].n_channels); ++i) {
        for (size_t t = 0; t < kTileTokens; ++t) {
          // Fresh rows, and from token 12 on decoded ones.
          const float fresh = book.unit * std::exp(static_cast<float>(t) - 4) * Normal();
          const unsigned code = static_cast<unsigned>(random_() % (1u << row.run[r].bits));
          y[i * kTileTokens + t] =
              t < 12 ? fresh : 0.375f * static_cast<float>(LevelOf(book, code));
        }
      }
    }
    if (trial % 10 == 7) y[3] = NAN;
    if (trial % 10 == 8) y[5] = INFINITY;
    if (trial % 10 == 9) {
      for (size_t i = 0; i < channels; ++i) y[i * kTileTokens + 6] = 0;
    }
    GuardedBuffer<uint8_t> codes(channels * kTokens);
    row.y = y.data();
    row.codes = codes.data();
    set().tile->code(args);
    std::vector<float> one(channels + kPackSlack);
    std::vector<uint8_t> want(channels + kPackSlack);
    for (size_t t = 0; t < kTileTokens; ++t) {
      if ((args.settled >> t & 1u) == 0) continue;
      PackCodeArgs expected = row;
      for (size_t i = 0; i < channels; ++i) one[i] = y[i * kTileTokens + t];
      expected.y = one.data();
      expected.codes = want.data();
      reference().pack_code(expected);
      ASSERT_TRUE(expected.settled) << trial;
      ASSERT_EQ(args.gain[t], expected.gain) << trial << ", token " << t;
      for (size_t i = 0; i < channels; ++i)
        ASSERT_EQ(codes[i * kTokens + t], want[i]) << trial << ", token " << t << ", channel " << i;
    }
    if (!row.has_coarse && trial % 10 < 7) {
      ASSERT_EQ(args.settled, 0xffffu) << trial;
    }
  }
}

TEST_P(Kernels, RowOperationsOfAnyLength) {
  const RowKernels& rows = *set().rows;
  const RowKernels& plain = *reference().rows;
  for (int n = 0; n <= 80; ++n) {
    const auto size = static_cast<size_t>(n);
    GuardedBuffer<float> x(size);
    GuardedBuffer<float> out(size);
    GuardedBuffer<float> want(size);
    GuardedBuffer<uint16_t> halves(size);
    GuardedBuffer<int16_t> integers(size);
    GuardedBuffer<int16_t> want_integers(size);
    GuardedBuffer<int16_t> channel(size);
    for (size_t i = 0; i < size; ++i) {
      x[i] = Normal();
      halves[i] = F32ToF16(Normal());
      channel[i] = static_cast<int16_t>(static_cast<int>(random_() % (size + 1)) - 1);
    }
    rows.from_f16(halves.data(), out.data(), n);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(out[i], F16ToF32(halves[i]));
    rows.gather(x.data(), channel.data(), x.data(), 0.3f, out.data(), n);
    plain.gather(x.data(), channel.data(), x.data(), 0.3f, want.data(), n);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(out[i], want[i]) << n;
    ASSERT_EQ(rows.peak(x.data(), n), plain.peak(x.data(), n));
    rows.to_integers(x.data(), 1000.0f, integers.data(), n);
    plain.to_integers(x.data(), 1000.0f, want_integers.data(), n);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(integers[i], want_integers[i]) << n;
    if (n > 0) {
      std::copy(x.begin(), x.end(), out.begin());
      std::copy(x.begin(), x.end(), want.begin());
      rows.rotate(out.data(), n, HadamardSize(n), 1.0f);
      Rotate(want.data(), n);
      for (size_t i = 0; i < size; ++i) ASSERT_EQ(out[i], want[i]) << n;
    }
    GuardedBuffer<float> tile(3 * size);
    for (float& v : tile) v = Normal();
    float dots[3];
    rows.dot(x.data(), tile.data(), n, 3, n, dots);
    const float weights[3] = {0.5f, 0.0f, 2.0f};
    for (size_t i = 0; i < size; ++i) tile[size + i] = NAN;  // a weight of 0 hides it
    std::fill(out.begin(), out.end(), 1.0f);
    rows.add_weighted(weights, tile.data(), n, 3, n, 0.25f, out.data());
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(out[i], 1.0f + 0.125f * tile[i] + 0.5f * tile[2 * size + i], 1e-5f);
    }
    float want_dot = 0;
    for (size_t i = 0; i < size; ++i) want_dot += x[i] * tile[2 * size + i];
    ASSERT_NEAR(dots[2], want_dot, 1e-5f * static_cast<float>(n + 1) * 4);
  }
}

}  // namespace
}  // namespace varve
