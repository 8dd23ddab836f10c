// FLASH_ATTN_EXT on the codes against ggml's CPU backend on the decoded cache, over shapes, masks
// and options.
#include <gtest/gtest.h>

#include <cmath>

#include "scene.h"

namespace varve::plugin_test {
namespace {

// As ggml's own backend tests for this operation.
constexpr double kMaxError = 5e-4;

struct Options {
  int64_t n_rep = 2;       ///< query heads a KV head
  int64_t n_rows = 1;      ///< query tokens a stream
  int64_t n_kv = 64;       ///< columns of the call
  int64_t n_written = 64;  ///< cells that hold a token; the columns past them are masked
  bool mask = true;
  int64_t mask_heads = 1;
  float softcap = 0.0f;
  float max_bias = 0.0f;
  float sink_scale = 0.0f;  ///< 0: no sinks
  int64_t first_stream = 0;
  int64_t n_streams = 1;
  int64_t value_offset = 0;    ///< where V starts in a key head, without a V tensor
  int64_t value_width = 0;     ///< its width
  bool query_by_token = true;  ///< q laid out [token][head] and permuted, as llama.cpp does
};

struct Inputs {
  std::vector<float> q, mask, sinks;
};

Inputs MakeInputs(std::mt19937& random, const CacheShape& shape, const Options& options) {
  Inputs inputs;
  const int64_t n_heads = shape.n_kv_heads * options.n_rep;
  inputs.q = Gaussian(random, shape.head_dim_k * options.n_rows * n_heads * options.n_streams);
  if (options.mask) {
    std::uniform_int_distribution<int> kind(0, 9);
    std::uniform_real_distribution<float> bias(-2.0f, 0.0f);
    for (int64_t i = 0; i < options.n_streams * options.mask_heads * options.n_rows; ++i) {
      for (int64_t cell = 0; cell < options.n_kv; ++cell) {
        const int drawn = kind(random);
        const bool masked = cell >= options.n_written || drawn < 3;
        inputs.mask.push_back(masked                               ? -INFINITY
                              : drawn == 3 || options.max_bias > 0 ? bias(random)
                                                                   : 0.0f);
      }
    }
  }
  if (options.sink_scale != 0.0f) {
    inputs.sinks = Gaussian(random, n_heads);
    for (float& sink : inputs.sinks) sink *= options.sink_scale;
  }
  return inputs;
}

std::vector<float> Attend(const Cache& cache, const Options& options, const Inputs& inputs,
                          bool expect_varve) {
  const CacheShape& shape = cache.shape();
  const int64_t n_heads = shape.n_kv_heads * options.n_rep;
  Graph graph;
  ggml_context* context = graph.context();
  ggml_tensor* q = nullptr;
  if (options.query_by_token) {
    q = graph.InputF32({shape.head_dim_k, n_heads, options.n_rows, options.n_streams}, inputs.q);
    q = ggml_permute(context, q, 0, 2, 1, 3);
  } else {
    q = graph.InputF32({shape.head_dim_k, options.n_rows, n_heads, options.n_streams}, inputs.q);
  }
  ggml_tensor* k =
      cache.AttentionView(context, true, options.n_kv, options.first_stream, options.n_streams);
  ggml_tensor* v = nullptr;
  if (shape.head_dim_v > 0) {
    v = cache.AttentionView(context, false, options.n_kv, options.first_stream, options.n_streams);
  } else {
    v = ggml_view_4d(context, k, options.value_width, k->ne[1], k->ne[2], k->ne[3], k->nb[1],
                     k->nb[2], k->nb[3], options.value_offset * ggml_type_size(k->type));
  }
  ggml_tensor* mask = nullptr;
  if (options.mask) {
    mask = graph.InputF16({options.n_kv, options.n_rows, options.mask_heads, options.n_streams},
                          inputs.mask);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim_k));
  ggml_tensor* out =
      ggml_flash_attn_ext(context, q, k, v, mask, scale, options.max_bias, options.softcap);
  if (!inputs.sinks.empty())
    ggml_flash_attn_ext_add_sinks(out, graph.InputF32({n_heads}, inputs.sinks));
  graph.Add(out);
  EXPECT_EQ(graph.Run(), GGML_STATUS_SUCCESS);
  EXPECT_EQ(graph.DeviceOf(out) == VarveDevice(), expect_varve);
  return ReadFloats(out);
}

void Compare(const Cache& cache, const Cache& decoded, const Options& options,
             std::mt19937& random) {
  const Inputs inputs = MakeInputs(random, cache.shape(), options);
  const std::vector<float> actual = Attend(cache, options, inputs, true);
  const std::vector<float> expected = Attend(decoded, options, inputs, false);
  EXPECT_LT(NormalizedSquaredError(actual, expected), kMaxError)
      << "head_dim " << cache.shape().head_dim_k << "/" << cache.shape().head_dim_v << " kv heads "
      << cache.shape().n_kv_heads << " rep " << options.n_rep << " rows " << options.n_rows
      << " n_kv " << options.n_kv << " mask " << options.mask << " softcap " << options.softcap
      << " max_bias " << options.max_bias << " sinks " << options.sink_scale << " streams "
      << options.first_stream << "+" << options.n_streams;
}

struct Scene {
  explicit Scene(const CacheShape& shape, int64_t n_tokens) : cache(VarveDevice(), shape) {
    for (int64_t stream = 0; stream < shape.n_streams; ++stream)
      WriteTokens(cache, random, 0, n_tokens, stream);
    decoded = cache.DecodedOnCpu();
  }
  void Check(const Options& options) { Compare(cache, *decoded, options, random); }

