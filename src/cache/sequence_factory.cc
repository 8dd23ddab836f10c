#include "cache/sequence_methods.h"

namespace varve {
namespace {

Result<std::unique_ptr<SequenceCache>> MakeMethod(const Settings& settings, int layer) {
  switch (settings.method) {
    case Method::kFp16:
      return MakeFp16Cache(settings);
    case Method::kUniform:
      return MakeUniformCache(settings);
    case Method::kKivi:
      return MakeKiviCache(settings);
    case Method::kAgeTiered:
      return MakeAgeTieredCache(settings);
    case Method::kAmc:
      break;
  }
  return MakeAmcCache(settings, layer);
}

}  // namespace

Result<std::unique_ptr<SequenceCache>> MakeSequenceCache(const Settings& settings, int layer,
                                                         int n_layers) {
  VARVE_RETURN_IF_ERROR(CheckSettings(settings));
  Result<Settings> resolved = SettingsForLayer(settings, layer, n_layers);
  if (!resolved.ok()) return resolved.status();
  Result<std::unique_ptr<SequenceCache>> made = MakeMethod(resolved.value(), layer);
  if (made.ok()) made.value()->set_layer(layer, n_layers);
  return made;
}

}  // namespace varve
