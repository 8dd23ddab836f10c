// Tiles on AVX-512: a channel of a tile is one register.
#include "kernels/lanes_avx512.h"
#include "kernels/tile/tile.h"
#include "kernels/tile/tile_body.h"

namespace varve {

constinit const TileKernels kTileAvx512 = {Load, RotateTile, Code};

}  // namespace varve
