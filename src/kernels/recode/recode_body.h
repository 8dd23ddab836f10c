// Recoding in the lanes of one level (kernels/lanes_<level>.h comes first). A register is a product
// line or half of one; once values' lines are transposed in fours, every dword belongs to one
// token.
#ifndef VARVE_KERNELS_RECODE_RECODE_BODY_H_
#define VARVE_KERNELS_RECODE_RECODE_BODY_H_

#include "kernels/gain_lanes.h"
#include "kernels/recode/recode.h"
#include "layout/levels.h"

namespace varve {
namespace {

/// Of each token.
struct Sums {
  alignas(64) float cross[kBlockTokens];
  alignas(64) float levels[kBlockTokens];
};

/// For each decision of a token the least magnitude above it, in all bytes of a dword.
struct Thresholds {
  alignas(64) uint32_t magnitude[8][kBlockTokens];
  alignas(64) uint32_t alive[kBlockTokens];  ///< -1, 0: every level has the code of +0
};

struct LevelBytes {
  alignas(16) uint8_t entry[16];
};

constexpr LevelBytes MakeLevelBytes(int bits) {
  LevelBytes bytes{};
  for (int i = 0; i < 1 << (bits - 1); ++i)
    bytes.entry[i] = static_cast<uint8_t>(HalfLevelAt(bits, i));
  return bytes;
}

constexpr LevelBytes kLevelBytes2 = MakeLevelBytes(2);
constexpr LevelBytes kLevelBytes3 = MakeLevelBytes(3);
constexpr LevelBytes kLevelBytes4 = MakeLevelBytes(4);

template <int kBits>
constexpr const LevelBytes& kLevelBytes = kBits == 2   ? kLevelBytes2
                                          : kBits == 3 ? kLevelBytes3
                                                       : kLevelBytes4;

template <Side kSide>
struct Walk {
  static constexpr int kTokens = kSide == Side::kKey ? kWidth : 4;  // in a register
  static constexpr int kChannels = kSide == Side::kKey ? 4 : kWidth;
  static constexpr ptrdiff_t kStride = kSide == Side::kKey ? 2 * kLineBytes : 8 * kLineBytes;

  static bool Wants(const RecodeArgs& args, int token) {
    return (args.tokens >> token & ((1u << kTokens) - 1)) != 0;
  }

  /// First byte of the registers of tokens `token` .. token + kTokens - 1.
  static ptrdiff_t Start(int token) {
    return kSide == Side::kKey ? token / 16 * 64 + token % 16 * 4 : token / 4 * 64;
  }

  /// Byte of the register of channels i ..
  static ptrdiff_t Offset(int i) {
    if (kSide == Side::kKey) return i / 4 * kStride;
    return i / 16 * kStride + i % 16 * 4;
  }

  static I32 PerToken(const void* values, int token) {
    const auto* at = static_cast<const uint32_t*>(values) + token;
    return kSide == Side::kKey ? LoadDwords(at) : RepeatFour(at);
  }

  static void SaveSums(float* sums, int token, I32 total) {
    if constexpr (kSide == Side::kKey) {
      const F32 value = ToFloat(total);
      std::memcpy(sums + token, &value, sizeof value);
    } else {
      StoreFour(sums + token, ToFloat(AddFours(total)));
    }
  }

  /// Signed levels of the registers at p, a token a dword.
  static I32 Levels(const uint8_t* p) {
    const I32 bytes = LoadDwords(p);
    return kSide == Side::kKey ? bytes ^ static_cast<int32_t>(0x80808080u) : TransposeFours(bytes);
  }

