// The buffer type of device VARVE: KV tensors, known by their names, are held by KvLayer;
// everything else that llama.cpp allocates here is ordinary memory.
#ifndef VARVE_PLUGIN_GGML_KV_BUFFER_H_
#define VARVE_PLUGIN_GGML_KV_BUFFER_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "address_range.h"
#include "ggml-backend-impl.h"
#include "kv_layer.h"
#include "settings.h"

namespace varve::plugin {

/// How llama.cpp's names of cache tensors begin.
inline constexpr char kCachePrefix[] = "cache_";

/// A tensor, or a view of one, that lies in a KV tensor.
struct KvRef {
  KvTensor* tensor = nullptr;
  size_t offset = 0;  ///< of its first byte in the KV tensor

  KvLayer& layer() const { return *tensor->layer; }
  bool held() const { return tensor->layer->form() != KvForm::kPlain; }
};

class KvBuffer {
 public:
  KvBuffer();

  /// Counts the buffers of this process, so that figures can be told apart.
  int64_t id() const { return id_; }
  /// Settings of its caches: those in force when it was made.
  const varve_config* config() const { return config_.get(); }

  bool Reserve(size_t bytes) { return range_.Reserve(bytes); }
  AddressRange& range() { return range_; }

  /// Called once for each tensor that is put here (not for views).
  ggml_status InitTensor(const ggml_tensor* tensor, bool is_compute);

  /// The KV tensor that a tensor of this buffer lies in, if it lies in one.
  std::optional<KvRef> Find(const ggml_tensor* tensor);

  void Clear(uint8_t value);

  /// Before the first computation: settles every layer and says in one line what is active.
  void Announce();

  /// Counts an attention that reads packed keys through get_tensor, and says so once.
  void NoteHostAttention(const KvRef& read);

  const std::vector<std::unique_ptr<KvLayer>>& layers() const { return layers_; }

 private:
  KvLayer* LayerFor(const std::string& tag, int index);

  const int64_t id_;
  const ConfigPtr config_;
  AddressRange range_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<KvLayer>> layers_;
  std::vector<KvTensor*> by_offset_;  ///< of all layers, in the order of their addresses
  std::atomic<bool> announced_ = false;
  std::atomic<bool> host_attention_told_ = false;
};

/// Identifier that the next buffer gets.
int64_t NextBufferId();

/// The one buffer type; its device is set by the device.
ggml_backend_buffer_type_t KvBufferType();

bool IsKvBufferType(ggml_backend_buffer_type_t type);

/// The buffer behind a tensor or view; null if it has none yet.
ggml_backend_buffer_t BufferOf(const ggml_tensor* tensor);

/// Our buffer behind a tensor; null for others and for the empty buffers of a memory fit.
KvBuffer* KvBufferOf(const ggml_tensor* tensor);

/// The KV tensor that a tensor lies in, in any of our buffers.
std::optional<KvRef> FindKv(const ggml_tensor* tensor);

/// Threads for work that comes without a backend (get_tensor, set_tensor).
void SetTransferThreads(int n_threads);
int TransferThreads();

}  // namespace varve::plugin

#endif  // VARVE_PLUGIN_GGML_KV_BUFFER_H_
