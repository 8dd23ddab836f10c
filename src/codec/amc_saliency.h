// How much a token matters to AMC (spec section 5), from its key alone or with a query.
#ifndef VARVE_CODEC_AMC_SALIENCY_H_
#define VARVE_CODEC_AMC_SALIENCY_H_

namespace varve {

/// mean over channels of |k|, capped at 1 if `clamp`. key [dim].
float MagnitudeSaliency(const float* key, int dim, bool clamp);

/// alpha * magnitude + (1 - alpha) * (cos(k, q) + 1) / 2, each part in 0..1, the magnitude without
/// its cap unless `clamp`; cos = k.q / max(|k| |q|, 1e-8). key, query [dim].
float QueryAwareSaliency(const float* key, const float* query, int dim, double alpha, bool clamp);

/// mean over n rows: keys [n][dim] -> mean [dim].
void MeanKey(const float* keys, int n, int dim, float* mean);

}  // namespace varve

#endif  // VARVE_CODEC_AMC_SALIENCY_H_
