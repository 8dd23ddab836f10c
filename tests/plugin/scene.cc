#include "scene.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace varve::plugin_test {
namespace {

constexpr size_t kGraphNodes = 256;
constexpr int kThreads = 2;

Context MakeContext(size_t n_tensors) {
  const ggml_init_params params = {
      n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(kGraphNodes, false), nullptr,
      true};
  return Context(ggml_init(params));
}

template <typename T>
std::vector<uint8_t> ToBytes(const std::vector<T>& data) {
  std::vector<uint8_t> bytes(data.size() * sizeof(T));
  std::memcpy(bytes.data(), data.data(), bytes.size());
  return bytes;
}

void SetThreads(ggml_backend_t backend) {
  ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
  void* set = ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads");
  ASSERT_NE(set, nullptr);
  reinterpret_cast<ggml_backend_set_n_threads_t>(set)(backend, kThreads);
}

// What llama.cpp's reserve shows a backend before the first token.
void ShowAttention(const Cache& cache) {
  const CacheShape& shape = cache.shape();
  Graph graph;
  ggml_tensor* q = graph.InputF32({shape.head_dim_k, 1, shape.n_kv_heads, shape.n_streams},
                                  std::vector<float>(shape.key_row() * shape.n_streams));
  ggml_tensor* k = cache.AttentionView(graph.context(), true, shape.n_cells, 0, shape.n_streams);
  ggml_tensor* v = cache.AttentionView(graph.context(), shape.head_dim_v == 0, shape.n_cells, 0,
                                       shape.n_streams);
  graph.Add(ggml_flash_attn_ext(graph.context(), q, k, v, nullptr, 1.0f, 0.0f, 0.0f));
  graph.Reserve();
}

}  // namespace

std::string MethodUnderTest() {
  const char* method = std::getenv("VARVE_METHOD");
  return method != nullptr ? method : "age_tiered";
}

ggml_backend_dev_t VarveDevice() {
  static ggml_backend_dev_t device = [] {
    ggml_backend_load(VARVE_PLUGIN_PATH);
    ggml_backend_dev_t found = ggml_backend_dev_by_name("VARVE");
    if (found == nullptr) {
      std::fprintf(stderr, "cannot load %s\n", VARVE_PLUGIN_PATH);
      std::exit(1);
    }
    return found;
  }();
  return device;
}

ggml_backend_dev_t CpuDevice() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

Cache::Cache(ggml_backend_dev_t device, const CacheShape& shape)
    : shape_(shape), context_(MakeContext(8)) {
  k_ = ggml_new_tensor_3d(context_.get(), shape.type, shape.key_row(), shape.n_cells,
                          shape.n_streams);
  ggml_set_name(k_, "cache_k_l0");
  if (shape.head_dim_v > 0) {
    v_ = ggml_new_tensor_3d(context_.get(), shape.type, shape.value_row(), shape.n_cells,
                            shape.n_streams);
    ggml_set_name(v_, "cache_v_l0");
  }
  buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(context_.get(),
                                                     ggml_backend_dev_buffer_type(device));
  ggml_backend_buffer_clear(buffer_, 0);
}

Cache::~Cache() { ggml_backend_buffer_free(buffer_); }

std::unique_ptr<Cache> Cache::DecodedOnCpu() const {
  CacheShape shape = shape_;
  shape.type = GGML_TYPE_F32;
  auto decoded = std::make_unique<Cache>(CpuDevice(), shape);
  const std::vector<float> keys = ReadFloats(k_);
  ggml_backend_tensor_set(decoded->k(), keys.data(), 0, keys.size() * sizeof(float));
  if (v_ != nullptr) {
    const std::vector<float> values = ReadFloats(v_);
    ggml_backend_tensor_set(decoded->v(), values.data(), 0, values.size() * sizeof(float));
  }
  return decoded;
}

ggml_tensor* Cache::AttentionView(ggml_context* context, bool key, int64_t n_kv,
                                  int64_t first_stream, int64_t n_streams) const {
  ggml_tensor* tensor = key ? k_ : v_;
  const int64_t head_dim = key ? shape_.head_dim_k : shape_.head_dim_v;
  ggml_tensor* view = ggml_view_4d(context, tensor, head_dim, shape_.n_kv_heads, n_kv, n_streams,
                                   ggml_row_size(tensor->type, head_dim), tensor->nb[1],
                                   tensor->nb[2], tensor->nb[2] * first_stream);
  return ggml_permute(context, view, 0, 2, 1, 3);
}

Graph::Graph() : context_(MakeContext(kGraphNodes)) {
  graph_ = ggml_new_graph_custom(context_.get(), kGraphNodes, false);
  varve_ = ggml_backend_dev_init(VarveDevice(), nullptr);
  cpu_ = ggml_backend_dev_init(CpuDevice(), nullptr);
  SetThreads(varve_);
  SetThreads(cpu_);
  ggml_backend_t backends[] = {varve_, cpu_};
  scheduler_ = ggml_backend_sched_new(backends, nullptr, 2, kGraphNodes, false, true);
}

Graph::~Graph() {
  ggml_backend_sched_free(scheduler_);
  ggml_backend_free(varve_);
  ggml_backend_free(cpu_);
}

ggml_tensor* Graph::Input(ggml_type type, const std::vector<int64_t>& shape,
                          std::vector<uint8_t> bytes) {
  ggml_tensor* tensor =
      ggml_new_tensor(context(), type, static_cast<int>(shape.size()), shape.data());
  ggml_set_input(tensor);
  EXPECT_EQ(ggml_nbytes(tensor), bytes.size());
  inputs_.emplace_back(tensor, std::move(bytes));
  return tensor;
}

