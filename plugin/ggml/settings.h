// Settings of the plugin, read once from VARVE_PRESET, VARVE_METHOD and VARVE_SET (in this order).
#ifndef VARVE_PLUGIN_GGML_SETTINGS_H_
#define VARVE_PLUGIN_GGML_SETTINGS_H_

#include <memory>
#include <mutex>
#include <string>

#include "varve/varve.h"

namespace varve::plugin {

/// Settings that a cache keeps for its life, whatever later ones get.
using ConfigPtr = std::shared_ptr<const varve_config>;

/// A field of a configuration as text, "" if there is no such field.
std::string ConfigText(const varve_config* config, const char* key);

class Settings {
 public:
  /// Reads the environment. On failure says why in one line and returns false.
  bool ReadEnvironment();

  /// Method and "key=value,..." of the caches made from now on. On failure says why and changes
  /// nothing.
  bool Replace(const char* method, const char* list, std::string* error);

  ConfigPtr config() const;
  std::string Get(const char* key) const { return ConfigText(config().get(), key); }

  /// Bytes that f16 would take over bytes that the method takes, at a long context of a common
  /// shape.
  double F16Ratio() const;

 private:
  mutable std::mutex mutex_;
  ConfigPtr config_;
};

/// The process's settings; lives until the process ends.
Settings& GlobalSettings();

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_SETTINGS_H_
