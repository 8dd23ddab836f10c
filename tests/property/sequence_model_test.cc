// Random scripts of append, trim, clone and clear against a slow model that keeps floats and walks
// the same ladder, written from the specification: a group is what its raw rows, or its codes, say
// it is (B1 of the defect classes).
#include <algorithm>
#include <cmath>

#include "property/sequence_fixture.h"

namespace varve {
namespace {

struct ModelConfig {
  int group_size, n_sinks, recent, mid, residual;
  int n_tiers;
  int bits[2][3];  // [side][tier]
  bool oldest, values_by_channel;
};

// One side of one row.
class ModelSide {
 public:
  ModelSide(const ModelConfig& config, int side, int dim)
      : config_(config), side_(side), dim_(dim) {}

  void Append(const std::vector<float>& row) { rows_.push_back(row); }

  // Walks every group from where it is to where it belongs when n tokens are held, a token at a
  // time.
  void Age(int64_t n) {
    for (int64_t g = 0;; ++g) {
      const int64_t start = config_.n_sinks + g * config_.group_size;
      const int64_t end = start + config_.group_size;
      if (end + config_.residual > n) break;
      if (g == static_cast<int64_t>(tiers_.size())) {
        tiers_.push_back(-1);
        groups_.emplace_back();
      }
      const int64_t age = config_.oldest ? n - 1 - start : n - end;
      int target = 0;
      if (config_.n_tiers == 3) target = age < config_.recent ? 0 : age < config_.mid ? 1 : 2;
      int& tier = tiers_[static_cast<size_t>(g)];
      if (tier < target) {
        // A token a call, so no tier is jumped over unless it is empty or too short for a whole
        // group.
        Recode(groups_[static_cast<size_t>(g)], start, tier, target);
        tier = target;
      }
    }
  }

  void Keep(int64_t n) {
    const int64_t n_groups = n <= config_.n_sinks ? 0 : (n - config_.n_sinks) / config_.group_size;
    for (size_t g = static_cast<size_t>(n_groups); g < tiers_.size(); ++g) {
      for (int64_t t = 0; t < config_.group_size; ++t) {
        const int64_t token = config_.n_sinks + static_cast<int64_t>(g) * config_.group_size + t;
        if (token >= n) break;
        for (int d = 0; d < dim_; ++d) {
          rows_[static_cast<size_t>(token)][static_cast<size_t>(d)] =
              F16ToF32(F32ToF16(At(token, d)));
        }
      }
    }
    if (static_cast<int64_t>(tiers_.size()) > n_groups) {
      tiers_.resize(static_cast<size_t>(n_groups));
      groups_.resize(static_cast<size_t>(n_groups));
    }
    rows_.resize(static_cast<size_t>(n));
  }

  float At(int64_t token, int d) const {
    if (token >= config_.n_sinks) {
      const size_t g = static_cast<size_t>((token - config_.n_sinks) / config_.group_size);
      if (g < tiers_.size()) {
        const int bits = config_.bits[side_][tiers_[g]];
        if (bits == 16) return rows_[static_cast<size_t>(token)][static_cast<size_t>(d)];
        const int64_t t = (token - config_.n_sinks) % config_.group_size;
        const Group& group = groups_[g];
        const Range& range = group.ranges[Param(t, d)];
        return static_cast<float>(group.codes[static_cast<size_t>(t * dim_ + d)]) *
                   Scale(range, bits) +
               range.lo;
      }
    }
    return rows_[static_cast<size_t>(token)][static_cast<size_t>(d)];
  }

 private:
  struct Range {
    float lo, hi;
  };
  struct Group {
    std::vector<Range> ranges;
    std::vector<int> codes;
  };

  bool ByChannel() const { return side_ == 0 || config_.values_by_channel; }
  size_t Param(int64_t t, int d) const {
    if (ByChannel()) return static_cast<size_t>(d);
    const int64_t per_token = (dim_ + config_.group_size - 1) / config_.group_size;
    return static_cast<size_t>(t * per_token + d / config_.group_size);
  }
  static float Scale(const Range& range, int bits) {
    const float scale = (range.hi - range.lo) / static_cast<float>((1 << bits) - 1);
    return scale > 1e-8f ? scale : 1e-8f;
  }
  static int Code(float x, const Range& range, int bits) {
    const float steps = std::nearbyint((x - range.lo) / Scale(range, bits));
    return static_cast<int>(std::clamp(steps, 0.0f, static_cast<float>((1 << bits) - 1)));
  }

