// Running another program: found on the PATH, its output caught, or this process replaced by it.
#ifndef VARVE_CLI_SUPPORT_SUBPROCESS_H_
#define VARVE_CLI_SUPPORT_SUBPROCESS_H_

#include <string>
#include <utility>
#include <vector>

namespace varve::cli {

/// Path of a program: as given when it has a '/', else from PATH, else from `fallback_folder`; ""
/// if there is none.
std::string FindProgram(const std::string& name, const std::string& fallback_folder);

struct ProgramOutput {
  bool started = false;
  int exit_code = -1;  ///< 128 + n when ended by signal n
  std::string text;    ///< stdout and stderr together
};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Runs to the end (or kills it after `timeout_seconds`), with `environment` added to this
/// process's.
ProgramOutput RunProgram(const std::vector<std::string>& arguments, const Environment& environment,
                         int timeout_seconds);

/// Becomes the program; fails if that does not succeed.
[[noreturn]] void BecomeProgram(const std::vector<std::string>& arguments,
                                const Environment& environment);

}  // namespace varve::cli

#endif  // VARVE_CLI_SUPPORT_SUBPROCESS_H_
