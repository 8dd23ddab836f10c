// ROPE in place on views of K: what a context shift does.
#include <gtest/gtest.h>

#include <cmath>

#include "scene.h"

namespace varve::plugin_test {
namespace {

// Rows are read as f16: one rounding before and one after the turn.
constexpr double kMaxError = 2e-6;

struct Turn {
  int n_dims = 64;
  int mode = GGML_ROPE_TYPE_NEOX;
  float freq_base = 10000.0f;
  float freq_scale = 1.0f;
  float ext_factor = 0.0f;
  float attn_factor = 1.0f;
  bool factors = false;
};

std::vector<int32_t> Deltas(int64_t n_cells, int32_t first, int32_t step) {
  std::vector<int32_t> deltas(static_cast<size_t>(n_cells));
  for (int64_t i = 0; i < n_cells; ++i)
    deltas[static_cast<size_t>(i)] = i < 8 ? 0 : first + step * static_cast<int32_t>(i % 3);
  return deltas;
}

void Shift(const Cache& cache, const Turn& turn, const std::vector<int32_t>& deltas,
           bool on_varve) {
  const CacheShape& shape = cache.shape();
  Graph graph;
  ggml_tensor* k = cache.k();
  ggml_tensor* view = ggml_view_3d(graph.context(), k, turn.n_dims, shape.n_kv_heads,
                                   shape.n_cells * shape.n_streams,
                                   ggml_row_size(k->type, shape.head_dim_k), k->nb[1], 0);
  ggml_tensor* delta = graph.InputI32({shape.n_cells * shape.n_streams}, deltas);
  ggml_tensor* factors = nullptr;
  if (turn.factors) {
    std::vector<float> values(static_cast<size_t>(turn.n_dims / 2));
    for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + 0.1f * static_cast<float>(i);
    factors = graph.InputF32({turn.n_dims / 2}, values);
  }
  ggml_tensor* shifted =
      graph.Add(ggml_rope_ext_inplace(graph.context(), view, delta, factors, turn.n_dims, turn.mode,
                                      4096, turn.freq_base, turn.freq_scale, turn.ext_factor,
                                      turn.attn_factor, 32.0f, 1.0f),
                false);
  ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
  EXPECT_EQ(graph.DeviceOf(shifted) == VarveDevice(), on_varve);
}

TEST(ShiftOp, EqualsRopeOnTheDecodedKeys) {
  std::vector<Turn> turns(6);
  turns[1].mode = GGML_ROPE_TYPE_NORMAL;
  turns[2].n_dims = 32;
  turns[3].factors = true;
  turns[4].freq_base = 1000000.0f;
  turns[4].freq_scale = 0.25f;
  turns[5].freq_scale = 0.25f;
  turns[5].ext_factor = 1.0f;
  turns[5].attn_factor = 1.0f / (1.0f + 0.1f * std::log(4.0f));
  for (size_t i = 0; i < turns.size(); ++i) {
    for (const int64_t n_streams : {1, 2}) {
      CacheShape shape;
      shape.n_streams = n_streams;
      std::mt19937 random(21);
      Cache cache(VarveDevice(), shape);
      for (int64_t stream = 0; stream < n_streams; ++stream)
        WriteTokens(cache, random, 0, 150, stream);
      const std::unique_ptr<Cache> reference = cache.DecodedOnCpu();
      const std::vector<int32_t> deltas = Deltas(shape.n_cells * n_streams, -64, 1);
      Shift(cache, turns[i], deltas, true);
      Shift(*reference, turns[i], deltas, false);
      EXPECT_LT(NormalizedSquaredError(ReadFloats(cache.k()), ReadFloats(reference->k())),
                kMaxError)
          << "turn " << i;
      EXPECT_EQ(ReadFloats(cache.v()), ReadFloats(reference->v()));
    }
  }
}

TEST(ShiftOp, ManyShiftsDoNotDrift) {
  std::mt19937 random(22);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 200);
  const std::vector<float> before = ReadFloats(cache.k());
  std::vector<int32_t> forth(256, 1);
  std::vector<int32_t> back(256, -1);
  const std::vector<int32_t> far(256, 64);
  const std::vector<int32_t> home(256, -64);
  for (int i = 0; i < 50; ++i) {
    Shift(cache, {}, forth, true);
    Shift(cache, {}, far, true);
    Shift(cache, {}, back, true);
    Shift(cache, {}, home, true);
  }
  EXPECT_LT(NormalizedSquaredError(ReadFloats(cache.k()), before), 1e-4);
}

TEST(ShiftOp, AttentionSeesTheShiftedKeys) {
  CacheShape shape;
  std::mt19937 random(23);
  Cache cache(VarveDevice(), shape);
  WriteTokens(cache, random, 0, 200);
  Shift(cache, {}, Deltas(shape.n_cells, -30, 7), true);
  const std::unique_ptr<Cache> decoded = cache.DecodedOnCpu();
  const std::vector<float> query = Gaussian(random, 64 * 4 * 3);
  std::vector<float> outputs[2];
  const Cache* caches[2] = {&cache, decoded.get()};
  for (int i = 0; i < 2; ++i) {
    Graph graph;
    ggml_tensor* q = ggml_permute(graph.context(), graph.InputF32({64, 4, 3}, query), 0, 2, 1, 3);
    ggml_tensor* k = caches[i]->AttentionView(graph.context(), true, 200, 0, 1);
    ggml_tensor* v = caches[i]->AttentionView(graph.context(), false, 200, 0, 1);
    ggml_tensor* out =
        graph.Add(ggml_flash_attn_ext(graph.context(), q, k, v, nullptr, 0.125f, 0.0f, 0.0f));
    ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
    outputs[i] = ReadFloats(out);
  }
  EXPECT_LT(NormalizedSquaredError(outputs[0], outputs[1]), 5e-4);
}

TEST(ShiftOp, ATurnPastTheFirstChannels) {
  // DeepSeek-like: the turned channels come last in the head. The codes are made anew, within their
  // own error.
  std::mt19937 random(24);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 100);
  const std::unique_ptr<Cache> reference = cache.DecodedOnCpu();
  for (const Cache* shifted :
       {static_cast<const Cache*>(&cache), static_cast<const Cache*>(reference.get())}) {
    Graph graph;
    ggml_tensor* k = shifted->k();
    ggml_tensor* view = ggml_view_3d(graph.context(), k, 32, 2, 256, ggml_row_size(k->type, 64),
                                     k->nb[1], ggml_row_size(k->type, 32));
    graph.Add(ggml_rope_ext_inplace(graph.context(), view, graph.InputI32({256}, Deltas(256, 5, 1)),
                                    nullptr, 32, GGML_ROPE_TYPE_NORMAL, 0, 10000.0f, 1.0f, 0.0f,
                                    1.0f, 0.0f, 0.0f),
              false);
    ASSERT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
  }
  EXPECT_LT(NormalizedSquaredError(ReadFloats(cache.k()), ReadFloats(reference->k())), 0.02);
}

TEST(ShiftOp, ATurnThatScalesGoesToPlainStorage) {
  // attn_factor other than 1 multiplies the keys: the codes cannot take it, so the layer moves with
  // its rows.
  Turn turn;
  turn.attn_factor = 1.5f;
  std::mt19937 random(25);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 100);
  const std::unique_ptr<Cache> reference = cache.DecodedOnCpu();
  const std::vector<int32_t> deltas = Deltas(256, -20, 1);
  Shift(cache, turn, deltas, true);
  Shift(*reference, turn, deltas, false);
  EXPECT_LT(NormalizedSquaredError(ReadFloats(cache.k()), ReadFloats(reference->k())), kMaxError);
  EXPECT_LT(NormalizedSquaredError(ReadFloats(cache.v()), ReadFloats(reference->v())), kMaxError);
}

}  // namespace
}  // namespace varve::plugin_test