  void Recode(Group& group, int64_t start, int from_tier, int to_tier) {
    const int to = config_.bits[side_][to_tier];
    const int from = from_tier < 0 ? 16 : config_.bits[side_][from_tier];
    if (to == 16) {
      if (from == 16) return;
      for (int64_t t = 0; t < config_.group_size; ++t) {
        for (int d = 0; d < dim_; ++d) {
          const Range& range = group.ranges[Param(t, d)];
          const float x = static_cast<float>(group.codes[static_cast<size_t>(t * dim_ + d)]) *
                              Scale(range, from) +
                          range.lo;
          rows_[static_cast<size_t>(start + t)][static_cast<size_t>(d)] = F16ToF32(F32ToF16(x));
        }
      }
      return;
    }
    if (from == 16) {
      group.ranges.assign(Param(config_.group_size - 1, dim_ - 1) + 1, {INFINITY, -INFINITY});
      for (int64_t t = 0; t < config_.group_size; ++t) {
        for (int d = 0; d < dim_; ++d) {
          Range& range = group.ranges[Param(t, d)];
          const float x = rows_[static_cast<size_t>(start + t)][static_cast<size_t>(d)];
          range.lo = std::min(range.lo, x);
          range.hi = std::max(range.hi, x);
        }
      }
      group.codes.resize(static_cast<size_t>(config_.group_size * dim_));
    }
    for (int64_t t = 0; t < config_.group_size; ++t) {
      for (int d = 0; d < dim_; ++d) {
        const Range& range = group.ranges[Param(t, d)];
        int& code = group.codes[static_cast<size_t>(t * dim_ + d)];
        if (from == 16) {
          code = Code(rows_[static_cast<size_t>(start + t)][static_cast<size_t>(d)], range, to);
        } else if (to <= from && from % to == 0) {
          const int ratio = ((1 << from) - 1) / ((1 << to) - 1);
          code = (code + ratio / 2) / ratio;
        } else {
          code = Code(static_cast<float>(code) * Scale(range, from) + range.lo, range, to);
        }
      }
    }
  }

  const ModelConfig& config_;
  int side_;
  int dim_;
  std::vector<std::vector<float>> rows_;
  std::vector<int> tiers_;  // of groups that are coded; -1 only inside Age
  std::vector<Group> groups_;
};

struct Model {
  Model(const ModelConfig& config, int64_t n_rows, int dim_k, int dim_v) {
    for (int64_t row = 0; row < n_rows; ++row) {
      sides.emplace_back(config, 0, dim_k);
      sides.emplace_back(config, 1, dim_v);
    }
  }
  std::vector<ModelSide> sides;  // [row][side]
  int64_t n = 0;

