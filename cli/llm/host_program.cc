#include "llm/host_program.h"

#include <fmt/format.h>

#include <sstream>

#include "support/subprocess.h"

namespace varve::cli {
namespace {

constexpr int kTimeoutSeconds = 20;

/// First line that has `text`, blanks at its ends removed; "" if none.
std::string LineWith(const std::string& output, const std::string& text) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(text) == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t\r");
    return line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
  }
  return "";
}

}  // namespace

HostCheck CheckHostProgram(const std::string& program, const std::string& plugin_path) {
  const ProgramOutput output = RunProgram({program, "--device", kDeviceName, "--list-devices"},
                                          {{"GGML_BACKEND_PATH", plugin_path}}, kTimeoutSeconds);
  HostCheck check;
  if (!output.started) {
    check.detail = fmt::format("{} does not start", program);
    check.cure = "check that it runs on its own: its libraries have to be found";
    return check;
  }
  const std::string device = LineWith(output.text, fmt::format("{}:", kDeviceName));
  if (output.exit_code == 0 && !device.empty()) {
    check.loads = true;
    check.detail = device;
    return check;
  }
  if (const std::string version = LineWith(output.text, "incompatible API version");
      !version.empty()) {
    check.detail = version;
    check.cure = "build the plugin against the source of this llama.cpp (VARVE_LLAMA_CPP_DIR)";
  } else if (const std::string failed = LineWith(output.text, "failed to load"); !failed.empty()) {
    check.detail = failed;
    check.cure = "the plugin needs the same libggml as the program: build both from one llama.cpp";
  } else if (const std::string invalid = LineWith(output.text, "invalid device");
             !invalid.empty()) {
    check.detail = "it did not load the plugin and knows no device " + std::string(kDeviceName);
    check.cure = "use a llama.cpp whose ggml reads GGML_BACKEND_PATH (2024-12 or newer)";
  } else {
    check.detail = fmt::format("--list-devices does not show {} (exit code {})", kDeviceName,
                               output.exit_code);
    check.cure = "use llama-server, llama-cli, llama-bench or another program with --list-devices";
  }
  return check;
}

}  // namespace varve::cli
