// How the program fails: one line that says what to do, and an exit code that scripts can tell
// apart.
#ifndef VARVE_CLI_SUPPORT_FAILURE_H_
#define VARVE_CLI_SUPPORT_FAILURE_H_

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace varve::cli {

/// Exit codes, documented in docs/cli/README.md and pinned by tests/cli.
enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,        ///< a file, a model or the machine was at fault
  kUsage = 2,         ///< an option, a setting or a value was at fault
  kNothingFits = 3,   ///< recommend: no method fits; doctor: at least one check failed
  kNoPlugin = 4,      ///< libggml-varve could not be loaded
  kInterrupted = 130  ///< SIGINT
};

class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

template <typename... Args>
[[noreturn]] void Fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace varve::cli

#endif  // VARVE_CLI_SUPPORT_FAILURE_H_
