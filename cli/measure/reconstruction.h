// What a cache makes of keys, values and attention outputs, on the same inputs for every cache.
#ifndef VARVE_CLI_MEASURE_RECONSTRUCTION_H_
#define VARVE_CLI_MEASURE_RECONSTRUCTION_H_

#include "llm/model_shape.h"
#include "measure/capture.h"
#include "support/methods.h"

namespace varve::cli {

/// Relative errors |x^ - x| / |x| (L2 over all tokens, heads and channels) at the end of the
/// captured text.
struct ReconstructionError {
  int layer = 0;
  double k = 0;
  double v = 0;
  double output = 0;  ///< attention outputs of the last step's queries
};

/// The exact attention of a captured layer, in double precision: the reference of
/// ReconstructionError::output.
std::vector<double> ExactOutput(const LayerShape& shape, const CapturedLayer& captured);

/// Feeds the captured rows to a cache of this kind step by step, reads them back and attends with
/// the captured queries. A stock cache is quantised by ggml, with the rotation that llama.cpp
/// applies.
ReconstructionError MeasureReconstruction(const CacheSpec& cache, const ModelShape& model,
                                          const LayerShape& shape, const CapturedLayer& captured,
                                          const std::vector<double>& exact_output, int n_threads);

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_RECONSTRUCTION_H_
