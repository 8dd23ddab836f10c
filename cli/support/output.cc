#include "support/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

#include "support/failure.h"
#include "support/table.h"
#include "varve/varve.h"

namespace varve::cli {
namespace {

using std::chrono::steady_clock;

std::atomic<bool> interrupted{false};

void OnInterrupt(int) {
  interrupted = true;
  signal(SIGINT, SIG_DFL);
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

Json MakeResult(std::string_view command, int schema_version) {
  return {{"schema", fmt::format("varve.{}", command)},
          {"schema_version", schema_version},
          {"varve_version", varve_version()}};
}

void WriteStdout(std::string_view text) {
  if (!WriteAll(STDOUT_FILENO, text)) {
    Fail(ExitCode::kFailed, "cannot write the result to stdout: {}", std::strerror(errno));
  }
}

void WriteJson(const Json& json) {
  // Why replace: token text cut inside a UTF-8 sequence must not end the program.
  WriteStdout(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void WriteFile(const std::string& path, std::string_view content) {
  // A device or a pipe is written to, never replaced.
  std::error_code ignored;
  const bool in_place =
      std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
  const std::string partial = in_place ? path : path + ".partial";
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) Fail(ExitCode::kFailed, "cannot create {}: {}", path, std::strerror(errno));
  const bool written = WriteAll(fd, content) && (in_place || fsync(fd) == 0);
  int error = errno;
  const bool closed = close(fd) == 0;
  const bool renamed =
      written && closed && (in_place || rename(partial.c_str(), path.c_str()) == 0);
  if (written && closed && renamed) return;
  if (written) error = errno;
  if (!in_place) unlink(partial.c_str());
  Fail(ExitCode::kFailed, "cannot write {}: {}", path, std::strerror(error));
}

void CheckWritable(const std::string& option, const std::string& path) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(path, ignored);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string place = exists ? path : parent.empty() ? "." : parent.string();
  if (std::filesystem::is_directory(path, ignored))
    Fail(ExitCode::kFailed, "{} {}: is a folder", option, path);
  if (access(place.c_str(), W_OK) != 0) {
    Fail(ExitCode::kFailed, "{} {}: {}", option, path, std::strerror(errno));
  }
}

Progress::Progress(std::string label)
    : label_(std::move(label)),
      start_(steady_clock::now()),
      drawn_(start_),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (visible_) fmt::print(stderr, "\r\x1b[K");
}

void Progress::Update(double done, double total, std::string_view note) {
  const auto now = steady_clock::now();
  if (!terminal_ || now - start_ < std::chrono::seconds(2) ||
      now - drawn_ < std::chrono::milliseconds(200))
    return;
  drawn_ = now;
  visible_ = true;
  const double share = total > 0 ? done / total : 0;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  std::string line = fmt::format("{} {:3.0f} %", label_, 100 * share);
  if (share > 0.02) {
    const int left = static_cast<int>(elapsed * (1 - share) / share);
    line += fmt::format(", {}:{:02} left", left / 60, left % 60);
  }
  if (!note.empty()) line += fmt::format("  {}", note);
  fmt::print(stderr, "\r\x1b[K{}", line.substr(0, kMaxColumns - 1));
  std::fflush(stderr);
}

void CatchInterrupt() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
}

bool Interrupted() { return interrupted; }

void CheckInterrupt(std::string_view hint) {
  if (Interrupted())
    Fail(ExitCode::kInterrupted, "interrupted{}{}", hint.empty() ? "" : "; ", hint);
}

}  // namespace varve::cli
