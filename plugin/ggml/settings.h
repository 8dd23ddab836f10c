// Settings of the plugin, read once from VARVE_PRESET, VARVE_METHOD and VARVE_SET (in this order).
#ifndef VARVE_PLUGIN_GGML_SETTINGS_H_
#define VARVE_PLUGIN_GGML_SETTINGS_H_

#include <memory>
#include <string>

#include "varve/varve.h"

namespace varve::plugin {

struct ConfigDeleter {
  void operator()(varve_config* config) const { varve_config_destroy(config); }
};

class Settings {
 public:
  /// Reads the environment. On failure says why in one line and returns false.
  bool ReadEnvironment();

  const varve_config* config() const { return config_.get(); }
  std::string Get(const char* key) const;  ///< value as text, "" if there is no such field

  /// Bytes that f16 would take over bytes that the method takes, at a long context of a common
  /// shape.
  double F16Ratio() const;

 private:
  std::unique_ptr<varve_config, ConfigDeleter> config_;
};

/// The process's settings; lives until the process ends.
Settings& GlobalSettings();

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_SETTINGS_H_
