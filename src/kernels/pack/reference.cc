// Portable pack: the common body without vector instructions beyond the baseline.
#include "kernels/pack/pack.h"
#include "kernels/pack/pack_body.h"

namespace varve {

void PackCodeReference(PackCodeArgs& args) { PackCode(args); }
PackSums PackTryReference(const PackCodeArgs& args, float gain) {
  return CodeAll<true, true>(args, 1.0f / gain);
}
void PackStoreReference(const PackStoreArgs& args) { PackStore(args); }
void PackLoadReference(const PackLoadArgs& args) { PackLoad(args); }

}  // namespace varve
