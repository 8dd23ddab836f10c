// SET_ROWS, GET_ROWS, CPY, CONT and copies between streams against the same operations on a CPU
// cache.
#include <gtest/gtest.h>

#include <numeric>

#include "scene.h"

namespace varve::plugin_test {
namespace {

// One coding of a Gaussian row at the fewest bits that a fresh token may get in these tests (4).
constexpr double kMaxCodingError = 0.02;

// Shows the cache an attention node and checks that the layer is packed, not in plain storage.
void MakePacked(const Cache& cache, std::mt19937& random) { WriteTokens(cache, random, 0, 1); }

std::vector<float> Row(const std::vector<float>& rows, int64_t row, int64_t width) {
  return {rows.begin() + row * width, rows.begin() + (row + 1) * width};
}

TEST(SetRows, IndexAndSourceTypes) {
  for (const bool wide_index : {true, false}) {
    for (const bool half_rows : {true, false}) {
      std::mt19937 random(1);
      Cache cache(VarveDevice(), {});
      const int64_t width = cache.shape().key_row();
      MakePacked(cache, random);
      const std::vector<int32_t> cells = {200, 3, 17, 64};
      const std::vector<float> rows = Gaussian(random, width * 4);
      Graph graph;
      ggml_tensor* index = wide_index ? graph.InputI64({4}, {cells.begin(), cells.end()})
                                      : graph.InputI32({4}, cells);
      ggml_tensor* source =
          half_rows ? graph.InputF16({width, 4}, rows) : graph.InputF32({width, 4}, rows);
      ggml_tensor* write =
          graph.Add(ggml_set_rows(graph.context(), cache.k(), source, index), false);
      ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
      EXPECT_EQ(graph.DeviceOf(write), VarveDevice());
      const std::vector<float> stored = ReadFloats(cache.k());
      for (size_t i = 0; i < cells.size(); ++i) {
        EXPECT_LT(NormalizedSquaredError(Row(stored, cells[i], width),
                                         Row(rows, static_cast<int64_t>(i), width)),
                  kMaxCodingError)
            << "cell " << cells[i];
      }
      EXPECT_EQ(Row(stored, 100, width), std::vector<float>(static_cast<size_t>(width), 0.0f));
    }
  }
}

TEST(SetRows, OnePlaneAStream) {
  CacheShape shape;
  shape.n_streams = 3;
  std::mt19937 random(2);
  Cache cache(VarveDevice(), shape);
  MakePacked(cache, random);
  const int64_t width = shape.value_row();
  const std::vector<float> rows = Gaussian(random, width * 2 * 3);
  Graph graph;
  ggml_tensor* index = graph.InputI64({2, 3}, {5, 9, 6, 8, 7, 0});
  ggml_tensor* source = graph.InputF32({width, 2, 3}, rows);
  graph.Add(ggml_set_rows(graph.context(), cache.v(), source, index), false);
  ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
  const std::vector<float> stored = ReadFloats(cache.v());
  const int64_t cells[] = {5, 9, 256 + 6, 256 + 8, 512 + 7, 512};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_LT(NormalizedSquaredError(Row(stored, cells[i], width), Row(rows, i, width)),
              kMaxCodingError);
  }
}

TEST(SetRows, ARowOutsideTheCacheIsRefused) {
  std::mt19937 random(3);
  Cache cache(VarveDevice(), {});
  MakePacked(cache, random);
  for (const int64_t cell : {int64_t{256}, int64_t{-1}, int64_t{1} << 40}) {
    Graph graph;
    ggml_tensor* source = graph.InputF32({128, 1}, Gaussian(random, 128));
    graph.Add(ggml_set_rows(graph.context(), cache.k(), source, graph.InputI64({1}, {cell})),
              false);
    EXPECT_EQ(graph.Run(), GGML_STATUS_FAILED) << cell;
  }
}

TEST(SetRows, RewrittenCellsAndOrder) {
  std::mt19937 random(4);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 200);
  const std::vector<float> before = ReadFloats(cache.v());
  std::vector<int64_t> cells(40);
  std::iota(cells.begin(), cells.end(), 11);
  std::shuffle(cells.begin(), cells.end(), random);
  const std::vector<float> rows = Gaussian(random, 128 * 40);
  Graph graph;
  graph.Add(ggml_set_rows(graph.context(), cache.v(), graph.InputF32({128, 40}, rows),
                          graph.InputI64({40}, cells)),
            false);
  ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
  const std::vector<float> after = ReadFloats(cache.v());
  double error = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    error +=
        NormalizedSquaredError(Row(after, cells[i], 128), Row(rows, static_cast<int64_t>(i), 128)) /
        40;
  }
  EXPECT_LT(error, kMaxCodingError);
  EXPECT_LT(NormalizedSquaredError(Row(after, 199, 128), Row(before, 199, 128)), 1e-3);
}

