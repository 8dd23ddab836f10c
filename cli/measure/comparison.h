// The comparison of several caches on a text: pieces of work, kept in a checkpoint, and the figures
// made of them.
#ifndef VARVE_CLI_MEASURE_COMPARISON_H_
#define VARVE_CLI_MEASURE_COMPARISON_H_

#include <string>
#include <vector>

#include "llm/model_shape.h"
#include "measure/checkpoint.h"
#include "measure/lockstep.h"
#include "measure/reconstruction.h"
#include "measure/speed.h"

namespace varve::cli {

struct ComparisonPlan {
  std::string model_path;
  std::string text_path;
  int n_ctx = 0;
  int n_chunks = 0;
  int step = 32;
  int score_from = 0;  ///< first position that counts in the sums; all count in the curves
  int n_error_layers = 0;
  int n_decode = 0;  ///< 0: no speed measurement
  int speed_runs = 1;
  int n_threads = 0;
  std::vector<CacheSpec> caches;  ///< the first is the f16 reference
};

/// Everything measured about one cache.
struct CacheFigures {
  std::vector<ChunkScores> chunks;
  std::vector<ReconstructionError> errors;  ///< a layer each
  Speed speed;
};

/// Runs what the checkpoint does not have yet. Result [caches].
std::vector<CacheFigures> RunComparison(const ComparisonPlan& plan, llama_model* model,
                                        const ModelShape& shape, Plugin* plugin,
                                        const std::vector<llama_token>& tokens,
                                        Checkpoint& checkpoint);

/// The result as docs/cli/schema/compare.json describes it.
Json ComparisonJson(const ComparisonPlan& plan, const ModelShape& shape,
                    const std::vector<CacheFigures>& figures);

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_COMPARISON_H_
