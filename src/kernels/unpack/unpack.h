// unpack: decodes the codes of a segment into product lines of bytes, once for many queries.
//
//   lines[i][b] = level + bias   for byte b of product line i (layout/code_lines.h), bias 128 for
//   keys and 0 for values,
//
// which is what an 8-bit segment holds as it stands. Included by the kernel files of this family,
// cache/attend and codec.
#ifndef VARVE_KERNELS_UNPACK_UNPACK_H_
#define VARVE_KERNELS_UNPACK_UNPACK_H_

#include <cstddef>
#include <cstdint>

#include "layout/scheme.h"

namespace varve {

struct UnpackArgs {
  Side side = Side::kKey;
  int bits = 4;     ///< 2, 3, 4, 6 or 8
  int n_lines = 0;  ///< product lines, a multiple of the group's
  const uint8_t* codes = nullptr;
  uint8_t* lines = nullptr;  ///< [n_lines][64]
};

using UnpackKernel = void (*)(const UnpackArgs& args);

void UnpackReference(const UnpackArgs& args);
void UnpackAvx2(const UnpackArgs& args);
void UnpackAvx512(const UnpackArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_UNPACK_UNPACK_H_
