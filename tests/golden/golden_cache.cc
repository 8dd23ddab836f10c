// Cases of type "cache": the operations are replayed on a cache with preset=seed, from packed
// storage; outputs, counters, tiers and saliencies are compared.
#include <algorithm>
#include <cmath>
#include <map>

#include "base/f16.h"
#include "golden/golden_case.h"
#include "varve/varve.hpp"

namespace golden {
namespace {

constexpr double kRatioTolerance = 1e-12;
constexpr double kSaliencyTolerance = 2e-6;
constexpr double kThresholdTolerance = 1e-9;

varve_type TypeOf(const NpyArray& array) {
  if (array.is_bf16) return VARVE_BF16;
  return array.descr == "<f4" ? VARVE_F32 : VARVE_F16;
}

// n tokens of a [B,H,S,D] input from `first` on, in place.
varve::Tensor Tokens(const NpyArray& input, int64_t first, int64_t n) {
  const auto& s = input.shape;
  return varve::Tensor(
      TypeOf(input), input.bytes.data() + static_cast<size_t>(first * s[3]) * input.element_bytes(),
      {s[0], s[1], n, s[3]}, {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1});
}

double CounterOf(const varve_cache_stats& now, const std::string& name) {
  const std::map<std::string, double> counters = {
      {"offset", now.n_tokens},
      {"nbytes", now.seed_nbytes},
      {"tokens_seen", now.tokens_seen},
      {"tokens_kept", now.n_tokens},
      {"full_seq_bytes", now.full_seq_bytes},
      {"age_tiered_bytes", now.nominal_bytes},
      {"amc_kept_bytes", now.nominal_bytes},
      {"compression_ratio", now.nominal_ratio},
      {"tokens_recent", now.tier_tokens[0]},
      {"tokens_high", now.tier_tokens[0]},
      {"tokens_mid", now.tier_tokens[1]},
      {"tokens_old", now.tier_tokens[2]},
      {"tokens_low", now.tier_tokens[2]},
      {"compressed_key_bytes", now.compressed_key_bytes},
      {"compressed_value_bytes", now.compressed_value_bytes},
      {"fp16_key_bytes", now.fp16_key_bytes},
      {"fp16_value_bytes", now.fp16_value_bytes},
      {"residual_fp16_bytes", now.residual_fp16_bytes},
      {"effective_compression_ratio", now.nominal_ratio},
      {"assigned_avg_bits", now.assigned_avg_bits},
      {"n_quantized", now.n_quantized},
  };
  const auto found = counters.find(name);
  if (found == counters.end()) throw Failure("counter " + name + " is not known");
  return found->second;
}

struct Replay {
  const Json& one;
  varve::KVCache& cache;
  const NpyArray& keys;
  const NpyArray& values;
  std::vector<int64_t> positions;  // input token that each held token came from

