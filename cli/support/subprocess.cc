#include "support/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "support/failure.h"

namespace varve::cli {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

bool IsProgram(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

void SetEnvironment(const Environment& environment) {
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace

std::string FindProgram(const std::string& name, const std::string& fallback_folder) {
  if (name.find('/') != std::string::npos) return IsProgram(name) ? name : "";
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path candidate =
        std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (IsProgram(candidate)) return candidate.string();
  }
  const std::filesystem::path candidate = std::filesystem::path(fallback_folder) / name;
  return IsProgram(candidate) ? candidate.string() : "";
}

ProgramOutput RunProgram(const std::vector<std::string>& arguments, const Environment& environment,
                         int timeout_seconds) {
  ProgramOutput output;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return output;
  const std::vector<char*> pointers = Pointers(arguments);
  const pid_t child = fork();
  if (child == 0) {
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    SetEnvironment(environment);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return output;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_seconds);
  std::array<char, 4096> chunk{};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{ends[0], POLLIN, 0};
    if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) == 0) {
      kill(child, SIGKILL);
      break;
    }
    const ssize_t n = read(ends[0], chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    output.text.append(chunk.data(), static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  output.started = output.exit_code != 127;
  return output;
}

void BecomeProgram(const std::vector<std::string>& arguments, const Environment& environment) {
  SetEnvironment(environment);
  signal(SIGPIPE, SIG_DFL);
  const std::vector<char*> pointers = Pointers(arguments);
  execv(pointers[0], pointers.data());
  Fail(ExitCode::kFailed, "cannot start {}: {}", arguments[0], std::strerror(errno));
}

}  // namespace varve::cli
