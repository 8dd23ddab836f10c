#include "support/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "support/failure.h"

namespace varve::cli {
namespace {

/// Number before an optional unit; -1 when the text is not of that form.
double ParseScaled(std::string_view text, std::string_view units) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return -1;
  std::string_view unit(rest, static_cast<size_t>(text.data() + text.size() - rest));
  if (unit.empty()) return number;
  const char letter = unit[0] == 'K' ? 'k' : unit[0];
  const size_t power = units.find(letter);
  const std::string_view tail = unit.substr(1);
  if (power == std::string_view::npos || !(tail.empty() || tail == "B" || tail == "iB")) return -1;
  return number * std::pow(1024.0, static_cast<double>(power + 1));
}

}  // namespace

uint64_t ParseBytes(std::string_view option, std::string_view text) {
  const double bytes = ParseScaled(text, "kMGT");
  if (bytes < 1 || bytes > 1e18) {
    Fail(ExitCode::kUsage, "{} {}: not a size; write for example 512M or 4G", option, text);
  }
  return static_cast<uint64_t>(bytes);
}

int ParseTokens(std::string_view option, std::string_view text) {
  const double tokens = ParseScaled(text, "kM");
  if (tokens < 1 || tokens > std::numeric_limits<int32_t>::max() || tokens != std::floor(tokens)) {
    Fail(ExitCode::kUsage, "{} {}: not a number of tokens; write for example 4096 or 32k", option,
         text);
  }
  return static_cast<int>(tokens);
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  const int digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 90) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{} min {} s", static_cast<int>(seconds) / 60, static_cast<int>(seconds) % 60);
}

}  // namespace varve::cli
