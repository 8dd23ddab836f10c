// tile: pack for 16 tokens at a time, tokens in lanes: what demotion runs on. A tile is f32
// [channels][16], so that a rotation needs no shuffle, a permutation of channels is an address, and
// sums over a row are sums of registers. Every operation gives the bits of the row kernels
// (kernels/pack, kernels/rows).
//
// Included by the kernel files of this family and by codec.
#ifndef VARVE_KERNELS_TILE_TILE_H_
#define VARVE_KERNELS_TILE_TILE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/pack/pack.h"
#include "layout/scheme.h"

namespace varve {

inline constexpr int kTileTokens = 16;

struct TileLoadArgs {
  Side side = Side::kKey;
  int n_channels = 0;              ///< at most 1,024
  const uint8_t* lines = nullptr;  ///< unpacked: level + 128 for keys, level for values
  int half = 0;                    ///< tokens 16 * half ..
  const float* gain = nullptr;     ///< [16]
  const float* scale = nullptr;    ///< [n_channels], null: all 1
  float* out = nullptr;            ///< [n_channels][16] level * (gain * scale)
};

struct TileCodeArgs {
  /// As for PackCode, but y is a tile and codes are [channels][32], of which the tile's 16 tokens
  /// are written. Its gain and settled are not used.
  PackCodeArgs row;
  uint16_t gain[kTileTokens] = {};  ///< out, f16
  uint32_t settled = 0;             ///< out: a bit a token; the others are for the row coder
};

struct TileStoreArgs {
  Side side = Side::kKey;
  int bits = 8;
  int n_channels = 0;              ///< without padding, whose codes become 0
  const uint8_t* codes = nullptr;  ///< [n_channels][32]
  uint8_t* segment = nullptr;      ///< SegmentBytes(bits, n_channels rounded up to the granule)
};

struct TileKernels {
  void (*load)(const TileLoadArgs& args);

  /// out[i][t] = tile[channel[i]][t] * scale[i], 0 where channel[i] < 0.
  void (*gather)(const float* tile, const int16_t* channel, const float* scale, float* out, int n);

  /// Rotates each token's row as RowKernels::rotate does. tile: [n][16].
  void (*rotate)(float* tile, int n, int size, float factor);

  void (*code)(TileCodeArgs& args);

  /// Writes all 32 tokens of a run.
  void (*store)(const TileStoreArgs& args);
};

extern const TileKernels kTileReference;
extern const TileKernels kTileAvx2;
extern const TileKernels kTileAvx512;

}  // namespace varve

#endif  // VARVE_KERNELS_TILE_TILE_H_
