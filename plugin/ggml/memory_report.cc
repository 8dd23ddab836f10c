#include "memory_report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace varve::plugin {
namespace {

// A single number in a file, 0 when there is none ("max" in a control group).
size_t ReadNumber(const char* path) {
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return 0;
  unsigned long long value = 0;
  const int n_read = std::fscanf(file, "%llu", &value);
  std::fclose(file);
  return n_read == 1 ? static_cast<size_t>(value) : 0;
}

size_t ReadMemAvailable() {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return 0;
  char line[256];
  unsigned long long kib = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
  }
  std::fclose(file);
  return static_cast<size_t>(kib) * 1024;
}

}  // namespace

SystemMemory ReadSystemMemory() {
  SystemMemory memory;
  const auto page = static_cast<size_t>(std::max(1L, sysconf(_SC_PAGESIZE)));
  memory.total_bytes = page * static_cast<size_t>(std::max(1L, sysconf(_SC_PHYS_PAGES)));
  memory.available_bytes = ReadMemAvailable();
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
