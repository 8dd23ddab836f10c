#include "log.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace varve::plugin {

void Say(const char* format, ...) {
  static const bool quiet = std::getenv("VARVE_QUIET") != nullptr;
  if (quiet) return;
  char line[1024] = "varve: ";
  const size_t prefix = std::strlen(line);
  va_list args;
  va_start(args, format);
  const int wanted = std::vsnprintf(line + prefix, sizeof(line) - prefix - 1, format, args);
  va_end(args);
  if (wanted < 0) return;
  const size_t length = prefix + std::min(static_cast<size_t>(wanted), sizeof(line) - prefix - 2);
  line[length] = '\n';
  std::fwrite(line, 1, length + 1, stderr);
  std::fflush(stderr);
}

}  // namespace varve::plugin