  int64_t group_size() const { return one["config"].value("age_group_size", 32); }
  int64_t bits_of(int tier) const {
    constexpr const char* kFields[] = {"age_bits_recent", "age_bits_mid", "age_bits_old"};
    constexpr int kDefaults[] = {8, 4, 2};
    return one["config"].value(kFields[tier], kDefaults[tier]);
  }
};

// Whether a difference is what spec section 14 allows: the raw value lies exactly midway between
// two codes of its group's present width, and the results are one code apart.
bool IsMidpoint(const Replay& replay, const NpyArray& input, const Json& after, int64_t row,
                int64_t token, int64_t d, double got, double want) {
  if (!after.contains("group_tiers")) return false;
  const int64_t gs = replay.group_size();
  const int64_t group = token / gs;
  const int64_t n = static_cast<int64_t>(replay.positions.size());
  const auto raw = [&](int64_t t) {
    const int64_t position = replay.positions[static_cast<size_t>(t)];
    const float x =
        static_cast<float>(input.at((row * input.shape[2] + position) * input.shape[3] + d));
    return input.descr == "<f4" ? varve::F16ToF32(varve::F32ToF16(x)) : x;
  };
  float lo = raw(group * gs);
  float hi = lo;
  for (int64_t t = group * gs; t < std::min((group + 1) * gs, n); ++t) {
    lo = std::min(lo, raw(t));
    hi = std::max(hi, raw(t));
  }
  const int64_t bits = replay.bits_of(after["group_tiers"][static_cast<size_t>(group)].get<int>());
  const float scale = std::max((hi - lo) / static_cast<float>((1 << bits) - 1), 1e-8f);
  const float steps = (raw(token) - lo) / scale;
  const float fraction = steps - std::floor(steps);
  const bool midway = std::fabs(fraction - 0.5f) < 1e-3f;
  return midway &&
         std::fabs(got - want) < 1.01 * static_cast<double>(scale) + std::fabs(want) * 0x1p-7;
}

int64_t CompareSide(const Replay& replay, const varve::Array& got, const NpyArray& want,
                    const NpyArray& input, const Json& after, const char* side) {
  NpyArray held;
  held.descr = got.type == VARVE_F32 ? "<f4" : got.type == VARVE_F16 ? "<f2" : "<u2";
  held.is_bf16 = got.type == VARVE_BF16;
  held.shape.assign(got.shape.begin(), got.shape.end());
  held.bytes = got.bytes;
  if (held.descr != want.descr || held.shape != want.shape)
    throw Failure(std::string(side) + ": type or shape differs");
  int64_t n_midpoints = 0;
  const int64_t n = want.shape[2];
  const int64_t dim = want.shape[3];
  for (int64_t i = 0; i < want.size(); ++i) {
    const double a = held.at(i);
    const double b = want.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const int64_t row = i / (n * dim);
    const int64_t token = i / dim % n;
    if (IsMidpoint(replay, input, after, row, token, i % dim, a, b)) {
      ++n_midpoints;
      continue;
    }
    throw Failure(std::string(side) + "[row " + std::to_string(row) + ", token " +
                  std::to_string(token) + ", channel " + std::to_string(i % dim) +
                  "] = " + std::to_string(a) + ", expected " + std::to_string(b));
  }
  return n_midpoints;
}

void CompareSaliency(const std::string& folder, const Json& one, const NpyArray& keys) {
  const NpyArray want = LoadArray(folder, one["saliency"]);
  const Json& config = one["config"];
  const bool bf16 = keys.is_bf16;
  const int64_t n_rows = keys.shape[0] * keys.shape[1];
  const int64_t dim = keys.shape[3];
  int64_t first = 0;
  for (const Json& op : one["ops"]) {
    const int64_t n = op[1].get<int64_t>();
    for (int64_t row = 0; row < n_rows; ++row) {
      std::vector<float> stored(static_cast<size_t>(n * dim));
      for (int64_t i = 0; i < n * dim; ++i) {
        const float x = static_cast<float>(keys.at((row * keys.shape[2] + first) * dim + i));
        stored[static_cast<size_t>(i)] = bf16 ? x : varve::F16ToF32(varve::F32ToF16(x));
      }
      std::vector<float> saliency(static_cast<size_t>(n));
      const bool use_query = config.value("amc_use_query_saliency", false);
      if (varve_amc_saliency(stored.data(), n, dim, use_query ? 1 : 0,
                             config.value("amc_query_alpha", 0.5), 1,
                             saliency.data()) != VARVE_OK) {
        throw Failure(varve_last_error());
      }
      for (int64_t t = 0; t < n; ++t) {
        ExpectNear(
            static_cast<double>(saliency[static_cast<size_t>(t)]),
            want.at(row * want.shape[1] + first + t), kSaliencyTolerance,
            "saliency of row " + std::to_string(row) + ", token " + std::to_string(first + t));
      }
    }
    first += n;
  }
}

void CompareTiers(const std::string& folder, const Json& one, const varve::KVCache& cache) {
  const NpyArray want = LoadArray(folder, one["tiers"]);
  for (int64_t row = 0; row < want.shape[0]; ++row) {
    const std::vector<uint8_t> tiers = cache.token_tiers(row);
    if (static_cast<int64_t>(tiers.size()) != want.shape[1])
      throw Failure("token_tiers: wrong length");
    for (size_t t = 0; t < tiers.size(); ++t) {
      ExpectNear(tiers[t], want.at(row * want.shape[1] + static_cast<int64_t>(t)), 0,
                 "tier of row " + std::to_string(row) + ", token " + std::to_string(t));
    }
  }
}

void CompareThresholds(const std::string& folder, const Json& one) {
  const NpyArray saliency = LoadArray(folder, one["saliency"]);
  const Json& config = one["config"];
  const int window = config.value("amc_threshold_window", 64);
  for (size_t row = 0; row < one["thresholds_tau_high_tau_low"].size(); ++row) {
    std::vector<float> pushed;
    for (int64_t t = 0; t < saliency.shape[1]; ++t) {
      pushed.push_back(
          static_cast<float>(saliency.at(static_cast<int64_t>(row) * saliency.shape[1] + t)));
    }
    varve_amc_thresholds* thresholds = nullptr;
    if (varve_amc_thresholds_create(window, config["amc_calib_variance"].get<double>(),
                                    config.value("amc_gamma", 0.1), &thresholds) != VARVE_OK) {
      throw Failure(varve_last_error());
    }
    const double high_base = 1.0 - config.value("amc_k_high", 0.2);
    const double low_base = 1.0 - config.value("amc_k_high", 0.2) - config.value("amc_k_mid", 0.3);
    double high = 0, low = 0;
    size_t n_entries = 0;
    (void)varve_amc_thresholds_push(thresholds, pushed.data(), pushed.size());
    (void)varve_amc_thresholds_get(thresholds, high_base, low_base, &high, &low, &n_entries);
    varve_amc_thresholds_destroy(thresholds);
    const Json& want = one["thresholds_tau_high_tau_low"][row];
    ExpectNear(high, want[0].get<double>(), kThresholdTolerance,
               "tau_high of row " + std::to_string(row));
    ExpectNear(low, want[1].get<double>(), kThresholdTolerance,
               "tau_low of row " + std::to_string(row));
    ExpectNear(static_cast<double>(n_entries),
               static_cast<double>(one["threshold_windows"][row].size()), 0,
               "window of row " + std::to_string(row));
  }
}

}  // namespace

std::string RunCacheCase(const std::string& folder, const Json& one) {
  varve::CacheConfig config;
  const auto require = [](const varve::Status& status) {
    if (!status.ok()) throw Failure(status.text());
  };
  require(config.set("method", one["method"].get<std::string>()));
  require(config.preset("seed"));
  require(config.set("head_dim", one["head_dim"].get<int>()));
  for (const auto& [field, value] : one["config"].items())
    require(config.set(field.c_str(), SettingText(value)));

  varve::Result<varve::KVCache> made = varve::KVCache::create(config);
  if (!made.ok()) throw Failure(made.status().text());
  varve::KVCache& cache = *made;
  const NpyArray keys = LoadArray(folder, one["inputs"]["keys"]);
  const NpyArray values = LoadArray(folder, one["inputs"]["values"]);
  Replay replay{one, cache, keys, values, {}};

  int64_t consumed = 0;
  int64_t n_midpoints = 0;
  for (size_t i = 0; i < one["ops"].size(); ++i) {
    const Json& op = one["ops"][i];
    const std::string where = "op " + std::to_string(i) + ": ";
    const int64_t n = op[1].get<int64_t>();
    if (op[0] == "update") {
      if (consumed + n > keys.shape[2]) throw Failure(where + "the inputs end");
      require(cache.append(Tokens(keys, consumed, n), Tokens(values, consumed, n)));
      for (int64_t t = 0; t < n; ++t) replay.positions.push_back(consumed + t);
      consumed += n;
    } else if (op[0] == "trim") {
      const varve::Result<int64_t> removed = cache.trim(n);
      if (!removed.ok()) throw Failure(where + removed.status().text());
      if (*removed != std::min<int64_t>(n, static_cast<int64_t>(replay.positions.size()))) {
        throw Failure(where + "trim says " + std::to_string(*removed));
      }
      replay.positions.resize(replay.positions.size() - static_cast<size_t>(*removed));
    } else {
      throw Failure(where + "operation " + op[0].dump() + " is not known");
    }

    const Json& after = one["after_op"][i];
    const varve_cache_stats now = cache.stats();
    for (const auto& [name, want] : after.items()) {
      if (name == "group_tiers") {
        size_t n_groups = 0;
        (void)varve_cache_group_tiers(cache.get(), nullptr, 0, &n_groups);
        std::vector<uint8_t> tiers(n_groups);
        (void)varve_cache_group_tiers(cache.get(), tiers.data(), n_groups, &n_groups);
        if (Json(tiers) != want)
          throw Failure(where + "group_tiers " + Json(tiers).dump() + ", expected " + want.dump());
        continue;
      }
      ExpectNear(CounterOf(now, name), want.get<double>(),
                 want.is_number_float() ? kRatioTolerance : 0, where + name);
    }

    for (const Json& checkpoint : one["checkpoints"]) {
      if (checkpoint["after_op"] != i) continue;
      varve::Result<varve::KeysAndValues> held = cache.fetch();
      if (!held.ok()) throw Failure(where + held.status().text());
      const NpyArray want = LoadArray(folder, checkpoint["keys"]);
      n_midpoints += CompareSide(replay, held->keys, want, keys, after, (where + "keys").c_str());
      if (!checkpoint.contains("values")) continue;
      const NpyArray want_values = LoadArray(folder, checkpoint["values"]);
      n_midpoints +=
          CompareSide(replay, held->values, want_values, values, after, (where + "values").c_str());
    }
  }
  if (one.contains("saliency")) CompareSaliency(folder, one, keys);
  if (one.contains("tiers")) CompareTiers(folder, one, cache);
  if (one.contains("thresholds_tau_high_tau_low")) CompareThresholds(folder, one);
  return n_midpoints == 0 ? "" : std::to_string(n_midpoints) + " exact midpoints one code apart";
}

}  // namespace golden
