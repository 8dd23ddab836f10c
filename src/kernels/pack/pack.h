// pack: codes one token's row of one head and writes it into a block, and reads tokens back.
//
//   code    y ~ gain * level, one gain a row (codec/row_coder.h has the rule and its promise)
//   store   codes of one run -> their places in a packed segment (layout/code_lines.h)
//   load    one token's levels from unpacked product lines (kernels/unpack)
//
// Included by the kernel files of this family and by codec.
#ifndef VARVE_KERNELS_PACK_PACK_H_
#define VARVE_KERNELS_PACK_PACK_H_

#include <cstddef>
#include <cstdint>

#include "layout/scheme.h"

namespace varve {

inline constexpr int kMaxPackRuns = 6;

/// Buffers of y and codes may be read and written this many elements past their end.
inline constexpr int kPackSlack = 16;

struct PackRun {
  int bits = 0;
  int first_channel = 0;
  int n_channels = 0;
  float weight = 0;  ///< 1 / unit^2 of the width's codebook: squares of levels to variances
};

struct PackCodeArgs {
  int n_runs = 0;
  PackRun run[kMaxPackRuns];
  const float* y = nullptr;  ///< in levels of each run's codebook
  uint8_t* codes = nullptr;  ///< out, at the channels of the runs
  bool has_coarse = false;   ///< some run has at most 4 bits
  bool keep_norm = false;    ///< a fresh row's gain keeps its norm instead of its least squares
  float nominal = 0;         ///< variance that the levels of a Gaussian row would have
  float allowed_error = 0;   ///< part of the row's energy that its coding may miss
  float window_low =
      0;  ///< ratios of the levels' root mean square to the nominal one that the row may have
  float window_high = 0;
  uint16_t gain = 0;     ///< out, f16
  bool settled = false;  ///< out: coded; otherwise the row needs the search of codec/row_coder.cc
};

using PackCodeKernel = void (*)(PackCodeArgs& args);

/// Sums over a row and its codes, in standard deviations.
struct PackSums {
  float cross = 0;   ///< sum y * level
  float levels = 0;  ///< sum level^2
  float coarse_row =
      0;  ///< these three over runs of at most 4 bits, over all if there are none: sum y^2
  float coarse_cross = 0;
  float coarse_levels = 0;
};

/// Codes the row at a given gain > 0, whatever comes of it: one step of the search.
using PackTryKernel = PackSums (*)(const PackCodeArgs& args, float gain);

struct PackStoreArgs {
  Side side = Side::kKey;
  int bits = 8;
  int n_channels = 0;              ///< without padding
  const uint8_t* codes = nullptr;  ///< [n_channels], as CodeRow gives them
  int token = 0;
  uint8_t* segment = nullptr;
};

using PackStoreKernel = void (*)(const PackStoreArgs& args);

struct PackLoadArgs {
  Side side = Side::kKey;
  int n_channels = 0;
  const uint8_t* lines = nullptr;  ///< unpacked: level + 128 for keys, level for values
  int token = 0;
  const float* scale = nullptr;  ///< [n_channels], null: all 1
  float gain = 0;
  float* out = nullptr;  ///< [n_channels] level * (gain * scale)
};

using PackLoadKernel = void (*)(const PackLoadArgs& args);

void PackCodeReference(PackCodeArgs& args);
PackSums PackTryReference(const PackCodeArgs& args, float gain);
void PackStoreReference(const PackStoreArgs& args);
void PackLoadReference(const PackLoadArgs& args);
void PackCodeAvx2(PackCodeArgs& args);
PackSums PackTryAvx2(const PackCodeArgs& args, float gain);
void PackStoreAvx2(const PackStoreArgs& args);
void PackLoadAvx2(const PackLoadArgs& args);
void PackCodeAvx512(PackCodeArgs& args);
PackSums PackTryAvx512(const PackCodeArgs& args, float gain);
void PackStoreAvx512(const PackStoreArgs& args);
void PackLoadAvx512(const PackLoadArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_PACK_PACK_H_
