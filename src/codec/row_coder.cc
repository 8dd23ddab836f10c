#include "codec/row_coder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/f16.h"
#include "codec/block_codec.h"
#include "codec/codebooks.h"

namespace varve {
namespace {

// A row may miss this many times the codebooks' distortion and still be coded at its root mean
// square.
constexpr float kMaxExcess = 3.0f;

// A trial has to beat an earlier one by this part of the row's energy, so that ties always fall
// alike.
constexpr float kLeastGain = 1e-5f;

bool IsCoarse(int bits) { return bits <= 4; }

/// Ratios rms(level) / rms_level that a row may have and still be coded alike at its own root mean
/// square.
struct Window {
  float low;
  float high;
};

Window WindowOf(int bits) {
  switch (bits) {
    case 2:
      return {0.50f, 1.45f};
    case 3:
      return {0.79f, 1.20f};
    default:
      return {0.885f, 1.115f};
  }
}

}  // namespace

PackCodeArgs RowRule(std::span<const CodeRun> runs, GainRule rule) {
  PackCodeArgs args;
  args.keep_norm = rule == GainRule::kKeepNorm;
  args.n_runs = static_cast<int>(runs.size());
  args.window_high = 100.0f;
  float expected_error = 0;
  int n_channels = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    const CodeRun& run = runs[r];
    const Codebook& book = CodebookOf(run.bits);
    args.run[r] = {run.bits, run.first_channel, run.n_channels, 1.0f / (book.unit * book.unit)};
    args.nominal += static_cast<float>(run.n_channels) * (book.rms_level / book.unit) *
                    (book.rms_level / book.unit);
    expected_error += static_cast<float>(run.n_channels) * book.distortion;
    n_channels += run.n_channels;
    if (!IsCoarse(run.bits)) continue;
    args.has_coarse = true;
    args.window_low = std::max(args.window_low, WindowOf(run.bits).low);
    args.window_high = std::min(args.window_high, WindowOf(run.bits).high);
  }
  args.allowed_error = kMaxExcess * expected_error / static_cast<float>(std::max(n_channels, 1));
  return args;
}

namespace {

/// The search for rows that their root mean square does not describe: a few elements hold the
/// energy. Tries the gains that put the largest coarse element on each level, refines those whose
/// codes could beat the best so far by least squares, and keeps the one of least error.
class Search {
 public:
  Search(const KernelSet& kernels, const PackCodeArgs& args) : kernels_(kernels), args_(args) {}

  /// Gain of the best trial, 0 if there is none; leaves its codes.
  uint16_t Run() {
    for (int r = 0; r < args_.n_runs; ++r) {
      const PackRun& run = args_.run[r];
      float sum = 0;
      for (int i = 0; i < run.n_channels; ++i) {
        const float y = args_.y[run.first_channel + i];
        sum += y * y;
      }
      energy_ += sum * run.weight;
    }
    for (int r = 0; r < args_.n_runs; ++r) {
      const PackRun& run = args_.run[r];
      if (!IsCoarse(run.bits)) continue;
      const float peak = kernels_.rows->peak(args_.y + run.first_channel, run.n_channels);
      const Codebook& book = CodebookOf(run.bits);
      for (unsigned code = (1u << run.bits) - 1; code >= 1u << (run.bits - 1); --code) {
        Try(peak / static_cast<float>(LevelOf(book, code)));
      }
    }
    Try(std::sqrt(energy_ / args_.nominal));
    if (best_ != 0) kernels_.pack_try(args_, F16ToF32(best_), true);
    return best_;
  }

 private:
  void Try(float trial) {
    // Out of f16's range there is nothing to find.
    if (!(trial > 1e-8f) || !(trial < 1e6f)) return;
    const PackSums sums = kernels_.pack_try(args_, trial, false);
    const float bar = least_ - kLeastGain * energy_;
    if (!(-sums.cross * sums.cross / sums.levels < bar)) return;
    const uint16_t gain = RoundedGain(sums.coarse_cross / sums.coarse_levels);
    const float g = F16ToF32(gain);
    if (!(g > 0)) return;
    const PackSums coded = kernels_.pack_try(args_, g, false);
    const float error = g * (g * coded.levels - 2 * coded.cross);
    if (error < bar) {
      least_ = error;
      best_ = gain;
    }
  }

  /// Ten significant bits, one rounding.
  static uint16_t RoundedGain(float gain) {
    constexpr uint32_t kDropped = 24 - 10;
    const uint32_t bits = std::bit_cast<uint32_t>(std::min(gain, 65000.0f));
    const uint32_t odd = bits >> kDropped & 1u;
    return F32ToF16(
        std::bit_cast<float>((bits + (1u << (kDropped - 1)) - 1 + odd) >> kDropped << kDropped));
  }

  const KernelSet& kernels_;
  const PackCodeArgs& args_;
  float energy_ = 0;
  float least_ = INFINITY;
  uint16_t best_ = 0;
};

struct Coded {
  uint16_t gain;
  bool settled;  ///< known to be a fixed point
};

Coded CodeOnce(const KernelSet& kernels, std::span<const CodeRun> runs, GainRule rule,
               const float* y, uint8_t* codes) {
  PackCodeArgs args = RowRule(runs, rule);
  args.y = y;
  args.codes = codes;
  kernels.pack_code(args);
  if (args.settled) return {args.gain, true};
  const uint16_t gain = Search(kernels, args).Run();
  if (gain != 0) return {gain, false};
  for (const CodeRun& run : runs) {
    std::fill_n(codes + run.first_channel, run.n_channels,
                static_cast<uint8_t>(1u << (run.bits - 1)));
  }
  return {0, true};
}

}  // namespace

uint16_t CodeRow(const KernelSet& kernels, std::span<const CodeRun> runs, GainRule rule,
                 const float* y, uint8_t* codes) {
  Coded coded = CodeOnce(kernels, runs, rule, y, codes);
  if (coded.settled) return coded.gain;

  // A row found by search may decode into one that is coded well at its root mean square, with
  // other codes. Then those stand.
  constexpr int kMaxSteps = 8;
  std::array<float, kMaxHeadDim + kPackSlack> decoded{};
  std::array<uint8_t, kMaxHeadDim + kPackSlack> again{};
  for (int step = 0; step < kMaxSteps; ++step) {
    const float gain = F16ToF32(coded.gain);
    for (const CodeRun& run : runs) {
      const Codebook& book = CodebookOf(run.bits);
      for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i) {
        decoded[static_cast<size_t>(i)] = gain * static_cast<float>(LevelOf(book, codes[i]));
      }
    }
    const Coded next = CodeOnce(kernels, runs, rule, decoded.data(), again.data());
    bool same = next.gain == coded.gain;
    for (const CodeRun& run : runs) {
      for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i) {
        same = same && again[static_cast<size_t>(i)] == codes[i];
        codes[i] = again[static_cast<size_t>(i)];
      }
    }
    coded = next;
    if (same || coded.settled) break;
  }
  return coded.gain;
}

}  // namespace varve
