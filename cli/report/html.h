// The report of varve compare: one HTML file with its pictures inside, made from the JSON result
// alone.
#ifndef VARVE_CLI_REPORT_HTML_H_
#define VARVE_CLI_REPORT_HTML_H_

#include <string>

#include "support/output.h"

namespace varve::cli {

/// `result` is what `varve compare --json` prints (docs/cli/schema/compare.json).
std::string MakeHtmlReport(const Json& result);

}  // namespace varve::cli

#endif  // VARVE_CLI_REPORT_HTML_H_
