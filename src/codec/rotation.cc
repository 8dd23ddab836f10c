#include "codec/rotation.h"

#include <cmath>

namespace varve {

void Rotate(float* x, int head_dim) {
  const int size = HadamardSize(head_dim);
  for (int half = 1; half < size; half *= 2) {
    for (int first = 0; first < head_dim; first += 2 * half) {
      for (int i = first; i < first + half; ++i) {
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(size));
  for (int i = 0; i < head_dim; ++i) x[i] *= norm;
}

}  // namespace varve
