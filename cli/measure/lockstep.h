// Teacher-forced evaluation: every cache decodes the same tokens in the same small steps beside an
// f16 reference, so that each distribution is compared at once and none has to be kept. Steps
// matter: in one long batch all tokens would see each other at the age they have at its end, which
// no decoding host does.
#ifndef VARVE_CLI_MEASURE_LOCKSTEP_H_
#define VARVE_CLI_MEASURE_LOCKSTEP_H_

#include <functional>
#include <span>
#include <vector>

#include "llm/cache_context.h"
#include "llm/model.h"
#include "llm/plugin.h"
#include "support/methods.h"

namespace varve::cli {

/// Scores of one cache over a chunk of n tokens; entry i is about the prediction of token i+1, i in
/// [0, n-1).
struct ChunkScores {
  std::vector<double> kld;
  std::vector<double> nll;
  std::vector<double> same_top;      ///< 1 or 0
  double seconds = 0;                ///< decoding all steps
  std::vector<LayerFigures> layers;  ///< at the end of the chunk; empty for stock caches
};

struct LockstepOptions {
  int n_ctx = 0;
  int step = 32;  ///< tokens decoded at a time
  int n_threads = 0;
};

/// Runs one chunk (tokens of one sequence, from position 0) through all caches. The first is the
/// reference and has to be a stock one. `on_step` gets the tokens done and may throw to stop.
/// Result [caches].
std::vector<ChunkScores> RunChunk(llama_model* model, const std::vector<CacheSpec>& caches,
                                  Plugin* plugin, std::span<const llama_token> tokens,
                                  const LockstepOptions& options,
                                  const std::function<void(int)>& on_step);

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_LOCKSTEP_H_
