#include "codec/row_coder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/f16.h"
#include "codec/codebooks.h"

namespace varve {
namespace {

constexpr uint16_t kNanGain = 0x7e00;
constexpr int kLanes = 16;

// A row that is a decoded one fits some gain up to rounding: f16 leaves at most 2^-22 of its
// energy. A fresh row leaves its quantization error, which is at least 1/12 / 127^2 of it at 8 bits
// and far more at 4.
constexpr float kOnLattice = 1e-5f;
constexpr float kOnFineLattice = 2e-6f;

// A row may miss this many times the codebooks' distortion and still be coded at its root mean
// square.
constexpr float kMaxExcess = 2.0f;

// A trial has to beat an earlier one by this part of the row's energy, so that ties always fall
// alike.
constexpr float kLeastGain = 1e-5f;

/// Sum in sixteen interleaved lanes and then by halves: the order every vector width can keep, so
/// that all ISAs agree.
class LaneSum {
 public:
  void Add(int i, float x) { lane_[static_cast<size_t>(i % kLanes)] += x; }
  float Total() const {
    std::array<float, kLanes> sum = lane_;
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) sum[i] += sum[i + half];
    }
    return sum[0];
  }

 private:
  std::array<float, kLanes> lane_{};
};

/// f16 gain rounded to 10 significant bits. Why: f16 rounding of a decoded row moves its least
/// squares gain by less than 2^-11, which is half the distance of two such gains, so the gain is
/// found again.
uint16_t RoundGain(float gain) {
  constexpr uint32_t kDropped = 24 - 10;
  const uint32_t bits = std::bit_cast<uint32_t>(std::min(gain, 65000.0f));
  const uint32_t odd = bits >> kDropped & 1u;
  const uint32_t rounded = (bits + (1u << (kDropped - 1)) - 1 + odd) >> kDropped << kDropped;
  return F32ToF16(std::bit_cast<float>(rounded));
}

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
      return {0.90f, 1.10f};
  }
}

/// Sums over a row and its codes, in standard deviations (levels / unit).
struct Fit {
  float cross = 0;       ///< sum y * level
  float levels = 0;      ///< sum level^2
  float coarse_row = 0;  ///< the same three over runs of at most 4 bits
  float coarse_cross = 0;
  float coarse_levels = 0;
};

class RowCoder {
 public:
  RowCoder(std::span<const CodeRun> runs, const float* y, uint8_t* codes)
      : runs_(runs), y_(y), codes_(codes) {
    window_ = {0.0f, 100.0f};
    for (const CodeRun& run : runs) {
      const Codebook& book = CodebookOf(run.bits);
      expected_error_ += static_cast<float>(run.n_channels) * book.distortion;
      n_channels_ += run.n_channels;
      nominal_ += static_cast<float>(run.n_channels) * (book.rms_level / book.unit) *
                  (book.rms_level / book.unit);
      if (!IsCoarse(run.bits)) continue;
      has_coarse_ = true;
      const Window window = WindowOf(run.bits);
      window_ = {std::max(window_.low, window.low), std::min(window_.high, window.high)};
    }
  }

  bool has_coarse() const { return has_coarse_; }

  /// Sum y^2 in standard deviations.
  float Energy(float* largest) const {
    float energy = 0;
    float peak = 0;
    for (const CodeRun& run : runs_) {
      const float inv_unit = 1.0f / CodebookOf(run.bits).unit;
      LaneSum sum;
      for (int i = 0; i < run.n_channels; ++i) {
        const float y = y_[run.first_channel + i];
        sum.Add(i, y * y);
        peak = std::max(peak, std::fabs(y));
      }
      energy += sum.Total() * (inv_unit * inv_unit);
    }
    *largest = peak;
    return energy;
  }

  void Code(float gain) {
    const float inverse = 1.0f / gain;
    for (const CodeRun& run : runs_) {
      const Codebook& book = CodebookOf(run.bits);
      for (int i = 0; i < run.n_channels; ++i) {
        const int at = run.first_channel + i;
        codes_[at] = static_cast<uint8_t>(CodeOf(book, y_[at] * inverse));
      }
    }
  }

  Fit Sums() const {
    Fit fit;
    for (const CodeRun& run : runs_) {
      const Codebook& book = CodebookOf(run.bits);
      const float weight = 1.0f / (book.unit * book.unit);
      LaneSum row;
      LaneSum cross;
      int levels = 0;
      for (int i = 0; i < run.n_channels; ++i) {
        const int at = run.first_channel + i;
        const int level = LevelOf(book, codes_[at]);
        levels += level * level;
        cross.Add(i, y_[at] * static_cast<float>(level));
        row.Add(i, y_[at] * y_[at]);
      }
      const float weighted_cross = cross.Total() * weight;
      const float weighted_levels = static_cast<float>(levels) * weight;
      fit.cross += weighted_cross;
      fit.levels += weighted_levels;
      if (!IsCoarse(run.bits) && has_coarse_) continue;
      fit.coarse_row += row.Total() * weight;
      fit.coarse_cross += weighted_cross;
      fit.coarse_levels += weighted_levels;
    }
    return fit;
  }

