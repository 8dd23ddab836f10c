// pack: codes one token's row of one head and writes it into a block, and reads tokens back.
//
//   code    y ~ gain * level, one gain a row (codec/row_coder.h has the rule and its promise)
//   store   codes of one run -> their places in a packed segment (layout/code_lines.h)
//   lines   codes of a whole block, one a byte -> packed segment
//   load    one token's levels from unpacked product lines (kernels/unpack)
//   append  all of a token's rows into the recent tier: rotate, code at 8 bits and store in one
//   pass
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
  float cross = 0;         ///< sum y * level
  float levels = 0;        ///< sum level^2
  float coarse_cross = 0;  ///< these two over runs of at most 4 bits
  float coarse_levels = 0;
};

/// Codes the row at a given gain > 0, whatever comes of it: one step of the search. Leaves the
/// codes if `store`.
using PackTryKernel = PackSums (*)(const PackCodeArgs& args, float gain, bool store);

struct PackStoreArgs {
  Side side = Side::kKey;
  int bits = 8;
  int n_channels = 0;              ///< without padding
  const uint8_t* codes = nullptr;  ///< [n_channels], as CodeRow gives them
  int token = 0;
  uint8_t* segment = nullptr;
};

using PackStoreKernel = void (*)(const PackStoreArgs& args);

struct PackLinesArgs {
  int bits = 4;                    ///< 2, 3, 4, 6 or 8
  int n_lines = 0;                 ///< product lines; the rest of the last group becomes 0
  const uint8_t* lines = nullptr;  ///< [n_lines][64], one code a byte
  uint8_t* segment = nullptr;
};

/// Packs product lines of codes: the inverse of kernels/unpack, but for levels.
using PackLinesKernel = void (*)(const PackLinesArgs& args);

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

struct PackAppendArgs {
  Side side = Side::kKey;
  int head_dim = 0;  ///< at most 1,024
  int n_heads = 0;
  float unit = 0;               ///< levels in a standard deviation at 8 bits
  const float* rows = nullptr;  ///< [n_heads][head_dim]
  int token = 0;
  uint8_t* block = nullptr;  ///< [n_heads] payloads of one 8-bit segment, then the gains
  size_t head_bytes = 0;
  size_t gain_offset = 0;
};

/// Rotates, codes and stores a token's rows of all heads at 8 bits, all in one. False, and nothing
/// done, for a head_dim that the level has no kernel for; the reference takes any.
using PackAppendKernel = bool (*)(const PackAppendArgs& args);

void PackCodeReference(PackCodeArgs& args);
PackSums PackTryReference(const PackCodeArgs& args, float gain, bool store);
void PackStoreReference(const PackStoreArgs& args);
void PackLinesReference(const PackLinesArgs& args);
void PackLoadReference(const PackLoadArgs& args);
bool PackAppendReference(const PackAppendArgs& args);
void PackCodeAvx2(PackCodeArgs& args);
PackSums PackTryAvx2(const PackCodeArgs& args, float gain, bool store);
void PackStoreAvx2(const PackStoreArgs& args);
void PackLinesAvx2(const PackLinesArgs& args);
void PackLoadAvx2(const PackLoadArgs& args);
bool PackAppendAvx2(const PackAppendArgs& args);
void PackCodeAvx512(PackCodeArgs& args);
PackSums PackTryAvx512(const PackCodeArgs& args, float gain, bool store);
void PackStoreAvx512(const PackStoreArgs& args);
void PackLinesAvx512(const PackLinesArgs& args);
void PackLoadAvx512(const PackLoadArgs& args);
bool PackAppendAvx512(const PackAppendArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_PACK_PACK_H_
