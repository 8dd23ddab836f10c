// Which width the keys of each layer end at. key_error_limit keeps the keys of a layer from widths
// that its key table predicts to be too coarse, so this is known only once the model has run.
#ifndef VARVE_CLI_MEASURE_KEY_BITS_H_
#define VARVE_CLI_MEASURE_KEY_BITS_H_

#include <llama.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "llm/cache_context.h"
#include "llm/plugin.h"
#include "support/methods.h"

namespace varve::cli {

/// Bits by layer, as varve_cells_stats.last_key_bits.
using KeyBits = std::map<int, int>;

/// Those that the figures of a run tell.
KeyBits KeyBitsOf(const std::vector<LayerFigures>& layers);

/// Tokens that MeasureKeyBits runs: enough for the first block to be demoted, which fits the
/// tables.
inline constexpr int kKeyBitsTokens = 256;

/// Runs the start of a text ("": a passage of English), with an age_recent_boundary of at most 128.
/// `on_step` gets the tokens done and may throw to stop.
KeyBits MeasureKeyBits(llama_model* model, const CacheSpec& cache, Plugin& plugin,
                       const std::string& text, int n_threads,
                       const std::function<void(int)>& on_step);

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_KEY_BITS_H_
