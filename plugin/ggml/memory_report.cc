#include "memory_report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

namespace varve::plugin {
namespace {

// The number that follows `name` at the start of a line of a file; 0 when there is none ("max" in a
// control group, whose files hold a number alone: name "").
size_t ReadNumber(const char* path, const std::string& name = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) == 0) return std::strtoull(line.c_str() + name.size(), nullptr, 10);
  }
  return 0;
}

}  // namespace

SystemMemory ReadSystemMemory() {
  SystemMemory memory;
  const auto page = static_cast<size_t>(std::max(1L, sysconf(_SC_PAGESIZE)));
  memory.total_bytes = page * static_cast<size_t>(std::max(1L, sysconf(_SC_PHYS_PAGES)));
  memory.available_bytes = ReadNumber("/proc/meminfo", "MemAvailable:") * 1024;
  if (memory.available_bytes == 0) {
    memory.available_bytes = page * static_cast<size_t>(std::max(1L, sysconf(_SC_AVPHYS_PAGES)));
  }
  const size_t limit = ReadNumber("/sys/fs/cgroup/memory.max");
  if (limit != 0 && limit < memory.total_bytes) {
    const size_t used = ReadNumber("/sys/fs/cgroup/memory.current");
    memory.total_bytes = limit;
    memory.available_bytes = std::min(memory.available_bytes, limit > used ? limit - used : page);
  }
  memory.available_bytes = std::min(memory.available_bytes, memory.total_bytes);
  return memory;
}

size_t ScaleBytes(size_t bytes, double ratio) {
  const double scaled = static_cast<double>(bytes) * ratio;
  return scaled >= static_cast<double>(SIZE_MAX / 2) ? SIZE_MAX / 2 : static_cast<size_t>(scaled);
}

}  // namespace varve::plugin
