// llama.cpp's log: kept, so that a failure can say why; shown only with --verbose.
#ifndef VARVE_CLI_LLM_LOG_H_
#define VARVE_CLI_LLM_LOG_H_

#include <string>
#include <vector>

namespace varve::cli {

/// Takes over the logs of llama.cpp and ggml, and turns their aborts into a one-line failure. Call
/// once, first.
void CaptureLog(bool verbose);

/// The last error (or else warning) line since the last call of ForgetLog, without function name
/// and newline; "" if none.
std::string LastLogError();

/// All lines since ForgetLog that contain `text`.
std::vector<std::string> LogLinesWith(const std::string& text);

void ForgetLog();

}  // namespace varve::cli

#endif  // VARVE_CLI_LLM_LOG_H_
