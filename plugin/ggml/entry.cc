// What a ggml host finds in the library: ggml_backend_init, ggml_backend_score, and named functions
// of the registration.
#include <algorithm>
#include <cstring>
#include <string>

#include "backend.h"
#include "settings.h"
#include "statistics.h"

#define VARVE_PLUGIN_EXPORT __attribute__((visibility("default")))

namespace varve::plugin {
namespace {

const char* RegistryName(ggml_backend_reg_t) { return "VARVE"; }

size_t DeviceCount(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t GetDevice(ggml_backend_reg_t registry, size_t index) {
  return index == 0 ? VarveDevice(registry) : nullptr;
}

/// size_t varve_stats_json(char* buffer, size_t capacity): figures of all caches as JSON. Returns
/// the bytes that the text takes with its NUL; writes it when they fit.
size_t StatsJson(char* buffer, size_t capacity) {
  const std::string json = StatisticsJson();
  if (buffer != nullptr && json.size() < capacity)
    std::memcpy(buffer, json.c_str(), json.size() + 1);
  return json.size() + 1;
}

/// int varve_configure(const char* method, const char* list, char* error, size_t capacity):
/// settings of the caches made from now on. 0, or -1 with the reason in `error`.
int Configure(const char* method, const char* list, char* error, size_t capacity) {
  std::string reason;
  if (GlobalSettings().Replace(method, list, &reason)) return 0;
  if (error != nullptr && capacity > 0) {
    const size_t n = std::min(reason.size(), capacity - 1);
    std::memcpy(error, reason.data(), n);
    error[n] = '\0';
  }
  return -1;
}

void* GetProcAddress(ggml_backend_reg_t, const char* name) {
  if (std::strcmp(name, "ggml_backend_set_n_threads") == 0)
    return reinterpret_cast<void*>(SetBackendThreads);
  if (std::strcmp(name, "varve_configure") == 0) return reinterpret_cast<void*>(Configure);
  if (std::strcmp(name, "varve_stats_json") == 0) return reinterpret_cast<void*>(StatsJson);
  return nullptr;
}

ggml_backend_reg_t Register() {
  if (!GlobalSettings().ReadEnvironment()) return nullptr;
  StartStatistics();
  static ggml_backend_reg registry = {
      /*.api_version =*/GGML_BACKEND_API_VERSION,
      /*.iface       =*/{RegistryName, DeviceCount, GetDevice, GetProcAddress},
      /*.context     =*/nullptr,
  };
  return &registry;
}

}  // namespace
}  // namespace varve::plugin

extern "C" {

VARVE_PLUGIN_EXPORT ggml_backend_reg_t ggml_backend_init(void) {
  static ggml_backend_reg_t registry = varve::plugin::Register();
  return registry;
}

// The baseline build runs on every CPU of the architecture; faster kernels are chosen at run time.
VARVE_PLUGIN_EXPORT int ggml_backend_score(void) { return 1; }

}  // extern "C"
