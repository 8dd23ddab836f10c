// The host's own CPU backend. Tensors in plain storage are ordinary memory in ggml's layout, so it
// runs their operations.
#ifndef VARVE_PLUGIN_GGML_HOST_CPU_H_
#define VARVE_PLUGIN_GGML_HOST_CPU_H_

#include <vector>

#include "ggml-backend-impl.h"

namespace varve::plugin {

/// The CPU device that the host registered, null if this process has none that can be found.
ggml_backend_dev_t HostCpuDevice();

/// Whether the CPU backend has the operation.
bool HostCpuSupports(const ggml_tensor* op);

/// Runs nodes on a CPU backend of its own, made at the first use.
class HostCpu {
 public:
  HostCpu() = default;
  ~HostCpu();
  HostCpu(const HostCpu&) = delete;
  HostCpu& operator=(const HostCpu&) = delete;

  ggml_status Run(const std::vector<ggml_tensor*>& nodes, int n_threads);

 private:
  ggml_backend_t backend_ = nullptr;
};

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_HOST_CPU_H_
