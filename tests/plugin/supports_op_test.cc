// What the device says it can run: yes means right, no to everything that is not about the cache.
#include <gtest/gtest.h>

#include "scene.h"

namespace varve::plugin_test {
namespace {

bool Supports(const ggml_tensor* op) { return ggml_backend_dev_supports_op(VarveDevice(), op); }

TEST(SupportsOp, NoToWorkOnWeightsAndActivations) {
  Context context(ggml_init({64 * ggml_tensor_overhead(), nullptr, true}));
  ggml_context* c = context.get();
  ggml_tensor* weight = ggml_new_tensor_2d(c, GGML_TYPE_Q4_0, 64, 64);
  ggml_tensor* x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 64, 8);
  ggml_tensor* index = ggml_new_tensor_1d(c, GGML_TYPE_I32, 8);
  ggml_tensor* half = ggml_new_tensor_3d(c, GGML_TYPE_F16, 64, 32, 2);
  EXPECT_FALSE(Supports(x));
  EXPECT_FALSE(Supports(ggml_mul_mat(c, weight, x)));
  EXPECT_FALSE(Supports(ggml_get_rows(c, weight, index)));
  EXPECT_FALSE(Supports(ggml_rms_norm(c, x, 1e-5f)));
  EXPECT_FALSE(Supports(ggml_reshape_1d(c, x, 512)));
  EXPECT_FALSE(Supports(ggml_cpy(c, x, ggml_new_tensor_2d(c, GGML_TYPE_F16, 64, 8))));
  EXPECT_FALSE(Supports(ggml_flash_attn_ext(c, ggml_new_tensor_3d(c, GGML_TYPE_F32, 64, 1, 2), half,
                                            half, nullptr, 1.0f, 0.0f, 0.0f)));
}

TEST(SupportsOp, WeightsAreNotWanted) {
  // llama.cpp asks with the weight in a buffer of ours; a yes would place it here.
  Context context(ggml_init({64 * ggml_tensor_overhead(), nullptr, true}));
  ggml_backend_buffer_t empty =
      ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(VarveDevice()), 0);
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q4_0}) {
    ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, 64, 64);
    ggml_set_name(weight, "blk.0.attn_q.weight");
    weight->buffer = empty;
    ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 64, 8);
    EXPECT_FALSE(Supports(ggml_mul_mat(context.get(), weight, x)));
    EXPECT_FALSE(Supports(
        ggml_get_rows(context.get(), weight, ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 4))));
  }
  ggml_backend_buffer_free(empty);
}

TEST(SupportsOp, BufferTypes) {
  EXPECT_TRUE(
      ggml_backend_dev_supports_buft(VarveDevice(), ggml_backend_dev_buffer_type(VarveDevice())));
  EXPECT_TRUE(ggml_backend_dev_supports_buft(VarveDevice(), ggml_backend_cpu_buffer_type()));
  EXPECT_FALSE(ggml_backend_buft_is_host(ggml_backend_dev_buffer_type(VarveDevice())));
}

TEST(SupportsOp, DeviceReport) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ggml_backend_dev_memory(VarveDevice(), &free_bytes, &total_bytes);
  EXPECT_GT(free_bytes, 0u);
  EXPECT_GE(total_bytes, free_bytes);
  EXPECT_EQ(ggml_backend_dev_type(VarveDevice()), GGML_BACKEND_DEVICE_TYPE_GPU);
  ggml_backend_dev_props props;
  ggml_backend_dev_get_props(VarveDevice(), &props);
  EXPECT_TRUE(props.caps.mmap_support);  // llama.cpp maps the model file only then
  EXPECT_FALSE(props.caps.async);
}

// Random views of K in random operations: whatever the scheduler does with them, the values are
// those of the CPU backend.
TEST(SupportsOp, RandomViewsAreRightWhereverTheyRun) {
  std::mt19937 random(41);
  CacheShape shape;
  shape.n_streams = 2;
  Cache cache(VarveDevice(), shape);
  WriteTokens(cache, random, 0, 200, 0);
  WriteTokens(cache, random, 0, 90, 1);
  const std::unique_ptr<Cache> decoded = cache.DecodedOnCpu();
  const auto draw = [&random](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int n_here = 0;
  for (int round = 0; round < 200; ++round) {
    const int64_t width = draw(1, 4) * 16;
    const int64_t rows = draw(1, 60);
    const int64_t planes = draw(1, 2);
    const int64_t row_step = draw(1, 2);
    const int64_t first = draw(0, 40) * 128 + draw(0, 3) * 16;
    const int kind = static_cast<int>(draw(0, 4));
    const std::vector<float> x = Gaussian(random, width * 3);
    std::vector<int32_t> index(5);
    for (int32_t& i : index) i = static_cast<int32_t>(draw(0, rows - 1));
    std::vector<float> outputs[2];
    const Cache* caches[2] = {&cache, decoded.get()};
    for (int i = 0; i < 2; ++i) {
      Graph graph;
      ggml_context* c = graph.context();
      ggml_tensor* k = caches[i]->k();
      const size_t element = ggml_type_size(k->type);
      ggml_tensor* view =
          ggml_view_3d(c, k, width, rows, planes, k->nb[1] * static_cast<size_t>(row_step),
                       k->nb[2], static_cast<size_t>(first) * element);
      ggml_tensor* node = nullptr;
      if (kind == 0)
        node = ggml_cont(c, ggml_cast(c, ggml_permute(c, view, 0, 2, 1, 3), GGML_TYPE_F32));
      if (kind == 1) node = ggml_cast(c, view, GGML_TYPE_F32);
      if (kind == 2)
        node = ggml_get_rows(c, ggml_view_2d(c, view, width, rows, view->nb[1], 0),
                             graph.InputI32({5}, index));
      if (kind == 3)
        node = ggml_mul_mat(c, ggml_view_2d(c, view, width, rows, view->nb[1], 0),
                            graph.InputF32({width, 3}, x));
      if (kind == 4) node = ggml_cast(c, ggml_cont(c, ggml_transpose(c, view)), GGML_TYPE_F32);
      graph.Add(node);
      ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
      if (i == 0 && graph.DeviceOf(node) == VarveDevice()) ++n_here;
      outputs[i] = ReadFloats(node);
    }
    // MUL_MAT rounds x to f16 for an f16 K.
    EXPECT_LT(NormalizedSquaredError(outputs[0], outputs[1]), kind == 3 ? 1e-5 : 1e-12)
        << "kind " << kind;
  }
  EXPECT_GT(n_here, 20);
}

}  // namespace
}  // namespace varve::plugin_test