TEST(GetRows, EqualsTheDecodedCache) {
  CacheShape shape;
  shape.n_streams = 2;
  std::mt19937 random(5);
  Cache cache(VarveDevice(), shape);
  WriteTokens(cache, random, 0, 130, 0);
  WriteTokens(cache, random, 0, 70, 1);
  const std::vector<float> stored = ReadFloats(cache.k());
  const std::vector<int32_t> wanted = {0, 129, 64, 31, 255, 32, 64};
  for (int64_t stream = 0; stream < 2; ++stream) {
    Graph graph;
    ggml_tensor* table = ggml_view_2d(graph.context(), cache.k(), 128, 256, cache.k()->nb[1],
                                      static_cast<size_t>(stream) * cache.k()->nb[2]);
    ggml_tensor* rows =
        graph.Add(ggml_get_rows(graph.context(), table, graph.InputI32({7}, wanted)));
    ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
    EXPECT_EQ(graph.DeviceOf(rows), VarveDevice());
    const std::vector<float> read = ReadFloats(rows);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(Row(read, static_cast<int64_t>(i), 128),
                Row(stored, stream * 256 + wanted[i], 128));
    }
  }
}

TEST(Copy, OutOfTheCacheThroughAnyView) {
  std::mt19937 random(6);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 130);
  const std::unique_ptr<Cache> decoded = cache.DecodedOnCpu();
  // Attention view [64, n_kv, 2]; one head of cells 5..25; rows of the first 100 cells.
  auto views = [](ggml_context* context, const Cache& from) {
    ggml_tensor* k = from.k();
    const size_t element = ggml_type_size(k->type);
    return std::vector<ggml_tensor*>{
        from.AttentionView(context, true, 130, 0, 1),
        ggml_view_2d(context, k, 64, 20, k->nb[1], 5 * k->nb[1] + 64 * element),
        ggml_view_2d(context, k, 128, 100, k->nb[1], 0)};
  };
  for (size_t i = 0; i < 3; ++i) {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
      Graph graph;
      ggml_tensor* actual =
          graph.Add(ggml_cast(graph.context(), views(graph.context(), cache)[i], type));
      ggml_tensor* expected =
          graph.Add(ggml_cast(graph.context(), views(graph.context(), *decoded)[i], type));
      ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
      EXPECT_EQ(graph.DeviceOf(actual), VarveDevice());
      EXPECT_EQ(ReadFloats(actual), ReadFloats(expected))
          << "view " << i << " to " << ggml_type_name(type);
    }
    Graph graph;
    ggml_tensor* actual = graph.Add(ggml_cont(graph.context(), views(graph.context(), cache)[i]));
    ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
    Graph reference;
    ggml_tensor* expected =
        reference.Add(ggml_cont(reference.context(), views(reference.context(), *decoded)[i]));
    ASSERT_EQ(reference.Run(), GGML_STATUS_SUCCESS);
    EXPECT_EQ(ReadFloats(actual), ReadFloats(expected));
  }
}

