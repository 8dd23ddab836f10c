// What the tests of sequence caches share: random tokens, caches from a list of settings, decoded
// content.
#ifndef VARVE_TESTS_PROPERTY_SEQUENCE_FIXTURE_H_
#define VARVE_TESTS_PROPERTY_SEQUENCE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/f16.h"
#include "cache/sequence_cache.h"

namespace varve {

using CachePtr = std::unique_ptr<SequenceCache>;

/// VARVE_TEST_SEED, or the default; every random test prints the seed that it runs with on failure.
inline uint64_t TestSeed() {
  const char* text = std::getenv("VARVE_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 20240611;
}

inline CachePtr MakeCache(const std::string& assignments) {
  Settings settings;
  const Status set = SetFields(&settings, assignments);
  EXPECT_TRUE(set.ok()) << set.text();
  Result<CachePtr> cache = MakeSequenceCache(settings, 0, 1);
  EXPECT_TRUE(cache.ok()) << cache.status().text();
  return cache.ok() ? std::move(cache).value() : nullptr;
}

/// Random keys and values, contiguous [B,H,S,D].
struct Tokens {
  int64_t batch, n_heads, n;
  int dim_k, dim_v;
  ElementType type;
  std::vector<std::byte> k, v;

  TensorView View(Side side, int64_t first, int64_t count) const {
    const int64_t dim = side == Side::kKey ? dim_k : dim_v;
    const auto& bytes = side == Side::kKey ? k : v;
    TensorView view;
    view.data = bytes.data() + static_cast<size_t>(first * dim) * ElementBytes(type);
    view.type = type;
    const int64_t shape[] = {batch, n_heads, count, dim};
    const int64_t stride[] = {n_heads * n * dim, n * dim, dim, 1};
    std::copy_n(shape, 4, view.shape);
    std::copy_n(stride, 4, view.stride);
    return view;
  }
  float At(Side side, int64_t row, int64_t token, int64_t d) const {
    const int64_t dim = side == Side::kKey ? dim_k : dim_v;
    const auto& bytes = side == Side::kKey ? k : v;
    return LoadElement(
        type, bytes.data() + static_cast<size_t>((row * n + token) * dim + d) * ElementBytes(type));
  }
};

inline Tokens RandomTokens(std::mt19937_64& random, int64_t batch, int64_t n_heads, int64_t n,
                           int dim_k, int dim_v, ElementType type = ElementType::kF16) {
  Tokens tokens{batch, n_heads, n, dim_k, dim_v, type, {}, {}};
  std::normal_distribution<float> gauss;
  for (const Side side : {Side::kKey, Side::kValue}) {
    const int dim = side == Side::kKey ? dim_k : dim_v;
    std::vector<float> offset(static_cast<size_t>(dim));
    for (float& x : offset) x = 2.0f * gauss(random);
    auto& bytes = side == Side::kKey ? tokens.k : tokens.v;
    bytes.resize(static_cast<size_t>(batch * n_heads * n * dim) * ElementBytes(type));
    for (size_t i = 0; i * ElementBytes(type) < bytes.size(); ++i) {
      const float x = gauss(random) + offset[i % static_cast<size_t>(dim)];
      StoreElement(type, x, bytes.data() + i * ElementBytes(type));
    }
  }
  return tokens;
}

inline Status AppendSome(SequenceCache& cache, const Tokens& tokens, int64_t first, int64_t n) {
  return cache.Append(tokens.View(Side::kKey, first, n), tokens.View(Side::kValue, first, n));
}

/// All tokens of one side as f32 [B*H][n][D].
inline std::vector<float> Decoded(const SequenceCache& cache, Side side) {
  const SequenceShape& shape = cache.shape();
  std::vector<float> out(
      static_cast<size_t>(shape.n_rows() * cache.n_tokens() * shape.head_dim(side)));
  const Status status = cache.Decode(side, 0, cache.n_tokens(), ElementType::kF32,
                                     reinterpret_cast<std::byte*>(out.data()));
  EXPECT_TRUE(status.ok()) << status.text();
  return out;
}

/// Everything that can be seen of a cache's content.
struct Content {
  int64_t n_tokens;
  uint64_t payload_bytes;
  std::vector<float> k, v;
  std::vector<uint8_t> group_tiers;

  friend bool operator==(const Content&, const Content&) = default;
};

inline Content ContentOf(const SequenceCache& cache) {
  if (!cache.has_shape()) return {0, 0, {}, {}, {}};
  return {cache.n_tokens(), cache.Stats().payload_bytes, Decoded(cache, Side::kKey),
          Decoded(cache, Side::kValue), cache.GroupTiers()};
}

/// Settings of caches that between them take every path.
inline const std::vector<std::string>& ManyConfigs() {
  static const std::vector<std::string> configs = {
      "method=fp16",
      "method=uniform,uniform_bits=4,uniform_group_size=8",
      "method=uniform,uniform_bits_k=5,uniform_bits_v=3,uniform_group_size=7,sink_tokens=0,value_"
      "axis=channel",
      "method=uniform,codec=per_token,uniform_bits=4",
      "method=kivi,kivi_group_size=8,residual_length=11,sink_tokens=3",
      "method=age_tiered,age_recent_boundary=8,age_mid_boundary=24,age_group_size=8",
      "method=age_tiered,age_recent_boundary=5,age_mid_boundary=5,age_group_size=7,age_bits_recent="
      "6,age_bits_old=3,"
      "sink_tokens=0",
      "method=age_tiered,age_recent_boundary=9,age_mid_boundary=30,age_group_size=4,age_bits_"
      "recent=8,age_bits_mid=5,"
      "age_bits_old=3,retier=exact,tier_rule=oldest",
      "method=age_tiered,age_recent_boundary=6,age_mid_boundary=17,age_group_size=16,age_bits_"
      "recent=16,"
      "age_bits_mid=8,age_bits_old=4,value_axis=channel,sink_tokens=1,exact_tail=false,tier_rule="
      "oldest",
      "method=age_tiered,codec=per_token,age_recent_boundary=40,age_mid_boundary=80,rope=neox",
      "method=amc,amc_threshold_window=16",
      "method=amc,amc_use_query_saliency=true,sink_tokens=0,amc_groups=channels,amc_group_size=5",
  };
  return configs;
}

}  // namespace varve

#endif  // VARVE_TESTS_PROPERTY_SEQUENCE_FIXTURE_H_
