#include "backend.h"

#include <algorithm>
#include <memory>
#include <new>

#include "kv_buffer.h"
#include "kv_ops.h"
#include "kv_support.h"
#include "memory_report.h"
#include "settings.h"
#include "statistics.h"

namespace varve::plugin {
namespace {

// ---- ggml_backend_i
// ------------------------------------------------------------------------------------------------

const char* BackendName(ggml_backend_t) { return "VARVE"; }

void FreeBackend(ggml_backend_t backend) {
  delete static_cast<GraphRunner*>(backend->context);
  delete backend;
}

ggml_status ComputeGraph(ggml_backend_t backend, ggml_cgraph* graph) {
  return static_cast<GraphRunner*>(backend->context)->Run(graph);
}

constexpr ggml_backend_i kBackendInterface = {
    /*.get_name            =*/BackendName,
    /*.free                =*/FreeBackend,
    /*.set_tensor_async    =*/nullptr,
    /*.get_tensor_async    =*/nullptr,
    /*.set_tensor_2d_async =*/nullptr,
    /*.get_tensor_2d_async =*/nullptr,
    /*.cpy_tensor_async    =*/nullptr,
    /*.synchronize         =*/nullptr,
    /*.graph_plan_create   =*/nullptr,
    /*.graph_plan_free     =*/nullptr,
    /*.graph_plan_update   =*/nullptr,
    /*.graph_plan_compute  =*/nullptr,
    /*.graph_compute       =*/ComputeGraph,
    /*.event_record        =*/nullptr,
    /*.event_wait          =*/nullptr,
    /*.graph_optimize      =*/nullptr,
};

ggml_guid_t BackendGuid() {
  static ggml_guid guid = {0x76, 0x61, 0x72, 0x76, 0x65, 0x2d, 0x6b, 0x76,
                           0x2d, 0x74, 0x69, 0x65, 0x72, 0x73, 0x00, 0x01};
  return &guid;
}

// ---- ggml_backend_device_i
// -----------------------------------------------------------------------------------------

const char* DeviceName(ggml_backend_dev_t) { return "VARVE"; }

const char* DeviceDescription(ggml_backend_dev_t) { return "KV cache in tiers of packed codes"; }

void DeviceMemory(ggml_backend_dev_t, size_t* free, size_t* total) {
  static const double ratio = std::max(1.0, GlobalSettings().F16Ratio());
  const SystemMemory memory = ReadSystemMemory();
  *free = ScaleBytes(memory.available_bytes, ratio);
  *total = ScaleBytes(memory.total_bytes, ratio);
}

// Why: llama.cpp places a KV cache only on devices of type GPU.
enum ggml_backend_dev_type DeviceType(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void DeviceProps(ggml_backend_dev_t device, ggml_backend_dev_props* props) {
  props->name = DeviceName(device);
  props->description = DeviceDescription(device);
  props->type = DeviceType(device);
  DeviceMemory(device, &props->memory_free, &props->memory_total);
  props->caps = {};
  // Weights never come here; a no would make llama.cpp read the file into memory instead of mapping
  // it.
  props->caps.mmap_support = true;
}

ggml_backend_t InitBackend(ggml_backend_dev_t device, const char*) {
  std::unique_ptr<GraphRunner> runner(new (std::nothrow) GraphRunner);
  auto* backend = new (std::nothrow) ggml_backend;
  if (runner == nullptr || backend == nullptr) {
    delete backend;
    return nullptr;
  }
  *backend = {BackendGuid(), kBackendInterface, device, runner.release()};
  NoteBackendCreated();
  return backend;
}

ggml_backend_buffer_type_t DeviceBufferType(ggml_backend_dev_t) { return KvBufferType(); }

bool DeviceSupportsOp(ggml_backend_dev_t, const ggml_tensor* op) { return SupportsOp(op); }

// Host buffers too, so that the scheduler copies neither queries nor masks.
bool DeviceSupportsBufferType(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return IsKvBufferType(type) || ggml_backend_buft_is_host(type);
}

constexpr ggml_backend_device_i kDeviceInterface = {
    /*.get_name             =*/DeviceName,
    /*.get_description      =*/DeviceDescription,
    /*.get_memory           =*/DeviceMemory,
    /*.get_type             =*/DeviceType,
    /*.get_props            =*/DeviceProps,
    /*.init_backend         =*/InitBackend,
    /*.get_buffer_type      =*/DeviceBufferType,
    /*.get_host_buffer_type =*/nullptr,
    /*.buffer_from_host_ptr =*/nullptr,
    /*.supports_op          =*/DeviceSupportsOp,
    /*.supports_buft        =*/DeviceSupportsBufferType,
    /*.offload_op           =*/nullptr,
    /*.event_new            =*/nullptr,
    /*.event_free           =*/nullptr,
    /*.event_synchronize    =*/nullptr,
};

}  // namespace

ggml_backend_dev_t VarveDevice(ggml_backend_reg_t registry) {
  static ggml_backend_device device = {kDeviceInterface, registry, nullptr};
  KvBufferType()->device = &device;
  return &device;
}

void SetBackendThreads(ggml_backend_t backend, int n_threads) {
  static_cast<GraphRunner*>(backend->context)->set_n_threads(n_threads);
  SetTransferThreads(n_threads);
}

}  // namespace varve::plugin
