// The one list of kernels: dispatch, tests and benches all read it.
#ifndef VARVE_KERNELS_KERNEL_SET_H_
#define VARVE_KERNELS_KERNEL_SET_H_

#include "base/cpu_isa.h"
#include "kernels/pack/pack.h"
#include "kernels/pv/pv.h"
#include "kernels/qk/qk.h"
#include "kernels/recode/recode.h"
#include "kernels/rows/rows.h"
#include "kernels/softmax/softmax.h"
#include "kernels/tile/tile.h"
#include "kernels/unpack/unpack.h"

namespace varve {

/// Kernels of one level. Operands that one family makes for another (packed queries, weights) keep
/// to one set.
struct KernelSet {
  Isa isa = Isa::kScalar;
  QkPackKernel qk_pack = nullptr;
  QkKernel qk = nullptr;
  SoftmaxKernel softmax = nullptr;
  PvKernel pv = nullptr;
  UnpackKernel unpack = nullptr;
  PackCodeKernel pack_code = nullptr;
  PackTryKernel pack_try = nullptr;
  PackStoreKernel pack_store = nullptr;
  PackLinesKernel pack_lines = nullptr;
  PackLoadKernel pack_load = nullptr;
  PackAppendKernel pack_append = nullptr;
  const RowKernels* rows = nullptr;
  RecodeKernel recode = nullptr;
  const TileKernels* tile = nullptr;
  /// From this many queries of a KV head on, unpacking a block once for all of them costs less than
  /// that qk and pv decode it batch by batch.
  int unpack_from = 0;
};

/// The kernels of a level; the caller makes sure that the CPU has it.
const KernelSet& KernelsOf(Isa isa);

/// KernelsOf(ActiveIsa()).
const KernelSet& ActiveKernels();

}  // namespace varve

#endif  // VARVE_KERNELS_KERNEL_SET_H_