ggml_tensor* Graph::InputF32(std::vector<int64_t> shape, const std::vector<float>& data) {
  return Input(GGML_TYPE_F32, shape, ToBytes(data));
}

ggml_tensor* Graph::InputF16(std::vector<int64_t> shape, const std::vector<float>& data) {
  std::vector<ggml_fp16_t> halves(data.size());
  ggml_fp32_to_fp16_row(data.data(), halves.data(), static_cast<int64_t>(data.size()));
  return Input(GGML_TYPE_F16, shape, ToBytes(halves));
}

ggml_tensor* Graph::InputI32(std::vector<int64_t> shape, const std::vector<int32_t>& data) {
  return Input(GGML_TYPE_I32, shape, ToBytes(data));
}

ggml_tensor* Graph::InputI64(std::vector<int64_t> shape, const std::vector<int64_t>& data) {
  return Input(GGML_TYPE_I64, shape, ToBytes(data));
}

ggml_tensor* Graph::Add(ggml_tensor* node, bool output) {
  if (output) ggml_set_output(node);
  ggml_build_forward_expand(graph_, node);
  return node;
}

void Graph::Reserve() {
  ggml_backend_sched_reset(scheduler_);
  ASSERT_TRUE(ggml_backend_sched_reserve(scheduler_, graph_));
}

ggml_status Graph::Run() {
  ggml_backend_sched_reset(scheduler_);
  if (!ggml_backend_sched_alloc_graph(scheduler_, graph_)) return GGML_STATUS_ALLOC_FAILED;
  for (const auto& [tensor, bytes] : inputs_) {
    if (tensor->buffer != nullptr) ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
  }
  return ggml_backend_sched_graph_compute(scheduler_, graph_);
}

ggml_backend_dev_t Graph::DeviceOf(ggml_tensor* node) const {
  ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(scheduler_, node);
  return backend != nullptr ? ggml_backend_get_device(backend) : nullptr;
}

std::vector<uint8_t> ReadBytes(const ggml_tensor* tensor, size_t offset, size_t size) {
  std::vector<uint8_t> bytes(size);
  ggml_backend_tensor_get(tensor, bytes.data(), offset, size);
  return bytes;
}

std::vector<float> ReadFloats(const ggml_tensor* tensor) {
  const std::vector<uint8_t> bytes = ReadBytes(tensor, 0, ggml_nbytes(tensor));
  const int64_t n = ggml_nelements(tensor);
  std::vector<float> values(static_cast<size_t>(n));
  if (tensor->type == GGML_TYPE_F16) {
    ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t*>(bytes.data()), values.data(), n);
  } else if (tensor->type == GGML_TYPE_BF16) {
    ggml_bf16_to_fp32_row(reinterpret_cast<const ggml_bf16_t*>(bytes.data()), values.data(), n);
  } else if (tensor->type == GGML_TYPE_F32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  } else {
    ggml_get_type_traits(tensor->type)->to_float(bytes.data(), values.data(), n);
  }
  return values;
}

std::vector<float> Gaussian(std::mt19937& random, int64_t n) {
  std::normal_distribution<float> unit;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = unit(random);
  return values;
}

void WriteTokens(const Cache& cache, std::mt19937& random, int64_t first_cell, int64_t n_tokens,
                 int64_t stream, int64_t first_position) {
  const CacheShape& shape = cache.shape();
  ShowAttention(cache);
  std::vector<int64_t> cells(static_cast<size_t>(n_tokens));
  std::iota(cells.begin(), cells.end(), stream * shape.n_cells + first_cell);
  std::vector<int32_t> positions(static_cast<size_t>(n_tokens));
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(first_position));

  Graph graph;
  ggml_context* context = graph.context();
  ggml_tensor* index = graph.InputI64({n_tokens}, cells);
  ggml_tensor* position = graph.InputI32({n_tokens}, positions);
  ggml_tensor* keys = graph.InputF32({shape.head_dim_k, shape.n_kv_heads, n_tokens},
                                     Gaussian(random, shape.key_row() * n_tokens));
  keys = ggml_rope(context, keys, position, static_cast<int>(shape.head_dim_k / 2 * 2),
                   GGML_ROPE_TYPE_NEOX);
  keys = ggml_view_2d(context, keys, shape.key_row(), n_tokens, keys->nb[2], 0);
  ggml_tensor* k =
      ggml_reshape_2d(context, cache.k(), shape.key_row(), shape.n_cells * shape.n_streams);
  graph.Add(ggml_set_rows(context, k, keys, index), false);
  if (cache.v() != nullptr) {
    ggml_tensor* values = graph.InputF32({shape.value_row(), n_tokens},
                                         Gaussian(random, shape.value_row() * n_tokens));
    ggml_tensor* v =
        ggml_reshape_2d(context, cache.v(), shape.value_row(), shape.n_cells * shape.n_streams);
    graph.Add(ggml_set_rows(context, v, values, index), false);
  }
  ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
}

double NormalizedSquaredError(const std::vector<float>& actual,
                              const std::vector<float>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    if (std::isnan(actual[i]) || std::isinf(actual[i])) return INFINITY;
    const double difference = static_cast<double>(actual[i]) - static_cast<double>(expected[i]);
    error += difference * difference;
    norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return norm == 0 ? error : error / norm;
}

}  // namespace varve::plugin_test
