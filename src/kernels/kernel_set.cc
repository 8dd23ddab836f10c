#include "kernels/kernel_set.h"

namespace varve {
namespace {

constinit const KernelSet kScalarSet = {
    Isa::kScalar,       QkPackReference,    QkReference,       SoftmaxReference,
    PvReference,        UnpackReference,    PackCodeReference, PackTryReference,
    PackStoreReference, PackLinesReference, PackLoadReference, PackAppendReference,
    &kRowsReference,    RecodeReference,    &kTileReference,   8};
constinit const KernelSet kAvx2Set = {Isa::kAvx2,    QkPackAvx2,    QkAvx2,       SoftmaxAvx2,
                                      PvAvx2,        UnpackAvx2,    PackCodeAvx2, PackTryAvx2,
                                      PackStoreAvx2, PackLinesAvx2, PackLoadAvx2, PackAppendAvx2,
                                      &kRowsAvx2,    RecodeAvx2,    &kTileAvx2,   5};
constinit const KernelSet kAvx512Set = {
    Isa::kAvx512,    QkPackAvx512,    QkAvx512,       SoftmaxAvx512,
    PvAvx512,        UnpackAvx512,    PackCodeAvx512, PackTryAvx512,
    PackStoreAvx512, PackLinesAvx512, PackLoadAvx512, PackAppendAvx512,
    &kRowsAvx512,    RecodeAvx512,    &kTileAvx512,   15};

}  // namespace

const KernelSet& KernelsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return kAvx512Set;
    case Isa::kAvx2:
      return kAvx2Set;
    default:
      return kScalarSet;
  }
}

const KernelSet& ActiveKernels() {
  static const KernelSet& active = KernelsOf(ActiveIsa());
  return active;
}

}  // namespace varve
