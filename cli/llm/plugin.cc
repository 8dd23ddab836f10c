#include "llm/plugin.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "llm/log.h"
#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr const char* kPluginName = "libggml-varve.so";

using ConfigureFunction = int (*)(const char* method, const char* settings, char* error,
                                  size_t capacity);
using StatsFunction = size_t (*)(char* buffer, size_t capacity);

}  // namespace

std::string ProgramFolder() {
  std::array<char, PATH_MAX> path{};
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (n <= 0) return ".";
  return std::filesystem::path(std::string(path.data(), static_cast<size_t>(n)))
      .parent_path()
      .string();
}

std::vector<std::string> PluginCandidates(const std::string& given) {
  if (!given.empty()) return {given};
  std::vector<std::string> candidates;
  if (const char* named = std::getenv("VARVE_PLUGIN"); named && *named)
    candidates.emplace_back(named);
  const std::string folder = ProgramFolder();
  for (const char* place : {"", "../lib/", "../lib/varve/"}) {
    candidates.push_back(folder + "/" + place + kPluginName);
  }
  return candidates;
}

std::string FindPlugin(const std::string& given) {
  for (const std::string& candidate : PluginCandidates(given)) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::canonical(candidate, error);
    if (!error && std::filesystem::is_regular_file(path, error)) return path.string();
  }
  return "";
}

Plugin& Plugin::Get(const std::string& given) {
  static std::unique_ptr<Plugin> plugin;
  if (!plugin) plugin.reset(new Plugin(given));
  return *plugin;
}

Plugin::Plugin(const std::string& given) : path_(FindPlugin(given)) {
  if (path_.empty()) {
    std::string places;
    for (const std::string& candidate : PluginCandidates(given))
      places += (places.empty() ? "" : ", ") + candidate;
    Fail(ExitCode::kNoPlugin,
         "{} not found (looked at {}); build with -DVARVE_BUILD_GGML=ON or set VARVE_PLUGIN",
         kPluginName, places);
  }
  // This process configures caches one by one and shows their figures itself.
  for (const char* name : {"VARVE_PRESET", "VARVE_METHOD", "VARVE_SET"}) unsetenv(name);
  setenv("VARVE_QUIET", "1", 1);
  ForgetLog();
  reg_ = ggml_backend_load(path_.c_str());
  if (!reg_) {
    const std::string error = LastLogError();
    Fail(ExitCode::kNoPlugin, "{} does not load: {}; rebuild it against the llama.cpp in use",
         path_, error.empty() ? "ggml gave no reason" : error);
  }
  if (ggml_backend_reg_dev_count(reg_) == 0) {
    Fail(ExitCode::kNoPlugin, "{} offers no device on this machine; run varve doctor", path_);
  }
  device_ = ggml_backend_reg_dev_get(reg_, 0);
}

void Plugin::Configure(const std::string& method, const std::string& settings) {
  const auto configure = reinterpret_cast<ConfigureFunction>(
      ggml_backend_reg_get_proc_address(reg_, "varve_configure"));
  if (!configure) {
    Fail(ExitCode::kNoPlugin,
         "{} is older than this program (no varve_configure); install both from one build", path_);
  }
  std::array<char, 1024> error{};
  if (configure(method.c_str(), settings.c_str(), error.data(), error.size()) != 0) {
    Fail(ExitCode::kUsage, "{}", error.data());
  }
}

Json Plugin::Stats() const {
  const auto stats =
      reinterpret_cast<StatsFunction>(ggml_backend_reg_get_proc_address(reg_, "varve_stats_json"));
  if (!stats) {
    Fail(ExitCode::kNoPlugin,
         "{} is older than this program (no varve_stats_json); install both from one build", path_);
  }
  // Why a margin: figures that other threads add between the two calls make the text longer.
  std::string text(stats(nullptr, 0) + 4096, '\0');
  const size_t needed = stats(text.data(), text.size());
  text.resize(std::min(needed, text.size()) - 1);
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) Fail(ExitCode::kFailed, "{} reports figures that are not JSON", path_);
  return json;
}

}  // namespace varve::cli
