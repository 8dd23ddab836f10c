#include "host_cpu.h"

#include <dlfcn.h>

#include <memory>

#include "log.h"

namespace varve::plugin {
namespace {

using DeviceByType = ggml_backend_dev_t (*)(enum ggml_backend_dev_type);

// Why: the registry lives in libggml, which only the host links; a host that was itself loaded with
// RTLD_LOCAL (Python) keeps it out of the global scope.
DeviceByType FindRegistry() {
  void* symbol = dlsym(RTLD_DEFAULT, "ggml_backend_dev_by_type");
  for (const char* name : {"libggml.so.0", "libggml.so"}) {
    if (symbol != nullptr) break;
    if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD))
      symbol = dlsym(library, "ggml_backend_dev_by_type");
  }
  return reinterpret_cast<DeviceByType>(symbol);
}

struct ContextDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

}  // namespace

ggml_backend_dev_t HostCpuDevice() {
  static const DeviceByType by_type = FindRegistry();
  return by_type != nullptr ? by_type(GGML_BACKEND_DEVICE_TYPE_CPU) : nullptr;
}

bool HostCpuSupports(const ggml_tensor* op) {
  ggml_backend_dev_t device = HostCpuDevice();
  return device != nullptr && ggml_backend_dev_supports_op(device, op);
}

HostCpu::~HostCpu() { ggml_backend_free(backend_); }

ggml_status HostCpu::Run(const std::vector<ggml_tensor*>& nodes, int n_threads) {
  if (nodes.empty()) return GGML_STATUS_SUCCESS;
  if (backend_ == nullptr) {
    ggml_backend_dev_t device = HostCpuDevice();
    backend_ = device != nullptr ? ggml_backend_dev_init(device, nullptr) : nullptr;
    if (backend_ == nullptr) {
      Say("%s (%s) needs ggml's CPU backend, and this process has none", nodes[0]->name,
          ggml_op_name(nodes[0]->op));
      return GGML_STATUS_FAILED;
    }
  }
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_));
  void* set_n_threads = ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads");
  if (set_n_threads != nullptr)
    reinterpret_cast<ggml_backend_set_n_threads_t>(set_n_threads)(backend_, n_threads);

  const ggml_init_params params = {
      ggml_graph_overhead_custom(nodes.size(), false) + ggml_tensor_overhead(), nullptr, true};
  std::unique_ptr<ggml_context, ContextDeleter> context(ggml_init(params));
  if (context == nullptr) return GGML_STATUS_ALLOC_FAILED;
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), nodes.size(), false);
  for (ggml_tensor* node : nodes) ggml_graph_add_node(graph, node);
  return ggml_backend_graph_compute(backend_, graph);
}

}  // namespace varve::plugin
