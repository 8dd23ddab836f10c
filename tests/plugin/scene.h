// A KV cache as llama.cpp makes one, on device VARVE or on the CPU, and graphs over it run by
// ggml's scheduler.
#ifndef VARVE_TESTS_PLUGIN_SCENE_H_
#define VARVE_TESTS_PLUGIN_SCENE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace varve::plugin_test {

/// Method under test, from the environment of the test.
std::string MethodUnderTest();

ggml_backend_dev_t VarveDevice();
ggml_backend_dev_t CpuDevice();

struct CacheShape {
  int64_t head_dim_k = 64;
  int64_t head_dim_v = 64;  ///< 0: no V tensor, V is a part of K
  int64_t n_kv_heads = 2;
  int64_t n_cells = 256;
  int64_t n_streams = 1;
  ggml_type type = GGML_TYPE_F16;

  int64_t key_row() const { return head_dim_k * n_kv_heads; }
  int64_t value_row() const { return head_dim_v * n_kv_heads; }
};

struct ContextDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using Context = std::unique_ptr<ggml_context, ContextDeleter>;

/// K and V tensors of one layer in a buffer of a device.
class Cache {
 public:
  Cache(ggml_backend_dev_t device, const CacheShape& shape);
  ~Cache();

  const CacheShape& shape() const { return shape_; }
  ggml_tensor* k() const { return k_; }
  ggml_tensor* v() const { return v_; }
  ggml_backend_buffer_t buffer() const { return buffer_; }

  /// A CPU cache of f32 tensors with what this one decodes to.
  std::unique_ptr<Cache> DecodedOnCpu() const;

  /// View [head_dim, n_kv_heads, n_kv, n_streams], permuted as llama.cpp gives it to attention.
  ggml_tensor* AttentionView(ggml_context* context, bool key, int64_t n_kv, int64_t first_stream,
                             int64_t n_streams) const;

 private:
  CacheShape shape_;
  Context context_;
  ggml_tensor* k_ = nullptr;
  ggml_tensor* v_ = nullptr;
  ggml_backend_buffer_t buffer_ = nullptr;
};

/// Builds nodes into a graph from named inputs and runs them with the scheduler on [VARVE, CPU].
class Graph {
 public:
  Graph();
  ~Graph();

  ggml_context* context() const { return context_.get(); }

  /// New input tensors; their data is set when the graph runs.
  ggml_tensor* InputF32(std::vector<int64_t> shape, const std::vector<float>& data);
  ggml_tensor* InputF16(std::vector<int64_t> shape, const std::vector<float>& data);
  ggml_tensor* InputI32(std::vector<int64_t> shape, const std::vector<int32_t>& data);
  ggml_tensor* InputI64(std::vector<int64_t> shape, const std::vector<int64_t>& data);

  /// Adds a node to compute; its value can be read after Run if it is an output.
  ggml_tensor* Add(ggml_tensor* node, bool output = true);

  /// Plans the graph as llama.cpp's reserve does, without running it.
  void Reserve();
  ggml_status Run();

  /// Device that the scheduler chose for a node of the last run.
  ggml_backend_dev_t DeviceOf(ggml_tensor* node) const;

 private:
  ggml_tensor* Input(ggml_type type, const std::vector<int64_t>& shape, std::vector<uint8_t> bytes);

  Context context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_backend_t varve_ = nullptr;
  ggml_backend_t cpu_ = nullptr;
  ggml_backend_sched_t scheduler_ = nullptr;
  std::vector<std::pair<ggml_tensor*, std::vector<uint8_t>>> inputs_;
};

std::vector<float> ReadFloats(const ggml_tensor* tensor);
std::vector<uint8_t> ReadBytes(const ggml_tensor* tensor, size_t offset, size_t size);

/// n values from a unit Gaussian.
std::vector<float> Gaussian(std::mt19937& random, int64_t n);

/// Writes n_tokens Gaussian tokens into cells [first, first+n) of a stream through SET_ROWS, K
/// behind a ROPE node, after the cache has seen an attention node. Returns the rows as given: K
/// after RoPE is not among them.
void WriteTokens(const Cache& cache, std::mt19937& random, int64_t first_cell, int64_t n_tokens,
                 int64_t stream = 0, int64_t first_position = 0);

/// sum (a-b)^2 / sum b^2
double NormalizedSquaredError(const std::vector<float>& actual, const std::vector<float>& expected);

}  // namespace varve::plugin_test

#endif  // VARVE_TESTS_PLUGIN_SCENE_H_
