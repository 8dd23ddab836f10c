// Memory of the device as llama.cpp should see it: it counts declared f16 bytes, so free RAM is
// told in f16 equivalents.
#ifndef VARVE_PLUGIN_GGML_MEMORY_REPORT_H_
#define VARVE_PLUGIN_GGML_MEMORY_REPORT_H_

#include <cstddef>

namespace varve::plugin {

struct SystemMemory {
  size_t available_bytes = 0;
  size_t total_bytes = 0;
};

/// RAM of this machine, or of its control group when that is smaller; never 0.
SystemMemory ReadSystemMemory();

/// bytes * ratio without overflow.
size_t ScaleBytes(size_t bytes, double ratio);

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_MEMORY_REPORT_H_
