// Numbers as people write and read them: 4G, 32k, 1.5 MiB, 3.25 bits.
#ifndef VARVE_CLI_SUPPORT_UNITS_H_
#define VARVE_CLI_SUPPORT_UNITS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace varve::cli {

/// "4G", "512M", "1.5GiB", "4096" -> bytes (k, M, G, T are powers of 1024). Fails naming `option`.
uint64_t ParseBytes(std::string_view option, std::string_view text);

/// "32k", "4096" -> tokens (k is 1024). Fails naming `option`.
int ParseTokens(std::string_view option, std::string_view text);

/// 1536 -> "1.50 KiB". Three significant digits.
std::string FormatBytes(uint64_t bytes);

/// Seconds as "870 us", "12.3 ms", "4.56 s", "3 min 20 s".
std::string FormatSeconds(double seconds);

}  // namespace varve::cli

#endif  // VARVE_CLI_SUPPORT_UNITS_H_
