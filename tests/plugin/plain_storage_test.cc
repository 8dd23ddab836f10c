// What the codes cannot serve goes to plain storage and gives exactly what the CPU backend gives.
#include <gtest/gtest.h>

#include <numeric>

#include "scene.h"

namespace varve::plugin_test {
namespace {

// Runs the same graph on a cache of device VARVE and on one of the CPU; both must give the same
// bytes.
void ExpectSame(const CacheShape& shape,
                const std::function<void(const Cache&, std::vector<float>*)>& run) {
  std::vector<float> results[2];
  std::vector<uint8_t> keys[2];
  std::vector<uint8_t> values[2];
  ggml_backend_dev_t devices[2] = {VarveDevice(), CpuDevice()};
  for (int i = 0; i < 2; ++i) {
    Cache cache(devices[i], shape);
    run(cache, &results[i]);
    keys[i] = ReadBytes(cache.k(), 0, ggml_nbytes(cache.k()));
    values[i] = ReadBytes(cache.v(), 0, ggml_nbytes(cache.v()));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_FALSE(results[0].empty());
  EXPECT_EQ(keys[0], keys[1]);
  EXPECT_EQ(values[0], values[1]);
}

TEST(PlainStorage, FlashAttentionOff) {
  // llama.cpp's graph with -fa off: K by rows, V transposed element by element, K and V read by
  // MUL_MAT.
  CacheShape shape;
  shape.n_cells = 64;
  ExpectSame(shape, [&shape](const Cache& cache, std::vector<float>* result) {
    std::mt19937 random(31);
    constexpr int64_t kTokens = 5;
    Graph graph;
    ggml_context* context = graph.context();
    std::vector<int64_t> cells(kTokens);
    std::iota(cells.begin(), cells.end(), 3);
    graph.Add(ggml_set_rows(context, cache.k(),
                            graph.InputF32({128, kTokens}, Gaussian(random, 128 * kTokens)),
                            graph.InputI64({kTokens}, cells)),
              false);
    std::vector<int64_t> elements;
    for (const int64_t cell : cells) {
      for (int64_t channel = 0; channel < 128; ++channel)
        elements.push_back(channel * shape.n_cells + cell);
    }
    ggml_tensor* transposed = ggml_reshape_2d(context, cache.v(), 1, ggml_nelements(cache.v()));
    graph.Add(ggml_set_rows(context, transposed,
                            graph.InputF32({1, 128 * kTokens}, Gaussian(random, 128 * kTokens)),
                            graph.InputI64({128 * kTokens}, elements)),
              false);
    ggml_tensor* q = graph.InputF32({64, kTokens, 4}, Gaussian(random, 64 * kTokens * 4));
    ggml_tensor* k = cache.AttentionView(context, true, 32, 0, 1);
    ggml_tensor* weights = ggml_soft_max(context, ggml_mul_mat(context, k, q));
    const size_t element = ggml_type_size(cache.v()->type);
    ggml_tensor* v =
        ggml_view_3d(context, cache.v(), 32, 64, 2, 64 * element, 64 * 64 * element, 0);
    ggml_tensor* out = graph.Add(ggml_mul_mat(context, v, weights));
    ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
    *result = ReadFloats(out);
  });
}

TEST(PlainStorage, QuantisedDeclaredTypes) {
  for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL, GGML_TYPE_F32}) {
    CacheShape shape;
    shape.type = type;
    ExpectSame(shape, [](const Cache& cache, std::vector<float>* result) {
      std::mt19937 random(32);
      WriteTokens(cache, random, 0, 70);
      Graph graph;
      ggml_tensor* q = graph.InputF32({64, 3, 4}, Gaussian(random, 64 * 3 * 4));
      ggml_tensor* k = cache.AttentionView(graph.context(), true, 70, 0, 1);
      ggml_tensor* v = cache.AttentionView(graph.context(), false, 70, 0, 1);
      ggml_tensor* out =
          graph.Add(ggml_flash_attn_ext(graph.context(), q, k, v, nullptr, 0.125f, 0.0f, 0.0f));
      ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
      *result = ReadFloats(out);
    });
  }
}

TEST(PlainStorage, WithoutAnAttentionNodeTheRowsAreKeptExactly) {
  ExpectSame({}, [](const Cache& cache, std::vector<float>* result) {
    std::mt19937 random(33);
    Graph graph;
    graph.Add(
        ggml_set_rows(graph.context(), cache.k(), graph.InputF32({128, 2}, Gaussian(random, 256)),
                      graph.InputI64({2}, {7, 200})),
        false);
    ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
    *result = ReadFloats(cache.k());
  });
}

TEST(PlainStorage, ClearAndRanges) {
  CacheShape shape;
  shape.type = GGML_TYPE_Q8_0;
  shape.n_cells = 512;
  std::mt19937 random(34);
  Cache cache(VarveDevice(), shape);
  WriteTokens(cache, random, 0, 300);
  const std::vector<uint8_t> row = ReadBytes(cache.k(), 299 * cache.k()->nb[1], cache.k()->nb[1]);
  EXPECT_NE(row, std::vector<uint8_t>(row.size(), 0));
  ggml_backend_tensor_set(cache.k(), row.data(), 13, row.size());
  EXPECT_EQ(ReadBytes(cache.k(), 13, row.size()), row);
  ggml_backend_buffer_clear(cache.buffer(), 0);
  EXPECT_EQ(ReadBytes(cache.k(), 0, ggml_nbytes(cache.k())),
            std::vector<uint8_t>(ggml_nbytes(cache.k()), 0));
  EXPECT_EQ(ReadBytes(cache.v(), 0, ggml_nbytes(cache.v())),
            std::vector<uint8_t>(ggml_nbytes(cache.v()), 0));
}

TEST(PlainStorage, APackedLayerMovesThereWithItsRows) {
  std::mt19937 random(35);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 100);
  const std::vector<float> before = ReadFloats(cache.k());
  Graph graph;
  // Writes one head of one cell at a time: not whole rows.
  ggml_tensor* heads = ggml_reshape_2d(graph.context(), cache.k(), 64, 512);
  const std::vector<float> head = Gaussian(random, 64);
  graph.Add(ggml_set_rows(graph.context(), heads, graph.InputF32({64, 1}, head),
                          graph.InputI64({1}, {41})),
            false);
  ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
  std::vector<float> after = ReadFloats(cache.k());
  std::vector<float> expected(64);
  std::vector<ggml_fp16_t> halves(64);
  ggml_fp32_to_fp16_row(head.data(), halves.data(), 64);
  ggml_fp16_to_fp32_row(halves.data(), expected.data(), 64);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), after.begin() + 41 * 64));
  std::copy_n(before.begin() + 41 * 64, 64, after.begin() + 41 * 64);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace varve::plugin_test
