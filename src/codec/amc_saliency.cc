#include "codec/amc_saliency.h"

#include <algorithm>
#include <cmath>

namespace varve {
namespace {

// A NaN saliency would break the order of the tokens; it ranks lowest.
float Ranked(double x, bool clamp) {
  if (!(x > 0)) return 0.0f;
  return static_cast<float>(clamp ? std::min(x, 1.0) : x);
}

}  // namespace

float MagnitudeSaliency(const float* key, int dim, bool clamp) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += std::fabs(static_cast<double>(key[i]));
  return Ranked(sum / dim, clamp);
}

float QueryAwareSaliency(const float* key, const float* query, int dim, double alpha, bool clamp) {
  double dot = 0;
  double key_square = 0;
  double query_square = 0;
  for (int i = 0; i < dim; ++i) {
    const double k = static_cast<double>(key[i]);
    const double q = static_cast<double>(query[i]);
    dot += k * q;
    key_square += k * k;
    query_square += q * q;
  }
  const double cosine = dot / std::max(std::sqrt(key_square) * std::sqrt(query_square), 1e-8);
  const double angle = std::clamp((cosine + 1.0) / 2.0, 0.0, 1.0);
  const double magnitude = static_cast<double>(MagnitudeSaliency(key, dim, clamp));
  return Ranked(alpha * magnitude + (1.0 - alpha) * angle, clamp);
}

void MeanKey(const float* keys, int n, int dim, float* mean) {
  for (int i = 0; i < dim; ++i) {
    double sum = 0;
    for (int t = 0; t < n; ++t) sum += static_cast<double>(keys[static_cast<long>(t) * dim + i]);
    mean[i] = static_cast<float>(sum / n);
  }
}

}  // namespace varve
