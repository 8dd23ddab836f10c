// How a user names a cache: "q8_0", "q8_0/q4_0", "age_tiered", "safe",
// "age_tiered:age_bits_old=3+sink_tokens=0".
#ifndef VARVE_CLI_SUPPORT_METHODS_H_
#define VARVE_CLI_SUPPORT_METHODS_H_

#include <ggml.h>
#include <varve/varve.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace varve::cli {

struct ConfigDeleter {
  void operator()(varve_config* config) const { varve_config_destroy(config); }
};
using ConfigPtr = std::unique_ptr<varve_config, ConfigDeleter>;

/// A cache to run: one of llama.cpp's own types, or a method of varve with settings.
struct CacheSpec {
  std::string label;  ///< as the user wrote it
  bool stock = false;
  ggml_type type_k = GGML_TYPE_F16;  ///< of a stock cache
  ggml_type type_v = GGML_TYPE_F16;
  std::string method;    ///< of varve
  std::string settings;  ///< "key=value,..." that turns the method's defaults into this cache
  ConfigPtr config;      ///< checked; null for stock
};

/// Method names of the library, in its order.
std::vector<std::string> MethodNames();

/// The library's presets, best quality first.
const std::vector<std::string>& PresetNames();

std::vector<varve_field_info> AllFields();

/// True if the field belongs to the method ("all" counts, "none" does not).
bool FieldBelongsTo(const varve_field_info& field, std::string_view method);

std::string ConfigValue(const varve_config* config, const std::string& key);

/// "key=value,..." of the fields that the config's method uses and that are not at their default.
std::string ConfigDifferences(const varve_config* config);

/// Parses one cache; `sets` are further key=value assignments for caches of varve. Fails (usage) on
/// unknown names, listing the valid ones, on bad values, and on a field that the method does not
/// use.
CacheSpec ParseCache(const std::string& text, const std::vector<std::string>& sets);

/// The same cache of varve with further key=value settings, which have to be valid.
CacheSpec WithSettings(const CacheSpec& cache, const std::vector<std::string>& sets);

/// Parses a comma list. A `set` has to be of use to at least one cache in it; the others go
/// without.
std::vector<CacheSpec> ParseCaches(const std::string& list, const std::vector<std::string>& sets);

}  // namespace varve::cli

#endif  // VARVE_CLI_SUPPORT_METHODS_H_
