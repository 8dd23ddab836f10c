// Portable pack: plain loops, the nearest code by a table of magnitudes. Sums are kept in 16 lanes
// and folded by halves, as vectors do it.
#include "kernels/pack/gain_body.h"
#include "kernels/pack/place_body.h"
#include "kernels/rows/rows.h"
#include "layout/levels.h"

namespace varve {
namespace {

/// A codebook by magnitude: entry min(floor(2|x|), 255) holds the nearest code's index in the
/// positive half and its level. Decision thresholds are means of two integers, so floor(2|x|)
/// decides exactly.
struct MagnitudeBook {
  uint8_t index[256];
  uint8_t level[256];
};

consteval MagnitudeBook MakeMagnitudeBook(int bits) {
  MagnitudeBook book{};
  const int half = 1 << (bits - 1);
  int at = 0;
  for (int twice = 0; twice < 256; ++twice) {
    while (at + 1 < half && twice >= HalfLevelAt(bits, at) + HalfLevelAt(bits, at + 1)) ++at;
    book.index[twice] = static_cast<uint8_t>(at);
    book.level[twice] = static_cast<uint8_t>(HalfLevelAt(bits, at));
  }
  return book;
}

constexpr MagnitudeBook kBook2 = MakeMagnitudeBook(2);
constexpr MagnitudeBook kBook3 = MakeMagnitudeBook(3);
constexpr MagnitudeBook kBook4 = MakeMagnitudeBook(4);
constexpr MagnitudeBook kBook6 = MakeMagnitudeBook(6);

struct Coded {
  int level;
  int code;
};

Coded Nearest(int bits, float x) {
  const bool negative = x < 0;
  const float m = negative ? -x : x;
  if (bits == 8) {
    // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
    const float shifted = (m < 127.0f ? m : 127.0f) + 12582912.0f;
    int32_t whole;
    std::memcpy(&whole, &shifted, sizeof whole);
    whole -= 0x4b400000;
    const int level = negative ? -whole : whole;
    return {level, level + 128};
  }
  const MagnitudeBook& book = bits == 2 ? kBook2 : bits == 3 ? kBook3 : bits == 4 ? kBook4 : kBook6;
  const int at = static_cast<int>(2 * m < 255.0f ? 2 * m : 255.0f);
  const int half = 1 << (bits - 1);
  if (negative) return {-book.level[at], half - 1 - book.index[at]};
  return {book.level[at], half + book.index[at]};
}

struct Lanes {
  float lane[kLanes] = {};

  /// Lanes folded by halves.
  float Fold() {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
    }
    return lane[0];
  }
};

PackSums CodeAll(const PackCodeArgs& args, float inverse, bool store, bool coarse_only) {
  PackSums sums;
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    if (coarse_only && run.bits > 4) continue;
    Lanes cross;
    int32_t squares = 0;
    for (int i = 0; i < run.n_channels; ++i) {
      const float v = args.y[run.first_channel + i];
      const Coded coded = Nearest(run.bits, v * inverse);
      squares += coded.level * coded.level;
      cross.lane[i % kLanes] += v * static_cast<float>(coded.level);
      if (store) args.codes[run.first_channel + i] = static_cast<uint8_t>(coded.code);
    }
    const float weighted_cross = cross.Fold() * run.weight;
    const float weighted_levels = static_cast<float>(squares) * run.weight;
    sums.cross += weighted_cross;
    sums.levels += weighted_levels;
    if (run.bits > 4) continue;
    sums.coarse_cross += weighted_cross;
    sums.coarse_levels += weighted_levels;
  }
  return sums;
}

}  // namespace

void PackCodeReference(PackCodeArgs& args) {
  float energy = 0;
  float peak = 0;
  for (int r = 0; r < args.n_runs; ++r) {
    const PackRun& run = args.run[r];
    Lanes sum;
    for (int i = 0; i < run.n_channels; ++i) {
      const float v = args.y[run.first_channel + i];
      const float m = v < 0 ? -v : v;
      sum.lane[i % kLanes] += v * v;
      peak = m > peak ? m : peak;
    }
    energy += sum.Fold() * run.weight;
  }
  CodeByGain(args, energy, peak, [&](float inverse, bool store, bool coarse_only) {
    return CodeAll(args, inverse, store, coarse_only);
  });
}

PackSums PackTryReference(const PackCodeArgs& args, float gain, bool store) {
  return CodeAll(args, 1.0f / gain, store, false);
}

void PackStoreReference(const PackStoreArgs& args) { PackStore(args); }

void PackLinesReference(const PackLinesArgs& args) {
  const int per_group = LinesPerGroup(args.bits);
  const int n_groups = (args.n_lines + per_group - 1) / per_group;
  std::memset(args.segment, 0, static_cast<size_t>(n_groups) * GroupBytes(args.bits));
  for (int line = 0; line < args.n_lines; ++line) {
    for (int byte = 0; byte < static_cast<int>(kLineBytes); ++byte) {
      PutCode(args.segment, args.bits, {line, byte},
              args.lines[static_cast<size_t>(line) * kLineBytes + static_cast<size_t>(byte)]);
    }
  }
}

void PackLoadReference(const PackLoadArgs& args) { PackLoad(args); }

bool PackAppendReference(const PackAppendArgs& args) {
  constexpr int kMaxRow = 1024 + kPackSlack;
  float y[kMaxRow];
  uint8_t codes[kMaxRow];
  for (int head = 0; head < args.n_heads; ++head) {
    std::memcpy(y, args.rows + static_cast<ptrdiff_t>(head) * args.head_dim,
                sizeof(float) * static_cast<size_t>(args.head_dim));
    kRowsReference.rotate(y, args.head_dim, args.head_dim & -args.head_dim, args.unit);
    PackCodeArgs code;
    code.n_runs = 1;
    code.run[0] = {8, 0, args.head_dim, 1.0f / (args.unit * args.unit)};
    code.y = y;
    code.codes = codes;
    PackCodeReference(code);
    uint8_t* payload = args.block + static_cast<size_t>(head) * args.head_bytes;
    PackStore({args.side, 8, args.head_dim, codes, args.token, payload});
    std::memcpy(payload + args.gain_offset + 2 * static_cast<size_t>(args.token), &code.gain,
                sizeof code.gain);
  }
  return true;
}

}  // namespace varve
