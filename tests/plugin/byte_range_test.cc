// get_tensor, set_tensor, memset and clear of any byte range, in the layout that llama.cpp
// declared.
#include <gtest/gtest.h>

#include <cstring>

#include "scene.h"

namespace varve::plugin_test {
namespace {

constexpr double kMaxCodingError = 0.02;

TEST(ByteRange, EveryReadEqualsAPartOfTheWholeRead) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16}) {
    CacheShape shape;
    shape.head_dim_k = shape.head_dim_v = 40;
    shape.n_cells = 64;
    shape.n_streams = 2;
    shape.type = type;
    std::mt19937 random(11);
    Cache cache(VarveDevice(), shape);
    WriteTokens(cache, random, 0, 64, 0);
    WriteTokens(cache, random, 0, 33, 1);
    for (ggml_tensor* tensor : {cache.k(), cache.v()}) {
      const size_t total = ggml_nbytes(tensor);
      const std::vector<uint8_t> whole = ReadBytes(tensor, 0, total);
      const auto part = [&whole](size_t offset, size_t size) {
        return std::vector<uint8_t>(whole.begin() + static_cast<ptrdiff_t>(offset),
                                    whole.begin() + static_cast<ptrdiff_t>(offset + size));
      };
      for (size_t row = 0; row < 128; ++row) {
        EXPECT_EQ(ReadBytes(tensor, row * tensor->nb[1], tensor->nb[1]),
                  part(row * tensor->nb[1], tensor->nb[1]));
      }
      for (size_t offset = 0; offset < total; offset += 97) {
        EXPECT_EQ(ReadBytes(tensor, offset, 1), part(offset, 1));
      }
      std::uniform_int_distribution<size_t> any(0, total - 1);
      for (int i = 0; i < 300; ++i) {
        const size_t offset = any(random);
        const size_t size = any(random) % (total - offset) + 1;
        ASSERT_EQ(ReadBytes(tensor, offset, size), part(offset, size)) << offset << "+" << size;
      }
    }
  }
}

TEST(ByteRange, AWriteChangesOnlyItsBytes) {
  std::mt19937 random(12);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 100);
  ggml_tensor* v = cache.v();
  // From the middle of cell 90 (odd byte) to the middle of cell 95.
  const size_t row_bytes = v->nb[1];
  const size_t offset = 90 * row_bytes + 101;
  const size_t size = 5 * row_bytes + 24;
  const std::vector<float> values = Gaussian(random, 128 * 256);
  std::vector<ggml_fp16_t> halves(values.size());
  ggml_fp32_to_fp16_row(values.data(), halves.data(), static_cast<int64_t>(values.size()));
  const std::vector<float> before = ReadFloats(v);
  const std::vector<uint8_t> untouched = ReadBytes(v, 0, 90 * row_bytes);
  ggml_backend_tensor_set(v, reinterpret_cast<const uint8_t*>(halves.data()) + offset, offset,
                          size);

  // A write without positions makes the rest older, so with tiers other rows may be coded anew.
  if (MethodUnderTest() != "age_tiered") {
    EXPECT_EQ(ReadBytes(v, 0, 90 * row_bytes), untouched);
  }
  const std::vector<float> after = ReadFloats(v);
  const auto slice = [](const std::vector<float>& all, size_t first, size_t n) {
    return std::vector<float>(all.begin() + static_cast<ptrdiff_t>(first),
                              all.begin() + static_cast<ptrdiff_t>(first + n));
  };
  EXPECT_LT(
      NormalizedSquaredError(slice(after, 91 * 128, 4 * 128), slice(values, 91 * 128, 4 * 128)),
      kMaxCodingError);
  EXPECT_LT(NormalizedSquaredError(slice(after, 90 * 128, 50), slice(before, 90 * 128, 50)),
            kMaxCodingError);
  EXPECT_LT(
      NormalizedSquaredError(slice(after, 90 * 128 + 51, 77), slice(values, 90 * 128 + 51, 77)),
      kMaxCodingError);
  EXPECT_LT(
      NormalizedSquaredError(slice(after, 95 * 128 + 64, 64), slice(before, 95 * 128 + 64, 64)),
      kMaxCodingError);
}

TEST(ByteRange, WritingBackWhatWasReadChangesNothing) {
  std::mt19937 random(13);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 20);
  for (ggml_tensor* tensor : {cache.k(), cache.v()}) {
    const std::vector<uint8_t> first = ReadBytes(tensor, 0, 20 * tensor->nb[1]);
    ggml_backend_tensor_set(tensor, first.data(), 0, first.size());
    const std::vector<uint8_t> second = ReadBytes(tensor, 0, first.size());
    ggml_backend_tensor_set(tensor, second.data(), 0, second.size());
    EXPECT_EQ(ReadBytes(tensor, 0, second.size()), second) << tensor->name;
  }
}

TEST(ByteRange, TwoDimensionalTransfers) {
  std::mt19937 random(14);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 50);
  ggml_tensor* k = cache.k();
  // The second head of cells 10..29.
  const size_t half = k->nb[1] / 2;
  std::vector<uint8_t> heads(20 * half);
  ggml_backend_tensor_get_2d(k, heads.data(), 10 * k->nb[1] + half, half, 20, k->nb[1], half);
  for (size_t i = 0; i < 20; ++i) {
    const std::vector<uint8_t> expected = ReadBytes(k, (10 + i) * k->nb[1] + half, half);
    EXPECT_EQ(std::memcmp(heads.data() + i * half, expected.data(), half), 0);
  }
  const std::vector<uint8_t> outside = ReadBytes(k, 30 * k->nb[1], 20 * k->nb[1]);
  ggml_backend_tensor_set_2d(k, heads.data(), 10 * k->nb[1] + half, half, 20, k->nb[1], half);
  EXPECT_EQ(ReadBytes(k, 30 * k->nb[1], 20 * k->nb[1]), outside);
}

TEST(ByteRange, ClearForgetsAndMemsetWrites) {
  std::mt19937 random(15);
  Cache cache(VarveDevice(), {});
  WriteTokens(cache, random, 0, 140);
  ggml_backend_buffer_clear(cache.buffer(), 0);
  for (ggml_tensor* tensor : {cache.k(), cache.v()}) {
    EXPECT_EQ(ReadBytes(tensor, 0, ggml_nbytes(tensor)),
              std::vector<uint8_t>(ggml_nbytes(tensor), 0));
  }
  WriteTokens(cache, random, 0, 140);
  ggml_tensor* k = cache.k();
  ggml_backend_tensor_memset(k, 0, 139 * k->nb[1], k->nb[1]);
  EXPECT_EQ(ReadBytes(k, 139 * k->nb[1], k->nb[1]), std::vector<uint8_t>(k->nb[1], 0));
  EXPECT_NE(ReadBytes(k, 138 * k->nb[1], k->nb[1]), std::vector<uint8_t>(k->nb[1], 0));
}

TEST(ByteRange, NothingWrittenReadsAsZeros) {
  Cache cache(VarveDevice(), {});
  EXPECT_EQ(ReadBytes(cache.k(), 77, 5001), std::vector<uint8_t>(5001, 0));
}

}  // namespace
}  // namespace varve::plugin_test
