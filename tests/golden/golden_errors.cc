// Cases of type "config_errors". `ok` is what the original accepts. varve accepts and refuses the
// same, except where spec section 12 says that the original is wrong: D-12 (fields it does not
// check) and D-13 (head sizes it refuses).
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "golden/golden_case.h"
#include "varve/varve.hpp"

namespace golden {
namespace {

constexpr std::string_view kOurs[] = {"fp16", "uniform", "kivi", "age_tiered", "amc"};

// Methods of the original that varve does not have; it refuses them by name.
constexpr std::string_view kOthers[] = {"turboquant_prod",
                                        "turboquant_mse",
                                        "turboquant_rvq",
                                        "polar",
                                        "qjl",
                                        "vecinfer",
                                        "spectral",
                                        "kivi_sink",
                                        "svdq",
                                        "kitty",
                                        "adakv",
                                        "xquant",
                                        "kvquant",
                                        "palu",
                                        "cachegen",
                                        "minicache",
                                        "gear",
                                        "zipcache",
                                        "snapkv",
                                        "streaming_llm",
                                        "h2o",
                                        "tova",
                                        "pyramidkv",
                                        "squeeze",
                                        "chunkkv",
                                        "cam",
                                        "xkv",
                                        "nsnquant",
                                        "knorm",
                                        "skvq",
                                        "qfilters",
                                        "keyformer",
                                        "morphkv",
                                        "kvzip",
                                        "kvtc",
                                        "curdkv",
                                        "nestedkv",
                                        "a2ats",
                                        "anchorkv",
                                        "rocketkv"};

// Fields that the original does not check (D-12): varve refuses what cannot work.
constexpr std::string_view kUncheckedByTheOriginal[] = {
    "age_group_size",   "amc_query_alpha", "amc_threshold_window",
    "amc_gamma",        "amc_group_size",  "amc_calib_variance",
    "bit_width_inlier", "kivi_group_size", "residual_length",
    "head_dim"};

template <size_t kN>
bool Contains(const std::string_view (&list)[kN], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

varve::Status TryFactory(const Json& args) {
  varve::CacheConfig config;
  // The original's default method is none of ours; its checks that do not depend on the method are
  // those of fp16.
  varve::Status status =
      config.set("method", args.contains("method") ? args["method"].get<std::string>() : "fp16");
  for (const auto& [field, value] : args.items()) {
    if (status.ok() && field != "method") status = config.set(field.c_str(), SettingText(value));
  }
  if (!status.ok()) return status;
  return varve::KVCache::create(config).status();
}

varve::Status TryBuilder(const Json& args) {
  varve::CacheBuilder builder;
  if (!args.contains("with_method")) builder.with_method("fp16");
  for (const auto& [setter, values] : args.items()) {
    if (!setter.starts_with("with_") || values.empty())
      throw Failure("setter " + setter + " is not known");
    if (setter == "with_method") {
      builder.with_method(values[0].get<std::string>());
    } else if (setter == "with_bit_width" && values[0].is_array()) {
      builder.with_bit_width(values[0].get<std::vector<int>>());
    } else if (setter == "with_bit_width" && values.size() > 1 && !values[1].is_null()) {
      builder.with_bit_width(values[0].get<int64_t>(), values[1].get<int64_t>());
    } else if (setter == "with_bit_width") {
      builder.with_bit_width(values[0].get<int64_t>());
    } else if (setter == "with_observer") {
      builder.with_observer(SettingText(values[0]));
    } else {
      builder.with(setter.substr(5).c_str(), SettingText(values[0]));
    }
  }
  return builder.build().status();
}

std::string MethodOf(const Json& args) {
  if (args.contains("method")) return args["method"].get<std::string>();
  if (args.contains("with_method")) return args["with_method"][0].get<std::string>();
  return "fp16";
}

// True if the text ends with "got <value>".
bool NamesValue(const std::string& text, const Json& value) {
  const size_t at = text.rfind("got ");
  if (at == std::string::npos) return false;
  const std::string got = text.substr(at + 4);
  if (!value.is_number()) return got == SettingText(value);
  char* end = nullptr;
  return std::strtod(got.c_str(), &end) == value.get<double>() && end != got.c_str();
}

bool IsPowerOfTwo(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

void CheckRun(const Json& run) {
  const Json& args = run["args"];
  const bool builder = run["via"] == "builder";
  const varve::Status status = builder ? TryBuilder(args) : TryFactory(args);
  const std::string method = MethodOf(args);
  if (Contains(kOthers, method)) {
    if (status.ok() || status.text().find("method") == std::string::npos)
      throw Failure("does not refuse the method");
    return;
  }
  if (run["ok"].get<bool>()) {
    if (status.ok()) return;
    for (const auto& [field, value] : args.items()) {
      if (Contains(kUncheckedByTheOriginal, field) &&
          status.text().find(field) != std::string::npos && NamesValue(status.text(), value)) {
        return;
      }
    }
    throw Failure("is refused: " + status.text());
  }
  if (status.ok()) {
    const bool head_dim = builder && args.contains("with_head_dim") &&
                          args["with_head_dim"][0].get<int64_t>() >= 1 &&
                          !IsPowerOfTwo(args["with_head_dim"][0].get<int64_t>());
    if (!head_dim) throw Failure("is accepted");
    return;
  }
  if (!Contains(kOurs, method) && status.text().find(method) == std::string::npos) {
    throw Failure("the text does not name the method: " + status.text());
  }
  for (const Json& field : run.value("names_field", Json::array())) {
    if (status.text().find(field.get<std::string>()) == std::string::npos) {
      throw Failure("the text does not name " + field.get<std::string>() + ": " + status.text());
    }
  }
}

}  // namespace

std::string RunConfigErrors(const std::string&, const Json& one) {
  for (const Json& run : one["runs"]) {
    try {
      CheckRun(run);
    } catch (const Failure& failure) {
      throw Failure(run["args"].dump() + " " + failure.what());
    }
  }
  return "";
}

}  // namespace golden
