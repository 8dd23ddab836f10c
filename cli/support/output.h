// What reaches the user: results on stdout, progress on stderr when it is a terminal, and SIGINT.
#ifndef VARVE_CLI_SUPPORT_OUTPUT_H_
#define VARVE_CLI_SUPPORT_OUTPUT_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace varve::cli {

using Json = nlohmann::ordered_json;

/// Opens a result: {"schema": "varve.<command>", "schema_version": N, "varve_version": ...}.
Json MakeResult(std::string_view command, int schema_version);

/// Writes to stdout and fails when that does not succeed (a full disk, a closed pipe).
void WriteStdout(std::string_view text);

/// Two-space indented JSON on stdout.
void WriteJson(const Json& json);

/// Writes a file whole: to a temporary name beside it, synced, then renamed.
void WriteFile(const std::string& path, std::string_view content);

/// Fails, naming `option`, when a file of that path could not be written: better before hours of
/// work than after.
void CheckWritable(const std::string& option, const std::string& path);

/// A line "label  42 %" that is redrawn on stderr, from two seconds on, only on a terminal.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// done of total; note is shown behind.
  void Update(double done, double total, std::string_view note = "");

 private:
  std::string label_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
  bool terminal_;
  bool visible_ = false;
};

/// From here on the first SIGINT only sets a flag; the second kills.
void CatchInterrupt();
bool Interrupted();

/// Fails with exit code 130 when SIGINT came; `hint` says what is kept.
void CheckInterrupt(std::string_view hint = "");

}  // namespace varve::cli

#endif  // VARVE_CLI_SUPPORT_OUTPUT_H_
