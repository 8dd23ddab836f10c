#include "llm/log.h"

#include <fmt/format.h>
#include <ggml.h>
#include <llama.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>

#include "support/failure.h"

namespace varve::cli {
namespace {

struct Log {
  std::mutex mutex;
  bool verbose = false;
  ggml_log_level level = GGML_LOG_LEVEL_NONE;
  std::string line;
  std::vector<std::string> lines;
  std::string error;
  std::string warning;
};

Log& TheLog() {
  static Log log;
  return log;
}

/// "llama_model_load: error loading model: no such tensor" -> "error loading model: no such
/// tensor".
std::string WithoutFunction(const std::string& line) {
  const size_t colon = line.find(": ");
  const bool is_name = colon != std::string::npos && line.find(' ') == colon + 1;
  return is_name ? line.substr(line.find_first_not_of(' ', colon + 1)) : line;
}

void OnLog(ggml_log_level level, const char* text, void*) {
  Log& log = TheLog();
  const std::lock_guard lock(log.mutex);
  if (log.verbose) fmt::print(stderr, "{}", text);
  if (level != GGML_LOG_LEVEL_CONT) log.level = level;
  log.line += text;
  if (log.line.empty() || log.line.back() != '\n') return;
  log.line.pop_back();
  if (!log.line.empty()) {
    // Why the first error: later ones only repeat that loading failed.
    if (log.level == GGML_LOG_LEVEL_ERROR && log.error.empty())
      log.error = WithoutFunction(log.line);
    if (log.level == GGML_LOG_LEVEL_WARN) log.warning = WithoutFunction(log.line);
    log.lines.push_back(std::move(log.line));
  }
  log.line.clear();
}

void OnAbort(const char* message) {
  fmt::print(stderr, "varve: llama.cpp gave up on this input: {}\n", message);
  _exit(static_cast<int>(ExitCode::kFailed));
}

}  // namespace

void CaptureLog(bool verbose) {
  TheLog().verbose = verbose;
  llama_log_set(OnLog, nullptr);
  ggml_log_set(OnLog, nullptr);
  ggml_set_abort_callback(OnAbort);
}

std::string LastLogError() {
  Log& log = TheLog();
  const std::lock_guard lock(log.mutex);
  return log.error.empty() ? log.warning : log.error;
}

std::vector<std::string> LogLinesWith(const std::string& text) {
  Log& log = TheLog();
  const std::lock_guard lock(log.mutex);
  std::vector<std::string> found;
  for (const std::string& line : log.lines) {
    if (line.find(text) != std::string::npos) found.push_back(line);
  }
  return found;
}

void ForgetLog() {
  Log& log = TheLog();
  const std::lock_guard lock(log.mutex);
  log.lines.clear();
  log.error.clear();
  log.warning.clear();
}

}  // namespace varve::cli
