// Cases of the single pieces: quantizers, calibration, thresholds, bit packing, formulas.
#include <cmath>

#include "base/f16.h"
#include "golden/golden_case.h"
#include "varve/varve.hpp"

namespace golden {
namespace {

constexpr double kThresholdTolerance = 1e-9;

void Require(varve_status status) {
  if (status != VARVE_OK) throw Failure(varve_last_error());
}

std::vector<float> AsFloats(const NpyArray& array) {
  std::vector<float> values(static_cast<size_t>(array.size()));
  for (int64_t i = 0; i < array.size(); ++i)
    values[static_cast<size_t>(i)] = static_cast<float>(array.at(i));
  return values;
}

template <typename T>
void ExpectAll(const std::vector<T>& got, const NpyArray& want, const std::string& what) {
  if (static_cast<int64_t>(got.size()) != want.size()) throw Failure(what + ": wrong size");
  for (size_t i = 0; i < got.size(); ++i) {
    ExpectNear(static_cast<double>(got[i]), want.at(static_cast<int64_t>(i)), 0,
               what + "[" + std::to_string(i) + "]");
  }
}

void CompareQuantizer(const std::string& folder, const NpyArray& input, int64_t group_size,
                      varve_axis axis, const Json& run) {
  const int bits = run["b"].get<int>();
  const std::string what = std::to_string(bits) + " bits, ";
  const int64_t n = input.shape[0];
  const int64_t dim = input.shape[1];
  const NpyArray want_scale = LoadArray(folder, run["scale"]);
  const std::vector<float> x = AsFloats(input);
  std::vector<uint16_t> codes(x.size());
  std::vector<float> scale(static_cast<size_t>(want_scale.size())), zero(scale.size()),
      recon(x.size());
  Require(varve_group_quantize(x.data(), n, dim, bits, group_size, axis, codes.data(), scale.data(),
                               zero.data()));
  Require(varve_group_dequantize(codes.data(), scale.data(), zero.data(), n, dim, group_size, axis,
                                 recon.data()));
  for (float& one : recon) one = varve::F16ToF32(varve::F32ToF16(one));
  ExpectAll(codes, LoadArray(folder, run["codes"]), what + "codes");
  ExpectAll(scale, want_scale, what + "scale");
  ExpectAll(zero, LoadArray(folder, run["zero"]), what + "zero");
  ExpectAll(recon, LoadArray(folder, run["recon"]), what + "recon");
}

}  // namespace

std::string RunGroupQuant(const std::string& folder, const Json& one) {
  const NpyArray input = LoadArray(folder, one["input"]);
  for (const Json& run : one["bits"]) {
    CompareQuantizer(folder, input, one["group_size"].get<int64_t>(), VARVE_AXIS_CHANNEL, run);
  }
  return "";
}

std::string RunKiviQuantizer(const std::string& folder, const Json& one) {
  const NpyArray input = LoadArray(folder, one["input"]);
  for (const Json& run : one["runs"]) {
    const varve_axis axis = run["axis"] == "channel" ? VARVE_AXIS_CHANNEL : VARVE_AXIS_TOKEN;
    CompareQuantizer(folder, input, one["group_size"].get<int64_t>(), axis, run);
  }
  return "";
}

std::string RunAmcCalibration(const std::string& folder, const Json& one) {
  const NpyArray input = LoadArray(folder, one["input"]);
  const std::vector<float> x = AsFloats(input);
  std::vector<int32_t> order(static_cast<size_t>(input.shape[1]));
  Require(varve_amc_channel_order(x.data(), input.shape[0], input.shape[1], order.data()));
  ExpectAll(order, LoadArray(folder, one["perm"]), "order");
  return "";
}

std::string RunAmcThresholds(const std::string&, const Json& one) {
  for (size_t r = 0; r < one["runs"].size(); ++r) {
    const Json& run = one["runs"][r];
    varve_amc_thresholds* thresholds = nullptr;
    Require(varve_amc_thresholds_create(run["window"].get<int>(),
                                        run["calib_variance"].get<double>(),
                                        run["gamma"].get<double>(), &thresholds));
    const std::unique_ptr<varve_amc_thresholds, void (*)(varve_amc_thresholds*)> owner(
        thresholds, varve_amc_thresholds_destroy);
    for (size_t s = 0; s < run["steps"].size(); ++s) {
      const Json& step = run["steps"][s];
      const std::vector<float> pushed = step["push"].get<std::vector<float>>();
      double high = 0, low = 0;
      size_t n_entries = 0;
      Require(varve_amc_thresholds_push(thresholds, pushed.data(), pushed.size()));
      Require(varve_amc_thresholds_get(thresholds, run["tau_high_base"].get<double>(),
                                       run["tau_low_base"].get<double>(), &high, &low, &n_entries));
      const std::string where = "run " + std::to_string(r) + ", step " + std::to_string(s) + ": ";
      ExpectNear(high, step["tau_high"].get<double>(), kThresholdTolerance, where + "tau_high");
      ExpectNear(low, step["tau_low"].get<double>(), kThresholdTolerance, where + "tau_low");
      ExpectNear(static_cast<double>(n_entries), step["window_len"].get<double>(), 0,
                 where + "window_len");
    }
  }
  return "";
}

std::string RunBitpack(const std::string&, const Json& one) {
  for (size_t r = 0; r < one["runs"].size(); ++r) {
    const Json& run = one["runs"][r];
    const std::vector<uint16_t> codes = run["values"].get<std::vector<uint16_t>>();
    const int bits = run["b"].get<int>();
    size_t needed = 0;
    Require(varve_pack_codes(codes.data(), codes.size(), bits, nullptr, 0, &needed));
    std::vector<uint8_t> packed(needed);
    Require(
        varve_pack_codes(codes.data(), codes.size(), bits, packed.data(), packed.size(), &needed));
    if (Json(packed) != run["packed"])
      throw Failure("run " + std::to_string(r) + ": packed bytes differ");
    std::vector<uint16_t> back(codes.size());
    Require(varve_unpack_codes(packed.data(), packed.size(), back.size(), bits, back.data()));
    if (back != codes) throw Failure("run " + std::to_string(r) + ": unpacked codes differ");
  }
  return "";
}

std::string RunFormulas(const std::string&, const Json& one) {
  const Json rank_bits = one.value("amc_rank_bits", Json::object());
  for (const auto& [dim, tiers] : rank_bits.items()) {
    for (int tier = 0; tier < 3; ++tier) {
      int32_t rank = 0, bits = 0;
      Require(varve_amc_tier_shape(tier, std::stol(dim), &rank, &bits));
      if (Json::array({rank, bits}) != tiers[static_cast<size_t>(tier)])
        throw Failure("amc_rank_bits of head_dim " + dim);
    }
  }
  for (const Json& run : one.value("amc_tier_counts", Json::array())) {
    int64_t counts[3] = {};
    Require(varve_amc_tier_counts(run["n"].get<int64_t>(), run["k_high"].get<double>(),
                                  run["k_mid"].get<double>(), counts));
    if (Json(counts) != run["high_mid_low"]) throw Failure("amc_tier_counts of " + run.dump());
  }
  for (const Json& run : one.value("age_tiered_bytes", Json::array())) {
    const auto tokens = run["counts_recent_mid_old"].get<std::vector<int64_t>>();
    const auto bits = run["bits"].get<std::vector<int32_t>>();
    const int64_t dim = run["head_dim"].get<int64_t>();
    ExpectNear(static_cast<double>(varve_age_tiered_bytes(tokens.data(), bits.data(), dim)),
               run["bytes"].get<double>(), 0, "age_tiered_bytes of " + run.dump());
    ExpectNear(static_cast<double>(varve_full_f16_bytes(tokens[0] + tokens[1] + tokens[2], dim)),
               run["full"].get<double>(), 0, "full of " + run.dump());
  }
  for (const Json& run : one.value("amc_bytes", Json::array())) {
    const auto tokens = run["counts_high_mid_low"].get<std::vector<int64_t>>();
    const int64_t dim = run["head_dim"].get<int64_t>();
    ExpectNear(static_cast<double>(varve_amc_kept_bytes(tokens.data(), dim)),
               run["bytes"].get<double>(), 0, "amc_bytes of " + run.dump());
    ExpectNear(static_cast<double>(varve_full_f16_bytes(tokens[0] + tokens[1] + tokens[2], dim)),
               run["full"].get<double>(), 0, "full of " + run.dump());
  }
  for (const Json& run : one.value("assign_age_tiers", Json::array())) {
    for (size_t i = 0; i < run["ages"].size(); ++i) {
      const int32_t tier = varve_age_tier(run["ages"][i].get<int64_t>(),
                                          run["recent"].get<int64_t>(), run["mid"].get<int64_t>());
      if (Json(tier) != run["tiers"][i]) throw Failure("assign_age_tiers of " + run.dump());
    }
  }
  return "";
}

}  // namespace golden
