// The kernels of the write side at every level against the portable one, to the bit, and nothing
// past the ends of the buffers.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/f16.h"
#include "codec/codebooks.h"
#include "kernels/guarded_buffer.h"
#include "kernels/kernels_fixture.h"

namespace varve {
namespace {

INSTANTIATE_TEST_SUITE_P(Levels, Kernels, testing::ValuesIn(LevelsOfThisCpu()), NameOf);

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
    const std::vector<uint8_t> before(got.begin(), got.end());
    const PackSums sums = set().pack_try(args, 0.7f, false);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), before.begin())) << trial;
    const PackSums expected_sums = reference().pack_try(expected, 0.7f, true);
    ASSERT_EQ(std::memcmp(&sums, &expected_sums, sizeof sums), 0) << trial;
    const PackSums stored_sums = set().pack_try(args, 0.7f, true);
    ASSERT_EQ(std::memcmp(&stored_sums, &expected_sums, sizeof sums), 0) << trial;
    for (size_t i = 0; i < static_cast<size_t>(next); ++i) ASSERT_EQ(got[i], want[i]) << trial;
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

TEST_P(Kernels, AppendingRowsIsRotatingCodingAndStoringThem) {
  int n_taken = 0;
  for (const int head_dim : {16, 40, 64, 80, 96, 112, 128, 192, 256, 320}) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      for (const int n_heads : {1, 3, 11}) {
        const size_t head_bytes = SegmentBytes(8, (head_dim + 15) / 16 * 16) + kLineBytes;
        GuardedBuffer<uint8_t> block(static_cast<size_t>(n_heads) * head_bytes);
        for (uint8_t& b : block) b = Byte();
        std::vector<uint8_t> want(block.begin(), block.end());
        for (int token = 0; token < kTokens; ++token) {
          GuardedBuffer<float> rows(static_cast<size_t>(n_heads * head_dim));
          const float size = std::exp(static_cast<float>(token % 7) * 6 - 24);
          for (float& x : rows) x = size * Normal();
          if (token == 5) rows[3] = NAN;
          if (token == 6) rows[4] = -INFINITY;
          if (token == 9) std::fill(rows.begin(), rows.end(), 0.0f);
          if (token == 10) std::fill(rows.begin(), rows.end(), 3e38f);
          PackAppendArgs args{side,        head_dim,    n_heads,
                              24.0f,       rows.data(), token,
                              want.data(), head_bytes,  head_bytes - kLineBytes};
          ASSERT_TRUE(reference().pack_append(args));
          args.block = block.data();
          if (!set().pack_append(args)) {
            std::copy(want.begin(), want.end(), block.begin());
            continue;
          }
          ++n_taken;
          ASSERT_EQ(std::memcmp(block.data(), want.data(), want.size()), 0)
              << "head_dim " << head_dim << ", token " << token;
          // A decoded row comes out the same, where gains have their ten bits.
          bool exact = true;
          for (int head = 0; head < n_heads; ++head) {
            const uint8_t* payload = want.data() + static_cast<size_t>(head) * head_bytes;
            uint16_t gain;
            std::memcpy(&gain, payload + head_bytes - kLineBytes + 2 * token, sizeof gain);
            exact = exact && (gain == 0 || F16ToF32(gain) >= 0x1p-15f || gain == 0x7e00);
            float* row = rows.data() + head * head_dim;
            reference().pack_load(
                {side, head_dim, payload, token, nullptr, F16ToF32(gain) / 24.0f, row});
            reference().rows->rotate(row, head_dim, head_dim & -head_dim, 1.0f);
          }
          if (!exact) continue;
          ASSERT_TRUE(set().pack_append(args));
          ASSERT_EQ(std::memcmp(block.data(), want.data(), want.size()), 0)
              << "decoded, head_dim " << head_dim << ", token " << token;
        }
      }
    }
  }
  EXPECT_GE(n_taken, 7 * 2 * 3 * kTokens);
}