  /// Calls visit(byte offset, mask of real bytes) for the registers of a row of n channels and of
  /// the padding of its last product line.
  template <typename Visit>
  VARVE_INLINE static void Each(int n, const Visit& visit) {
    int i = 0;
    for (; i + kChannels <= n; i += kChannels) visit(Offset(i), I32{} - 1);
    const int whole = kSide == Side::kKey ? 4 : 16;
    for (; i < (n + whole - 1) / whole * whole; i += kChannels) {
      alignas(64) uint8_t real[4 * kWidth] = {};
      for (int b = 0; b < 4 * kWidth; ++b)
        real[b] = (kSide == Side::kKey ? b % 4 : b / 4) < n - i ? 255 : 0;
      const I32 mask = LoadDwords(real);
      visit(Offset(i), kSide == Side::kKey ? mask : TransposeFours(mask));
    }
  }
};

template <Side kSide>
void Energies(const RecodeArgs& args, float* energy) {
  using Lines = Walk<kSide>;
  for (int token = 0; token < kBlockTokens; token += Lines::kTokens) {
    if (!Lines::Wants(args, token)) continue;
    const uint8_t* lines = args.lines + Lines::Start(token);
    I32 total = {};
    Lines::Each(
        args.n_channels, [&](ptrdiff_t at, I32 real) __attribute__((always_inline)) {
          const I32 magnitude = Magnitudes(Lines::Levels(lines + at)) & real;
          total = AddProducts(total, magnitude, magnitude);
        });
    Lines::SaveSums(energy, token, total);
  }
}

template <Side kSide, int kBits, bool kStore>
void CodeAt(const RecodeArgs& args, const Thresholds& thresholds, Sums& sums) {
  using Lines = Walk<kSide>;
  constexpr int kHalf = 1 << (kBits - 1);
  const I32 table = RepeatFour(kLevelBytes<kBits>.entry);
  for (int token = 0; token < kBlockTokens; token += Lines::kTokens) {
    if (!Lines::Wants(args, token)) continue;
    const uint8_t* lines = args.lines + Lines::Start(token);
    uint8_t* codes = args.codes + Lines::Start(token);
    I32 least[kHalf];
#pragma GCC unroll 8
    for (int i = 1; i < kHalf; ++i) least[i] = Lines::PerToken(thresholds.magnitude[i], token);
    const I32 alive = Lines::PerToken(thresholds.alive, token);
    I32 cross = {};
    I32 squares = {};
    Lines::Each(
        args.n_channels, [&](ptrdiff_t at, I32 real) __attribute__((always_inline)) {
          const I32 level = Lines::Levels(lines + at);
          const I32 magnitude = Magnitudes(level) & real;
          I32 index = {};
#pragma GCC unroll 8
          for (int i = 1; i < kHalf; ++i) index = CountReached(index, magnitude, least[i]);
          const I32 coded = LookBytes(table, index) & real;
          cross = AddProducts(cross, coded, magnitude);
          squares = AddProducts(squares, coded, coded);
          if constexpr (kStore) {
            const I32 code = HalfCodes(index, level & alive, kHalf) & real;
            const I32 placed = kSide == Side::kKey ? code : TransposeFours(code);
            std::memcpy(codes + at, &placed, sizeof placed);
          }
        });
    Lines::SaveSums(sums.cross, token, cross);
    Lines::SaveSums(sums.levels, token, squares);
  }
}

/// Thresholds of kWidth tokens at `scale` source levels a level.
template <int kBits>
VARVE_INLINE void SetThresholds(Thresholds& thresholds, int token, F32 scale, I32 alive) {
#pragma GCC unroll 8
  for (int i = 1; i < 1 << (kBits - 1); ++i) {
    const float threshold =
        0.5f * static_cast<float>(kLevelBytes<kBits>.entry[i - 1] + kLevelBytes<kBits>.entry[i]);
    const F32 least = Min(Ceil(scale * threshold), F32{} + 255.0f);
    const I32 byte = (ToNearest(least) & alive) | (255 & ~alive);
    const I32 bytes = byte | byte << 8;
    const I32 dword = bytes | bytes << 16;
    std::memcpy(thresholds.magnitude[i] + token, &dword, sizeof dword);
  }
  std::memcpy(thresholds.alive + token, &alive, sizeof alive);
}

/// What a token needs between the passes.
struct Plan {
  alignas(64) float energy[kBlockTokens];
  alignas(64) float first[kBlockTokens];
  alignas(64) int32_t usable[kBlockTokens];
  alignas(64) float gain[kBlockTokens];  ///< 0: none
};

template <Side kSide, int kBits>
void Recode(RecodeArgs& args) {
  Plan plan = {};
  Thresholds thresholds;
  Sums sums = {};
  const auto each = [](const auto& visit) __attribute__((always_inline)) {
    for (int token = 0; token < kBlockTokens; token += kWidth) visit(token);
  };
  const auto save = [](auto* at, auto x) __attribute__((always_inline)) {
    std::memcpy(at, &x, sizeof x);
  };
  Energies<kSide>(args, plan.energy);
  each([&](int token) __attribute__((always_inline)) {
    const F32 energy = LoadFloats(plan.energy + token);
    const F32 gain_in = LoadFloats(args.gain_in + token);
    const I32 usable = (gain_in > 0) & (gain_in < __builtin_inff()) & (energy > 0);
    const F32 first = Sqrt(energy / args.nominal);
    save(plan.first + token, first);
    save(plan.usable + token, usable);
    SetThresholds<kBits>(thresholds, token, first, usable);
  });
  CodeAt<kSide, kBits, false>(args, thresholds, sums);
  each([&](int token) __attribute__((always_inline)) {
    const F32 least_squares = LoadFloats(sums.cross + token) / LoadFloats(sums.levels + token);
    const I32 usable = LoadDwords(plan.usable + token);
    save(plan.gain + token,
         RoundGains(Keep(LoadFloats(args.gain_in + token) * least_squares, usable)).value);
  });
  for (int attempt = 0; attempt < 2; ++attempt) {
    each([&](int token) __attribute__((always_inline)) {
      const F32 gain = LoadFloats(plan.gain + token);
      SetThresholds<kBits>(thresholds, token, gain / LoadFloats(args.gain_in + token), gain > 0);
    });
    CodeAt<kSide, kBits, true>(args, thresholds, sums);
    args.settled = 0;
    each([&](int token) __attribute__((always_inline)) {
      const F32 gain_in = LoadFloats(args.gain_in + token);
      const F32 energy = LoadFloats(plan.energy + token);
      const F32 gain = LoadFloats(plan.gain + token);
      const F32 levels = LoadFloats(sums.levels + token);
      const I32 alive = gain > 0;
      const F32 scale = gain / gain_in;
      const F32 ratio = Sqrt(levels / args.nominal);
      const F32 error = energy + scale * (scale * levels - 2 * LoadFloats(sums.cross + token));
      const Rounded norm = RoundGains(Keep(gain_in * Sqrt(energy / levels), alive));
      const I32 settled = ~alive | ((ratio >= args.window_low) & (ratio <= args.window_high) &
                                    (error <= args.allowed_error * energy) & (norm.value > 0));
      const I32 not_finite = ~((gain_in >= 0) & (gain_in < __builtin_inff()));
      const I32 f16 = (norm.f16 & ~not_finite) | (kNanGain & not_finite);
      StoreWords(args.gain + token, f16);
      args.settled |= LaneBits(settled) << token;
      // The root mean square's own gain where the least squares one leaves the window.
      const F32 own = RoundGains(Keep(gain_in * LoadFloats(plan.first + token), alive)).value;
      save(plan.gain + token, Choose(settled, gain, own));
    });
    if ((args.tokens & ~args.settled) == 0) return;
  }
}

template <Side kSide>
void RecodeSide(RecodeArgs& args) {
  switch (args.bits) {
    case 2:
      return Recode<kSide, 2>(args);
    case 3:
      return Recode<kSide, 3>(args);
    default:
      return Recode<kSide, 4>(args);
  }
}

void RecodeBlock(RecodeArgs& args) {
  if (args.side == Side::kKey) return RecodeSide<Side::kKey>(args);
  return RecodeSide<Side::kValue>(args);
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_RECODE_RECODE_BODY_H_
