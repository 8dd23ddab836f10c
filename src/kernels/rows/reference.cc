// Portable row operations.
#include <cmath>

#include "base/f16.h"
#include "kernels/rows/rows.h"

namespace varve {
namespace {

void FromF16(const uint16_t* in, float* out, int n) {
  for (int i = 0; i < n; ++i) out[i] = F16ToF32(in[i]);
}

void RotateRow(float* x, int n, int size, float factor) {
  for (int half = 1; half < size; half *= 2) {
    for (int first = 0; first < n; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(size)) * factor;
  for (int i = 0; i < n; ++i) x[i] *= norm;
}

void Gather(const float* x, const int16_t* channel, const float* scale, float factor, float* out,
            int n) {
  for (int i = 0; i < n; ++i) out[i] = channel[i] < 0 ? 0.0f : x[channel[i]] * scale[i] * factor;
}

float Peak(const float* x, int n) {
  float peak = 0;
  for (int i = 0; i < n; ++i) peak = std::fmax(peak, std::fabs(x[i]));
  return peak;
}

void ToIntegers(const float* x, float inverse, int16_t* out, int n) {
  for (int i = 0; i < n; ++i) {
    const float scaled = x[i] * inverse;
    out[i] = std::isfinite(scaled) ? static_cast<int16_t>(std::nearbyint(scaled))
                                   : static_cast<int16_t>(0);
  }
}

void Dot(const float* q, const float* k, ptrdiff_t stride, int n_tokens, int n, float* out) {
  for (int t = 0; t < n_tokens; ++t) {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += q[i] * k[t * stride + i];
    out[t] = sum;
  }
}

void AddWeighted(const float* weight, const float* v, ptrdiff_t stride, int n_tokens, int n,
                 float factor, float* out) {
  for (int t = 0; t < n_tokens; ++t) {
    if (weight[t] == 0) continue;
    const float w = weight[t] * factor;
    for (int i = 0; i < n; ++i) out[i] += w * v[t * stride + i];
  }
}

}  // namespace

constinit const RowKernels kRowsReference = {FromF16,    RotateRow, Gather,     Peak,
                                             ToIntegers, Dot,       AddWeighted};

}  // namespace varve