  void Append(const Tokens& tokens, int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      ++n;
      for (size_t i = 0; i < sides.size(); ++i) {
        const Side side = static_cast<Side>(i % 2);
        const int dim = side == Side::kKey ? tokens.dim_k : tokens.dim_v;
        std::vector<float> row;
        for (int d = 0; d < dim; ++d)
          row.push_back(tokens.At(side, static_cast<int64_t>(i / 2), t, d));
        sides[i].Append(row);
        sides[i].Age(n);
      }
    }
  }
  void Trim(int64_t count) {
    n -= std::min(count, n);
    for (ModelSide& side : sides) side.Keep(n);
  }
};

std::string SettingsOf(const ModelConfig& c) {
  const auto text = [](int x) { return std::to_string(x); };
  if (c.n_tiers == 1) {
    return "method=kivi,kivi_group_size=" + text(c.group_size) +
           ",residual_length=" + text(c.residual) + ",sink_tokens=" + text(c.n_sinks) +
           ",bit_width_inlier=" + text(c.bits[0][0]);
  }
  std::string list = "method=age_tiered,age_group_size=" + text(c.group_size) +
                     ",sink_tokens=" + text(c.n_sinks) + ",age_recent_boundary=" + text(c.recent) +
                     ",age_mid_boundary=" + text(c.mid) +
                     ",tier_rule=" + (c.oldest ? "oldest" : "newest") +
                     ",value_axis=" + (c.values_by_channel ? "channel" : "token");
  const char* tiers[] = {"recent", "mid", "old"};
  for (int tier = 0; tier < 3; ++tier) {
    list += std::string(",age_bits_") + tiers[tier] + "_k=" + text(c.bits[0][tier]) + ",age_bits_" +
            tiers[tier] + "_v=" + text(c.bits[1][tier]);
  }
  return list;
}

ModelConfig RandomConfig(std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  ModelConfig c{};
  c.group_size = 1 + below(9);
  c.n_sinks = below(3) * below(5);
  c.n_tiers = below(4) == 0 ? 1 : 3;
  c.recent = 1 + below(20);
  c.mid = c.recent + (below(3) == 0 ? 0 : below(30));
  c.residual = c.n_tiers == 1 ? below(20) : 0;
  c.oldest = c.n_tiers == 3 && below(2) == 0;
  c.values_by_channel = c.n_tiers == 3 && below(2) == 0;
  constexpr int kWidths[] = {1, 2, 3, 4, 5, 6, 8, 8, 4, 2, 11, 16};
  for (auto& side : c.bits) {
    for (int& bits : side) bits = kWidths[below(c.n_tiers == 1 ? 11 : 12)];
  }
  if (c.n_tiers == 1) c.bits[1][0] = c.bits[0][0];
  return c;
}

void Compare(const SequenceCache& cache, const Model& model, const Tokens& tokens) {
  ASSERT_EQ(cache.n_tokens(), model.n);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const int dim = side == Side::kKey ? tokens.dim_k : tokens.dim_v;
    const std::vector<float> got = Decoded(cache, side);
    for (size_t i = 0; i < got.size(); ++i) {
      const int64_t token = static_cast<int64_t>(i) / dim % model.n;
      const size_t row = i / static_cast<size_t>(dim * model.n);
      const ModelSide& want = model.sides[row * 2 + static_cast<size_t>(side)];
      ASSERT_EQ(got[i], want.At(token, static_cast<int>(i % static_cast<size_t>(dim))))
          << "side " << static_cast<int>(side) << " row " << row << " token " << token;
    }
  }
}

TEST(SequenceModel, B1AThousandScriptsAgree) {
  for (uint64_t trial = 0; trial < 1200; ++trial) {
    const uint64_t seed = TestSeed() + trial;
    std::mt19937_64 random(seed);
    const ModelConfig config = RandomConfig(random);
    const Tokens tokens = RandomTokens(random, 1 + random() % 2, 1 + random() % 2, 90,
                                       1 + random() % 10, 1 + random() % 10);
    CachePtr cache = MakeCache(SettingsOf(config));
    Model model(config, tokens.batch * tokens.n_heads, tokens.dim_k, tokens.dim_v);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + SettingsOf(config));
    bool empty = true;
    for (int step = 0; step < 12; ++step) {
      const uint64_t what = random() % 10;
      if (what < 6) {
        const int64_t count = random() % 3 == 0 ? 1 : static_cast<int64_t>(random() % 40);
        const int64_t first = static_cast<int64_t>(random() % static_cast<uint64_t>(90 - count));
        ASSERT_TRUE(AppendSome(*cache, tokens, first, count).ok());
        model.Append(tokens, first, count);
        empty = false;
      } else if (what < 9) {
        const int64_t count = static_cast<int64_t>(random() % 50);
        int64_t removed = 0;
        ASSERT_TRUE(cache->Trim(count, &removed).ok());
        ASSERT_EQ(removed, std::min(count, model.n));
        model.Trim(count);
      } else if (random() % 4 == 0) {
        cache->Clear();
        model.Trim(model.n);
        empty = true;
      } else {
        Result<CachePtr> clone = cache->Clone();
        ASSERT_TRUE(clone.ok());
        ASSERT_TRUE(empty ||
                    AppendSome(*cache, tokens, 0, 17).ok());  // the original goes its own way
        cache = std::move(clone).value();
      }
      if (model.n == 0 || empty) continue;
      Compare(*cache, model, tokens);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace varve
