// Tiles on AVX2: a channel of a tile is two registers.
#include "kernels/lanes_avx2.h"
#include "kernels/tile/tile.h"
#include "kernels/tile/tile_body.h"

namespace varve {

constinit const TileKernels kTileAvx2 = {Load, RotateTile, Code};

}  // namespace varve
