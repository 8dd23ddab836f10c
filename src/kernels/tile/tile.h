// tile: a block's tokens in lanes: what demotion to rope_pair runs on. A tile is the block's
// levels, int16 [channels][32], so that a rotation is exact integer sums without a shuffle, a
// permutation of channels is an address, and sums over a row are sums of registers.
//
// Included by the kernel files of this family and by codec.
#ifndef VARVE_KERNELS_TILE_TILE_H_
#define VARVE_KERNELS_TILE_TILE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/pack/pack.h"
#include "layout/code_lines.h"

namespace varve {

/// Widest Walsh-Hadamard transform of 8-bit levels that fits 16 bits.
inline constexpr int kMaxTileRotation = 256;

/// The most channels that a tile may have.
inline constexpr int kMaxTileChannels = 672;

struct TileLoadArgs {
  int n_channels = 0;
  const uint8_t* lines = nullptr;  ///< unpacked product lines of keys: level + 128
  int16_t* tile = nullptr;         ///< out, [n_channels rounded up to 4][32]
};

/// A run of stored channels, in whole quads.
struct TileRun {
  int bits = 0;
  int first_channel = 0;
  int n_channels = 0;  ///< without padding
  float weight = 0;    ///< as PackRun's
};

struct TileCodeArgs {
  const int16_t* tile = nullptr;
  int n_runs = 0;
  TileRun run[kMaxPackRuns];        ///< at least one of at most 4 bits
  const int16_t* source = nullptr;  ///< [channels] channel of the tile
  const float* factor = nullptr;    ///< [channels] y = gain_in * factor * level, in levels
  float gain_in[kBlockTokens];
  uint32_t tokens = ~uint32_t{0};  ///< a bit for each token that is wanted
  float nominal = 0;               ///< as PackCodeArgs'
  float allowed_error = 0;
  float window_low = 0;
  float window_high = 0;
  uint8_t* lines[kMaxPackRuns] = {};  ///< out, each run's product lines of codes, padding 0
  uint16_t gain[kBlockTokens];        ///< out, f16
  uint32_t settled = 0;               ///< out: a bit a token; the others are for the row coder
};

struct TileKernels {
  void (*load)(const TileLoadArgs& args);

  /// Walsh-Hadamard over `size` <= kMaxTileRotation (a power of two) channels at a time, without a
  /// norm, in place. tile: [n][32].
  void (*rotate)(int16_t* tile, int n, int size);

  /// Codes 32 tokens by the rule of kernels/pack/gain_body.h, least squares. A token whose gain_in
  /// is 0 or whose levels are has gain 0, one whose gain_in is not finite gain NaN, both the code
  /// that a row of zeros has.
  void (*code)(TileCodeArgs& args);
};

extern const TileKernels kTileReference;
extern const TileKernels kTileAvx2;
extern const TileKernels kTileAvx512;

}  // namespace varve

#endif  // VARVE_KERNELS_TILE_TILE_H_
