// pack on AVX2: the common body under its flags.
#include "kernels/pack/pack.h"
#include "kernels/pack/pack_body.h"

namespace varve {

void PackCodeAvx2(PackCodeArgs& args) { PackCode(args); }
PackSums PackTryAvx2(const PackCodeArgs& args, float gain) {
  return CodeAll<true, true>(args, 1.0f / gain);
}
void PackStoreAvx2(const PackStoreArgs& args) { PackStore(args); }
void PackLoadAvx2(const PackLoadArgs& args) { PackLoad(args); }

}  // namespace varve
