#include "settings.h"

#include <cstdlib>

#include "log.h"

namespace varve::plugin {
namespace {

constexpr int kTypicalTokens = 32768;
constexpr int kTypicalBatch = 32;
constexpr int kTypicalKvHeads = 8;
constexpr int kTypicalHeadDim = 128;

const char* NonEmptyEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void Destroy(const varve_config* config) {
  varve_config_destroy(const_cast<varve_config*>(config));
}

bool Refused(const char* variable, const char* value, varve_status status) {
  if (status == VARVE_OK) return false;
  Say("%s=%s is refused, the host keeps its own cache: %s", variable, value, varve_last_error());
  return true;
}

}  // namespace

bool Settings::ReadEnvironment() {
  varve_config* config = nullptr;
  if (varve_config_create(&config) != VARVE_OK) {
    Say("cannot make default settings, the host keeps its own cache: %s", varve_last_error());
    return false;
  }
  config_ = ConfigPtr(config, Destroy);
  if (const char* preset = NonEmptyEnvironment("VARVE_PRESET")) {
    if (Refused("VARVE_PRESET", preset, varve_config_preset(config, preset))) return false;
  }
  if (const char* method = NonEmptyEnvironment("VARVE_METHOD")) {
    if (Refused("VARVE_METHOD", method, varve_config_set(config, "method", method))) return false;
  }
  const char* list = NonEmptyEnvironment("VARVE_SET");
  if (list != nullptr && Refused("VARVE_SET", list, varve_config_set_list(config, list)))
    return false;
  return !Refused("VARVE_SET", list != nullptr ? list : "(unset)", varve_config_check(config));
}

bool Settings::Replace(const char* method, const char* list, std::string* error) {
  varve_config* config = nullptr;
  varve_status status = varve_config_create(&config);
  const ConfigPtr made(config, Destroy);
  if (status == VARVE_OK) status = varve_config_set(config, "method", method);
  if (status == VARVE_OK) status = varve_config_set_list(config, list);
  if (status == VARVE_OK) status = varve_config_check(config);
  if (status != VARVE_OK) {
    *error = varve_last_error();
    return false;
  }
  const std::lock_guard lock(mutex_);
  config_ = made;
  return true;
}

ConfigPtr Settings::config() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

std::string ConfigText(const varve_config* config, const char* key) {
  size_t needed = 0;
  if (varve_config_get(config, key, nullptr, 0, &needed) != VARVE_OK && needed == 0) return {};
  std::string text(needed, '\0');
  if (varve_config_get(config, key, text.data(), text.size(), &needed) != VARVE_OK) return {};
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  return text;
}

double Settings::F16Ratio() const {
  varve_cells_params params = {};
  params.struct_size = sizeof(params);
  params.n_cells = kTypicalTokens;
  params.n_streams = 1;
  params.n_kv_heads = kTypicalKvHeads;
  params.head_dim_k = kTypicalHeadDim;
  params.head_dim_v = kTypicalHeadDim;
  params.n_layers = 1;
  params.rope_kind = VARVE_ROPE_NEOX;
  params.n_rope_dims = kTypicalHeadDim;
  varve_cells_workload work = {};
  work.struct_size = sizeof(work);
  work.n_tokens = kTypicalTokens;
  work.n_batch = kTypicalBatch;
  uint64_t packed_bytes = 0;
  if (varve_cells_estimate(config().get(), &params, &work, &packed_bytes) != VARVE_OK ||
      packed_bytes == 0) {
    return 1.0;
  }
  const double f16_bytes = 2.0 * 2.0 * kTypicalTokens * kTypicalKvHeads * kTypicalHeadDim;
  return f16_bytes / static_cast<double>(packed_bytes);
}

Settings& GlobalSettings() {
  static Settings* settings =
      new Settings;  // never destroyed: buffers may outlive static destructors
  return *settings;
}

}  // namespace varve::plugin
