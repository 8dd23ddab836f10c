// Attention from packed codes against softmax attention in double over the decoded tokens.
#include <algorithm>
#include <cmath>
#include <limits>

#include "property/sequence_fixture.h"

namespace varve {
namespace {

struct Problem {
  int64_t n_heads, n_queries;
  std::vector<float> q, mask, sinks;
  bool causal = false;
  int64_t first_position = 0;
  float scale = 0.3f, softcap = 0;
};

// [B][n_heads][n_queries][Dv] by the definition.
std::vector<double> Reference(const SequenceCache& cache, const Problem& p) {
  const SequenceShape& shape = cache.shape();
  const int64_t n = cache.n_tokens();
  const std::vector<float> k = Decoded(cache, Side::kKey);
  const std::vector<float> v = Decoded(cache, Side::kValue);
  std::vector<double> out;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < p.n_heads; ++h) {
      const int64_t row = b * shape.n_kv_heads + h / (p.n_heads / shape.n_kv_heads);
      for (int64_t i = 0; i < p.n_queries; ++i) {
        const float* q = p.q.data() + ((b * p.n_heads + h) * p.n_queries + i) * shape.head_dim_k;
        std::vector<double> logits;
        for (int64_t t = 0; t < n; ++t) {
          double dot = 0;
          for (int d = 0; d < shape.head_dim_k; ++d) {
            dot +=
                static_cast<double>(q[d]) *
                static_cast<double>(k[static_cast<size_t>((row * n + t) * shape.head_dim_k + d)]);
          }
          double logit = static_cast<double>(p.scale) * dot;
          if (p.softcap != 0)
            logit =
                static_cast<double>(p.softcap) * std::tanh(logit / static_cast<double>(p.softcap));
          if (!p.mask.empty()) logit += static_cast<double>(p.mask[static_cast<size_t>(i * n + t)]);
          if (p.causal && t > p.first_position + i)
            logit = -std::numeric_limits<double>::infinity();
          logits.push_back(logit);
        }
        double top = p.sinks.empty() ? -std::numeric_limits<double>::infinity()
                                     : static_cast<double>(p.sinks[static_cast<size_t>(h)]);
        for (const double logit : logits) top = std::max(top, logit);
        double sum = p.sinks.empty()
                         ? 0
                         : std::exp(static_cast<double>(p.sinks[static_cast<size_t>(h)]) - top);
        std::vector<double> mean(static_cast<size_t>(shape.head_dim_v));
        for (int64_t t = 0; t < n && std::isfinite(top); ++t) {
          const double weight = std::exp(logits[static_cast<size_t>(t)] - top);
          sum += weight;
          for (size_t d = 0; d < mean.size() && weight > 0; ++d) {
            mean[d] +=
                weight * static_cast<double>(v[static_cast<size_t>(row * n + t) * mean.size() + d]);
          }
        }
        for (const double x : mean) out.push_back(sum > 0 ? x / sum : 0);
      }
    }
  }
  return out;
}

std::vector<float> Attended(const SequenceCache& cache, const Problem& p, int n_threads) {
  const SequenceShape& shape = cache.shape();
  std::vector<float> out(
      static_cast<size_t>(shape.batch * p.n_heads * p.n_queries * shape.head_dim_v), -7.0f);
  SequenceAttendArgs args;
  args.n_heads = p.n_heads;
  args.n_queries = p.n_queries;
  args.q = p.q.data();
  args.q_stride = {p.n_heads * p.n_queries * shape.head_dim_k, p.n_queries * shape.head_dim_k,
                   shape.head_dim_k};
  args.mask = p.mask.empty() ? nullptr : p.mask.data();
  args.mask_stride = {0, 0, cache.n_tokens()};
  args.causal = p.causal;
  args.first_position = p.first_position;
  args.scale = p.scale;
  args.logit_softcap = p.softcap;
  args.sinks = p.sinks.empty() ? nullptr : p.sinks.data();
  args.out = out.data();
  args.out_stride = {p.n_heads * p.n_queries * shape.head_dim_v, p.n_queries * shape.head_dim_v,
                     shape.head_dim_v};
  args.n_threads = n_threads;
  const Status status = cache.Attend(args);
  EXPECT_TRUE(status.ok()) << status.text();
  return out;
}

