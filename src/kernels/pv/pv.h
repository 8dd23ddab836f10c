// pv: adds one block's weighted values to up to seven outputs a KV head, straight from the codes.
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

inline constexpr int kMaxPvQueries = 7;

/// One block and some KV heads, each with equally many queries.
struct PvArgs {
  int bits = 8;       ///< 2, 3, 4 or 8
  int n_vectors = 0;  ///< 16 channels each
  int n_heads = 1;
  const uint8_t* codes = nullptr;  ///< of the first head
  size_t head_stride = 0;          ///< bytes from one head's codes to the next's
  int n = 0;                       ///< queries of a head, 1..7
  const void* weights = nullptr;   ///< [n_heads][n] 64 bytes each, of the same ISA's softmax
  const float* factors = nullptr;  ///< [n_heads][n]; a head of zeros is passed over
  float* out = nullptr;            ///< [n_heads][n][16 * n_vectors], 64-byte aligned
  ptrdiff_t out_stride = 0;        ///< floats from one query's to the next's, a multiple of 16
  const uint8_t* next = nullptr;   ///< what is read after this: whole lines, fetched on the way
  size_t next_stride = 0;          ///< bytes from one head's to the next's; 0: nothing to fetch
};

using PvKernel = void (*)(const PvArgs& args);

void PvReference(const PvArgs& args);
void PvAvx2(const PvArgs& args);
void PvAvx512(const PvArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_PV_PV_H_
