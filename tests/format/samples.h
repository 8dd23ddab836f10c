// The caches whose sessions are compared with the reader in Python and frozen in tests/data/format.
#ifndef VARVE_TESTS_FORMAT_SAMPLES_H_
#define VARVE_TESTS_FORMAT_SAMPLES_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "varve/varve.hpp"

namespace samples {

constexpr int64_t kBatch = 2, kHeads = 2, kDimK = 8;

struct Sample {
  const char* name;
  std::vector<const char*> settings;  ///< of each cache
  int64_t n_tokens;
  varve_type type;

  bool has_order() const { return std::strcmp(name, "amc_order") == 0; }
  /// An order is for keys and values of one width.
  int64_t dim_v() const { return has_order() ? kDimK : 5; }
};

inline const std::vector<Sample> kSamples = {
    {"empty", {"method=age_tiered"}, 0, VARVE_F16},
    {"fp16", {"method=fp16"}, 33, VARVE_F16},
    {"fp16_bf16", {"method=fp16"}, 33, VARVE_BF16},
    {"uniform",
     {"method=uniform,uniform_bits_k=5,uniform_bits_v=3,uniform_group_size=7,value_axis=channel"},
     60,
     VARVE_F16},
    {"kivi", {"method=kivi,kivi_group_size=8,residual_length=11"}, 70, VARVE_F32},
    {"age_tiered",
     {"method=age_tiered,age_recent_boundary=16,age_mid_boundary=48,age_group_size=8",
      "method=age_tiered,age_recent_boundary=9,age_mid_boundary=30,age_group_size=4,age_bits_mid=5,"
      "age_bits_old=3,retier=exact",
      "method=age_tiered,age_recent_boundary=6,age_mid_boundary=17,age_group_size=16,"
      "age_bits_recent=16,sink_tokens=0"},
     101,
     VARVE_F16},
    {"age_tiered_bf16",
     {"method=age_tiered,age_recent_boundary=16,age_mid_boundary=48,age_group_size=8"},
     101,
     VARVE_BF16},
    {"amc", {"method=amc,amc_use_query_saliency=true,amc_threshold_window=16"}, 75, VARVE_F16},
    {"amc_order", {"method=amc,amc_groups=channels,amc_group_size=3"}, 75, VARVE_F16},
    {"per_token",
     {"method=age_tiered,codec=per_token,age_recent_boundary=40,age_mid_boundary=70,rope=neox"},
     130,
     VARVE_F16},
    {"per_token_statistics", {"method=uniform,codec=per_token"}, 20, VARVE_F16},
};

[[noreturn]] inline void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

inline void Check(const varve::Status& status, const char* name) {
  if (!status.ok()) Fail(std::string(name) + ": " + status.text());
}

/// Numbers that only integer arithmetic makes, so that they are the same everywhere.
inline std::vector<uint32_t> Numbers(size_t n, uint32_t seed) {
  std::vector<uint32_t> numbers;
  for (uint32_t state = seed; numbers.size() < n;) {
    state = state * 1664525u + 1013904223u;
    numbers.push_back(state >> 16);
  }
  return numbers;
}

/// Raw elements in -8 .. 8 in steps of 1/64, all of which the type holds.
inline std::vector<std::byte> Elements(size_t n, varve_type type, uint32_t seed) {
  std::vector<std::byte> bytes;
  for (const uint32_t number : Numbers(n, seed)) {
    const int step = type == VARVE_BF16 ? 16 : 1;
    const float x = static_cast<float>(static_cast<int>(number % 1025) / step * step - 512) / 64.0f;
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (type == VARVE_F16 && x != 0) {
      const uint32_t exponent = (bits >> 23 & 255u) - 127u + 15u;
      bits = (bits >> 31) << 15 | exponent << 10 | (bits >> 13 & 1023u);
    } else if (type == VARVE_F16) {
      bits = 0;
    } else if (type == VARVE_BF16) {
      bits >>= 16;
    }
    for (size_t i = 0; i < (type == VARVE_F32 ? 4u : 2u); ++i)
      bytes.push_back(static_cast<std::byte>(bits >> (8 * i)));
  }
  return bytes;
}

/// An empty cache with a sample's settings.
inline varve::KVCache MakeEmpty(const Sample& sample, size_t index) {
  varve::CacheConfig config;
  Check(config.set_list(sample.settings[index]), sample.name);
  auto made = varve::KVCache::create(config, static_cast<int>(index),
                                     static_cast<int>(sample.settings.size()));
  Check(made.status(), sample.name);
  return std::move(made).value();
}

inline void Append(const Sample& sample, size_t index, int64_t n_tokens, uint32_t seed,
                   varve::KVCache& cache) {
  if (n_tokens == 0) return;
  seed += static_cast<uint32_t>(index);
  const auto n = static_cast<size_t>(kBatch * kHeads * n_tokens);
  const auto keys = Elements(n * kDimK, sample.type, seed);
  const auto values = Elements(n * static_cast<size_t>(sample.dim_v()), sample.type, seed + 1000);
  Check(cache.append({sample.type, keys.data(), {kBatch, kHeads, n_tokens, kDimK}},
                     {sample.type, values.data(), {kBatch, kHeads, n_tokens, sample.dim_v()}}),
        sample.name);
}

inline varve::KVCache MakeFull(const Sample& sample, size_t index) {
  varve::KVCache cache = MakeEmpty(sample, index);
  if (sample.has_order()) {
    std::vector<int32_t> order;
    for (int32_t i = 0; i < kHeads * kDimK; ++i) order.push_back(i * 5 % kDimK);
    Check(varve::Status::of(varve_cache_set_channel_order(cache.get(), kHeads, kDimK, order.data(),
                                                          order.data())),
          sample.name);
  }
  Append(sample, index, sample.n_tokens, 17, cache);
  return cache;
}

}  // namespace samples

#endif  // VARVE_TESTS_FORMAT_SAMPLES_H_