TEST(SequenceAttend, PackedEqualsDecoded) {
  std::mt19937_64 random(TestSeed());
  std::normal_distribution<float> gauss;
  for (int trial = 0; trial < 8; ++trial) {
    for (const std::string& config : ManyConfigs()) {
      const int64_t n = trial == 0 ? 1 : 1 + static_cast<int64_t>(random() % 180);
      const int64_t n_kv_heads = 1 + static_cast<int64_t>(random() % 3);
      const Tokens tokens = RandomTokens(random, 1 + random() % 2, n_kv_heads, n, 1 + random() % 40,
                                         1 + random() % 40);
      CachePtr cache = MakeCache(config);
      ASSERT_TRUE(AppendSome(*cache, tokens, 0, n).ok());
      Problem p;
      p.n_heads = n_kv_heads * (1 + static_cast<int64_t>(random() % 4));
      p.n_queries = 1 + static_cast<int64_t>(random() % 40);
      p.q.resize(static_cast<size_t>(tokens.batch * p.n_heads * p.n_queries * tokens.dim_k));
      for (float& x : p.q) x = gauss(random);
      p.causal = random() % 2 == 0;
      p.first_position = std::max<int64_t>(0, n - p.n_queries);
      if (random() % 2 == 0) p.softcap = 5.0f;
      if (random() % 2 == 0) {
        for (int64_t h = 0; h < p.n_heads; ++h) p.sinks.push_back(gauss(random));
      }
      if (random() % 2 == 0) {
        for (int64_t i = 0; i < p.n_queries * n; ++i) {
          p.mask.push_back(random() % 3 == 0 ? -std::numeric_limits<float>::infinity()
                                             : gauss(random));
        }
        std::fill_n(p.mask.begin(), n,
                    -std::numeric_limits<float>::infinity());  // the first query sees nothing
      }
      const std::vector<double> want = Reference(*cache, p);
      const std::vector<float> got = Attended(*cache, p, 1);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(static_cast<double>(got[i]), want[i], 2e-5) << config << " n " << n;
      EXPECT_EQ(Attended(*cache, p, 3), got) << config;
    }
  }
}

// A masked token never contributes, whatever it holds.
TEST(SequenceAttend, MaskedNonFiniteTokensTakeNoPart) {
  std::mt19937_64 random(TestSeed());
  Tokens tokens = RandomTokens(random, 1, 1, 40, 8, 8);
  const uint16_t nan_bits = 0x7e00;
  for (int d = 0; d < 8; ++d) {
    std::memcpy(tokens.k.data() + 2 * (39 * 8 + d), &nan_bits, 2);
    std::memcpy(tokens.v.data() + 2 * (39 * 8 + d), &nan_bits, 2);
  }
  CachePtr cache = MakeCache("method=age_tiered,reject_non_finite=false");
  ASSERT_TRUE(AppendSome(*cache, tokens, 0, 40).ok());
  Problem p;
  p.n_heads = p.n_queries = 1;
  p.q.assign(8, 0.5f);
  p.mask.assign(40, 0.0f);
  p.mask[39] = -std::numeric_limits<float>::infinity();
  for (const float x : Attended(*cache, p, 1)) EXPECT_TRUE(std::isfinite(x));
}

// A6: every pair of widths, prefill and decode.
TEST(SequenceAttend, A6EveryPairOfWidths) {
  std::mt19937_64 random(TestSeed());
  std::normal_distribution<float> gauss;
  const Tokens tokens = RandomTokens(random, 1, 1, 100, 16, 16);
  for (int k_bits = 1; k_bits <= 16; ++k_bits) {
    for (int v_bits = 1; v_bits <= 16; ++v_bits) {
      CachePtr cache = MakeCache("method=uniform,uniform_bits_k=" + std::to_string(k_bits) +
                                 ",uniform_bits_v=" + std::to_string(v_bits));
      ASSERT_TRUE(AppendSome(*cache, tokens, 0, 100).ok());
      for (const int64_t n_queries : {1, 33}) {
        Problem p;
        p.n_heads = 2;
        p.n_queries = n_queries;
        p.q.resize(static_cast<size_t>(2 * n_queries * 16));
        for (float& x : p.q) x = gauss(random);
        p.causal = true;
        p.first_position = 100 - n_queries;
        const std::vector<double> want = Reference(*cache, p);
        const std::vector<float> got = Attended(*cache, p, 1);
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_NEAR(static_cast<double>(got[i]), want[i], 2e-5) << k_bits << " " << v_bits;
        }
      }
    }
  }
}

TEST(SequenceAttend, BadArgumentsAreNamed) {
  std::mt19937_64 random(TestSeed());
  CachePtr cache = MakeCache("method=age_tiered");
  SequenceAttendArgs args;
  EXPECT_EQ(cache->Attend(args).code(), StatusCode::kInvalidState);
  ASSERT_TRUE(AppendSome(*cache, RandomTokens(random, 1, 2, 8, 8, 8), 0, 8).ok());
  args.n_heads = 3;
  args.n_queries = 1;
  EXPECT_NE(cache->Attend(args).text().find("n_heads"), std::string::npos);
  args.n_heads = 4;
  EXPECT_NE(cache->Attend(args).text().find("q is NULL"), std::string::npos);
  args.n_queries = -1;
  EXPECT_NE(cache->Attend(args).text().find("n_queries"), std::string::npos);
}

}  // namespace
}  // namespace varve
