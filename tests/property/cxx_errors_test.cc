// The C++ face names the field and the value of what it refuses, and refuses without a crash.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "varve/varve.hpp"

namespace {

void ExpectNames(const varve::Status& status, const std::string& field, const std::string& value) {
  EXPECT_FALSE(status.ok()) << field;
  EXPECT_NE(status.text().find(field), std::string::npos) << status.text();
  EXPECT_NE(status.text().find(value), std::string::npos) << status.text();
}

TEST(CxxErrors, AModelShapeIsCheckedFieldByField) {
  varve::ModelShape good;
  good.n_layers = 2;
  good.n_heads = 6;
  good.n_kv_heads = 3;
  good.head_dim_k = 64;
  EXPECT_TRUE(varve::CacheBuilder::for_model(good, {}).ok());
  const auto refused = [&](auto change) {
    varve::ModelShape model = good;
    change(model);
    return varve::CacheBuilder::for_model(model, {}).status();
  };
  ExpectNames(refused([](auto& m) { m.n_layers = -7; }), "n_layers", "-7");
  ExpectNames(refused([](auto& m) { m.n_kv_heads = 0; }), "n_kv_heads", "0");
  ExpectNames(refused([](auto& m) { m.n_heads = 5; }), "n_heads", "5");
  ExpectNames(refused([](auto& m) { m.head_dim_k = -1; }), "head_dim_k", "-1");
  ExpectNames(refused([](auto& m) { m.head_dim_v = -3; }), "head_dim_v", "-3");
}

TEST(CxxErrors, AttendNamesWhatDoesNotFit) {
  auto cache = varve::KVCache::create({});
  ASSERT_TRUE(cache.ok());
  const std::vector<float> rows(2 * 5 * 8, 0.5f);
  ASSERT_TRUE(
      cache->append(varve::Tensor::of(rows, {1, 2, 5, 8}), varve::Tensor::of(rows, {1, 2, 5, 8}))
          .ok());
  const std::vector<float> q(2 * 8, 0.25f), short_mask(4), short_sinks(3);
  varve::AttendOptions options;
  options.n_heads = 2;
  EXPECT_TRUE(cache->attend(q, options).ok());
  options.mask = short_mask;
  ExpectNames(cache->attend(q, options).status(), "mask", "4");
  options.mask = {};
  options.sinks = short_sinks;
  ExpectNames(cache->attend(q, options).status(), "sinks", "3");
  options.sinks = {};
  options.n_heads = -2;
  ExpectNames(cache->attend(q, options).status(), "n_heads", "-2");
  options.n_heads = std::numeric_limits<int64_t>::max();
  ExpectNames(cache->attend(q, options).status(), "n_heads", "9223372036854775807");
  options.n_heads = 2;
  options.n_queries = std::numeric_limits<int64_t>::max();
  ExpectNames(cache->attend(q, options).status(), "n_queries", "9223372036854775807");
  options.n_queries = 2;
  ExpectNames(cache->attend(q, options).status(), "q", "16");
}

}  // namespace