  /// Whether a row of these levels is coded alike at its own root mean square, and well enough.
  bool Fits(const Fit& fit, float gain, float energy) const {
    const float ratio = std::sqrt(fit.levels / nominal_);
    const float error = energy + gain * (gain * fit.levels - 2 * fit.cross);
    return ratio >= window_.low && ratio <= window_.high &&
           error <= kMaxExcess * expected_error_ / static_cast<float>(n_channels_) * energy;
  }

  float nominal() const { return nominal_; }
  std::span<const CodeRun> runs() const { return runs_; }

 private:
  std::span<const CodeRun> runs_;
  const float* y_;
  uint8_t* codes_;
  float nominal_ = 0;
  float expected_error_ = 0;
  int n_channels_ = 0;
  Window window_{};
  bool has_coarse_ = false;
};

/// Gain of the codes as they stand: recovered if the row is a decoded one, else `fresh`.
uint16_t GainOf(const Fit& fit, bool has_coarse, float fresh) {
  const float coarse = fit.coarse_cross / fit.coarse_levels;
  const float residual = fit.coarse_row - coarse * fit.coarse_cross;
  return RoundGain(residual <= (has_coarse ? kOnLattice : kOnFineLattice) * fit.coarse_row ? coarse
                                                                                           : fresh);
}

/// The row is not coded well at its root mean square (a few elements hold its energy). Tries the
/// gains that put its largest coarse element on each level, and keeps the one of least error.
uint16_t CodeByTrial(RowCoder& coder, const float* y, float energy) {
  uint16_t best = 0;
  float least = INFINITY;
  const auto consider = [&](float trial) {
    if (!(trial > 0)) return;
    coder.Code(trial);
    const Fit fit = coder.Sums();
    const uint16_t gain = GainOf(fit, true, fit.cross / fit.levels);
    const float g = F16ToF32(gain);
    if (!(g > 0)) return;
    coder.Code(g);
    const Fit coded = coder.Sums();
    const float error = g * (g * coded.levels - 2 * coded.cross);
    if (error < least - kLeastGain * energy) {
      least = error;
      best = gain;
    }
  };
  for (const CodeRun& run : coder.runs()) {
    if (!IsCoarse(run.bits)) continue;
    float peak = 0;
    for (int i = 0; i < run.n_channels; ++i)
      peak = std::max(peak, std::fabs(y[run.first_channel + i]));
    const Codebook& book = CodebookOf(run.bits);
    for (unsigned code = (1u << run.bits) - 1; code >= 1u << (run.bits - 1); --code) {
      consider(peak / static_cast<float>(LevelOf(book, code)));
    }
  }
  consider(std::sqrt(energy / coder.nominal()));
  if (best != 0) coder.Code(F16ToF32(best));
  return best;
}

struct Coded {
  uint16_t gain;
  bool settled;  ///< known to be a fixed point
};

Coded CodeOnce(std::span<const CodeRun> runs, const float* y, uint8_t* codes) {
  RowCoder coder(runs, y, codes);
  const auto clear = [&] {
    for (const CodeRun& run : runs) {
      std::fill_n(codes + run.first_channel, run.n_channels,
                  static_cast<uint8_t>(1u << (run.bits - 1)));
    }
  };
  float peak = 0;
  const float energy = coder.Energy(&peak);
  if (!std::isfinite(energy)) {
    clear();
    return {kNanGain, true};
  }
  const float first_gain = coder.has_coarse() ? std::sqrt(energy / coder.nominal()) : peak / 127.0f;
  if (RoundGain(first_gain) == 0) {
    clear();
    return {0, true};
  }
  coder.Code(first_gain);
  const Fit fit = coder.Sums();
  const uint16_t gain =
      GainOf(fit, coder.has_coarse(), coder.has_coarse() ? fit.cross / fit.levels : first_gain);
  if (gain == 0) {
    clear();
    return {0, true};
  }
  coder.Code(F16ToF32(gain));
  if (!coder.has_coarse() || coder.Fits(coder.Sums(), F16ToF32(gain), energy)) return {gain, true};
  const uint16_t trial = CodeByTrial(coder, y, energy);
  if (trial == 0) clear();
  return {trial, trial == 0};
}

}  // namespace

uint16_t CodeRow(std::span<const CodeRun> runs, const float* y, uint8_t* codes) {
  Coded coded = CodeOnce(runs, y, codes);
  if (coded.settled) return coded.gain;

  // A row coded by trial may decode into one that fits a window after all, with other codes. Then
  // those stand.
  constexpr int kMaxSteps = 8;
  constexpr size_t kMaxChannels = 1024;
  std::array<float, kMaxChannels> decoded;
  std::array<uint8_t, kMaxChannels> again;
  for (int step = 0; step < kMaxSteps; ++step) {
    const float gain = F16ToF32(coded.gain);
    for (const CodeRun& run : runs) {
      const Codebook& book = CodebookOf(run.bits);
      for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i) {
        decoded[static_cast<size_t>(i)] = gain * static_cast<float>(LevelOf(book, codes[i]));
      }
    }
    const Coded next = CodeOnce(runs, decoded.data(), again.data());
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
