// The methods of a sequence cache, one maker each. `settings` are those of one layer and have
// passed CheckSettings.
#ifndef VARVE_CACHE_SEQUENCE_METHODS_H_
#define VARVE_CACHE_SEQUENCE_METHODS_H_

#include <memory>

#include "cache/sequence_cache.h"

namespace varve {

/// Exact rows as they came (f32 as f16).
std::unique_ptr<SequenceCache> MakeFp16Cache(const Settings& settings);

/// One width for all tokens.
std::unique_ptr<SequenceCache> MakeUniformCache(const Settings& settings);

/// Keys a channel, values a token, a residual of exact tokens (spec section 7).
std::unique_ptr<SequenceCache> MakeKiviCache(const Settings& settings);

/// Three widths by age (spec section 4).
std::unique_ptr<SequenceCache> MakeAgeTieredCache(const Settings& settings);

/// Rank and width by saliency (spec section 5). Reads the channel order file when one is set.
Result<std::unique_ptr<SequenceCache>> MakeAmcCache(const Settings& settings, int layer);

}  // namespace varve

#endif  // VARVE_CACHE_SEQUENCE_METHODS_H_