  std::mt19937 random{20240607};
  Cache cache;
  std::unique_ptr<Cache> decoded;
};

TEST(AttentionOp, HeadDims) {
  for (const int64_t head_dim : {40, 64, 72, 80, 96, 100, 112, 128, 192, 256, 320, 576}) {
    CacheShape shape;
    shape.head_dim_k = shape.head_dim_v = head_dim;
    Scene scene(shape, 130);
    for (const int64_t n_rows : {1, 7, 33}) {
      Options options;
      options.n_kv = 256;
      options.n_written = 130;
      options.n_rows = n_rows;
      scene.Check(options);
    }
  }
}

TEST(AttentionOp, KeyAndValueWidthsDiffer) {
  for (const auto& [head_dim_k, head_dim_v] :
       {std::pair<int64_t, int64_t>{192, 128}, {64, 128}, {576, 512}, {512, 64}}) {
    CacheShape shape;
    shape.head_dim_k = head_dim_k;
    shape.head_dim_v = head_dim_v;
    Scene scene(shape, 100);
    Options options;
    options.n_kv = options.n_written = 100;
    options.n_rows = 3;
    scene.Check(options);
  }
}

TEST(AttentionOp, GroupedHeads) {
  for (const int64_t n_kv_heads : {1, 2, 3, 8}) {
    for (const int64_t n_rep : {1, 2, 3, 7, 16}) {
      CacheShape shape;
      shape.n_kv_heads = n_kv_heads;
      Scene scene(shape, 96);
      Options options;
      options.n_rep = n_rep;
      options.n_kv = options.n_written = 96;
      options.n_rows = 2;
      scene.Check(options);
    }
  }
}

TEST(AttentionOp, EveryLengthWithoutMask) {
  CacheShape shape;
  Scene scene(shape, 130);
  for (int64_t n_kv = 1; n_kv <= 130; ++n_kv) {
    Options options;
    options.mask = false;
    options.n_kv = options.n_written = n_kv;
    options.softcap = n_kv % 2 == 0 ? 30.0f : 0.0f;
    options.n_rows = 1 + n_kv % 9;
    scene.Check(options);
  }
}

TEST(AttentionOp, Rows) {
  CacheShape shape;
  shape.n_kv_heads = 3;
  Scene scene(shape, 200);
  for (const int64_t n_rows : {1, 2, 7, 8, 33, 512}) {
    for (const bool by_token : {true, false}) {
      Options options;
      options.n_rep = 3;
      options.n_rows = n_rows;
      options.n_kv = 256;
      options.n_written = 200;
      options.query_by_token = by_token;
      scene.Check(options);
    }
  }
}

TEST(AttentionOp, SoftcapAlibiSinksMask) {
  CacheShape shape;
  Scene scene(shape, 130);
  for (const float softcap : {0.0f, 30.0f, 50.0f}) {
    for (const float max_bias : {0.0f, 8.0f}) {
      for (const float sinks : {0.0f, 0.5f, 40.0f}) {
        for (const bool mask : {true, false}) {
          if (!mask && max_bias > 0.0f) continue;  // ggml: ALiBi needs a mask
          for (const int64_t n_rows : {1, 9}) {
            Options options;
            options.n_rep = 3;  // 6 heads: no power of two, so both ALiBi bases are used
            options.softcap = softcap;
            options.max_bias = max_bias;
            options.sink_scale = sinks;
            options.mask = mask;
            options.n_rows = n_rows;
            options.n_kv = options.n_written = 130;
            scene.Check(options);
          }
        }
      }
    }
  }
}

TEST(AttentionOp, MaskPlanePerHead) {
  CacheShape shape;
  Scene scene(shape, 64);
  Options options;
  options.n_rep = 2;
  options.mask_heads = 4;
  options.n_rows = 5;
  scene.Check(options);
}

TEST(AttentionOp, Streams) {
  CacheShape shape;
  shape.n_streams = 4;
  Scene scene(shape, 96);
  for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 4}, {1, 2}, {3, 1}, {0, 1}}) {
    for (const int64_t n_rows : {1, 8}) {
      Options options;
      options.first_stream = first;
      options.n_streams = n;
      options.n_rows = n_rows;
      options.n_kv = 256;
      options.n_written = 96;
      scene.Check(options);
    }
  }
}

TEST(AttentionOp, ValueIsAPartOfKey) {
  CacheShape shape;
  shape.head_dim_k = 576;
  shape.head_dim_v = 0;
  shape.n_kv_heads = 1;
  Scene scene(shape, 96);
  for (const int64_t offset : {0, 32, 64}) {
    for (const int64_t n_rows : {1, 4}) {
      Options options;
      options.n_rep = 16;
      options.n_rows = n_rows;
      options.n_kv = 128;
      options.n_written = 96;
      options.value_offset = offset;
      options.value_width = 512;
      scene.Check(options);
    }
  }
}

TEST(AttentionOp, AFullyMaskedRowGivesZeros) {
  CacheShape shape;
  Scene scene(shape, 64);
  Options options;
  options.n_rows = 2;
  Inputs inputs = MakeInputs(scene.random, shape, options);
  std::fill(inputs.mask.begin(), inputs.mask.begin() + options.n_kv, -INFINITY);
  const std::vector<float> actual = Attend(scene.cache, options, inputs, true);
  const int64_t row = shape.head_dim_v * shape.n_kv_heads * options.n_rep;
  for (int64_t i = 0; i < row; ++i) EXPECT_EQ(actual[static_cast<size_t>(i)], 0.0f);
  EXPECT_LT(NormalizedSquaredError(actual, Attend(*scene.decoded, options, inputs, false)),
            kMaxError);
}

}  // namespace
}  // namespace varve::plugin_test
