// Portable tiles: the row kernels, a token at a time.
#include <cstring>

#include "kernels/rows/rows.h"
#include "kernels/tile/tile.h"
#include "layout/code_lines.h"

namespace varve {
namespace {

constexpr int kMaxRow = 1280;

void Load(const TileLoadArgs& args) {
  float row[kMaxRow];
  for (int t = 0; t < kTileTokens; ++t) {
    PackLoadReference({args.side, args.n_channels, args.lines, kTileTokens * args.half + t,
                       args.scale, args.gain[t], row});
    for (int i = 0; i < args.n_channels; ++i) args.out[i * kTileTokens + t] = row[i];
  }
}

void Gather(const float* tile, const int16_t* channel, const float* scale, float* out, int n) {
  for (int i = 0; i < n; ++i) {
    for (int t = 0; t < kTileTokens; ++t) {
      out[i * kTileTokens + t] =
          channel[i] < 0 ? 0.0f : tile[channel[i] * kTileTokens + t] * scale[i];
    }
  }
}

void RotateTile(float* tile, int n, int size, float factor) {
  float row[kMaxRow];
  for (int t = 0; t < kTileTokens; ++t) {
    for (int i = 0; i < n; ++i) row[i] = tile[i * kTileTokens + t];
    kRowsReference.rotate(row, n, size, factor);
    for (int i = 0; i < n; ++i) tile[i * kTileTokens + t] = row[i];
  }
}

void Code(TileCodeArgs& args) {
  float y[kMaxRow] = {};
  uint8_t codes[kMaxRow];
  args.settled = 0;
  for (int t = 0; t < kTileTokens; ++t) {
    PackCodeArgs row = args.row;
    row.y = y;
    row.codes = codes;
    for (int r = 0; r < row.n_runs; ++r) {
      for (int i = row.run[r].first_channel; i < row.run[r].first_channel + row.run[r].n_channels;
           ++i) {
        y[i] = args.row.y[i * kTileTokens + t];
      }
    }
    PackCodeReference(row);
    if (!row.settled) continue;
    args.settled |= 1u << t;
    args.gain[t] = row.gain;
    for (int r = 0; r < row.n_runs; ++r) {
      for (int i = row.run[r].first_channel; i < row.run[r].first_channel + row.run[r].n_channels;
           ++i) {
        args.row.codes[i * kBlockTokens + t] = codes[i];
      }
    }
  }
}

void Store(const TileStoreArgs& args) {
  const int granule = Granule(args.side, args.bits);
  const int padded = (args.n_channels + granule - 1) / granule * granule;
  std::memset(args.segment, 0, SegmentBytes(args.bits, padded));
  const unsigned flip = args.bits == 8 && args.side == Side::kValue ? 0x80u : 0u;
  for (int i = 0; i < args.n_channels; ++i) {
    for (int t = 0; t < kBlockTokens; ++t) {
      PutCode(args.segment, args.bits, PositionOf(args.side, i, t),
              args.codes[i * kBlockTokens + t] ^ flip);
    }
  }
}

}  // namespace

constinit const TileKernels kTileReference = {Load, Gather, RotateTile, Code, Store};

}  // namespace varve
