#include "cache/sequence_methods.h"

namespace varve {

Result<std::unique_ptr<SequenceCache>> MakeSequenceCache(const Settings& settings, int layer,
                                                         int n_layers) {
  VARVE_RETURN_IF_ERROR(CheckSettings(settings));
  Result<Settings> resolved = SettingsForLayer(settings, layer, n_layers);
  if (!resolved.ok()) return resolved.status();
  const Settings& own = resolved.value();
  switch (own.method) {
    case Method::kFp16:
      return MakeFp16Cache(own);
    case Method::kUniform:
      return MakeUniformCache(own);
    case Method::kKivi:
      return MakeKiviCache(own);
    case Method::kAgeTiered:
      return MakeAgeTieredCache(own);
    case Method::kAmc:
      break;
  }
  return MakeAmcCache(own, layer);
}

}  // namespace varve
