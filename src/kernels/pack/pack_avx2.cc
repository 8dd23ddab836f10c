// pack on AVX2: the common bodies in this level's lanes.
#include "kernels/lanes_avx2.h"
#include "kernels/pack/append_body.h"
#include "kernels/pack/lines_body.h"
#include "kernels/pack/pack.h"
#include "kernels/pack/pack_body.h"

namespace varve {

void PackCodeAvx2(PackCodeArgs& args) { PackCode(args); }
PackSums PackTryAvx2(const PackCodeArgs& args, float gain, bool store) {
  return store ? CodeAll<true>(args, 1.0f / gain, false) : CodeAll<false>(args, 1.0f / gain, false);
}
void PackStoreAvx2(const PackStoreArgs& args) { PackStore(args); }
void PackLinesAvx2(const PackLinesArgs& args) { PackLines(args); }
void PackLoadAvx2(const PackLoadArgs& args) { PackLoad(args); }
bool PackAppendAvx2(const PackAppendArgs& args) { return PackAppend(args); }

}  // namespace varve
