#include "kv_buffer.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "log.h"
#include "settings.h"
#include "statistics.h"

namespace varve::plugin {
namespace {

constexpr size_t kAlignment = 64;
constexpr int kDefaultThreads = 4;  // as ggml's CPU backend

std::atomic<int> transfer_threads = kDefaultThreads;
std::atomic<int64_t> next_buffer_id = 0;

struct KvName {
  std::string tag;
  varve_side side = VARVE_KEY;
  int layer = 0;
};

// cache_<tag>k_l<layer> or cache_<tag>v_l<layer>
std::optional<KvName> ParseKvName(const std::string& name) {
  if (name.rfind(kCachePrefix, 0) != 0) return std::nullopt;
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  if (digits == name.size() || name.size() - digits > 6 || digits < sizeof(kCachePrefix) - 1 + 3)
    return std::nullopt;
  const std::string middle = name.substr(digits - 3, 3);
  if (middle != "k_l" && middle != "v_l") return std::nullopt;
  KvName parsed;
  parsed.tag = name.substr(sizeof(kCachePrefix) - 1, digits - 3 - (sizeof(kCachePrefix) - 1));
  parsed.side = middle[0] == 'k' ? VARVE_KEY : VARVE_VALUE;
  parsed.layer = std::stoi(name.substr(digits));
  return parsed;
}

bool HasKvShape(const ggml_tensor* tensor) {
  return tensor->ne[3] == 1 && ggml_is_contiguous(tensor) && tensor->ne[1] > 0 &&
         tensor->ne[1] <= INT32_MAX && tensor->ne[1] * tensor->ne[2] <= INT32_MAX &&
         !ggml_is_empty(tensor);
}

KvBuffer& Context(ggml_backend_buffer_t buffer) { return *static_cast<KvBuffer*>(buffer->context); }

// ---- ggml_backend_buffer_i
// -----------------------------------------------------------------------------------------

void FreeBuffer(ggml_backend_buffer_t buffer) {
  UnregisterBuffer(&Context(buffer));
  delete &Context(buffer);
}

void* GetBase(ggml_backend_buffer_t buffer) { return Context(buffer).range().base(); }

ggml_status InitTensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor) {
  if (tensor->view_src != nullptr) return GGML_STATUS_SUCCESS;
  return Context(buffer).InitTensor(tensor, buffer->usage == GGML_BACKEND_BUFFER_USAGE_COMPUTE);
}

void SetTensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data, size_t offset,
               size_t size) {
  if (const auto ref = Context(buffer).Find(tensor)) {
    ref->layer().WriteBytes(ref->tensor->side, ref->offset + offset, data, size, TransferThreads());
  } else {
    std::memcpy(static_cast<std::byte*>(tensor->data) + offset, data, size);
  }
}

void GetTensor(ggml_backend_buffer_t buffer, const ggml_tensor* tensor, void* data, size_t offset,
               size_t size) {
  if (const auto ref = Context(buffer).Find(tensor)) {
    // Only attention permutes the cache: the host's scheduler has given one to the CPU backend.
    if (tensor->op == GGML_OP_PERMUTE && ref->held()) Context(buffer).NoteHostAttention(*ref);
    ref->layer().ReadBytes(ref->tensor->side, ref->offset + offset, data, size);
  } else {
    std::memcpy(data, static_cast<const std::byte*>(tensor->data) + offset, size);
  }
}

void MemsetTensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, uint8_t value, size_t offset,
                  size_t size) {
  if (!Context(buffer).Find(tensor)) {
    std::memset(static_cast<std::byte*>(tensor->data) + offset, value, size);
    return;
  }
  const std::vector<std::byte> pattern(std::min(size, size_t{1} << 20), std::byte{value});
  for (size_t done = 0; done < size; done += pattern.size()) {
    SetTensor(buffer, tensor, pattern.data(), offset + done, std::min(pattern.size(), size - done));
  }
}

// Whole rows of one side move packed; false sends the host through get_tensor and set_tensor.
bool CopyPacked(const KvRef& from, const KvRef& to, size_t size) {
  const size_t row_bytes = to.tensor->row_bytes;
  if (from.tensor->side != to.tensor->side || from.tensor->row_bytes != row_bytes ||
      from.offset % row_bytes != 0 || to.offset % row_bytes != 0 || size % row_bytes != 0) {
    return false;
  }
  return to.layer().CopyRows(to.tensor->side, static_cast<int64_t>(to.offset / row_bytes),
                             from.layer(), static_cast<int64_t>(from.offset / row_bytes),
                             static_cast<int64_t>(size / row_bytes));
}