TEST_P(Kernels, PackedLinesHaveEveryCodeInItsPlace) {
  for (const int bits : {2, 3, 4, 6, 8}) {
    const int per_group = LinesPerGroup(bits);
    for (int n_lines = 1; n_lines <= 3 * per_group; ++n_lines) {
      const int n_groups = (n_lines + per_group - 1) / per_group;
      GuardedBuffer<uint8_t> lines(static_cast<size_t>(n_lines) * kLineBytes);
      for (uint8_t& code : lines) code = static_cast<uint8_t>(random_() % (1u << bits));
      GuardedBuffer<uint8_t> segment(static_cast<size_t>(n_groups) * GroupBytes(bits));
      for (uint8_t& b : segment) b = Byte();
      set().pack_lines({bits, n_lines, lines.data(), segment.data()});
      for (int line = 0; line < n_groups * per_group; ++line) {
        for (int byte = 0; byte < 64; ++byte) {
          const unsigned want = line < n_lines ? lines[static_cast<size_t>(line * 64 + byte)] : 0u;
          ASSERT_EQ(GetCode(segment.data(), bits, {line, byte}), want)
              << bits << " bits, line " << line << " of " << n_lines;
        }
      }
    }
  }
}

TEST_P(Kernels, TilesLoadAndRotateToTheBit) {
  for (const int channels : {1, 4, 6, 16, 24, 80, 128, 256}) {
    const auto padded = static_cast<size_t>((channels + 3) / 4 * 4);
    GuardedBuffer<uint8_t> lines(padded * kTokens);
    for (uint8_t& b : lines) b = static_cast<uint8_t>(1 + random_() % 255);
    GuardedBuffer<int16_t> got(padded * kTokens);
    GuardedBuffer<int16_t> want(padded * kTokens);
    const auto expect_same = [&](const char* what) {
      ASSERT_EQ(std::memcmp(got.data(), want.data(), padded * kTokens * sizeof(int16_t)), 0)
          << what << ", " << channels << " channels";
    };
    set().tile->load({channels, lines.data(), got.data()});
    reference().tile->load({channels, lines.data(), want.data()});
    ASSERT_NO_FATAL_FAILURE(expect_same("load"));
    for (int c = 0; c < channels; ++c) {
      const CodePosition at = PositionOf(Side::kKey, c, 21);
      ASSERT_EQ(got[static_cast<size_t>(c * kTokens + 21)],
                lines[static_cast<size_t>(at.line * 64 + at.byte)] - 128);
    }
    const int size = channels & -channels;
    set().tile->rotate(got.data(), channels, size);
    reference().tile->rotate(want.data(), channels, size);
    ASSERT_NO_FATAL_FAILURE(expect_same("rotate"));
    // The first of a group of channels is their sum.
    int sum = 0;
    for (int c = 0; c < size; ++c) {
      const CodePosition at = PositionOf(Side::kKey, c, 3);
      sum += lines[static_cast<size_t>(at.line * 64 + at.byte)] - 128;
    }
    ASSERT_EQ(got[3], sum);
  }
}

