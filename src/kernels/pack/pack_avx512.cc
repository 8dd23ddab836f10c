// pack on AVX-512: the common bodies in this level's lanes.
#include "kernels/lanes_avx512.h"
#include "kernels/pack/append_body.h"
#include "kernels/pack/lines_body.h"
#include "kernels/pack/pack.h"
#include "kernels/pack/pack_body.h"

namespace varve {

void PackCodeAvx512(PackCodeArgs& args) { PackCode(args); }
PackSums PackTryAvx512(const PackCodeArgs& args, float gain, bool store) {
  return store ? CodeAll<true>(args, 1.0f / gain, false) : CodeAll<false>(args, 1.0f / gain, false);
}
void PackStoreAvx512(const PackStoreArgs& args) { PackStore(args); }
void PackLinesAvx512(const PackLinesArgs& args) { PackLines(args); }
void PackLoadAvx512(const PackLoadArgs& args) { PackLoad(args); }
bool PackAppendAvx512(const PackAppendArgs& args) { return PackAppend(args); }

}  // namespace varve
