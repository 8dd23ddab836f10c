// recode: a block's codes of one rotated coding into those of a narrower one, in bytes. Both are
// codes of the same rotated channels, so a code depends on the source's level and on the token
// alone, a row's energy and its products are integers, and no row is decoded.
//
// Included by the kernel files of this family and by codec.
#ifndef VARVE_KERNELS_RECODE_RECODE_H_
#define VARVE_KERNELS_RECODE_RECODE_H_

#include <cstddef>
#include <cstdint>

#include "layout/code_lines.h"

namespace varve {

struct RecodeArgs {
  Side side = Side::kKey;
  int bits = 4;        ///< of the codes to make: 2, 3 or 4
  int n_channels = 0;  ///< without padding, at most 1,024
  const uint8_t* lines =
      nullptr;                  ///< unpacked product lines: level + 128 for keys, level for values
  float gain_in[kBlockTokens];  ///< y = gain_in * level, in levels of the codes to make
  uint32_t tokens = ~uint32_t{0};  ///< a bit for each token that is wanted
  float nominal = 0;               ///< sum of squared levels that a Gaussian row would have
  float allowed_error = 0;         ///< as PackCodeArgs'
  float window_low = 0;
  float window_high = 0;
  uint8_t* codes = nullptr;     ///< out, product lines of codes, padding 0
  uint16_t gain[kBlockTokens];  ///< out, f16
  uint32_t settled = 0;         ///< out: a bit a token; the others are for the row coder
};

/// Codes 32 tokens by the rule of kernels/pack/gain_body.h, keeping norms; at a gain g a level l
/// has the code of |l| >= ceil(threshold * g / gain_in). Tokens whose gain_in is 0 or not finite,
/// and rows of zeros, as TileKernels::code.
using RecodeKernel = void (*)(RecodeArgs& args);

void RecodeReference(RecodeArgs& args);
void RecodeAvx2(RecodeArgs& args);
void RecodeAvx512(RecodeArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_RECODE_RECODE_H_
