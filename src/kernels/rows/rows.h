// rows: operations on plain f32 rows, for queries on their way into integers and for cells kept as
// exact rows. Included by the kernel files of this family, cache/attend and codec.
#ifndef VARVE_KERNELS_ROWS_ROWS_H_
#define VARVE_KERNELS_ROWS_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace varve {

/// Every operation works on any n >= 0 and any alignment.
struct RowKernels {
  /// out[i] = f32(in[i])
  void (*from_f16)(const uint16_t* in, float* out, int n);

  /// x -> factor * R x in place, as Rotate() of codec/rotation.h to the bit if factor is 1. n:
  /// head_dim, size: HadamardSize(head_dim).
  void (*rotate)(float* x, int n, int size, float factor);

  /// out[i] = x[channel[i]] * scale[i] * factor, 0 where channel[i] < 0.
  void (*gather)(const float* x, const int16_t* channel, const float* scale, float factor,
                 float* out, int n);

  /// max |x[i]|; a NaN counts as 0.
  float (*peak)(const float* x, int n);

  /// out[i] = x[i] * inverse, rounded to the nearest integer, ties to even; |x * inverse| < 32768.
  void (*to_integers)(const float* x, float inverse, int16_t* out, int n);

  /// out[t] = sum_i q[i] * k[t][i] for t < n_tokens; k rows are `stride` floats apart.
  void (*dot)(const float* q, const float* k, ptrdiff_t stride, int n_tokens, int n, float* out);

  /// out[i] += factor * sum_t weight[t] * v[t][i] over the tokens with weight other than 0.
  void (*add_weighted)(const float* weight, const float* v, ptrdiff_t stride, int n_tokens, int n,
                       float factor, float* out);
};

extern const RowKernels kRowsReference;
extern const RowKernels kRowsAvx2;
extern const RowKernels kRowsAvx512;

}  // namespace varve

#endif  // VARVE_KERNELS_ROWS_ROWS_H_