TEST_P(Kernels, CodingATileToTheBit) {
  int n_settled = 0;
  int n_left = 0;
  for (int trial = 0; trial < 300; ++trial) {
    TileCodeArgs args;
    int next = 0;
    int n_real = 0;
    bool coarse = false;
    for (const int bits : {8, 6, 4, 3, 2}) {
      if ((random_() & 1u) == 0) continue;
      const Codebook& book = CodebookOf(bits);
      TileRun& run = args.run[args.n_runs++];
      run = {bits, next, 1 + static_cast<int>(random_() % 40), 1.0f / (book.unit * book.unit)};
      next += (run.n_channels + 3) / 4 * 4;
      n_real += run.n_channels;
      args.nominal +=
          static_cast<float>(run.n_channels) * book.rms_level * book.rms_level * run.weight;
      coarse = coarse || bits <= 4;
    }
    if (!coarse) continue;
    args.allowed_error = trial % 3 == 0 ? 0.02f : 0.2f;
    args.window_low = 0.9f;
    args.window_high = 1.1f;
    const auto channels = static_cast<size_t>(next);
    GuardedBuffer<int16_t> tile(channels * kTokens);
    for (int16_t& x : tile) x = static_cast<int16_t>((trial % 2 == 0 ? 400 : 40) * Normal());
    GuardedBuffer<int16_t> source(channels);
    for (int16_t& c : source) c = static_cast<int16_t>(random_() % channels);
    GuardedBuffer<float> factor(channels);
    for (int r = 0; r < args.n_runs; ++r) {
      for (int i = 0; i < args.run[r].n_channels; ++i) {
        factor[static_cast<size_t>(args.run[r].first_channel + i)] =
            CodebookOf(args.run[r].bits).unit * std::exp(0.3f * Normal());
      }
    }
    for (float& g : args.gain_in) g = std::exp(3 * Normal());
    args.gain_in[3] = 0;
    args.gain_in[4] = NAN;
    args.gain_in[5] = 1e-12f;
    args.gain_in[6] = 1e9f;
    for (size_t c = 0; c < channels; ++c) tile[c * kTokens + 7] = 0;
    args.tile = tile.data();
    args.source = source.data();
    args.factor = factor.data();
    TileCodeArgs want = args;
    GuardedBuffer<uint8_t> got_lines(channels * kTokens);
    GuardedBuffer<uint8_t> want_lines(channels * kTokens);
    for (uint8_t& code : got_lines) code = Byte();
    for (int r = 0; r < args.n_runs; ++r) {
      const auto first = static_cast<size_t>(args.run[r].first_channel) * kTokens;
      args.lines[r] = got_lines.data() + first;
      want.lines[r] = want_lines.data() + first;
    }
    set().tile->code(args);
    reference().tile->code(want);
    ASSERT_EQ(args.settled, want.settled) << trial;
    EXPECT_EQ(args.settled & 0xb8u, 0xb8u) << trial;
    EXPECT_EQ(args.gain[3], 0);
    EXPECT_EQ(args.gain[4], 0x7e00);
    EXPECT_EQ(args.gain[5], 0);
    EXPECT_EQ(args.gain[7], 0);
    for (int t = 0; t < kTokens; ++t) {
      if ((args.settled >> t & 1u) == 0) {
        ++n_left;
        continue;
      }
      ++n_settled;
      ASSERT_EQ(args.gain[t], want.gain[t]) << trial << ", token " << t;
      const float gain = F16ToF32(args.gain[t]);
      for (int r = 0; r < args.n_runs; ++r) {
        const TileRun& run = args.run[r];
        for (int i = 0; i < (run.n_channels + 3) / 4 * 4; ++i) {
          const CodePosition at = PositionOf(Side::kKey, i, t);
          const auto byte = static_cast<size_t>(at.line * 64 + at.byte);
          const unsigned code = args.lines[r][byte];
          ASSERT_EQ(code, want.lines[r][byte]) << trial << ", token " << t << ", channel " << i;
          if (i >= run.n_channels) {
            ASSERT_EQ(code, 0u);
            continue;
          }
          if (!(gain > 0)) {
            ASSERT_EQ(code, 1u << (run.bits - 1));
            continue;
          }
          // The nearest level at the gain, up to rounding.
          const auto channel = static_cast<size_t>(run.first_channel + i);
          const auto level = static_cast<float>(
              tile[static_cast<size_t>(source[channel]) * kTokens + static_cast<size_t>(t)]);
          const float x = level * factor[channel] * args.gain_in[t] / gain;
          const Codebook& book = CodebookOf(run.bits);
          const auto miss = [&](unsigned c) {
            return std::fabs(x - static_cast<float>(LevelOf(book, c)));
          };
          ASSERT_LE(miss(code), miss(CodeOf(book, x)) + 1e-5f * std::fabs(x));
        }
      }
    }
    ASSERT_GT(n_real, 0);
  }
  EXPECT_GT(n_settled, 2000);
  EXPECT_GT(n_left, 100);
}