bool CopyTensor(ggml_backend_buffer_t buffer, const ggml_tensor* src, ggml_tensor* dst) {
  if (KvBufferOf(src) == nullptr || !ggml_is_contiguous(src) || !ggml_is_contiguous(dst))
    return false;
  const size_t size = ggml_nbytes(src);
  const auto from = FindKv(src);
  const auto to = FindKv(dst);
  if (from && to) return CopyPacked(*from, *to, size);
  if (from) return from->layer().ReadBytes(from->tensor->side, from->offset, dst->data, size);
  SetTensor(buffer, dst, src->data, 0, size);
  return true;
}

void Clear(ggml_backend_buffer_t buffer, uint8_t value) { Context(buffer).Clear(value); }

constexpr ggml_backend_buffer_i kBufferInterface = {
    /*.free_buffer   =*/FreeBuffer,
    /*.get_base      =*/GetBase,
    /*.init_tensor   =*/InitTensor,
    /*.memset_tensor =*/MemsetTensor,
    /*.set_tensor    =*/SetTensor,
    /*.get_tensor    =*/GetTensor,
    /*.set_tensor_2d =*/nullptr,  // ggml falls back to set_tensor and get_tensor row by row
    /*.get_tensor_2d =*/nullptr,
    /*.cpy_tensor    =*/CopyTensor,
    /*.clear         =*/Clear,
    /*.reset         =*/nullptr,
};

// ---- ggml_backend_buffer_type_i
// ------------------------------------------------------------------------------------

const char* TypeName(ggml_backend_buffer_type_t) { return "VARVE"; }

ggml_backend_buffer_t AllocBuffer(ggml_backend_buffer_type_t type, size_t size) {
  std::unique_ptr<KvBuffer> context(new (std::nothrow) KvBuffer);
  if (context == nullptr || !context->Reserve(size)) {
    Say("cannot reserve a range of %zu bytes", size);
    return nullptr;
  }
  RegisterBuffer(context.get());
  return ggml_backend_buffer_init(type, kBufferInterface, context.release(), size);
}

size_t TypeAlignment(ggml_backend_buffer_type_t) { return kAlignment; }

}  // namespace

KvBuffer::KvBuffer() : id_(next_buffer_id++), config_(GlobalSettings().config()) {}

int64_t NextBufferId() { return next_buffer_id; }

ggml_status KvBuffer::InitTensor(const ggml_tensor* tensor, bool is_compute) {
  const auto offset =
      static_cast<size_t>(static_cast<const std::byte*>(tensor->data) - range_.base());
  const auto name = is_compute ? std::nullopt : ParseKvName(tensor->name);
  if (name && HasKvShape(tensor)) {
    KvLayer* layer = LayerFor(name->tag, name->layer);
    KvTensor& taken = layer->tensor(name->side);
    if (!taken.present()) {
      NoteKvSeen();
      if (!layer->AddTensor(name->side, tensor, offset)) return GGML_STATUS_ALLOC_FAILED;
      const std::lock_guard lock(mutex_);
      by_offset_.insert(std::upper_bound(by_offset_.begin(), by_offset_.end(), &taken,
                                         [](const KvTensor* x, const KvTensor* y) {
                                           return x->offset < y->offset;
                                         }),
                        &taken);
      CountLayersOfModels();
      return GGML_STATUS_SUCCESS;
    }
  }
  const size_t bytes = ggml_nbytes(tensor);
  return bytes == 0 || range_.MakeWritable(offset, bytes) ? GGML_STATUS_SUCCESS
                                                          : GGML_STATUS_ALLOC_FAILED;
}

KvLayer* KvBuffer::LayerFor(const std::string& tag, int index) {
  const std::lock_guard lock(mutex_);
  for (const auto& layer : layers_) {
    if (layer->index() == index && layer->tag() == tag) return layer.get();
  }
  layers_.push_back(std::make_unique<KvLayer>(index, tag, config_, &range_, &mutex_));
  return layers_.back().get();
}

