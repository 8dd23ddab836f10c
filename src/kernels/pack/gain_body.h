// The rule by which a row finds its gain (codec/row_coder.h), shared by the kernels of every level.
#ifndef VARVE_KERNELS_PACK_GAIN_BODY_H_
#define VARVE_KERNELS_PACK_GAIN_BODY_H_

#include <cstdint>
#include <cstring>

#include "kernels/pack/pack.h"

#define VARVE_INLINE __attribute__((always_inline)) inline

namespace varve {
namespace {

constexpr uint16_t kNanGain = 0x7e00;
constexpr float kMaxGain = 65000.0f;

// An 8-bit row that is a decoded one fits some gain up to rounding: f16 leaves at most 2^-22 of its
// energy. A fresh row leaves its quantization error, which is at least 1/12 / 127^2 of it.
constexpr float kOnLattice = 2e-6f;

/// f16 bits of a gain >= 0, rounded to 10 significant bits (one rounding), 0 below f16's least
/// subnormal's half.
VARVE_INLINE uint16_t RoundGain(float gain) {
  constexpr uint32_t kDropped = 24 - 10;
  uint32_t bits;
  const float clamped = gain < kMaxGain ? gain : kMaxGain;
  std::memcpy(&bits, &clamped, sizeof bits);
  bits = (bits + (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1u)) >> kDropped << kDropped;
  if (bits >= 0x38800000u) return static_cast<uint16_t>((bits - 0x38000000u) >> 13);
  // Subnormal: adding 0.5 aligns the ulp, so the addition rounds.
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof magnitude);
  magnitude += 0.5f;
  std::memcpy(&bits, &magnitude, sizeof bits);
  return static_cast<uint16_t>(bits - 0x3f000000u);
}

VARVE_INLINE float GainValue(uint16_t f16) {
  const uint32_t exponent = f16 >> 10;
  if (exponent == 0) return static_cast<float>(f16) * 0x1p-24f;
  const uint32_t bits = (static_cast<uint32_t>(f16) + 0x1c000u) << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

VARVE_INLINE void Clear(PackCodeArgs& args, uint16_t gain) {
  for (int r = 0; r < args.n_runs; ++r) {
    std::memset(args.codes + args.run[r].first_channel, 1 << (args.run[r].bits - 1),
                static_cast<size_t>(args.run[r].n_channels));
  }
  args.gain = gain;
}

/// The 8-bit rule: `gain` puts the largest element on level 127; a row that lies on the lattice of
/// its codes at that gain is a decoded one and has the lattice's. cross = sum y * level, levels =
/// sum level^2, both and energy in the same unit.
VARVE_INLINE uint16_t OwnGain(uint16_t gain, float energy, float cross, float levels) {
  const float lattice = cross / levels;
  if (!(energy - lattice * cross <= kOnLattice * energy)) return gain;
  const uint16_t own = RoundGain(lattice);
  return own == 0 ? gain : own;
}

/// Codes a row of this energy (in variances) and peak (in levels). `code(inverse, store,
/// coarse_only)` gives the sums of its codes at a gain, and writes them if `store`.
template <typename Code>
VARVE_INLINE void CodeByGain(PackCodeArgs& args, float energy, float peak, const Code& code) {
  args.settled = true;
  if (!(energy < __builtin_inff())) return Clear(args, kNanGain);
  if (!args.has_coarse) {
    args.gain = RoundGain(peak / 127.0f);
    if (args.gain == 0) return Clear(args, 0);
    const PackSums coded = code(1.0f / GainValue(args.gain), true, false);
    const uint16_t own = OwnGain(args.gain, energy, coded.cross, coded.levels);
    if (own == args.gain) return;
    args.gain = own;
    code(1.0f / GainValue(own), true, false);
    return;
  }
  const float first = __builtin_sqrtf(energy / args.nominal);
  if (RoundGain(first) == 0) return Clear(args, 0);
  const PackSums guess = code(1.0f / first, false, true);
  // The least squares gain first; the root mean square's own if that one leaves the window.
  const float gains[2] = {guess.coarse_cross / guess.coarse_levels, first};
  args.settled = false;
  for (int attempt = 0; attempt < 2 && !args.settled; ++attempt) {
    args.gain = RoundGain(gains[attempt]);
    const float gain = GainValue(args.gain);
    const PackSums coded = code(1.0f / gain, true, false);
    const float ratio = __builtin_sqrtf(coded.levels / args.nominal);
    const float error = energy + gain * (gain * coded.levels - 2 * coded.cross);
    args.settled = ratio >= args.window_low && ratio <= args.window_high &&
                   error <= args.allowed_error * energy;
    if (args.settled && args.keep_norm)
      args.gain = RoundGain(__builtin_sqrtf(energy / coded.levels));
  }
  if (args.gain == 0) {
    args.settled = true;
    Clear(args, 0);
  }
}

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_PACK_GAIN_BODY_H_