TEST_P(Kernels, RecodingToTheBit) {
  int n_settled = 0;
  int n_left = 0;
  for (int trial = 0; trial < 300; ++trial) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const int bits = 2 + trial % 3;
      const Codebook& book = CodebookOf(bits);
      RecodeArgs args;
      args.side = side;
      args.bits = bits;
      args.n_channels = trial % 4 == 0 ? 128 : 1 + static_cast<int>(random_() % 150);
      const int whole = side == Side::kKey ? 4 : 16;
      const auto padded = static_cast<size_t>((args.n_channels + whole - 1) / whole * whole);
      args.nominal = static_cast<float>(args.n_channels) * book.rms_level * book.rms_level;
      args.allowed_error = 3 * book.distortion;
      args.window_low = bits == 2 ? 0.5f : 0.88f;
      args.window_high = bits == 2 ? 1.45f : 1.12f;
      GuardedBuffer<uint8_t> lines(padded * kTokens);
      const float width = trial % 5 == 0 ? 3.0f : 30.0f;
      for (uint8_t& b : lines) {
        const float level = std::fmin(std::fmax(std::round(width * Normal()), -127.0f), 127.0f);
        b = static_cast<uint8_t>(static_cast<int>(level) + (side == Side::kKey ? 128 : 0));
      }
      for (float& g : args.gain_in) g = std::exp(3 * Normal());
      args.gain_in[3] = 0;
      args.gain_in[4] = NAN;
      args.gain_in[5] = 1e-12f;
      args.gain_in[6] = 1e9f;
      const auto byte_of = [&](int channel, int token) {
        const CodePosition at = PositionOf(side, channel, token);
        return static_cast<size_t>(at.line * 64 + at.byte);
      };
      for (int c = 0; c < args.n_channels; ++c) lines[byte_of(c, 7)] = side == Side::kKey ? 128 : 0;
      args.lines = lines.data();
      RecodeArgs want = args;
      GuardedBuffer<uint8_t> got_codes(padded * kTokens);
      GuardedBuffer<uint8_t> want_codes(padded * kTokens);
      for (uint8_t& code : got_codes) code = Byte();
      args.codes = got_codes.data();
      want.codes = want_codes.data();
      set().recode(args);
      reference().recode(want);
      ASSERT_EQ(args.settled, want.settled) << trial;
      EXPECT_EQ(args.settled >> 3 & 7u, 7u) << trial;
      EXPECT_EQ(args.gain[3], 0);
      EXPECT_EQ(args.gain[4], 0x7e00);
      EXPECT_EQ(args.gain[5], 0);
      EXPECT_EQ(args.gain[7], 0);
      for (int t = 0; t < kTokens; ++t) {
        if ((args.settled >> t & 1u) == 0) {
          ++n_left;
          continue;
        }
        ++n_settled;
        ASSERT_EQ(args.gain[t], want.gain[t]) << trial << ", token " << t;
        for (int c = 0; c < static_cast<int>(padded); ++c) {
          const unsigned code = args.codes[byte_of(c, t)];
          ASSERT_EQ(code, want.codes[byte_of(c, t)])
              << trial << ", token " << t << ", channel " << c;
          if (c >= args.n_channels) {
            ASSERT_EQ(code, 0u);
          } else if (args.gain[t] == 0 || args.gain[t] == 0x7e00) {
            ASSERT_EQ(code, 1u << (bits - 1));
          } else {
            const int level = lines[byte_of(c, t)];
            const bool negative = side == Side::kKey ? level < 128 : level > 127;
            ASSERT_EQ(code < 1u << (bits - 1), negative);
          }
        }
      }
    }
  }
  EXPECT_GT(n_settled, 10000);
  EXPECT_GT(n_left, 100);
}

}  // namespace
}  // namespace varve
