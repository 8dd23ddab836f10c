// libggml-varve inside this process: found, loaded by ggml, configured, asked for its figures.
#ifndef VARVE_CLI_LLM_PLUGIN_H_
#define VARVE_CLI_LLM_PLUGIN_H_

#include <ggml-backend.h>

#include <string>
#include <vector>

#include "support/output.h"

namespace varve::cli {

/// Places where libggml-varve.so is looked for, in order: `given` if not empty (alone),
/// $VARVE_PLUGIN, the program's folder, ../lib and ../lib/varve beside it.
std::vector<std::string> PluginCandidates(const std::string& given);

/// First candidate that exists, absolute; "" if none does.
std::string FindPlugin(const std::string& given);

class Plugin {
 public:
  /// Loads once a process. Fails with ExitCode::kNoPlugin, saying where it was looked for or what
  /// ggml said.
  static Plugin& Get(const std::string& given);

  /// Method and "key=value,..." that KV buffers made from now on have.
  void Configure(const std::string& method, const std::string& settings);

  /// Figures of all caches that the plugin holds or held (plugin/ggml documents the fields).
  Json Stats() const;

  ggml_backend_dev_t device() const { return device_; }
  const std::string& path() const { return path_; }

 private:
  explicit Plugin(const std::string& given);

  std::string path_;
  ggml_backend_reg_t reg_ = nullptr;
  ggml_backend_dev_t device_ = nullptr;
};

/// Folder of the running program.
std::string ProgramFolder();

}  // namespace varve::cli

#endif  // VARVE_CLI_LLM_PLUGIN_H_