std::optional<KvRef> KvBuffer::Find(const ggml_tensor* tensor) {
  const ggml_tensor* root = tensor->view_src != nullptr ? tensor->view_src : tensor;
  if (root->data == nullptr) return std::nullopt;
  const auto start = static_cast<size_t>(static_cast<const std::byte*>(root->data) - range_.base());
  const size_t view = tensor->view_src != nullptr ? tensor->view_offs : 0;
  const std::lock_guard lock(mutex_);
  const auto after =
      std::upper_bound(by_offset_.begin(), by_offset_.end(), start,
                       [](size_t offset, const KvTensor* kv) { return offset < kv->offset; });
  if (after == by_offset_.begin()) return std::nullopt;
  KvTensor* candidate = *std::prev(after);
  if (start - candidate->offset >= candidate->bytes) return std::nullopt;
  return KvRef{candidate, start - candidate->offset + view};
}

void KvBuffer::Clear(uint8_t value) {
  if (value == 0) {
    for (const auto& layer : layers_) layer->Clear();
    return;
  }
  for (const auto& layer : layers_) {
    for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) {
      const KvTensor& filled = layer->tensor(side);
      const std::vector<std::byte> row(filled.row_bytes, std::byte{value});
      for (size_t offset = 0; offset < filled.bytes; offset += row.size()) {
        layer->WriteBytes(side, offset, row.data(), row.size(), TransferThreads());
      }
    }
  }
}

void KvBuffer::Announce() {
  if (layers_.empty() || announced_.exchange(true)) return;
  size_t n_plain = 0;
  std::string reason;
  for (const auto& layer : layers_) {
    if (!layer->Settle() || layer->form() != KvForm::kPlain) continue;
    if (n_plain++ == 0) reason = layer->plain_reason();
  }
  const KvTensor& key = layers_.front()->tensor(VARVE_KEY);
  const size_t n_packed = layers_.size() - n_plain;
  if (n_packed > 0) {
    Say("active: method %s, %zu of %zu layers packed, %lld cells in %lld stream%s, kernels %s",
        ConfigText(config(), "method").c_str(), n_packed, layers_.size(),
        static_cast<long long>(key.n_cells), static_cast<long long>(key.n_streams),
        key.n_streams == 1 ? "" : "s", varve_isa());
  }
  if (n_plain > 0) {
    Say("%s: %zu of %zu layers in plain storage, not packed: %s",
        n_packed > 0 ? "in part" : "not active", n_plain, layers_.size(), reason.c_str());
  }
}

void KvBuffer::NoteHostAttention(const KvRef& read) {
  if (read.tensor->side != VARVE_KEY) return;
  CountOp(GGML_OP_FLASH_ATTN_EXT, OpPath::kOnHostCpu);
  if (host_attention_told_.exchange(true)) return;
  Say("layer %d's cache is decoded for an attention that the host computes on its CPU backend at "
      "each step: right, but slow (a layer that reads the cache of another)",
      read.layer().index());
}

ggml_backend_buffer_type_t KvBufferType() {
  static ggml_backend_buffer_type type = {
      /*.iface   =*/{/*.get_name       =*/TypeName,
                     /*.alloc_buffer   =*/AllocBuffer,
                     /*.get_alignment  =*/TypeAlignment,
                     /*.get_max_size   =*/nullptr,
                     /*.get_alloc_size =*/nullptr,
                     /*.is_host        =*/nullptr},
      /*.device  =*/nullptr,
      /*.context =*/nullptr,
  };
  return &type;
}

bool IsKvBufferType(ggml_backend_buffer_type_t type) { return type == KvBufferType(); }

ggml_backend_buffer_t BufferOf(const ggml_tensor* tensor) {
  return tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
}

KvBuffer* KvBufferOf(const ggml_tensor* tensor) {
  ggml_backend_buffer_t buffer = BufferOf(tensor);
  return buffer != nullptr && IsKvBufferType(buffer->buft) ? static_cast<KvBuffer*>(buffer->context)
                                                           : nullptr;
}

std::optional<KvRef> FindKv(const ggml_tensor* tensor) {
  KvBuffer* buffer = KvBufferOf(tensor);
  return buffer != nullptr ? buffer->Find(tensor) : std::nullopt;
}

void SetTransferThreads(int n_threads) { transfer_threads = std::max(1, n_threads); }
int TransferThreads() { return transfer_threads; }

}  // namespace varve::plugin
