// A llama.cpp program of the user's: would it load the plugin?
#ifndef VARVE_CLI_LLM_HOST_PROGRAM_H_
#define VARVE_CLI_LLM_HOST_PROGRAM_H_

#include <string>

namespace varve::cli {

inline constexpr const char* kDeviceName = "VARVE";

struct HostCheck {
  bool loads = false;
  std::string detail;  ///< what it printed about the device, or why it does not load
  std::string cure;    ///< "" when it loads
};

/// Asks the program for its devices with the plugin in its environment.
HostCheck CheckHostProgram(const std::string& program, const std::string& plugin_path);

}  // namespace varve::cli

#endif  // VARVE_CLI_LLM_HOST_PROGRAM_H_