TEST(Copy, IntoTheCache) {
  std::mt19937 random(7);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 100);
  const std::vector<float> before = ReadFloats(cache.v());
  const std::vector<float> rows = Gaussian(random, 64 * 10);
  Graph graph;
  // The second head of cells 90..99; the first head stays.
  ggml_tensor* v = cache.v();
  ggml_tensor* target =
      ggml_view_2d(graph.context(), v, 64, 10, v->nb[1], 90 * v->nb[1] + 64 * sizeof(ggml_fp16_t));
  ggml_tensor* copy =
      graph.Add(ggml_cpy(graph.context(), graph.InputF32({64, 10}, rows), target), false);
  ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
  EXPECT_EQ(graph.DeviceOf(copy), VarveDevice());
  const std::vector<float> after = ReadFloats(cache.v());
  double changed = 0;
  double kept = 0;
  for (int64_t i = 0; i < 10; ++i) {
    const std::vector<float> now = Row(after, 90 + i, 128);
    const std::vector<float> was = Row(before, 90 + i, 128);
    changed += NormalizedSquaredError({now.begin() + 64, now.end()}, Row(rows, i, 64)) / 10;
    kept +=
        NormalizedSquaredError({now.begin(), now.begin() + 64}, {was.begin(), was.begin() + 64}) /
        10;
  }
  EXPECT_LT(changed, kMaxCodingError);
  EXPECT_LT(kept, kMaxCodingError);
  EXPECT_EQ(Row(after, 89, 128), Row(before, 89, 128));
}

TEST(Copy, StreamToStream) {
  CacheShape shape;
  shape.n_streams = 3;
  std::mt19937 random(8);
  Cache cache(VarveDevice(), shape);
  WriteTokens(cache, random, 0, 150, 1);
  Context views(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
  for (ggml_tensor* tensor : {cache.k(), cache.v()}) {
    ggml_tensor* from = ggml_view_2d(views.get(), tensor, 128, 256, tensor->nb[1], tensor->nb[2]);
    ggml_tensor* to = ggml_view_2d(views.get(), tensor, 128, 256, tensor->nb[1], 2 * tensor->nb[2]);
    ASSERT_EQ(ggml_backend_view_init(from), GGML_STATUS_SUCCESS);
    ASSERT_EQ(ggml_backend_view_init(to), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_copy(from, to);
    const std::vector<uint8_t> expected = ReadBytes(from, 0, ggml_nbytes(from));
    const std::vector<uint8_t> actual = ReadBytes(to, 0, ggml_nbytes(to));
    EXPECT_EQ(actual, expected) << tensor->name;
    EXPECT_NE(actual, std::vector<uint8_t>(actual.size(), 0));
  }
}

TEST(Copy, ToAnotherBufferAndBack) {
  std::mt19937 random(9);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 120);
  // Unnamed tensors of the same buffer type, as llama.cpp's state copies on the device.
  Context context(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor* saved = ggml_new_tensor_1d(context.get(), GGML_TYPE_F16, 128 * 50);
  ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(
      context.get(), ggml_backend_dev_buffer_type(VarveDevice()));
  ggml_tensor* part = ggml_view_1d(context.get(), cache.k(), 128 * 50, 30 * cache.k()->nb[1]);
  ASSERT_EQ(ggml_backend_view_init(part), GGML_STATUS_SUCCESS);
  const std::vector<uint8_t> before = ReadBytes(part, 0, ggml_nbytes(part));
  ggml_backend_tensor_copy(part, saved);
  EXPECT_EQ(ReadBytes(saved, 0, ggml_nbytes(saved)), before);
  ggml_backend_tensor_copy(saved, part);
  EXPECT_LT(NormalizedSquaredError(ReadFloats(part), ReadFloats(saved)), kMaxCodingError);
  ggml_backend_buffer_free(buffer);
}

}  // namespace
}  // namespace varve::plugin_test
