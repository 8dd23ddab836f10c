// One gain and a code a channel for one token's row of one head: what rotated and rope_pair share
// once a row is in its codec's own coordinates.
#ifndef VARVE_CODEC_ROW_CODER_H_
#define VARVE_CODEC_ROW_CODER_H_

#include <cstdint>
#include <span>

#include "kernels/kernel_set.h"

namespace varve {

/// A run of stored channels of one width (row coordinates).
struct CodeRun {
  int bits = 0;
  int first_channel = 0;
  int n_channels = 0;  ///< without padding
};

/// What the gain of a fresh row is for.
enum class GainRule : uint8_t {
  /// Least squared error: sum y*level / sum level^2. For keys, whose widths differ by channel.
  kLeastSquares,
  /// The row's norm: sqrt(sum y^2 / sum level^2). Codebook levels are means of their cells, so a
  /// least squares row is short by the codebook's distortion; over many rows the noise of attention
  /// averages out and that shortfall does not. Costs at most 3 % of squared error at 2 bits.
  kKeepNorm,
};

/// Codes y ~ gain * level, y in levels of each channel's own codebook. y: [channels]; codes:
/// [channels], written for every channel of the runs; both with kPackSlack elements to spare.
/// Returns the gain as f16 bits, rounded to 10 significant bits: f16 rounding of a decoded row
/// moves its least squares gain by less than 2^-11, half the distance of two such gains.
///
/// Codes are taken at the gain that is least squares for the coarse codes (at most 4 bits) at the
/// row's root mean square; finer runs follow any gain, so they have no say in it. 8 bits only: the
/// gain that puts the largest element on level 127. Coding is a fixed point: for a
/// row y = gain * level that this function made, also after its elements were rounded to f16 in any
/// orthonormal coordinates (while gain >= 2^-15), it returns the same gain and codes: its coarse
/// codes at the root mean square are the ones it has, whose least squares gain is its own. An 8-bit
/// row shows by its residual that it is a decoded one, and keeps its gain. A row that is all zero
/// has gain 0; one whose energy is not finite gain NaN; both get the code of level +0 or the least
/// positive one throughout. At most 1,024 channels.
uint16_t CodeRow(const KernelSet& kernels, std::span<const CodeRun> runs, GainRule rule,
                 const float* y, uint8_t* codes);

/// The rule's constants for these runs, the row itself left out: what the kernels that code blocks
/// (tile, recode) go by too.
PackCodeArgs RowRule(std::span<const CodeRun> runs, GainRule rule);

}  // namespace varve

#endif  // VARVE_CODEC_ROW_CODER_H_
