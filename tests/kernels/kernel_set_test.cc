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
#include "kernels/kernels_fixture.h"
#include "layout/code_lines.h"

namespace varve {
namespace {

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
            const float wide_part = static_cast<float>(sums[0]) * queries.wide_scale[i];
            const float expected =
                std::fma(static_cast<float>(sums[1]), queries.narrow_scale[i], wide_part) *
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
    args.base = base.data();
    args.share = share.data();
    args.factor = factor.data();
  }

  SoftmaxArgs args;
  GuardedBuffer<const float*> bias{kSoftmaxGroup};
  GuardedBuffer<float> slope{kSoftmaxGroup};
  GuardedBuffer<const uint16_t*> v_gains{kSoftmaxGroup};
  GuardedBuffer<int32_t> exponent{kSoftmaxGroup};
  GuardedBuffer<float> sum{kSoftmaxGroup};
  GuardedBuffer<float> unit{kSoftmaxGroup};
  GuardedBuffer<float> room{2 * kSoftmaxGroup};
  GuardedBuffer<int32_t> base{kSoftmaxGroup};
  GuardedBuffer<float> share{kSoftmaxGroup};
  GuardedBuffer<float> factor{kSoftmaxGroup};
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
              items.base[i] = mode == 0 ? 2 - static_cast<int>(i) : mode == 1 ? -70 : kNoExponent;
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
            ASSERT_EQ(got_items.share[i], want_items.share[i]) << "mode " << mode;
            ASSERT_EQ(got_items.factor[i], want_items.factor[i]) << "mode " << mode;
          }
          ASSERT_EQ(got_items.args.near, want_items.args.near) << "mode " << mode;
          ASSERT_EQ(got_items.args.near, mode == 0) << "mode " << mode;
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

TEST_P(Kernels, SoftmaxFindsPowersOfTwoAgainstTheBases) {
  GuardedBuffer<float> logits(5 * kTokens);
  GuardedBuffer<float> none(kTokens);
  GuardedBuffer<uint16_t> gains(kTokens);
  std::fill(none.begin(), none.end(), -INFINITY);
  std::fill(gains.begin(), gains.end(), F32ToF16(1.0f));
  GuardedBuffer<std::array<std::byte, 64>> weights(5);
  SoftmaxItems items(5);
  SoftmaxArgs& args = items.args;
  args.logits = logits.data();
  args.weights = weights.data();
  const auto run = [&](int32_t base_of_first, int32_t base_of_none) {
    std::fill(logits.begin(), logits.end(), 3.0f);
    for (size_t i = 0; i < 5; ++i) {
      items.v_gains[i] = gains.data();
      items.unit[i] = 32767.0f;
      items.base[i] = 1;
    }
    items.base[0] = base_of_first;
    items.base[4] = base_of_none;
    items.bias[4] = none.data();
    set().softmax(args);
  };
  // Weights of 1 each: e is 3.
  run(5, kNoExponent);
  EXPECT_TRUE(args.near);
  EXPECT_EQ(args.share[0], 8.0f);
  EXPECT_EQ(args.factor[0], 0.25f);
  EXPECT_EQ(args.share[1], 128.0f);
  EXPECT_EQ(args.factor[1], 4.0f);
  EXPECT_EQ(args.share[4], 0.0f);
  EXPECT_EQ(args.factor[4], 0.0f);
  run(3 - kMaxOctaves, kNoExponent);
  EXPECT_TRUE(args.near);
  EXPECT_EQ(args.factor[0], std::ldexp(1.0f, kMaxOctaves));
  run(3 - kMinOctaves, kNoExponent);
  EXPECT_TRUE(args.near);
  EXPECT_EQ(args.factor[0], std::ldexp(1.0f, kMinOctaves));
  for (const int32_t far : {3 - kMaxOctaves - 1, 3 - kMinOctaves + 1, kNoExponent}) {
    run(far, kNoExponent);
    EXPECT_FALSE(args.near) << far;
    EXPECT_EQ(args.share[0], 0.0f) << far;
    EXPECT_EQ(args.factor[1], 4.0f) << far;
  }
  run(3, 3);  // nothing to add to a result that is there
  EXPECT_FALSE(args.near);
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
