// pv: adds one block's weighted values to up to four outputs, straight from the codes.
//
//   out[n][c] += factors[n] * sum_t weight[n][t] * level[t][c]
//
// `weight` is what softmax left (gains folded in), the sum an exact integer. Included by the kernel
// files of this family and by cache/attend.
#ifndef VARVE_KERNELS_PV_PV_H_
#define VARVE_KERNELS_PV_PV_H_

#include <cstddef>
#include <cstdint>

namespace varve {

inline constexpr int kMaxPvQueries = 4;

struct PvArgs {
  int bits = 8;       ///< 2, 3, 4 or 8
  int n_vectors = 0;  ///< 16 channels each
  const uint8_t* codes = nullptr;
  int n = 0;                          ///< queries, 1..4
  const void* weights = nullptr;      ///< [n] 64 bytes each, of the same ISA's softmax
  const float* factors = nullptr;     ///< [n]
  float* out = nullptr;               ///< [n][16 * n_vectors], 64-byte aligned
  ptrdiff_t out_stride = 0;           ///< floats from one query's to the next's, a multiple of 16
  const uint8_t* prefetch = nullptr;  ///< lines wanted next, spread over the vectors; null: none
  int n_prefetch_lines = 0;
};

using PvKernel = void (*)(const PvArgs& args);

void PvReference(const PvArgs& args);
void PvAvx2(const PvArgs& args);
void PvAvx512(const PvArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_PV_PV_H_
