#include "support/methods.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr std::array<std::pair<const char*, ggml_type>, 10> kStockTypes = {
    {{"f32", GGML_TYPE_F32},
     {"f16", GGML_TYPE_F16},
     {"bf16", GGML_TYPE_BF16},
     {"q8_0", GGML_TYPE_Q8_0},
     {"q5_1", GGML_TYPE_Q5_1},
     {"q5_0", GGML_TYPE_Q5_0},
     {"q4_1", GGML_TYPE_Q4_1},
     {"q4_0", GGML_TYPE_Q4_0},
     {"iq4_nl", GGML_TYPE_IQ4_NL},
     {"mxfp4", GGML_TYPE_MXFP4}}};

std::optional<ggml_type> StockType(std::string_view name) {
  for (const auto& [known, type] : kStockTypes) {
    if (name == known) return type;
  }
  return std::nullopt;
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void Check(varve_status status, const std::string& what) {
  if (status == VARVE_OK) return;
  const ExitCode code = status == VARVE_ERROR_OUT_OF_MEMORY ? ExitCode::kFailed : ExitCode::kUsage;
  Fail(code, "{}: {}", what, varve_last_error());
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// "l0-1.age_bits_old_k=3" taken apart: range "l0-1", field "age_bits_old_k", value "3".
struct Assignment {
  std::string range;  ///< "" for all layers
  std::string field;
  std::string value;
  std::string key() const { return range.empty() ? field : range + "." + field; }
};

Assignment ParseAssignment(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    Fail(ExitCode::kUsage, "--set {}: write FIELD=VALUE; `varve methods NAME` lists the fields",
         text);
  }
  const std::string key = text.substr(0, equals);
  const size_t dot = key.find('.');
  if (dot == std::string::npos) return {"", key, text.substr(equals + 1)};
  return {key.substr(0, dot), key.substr(dot + 1), text.substr(equals + 1)};
}

/// True if the method uses the field; fails on an unknown one.
bool Uses(const std::string& method, const Assignment& assignment) {
  for (const varve_field_info& field : AllFields()) {
    if (assignment.field == field.name) {
      return assignment.field == "method" || FieldBelongsTo(field, method);
    }
  }
  // The library's own text names the nearest field and lists all.
  varve_config* raw = nullptr;
  Check(varve_config_create(&raw), "settings");
  const ConfigPtr config(raw);
  Check(varve_config_set(config.get(), assignment.field.c_str(), ""), "--set " + assignment.key());
  return true;
}

std::string ValidNames() {
  std::vector<std::string> stock;
  stock.reserve(std::size(kStockTypes));
  for (const auto& entry : kStockTypes) stock.emplace_back(entry.first);
  return fmt::format("methods {}; presets {}; llama.cpp's own types {}, or K/V like q8_0/q4_0",
                     fmt::join(MethodNames(), ", "), fmt::join(PresetNames(), ", "),
                     fmt::join(stock, ", "));
}

std::optional<CacheSpec> ParseStock(const std::string& text) {
  const std::vector<std::string> sides = Split(text, '/');
  if (sides.size() > 2) return std::nullopt;
  const auto type_k = StockType(sides.front());
  const auto type_v = StockType(sides.back());
  if (!type_k || !type_v) return std::nullopt;
  CacheSpec spec;
  spec.label = text;
  spec.stock = true;
  spec.type_k = *type_k;
  spec.type_v = *type_v;
  return spec;
}

}  // namespace

const std::vector<std::string>& PresetNames() {
  static const std::vector<std::string> names = {"safe", "balanced", "small", "seed"};
  return names;
}

std::vector<varve_field_info> AllFields() {
  std::vector<varve_field_info> fields(varve_field_count());
  for (size_t i = 0; i < fields.size(); ++i) {
    fields[i].struct_size = sizeof(varve_field_info);
    Check(varve_field_get_info(i, &fields[i]), "settings");
  }
  return fields;
}

std::vector<std::string> MethodNames() {
  for (const varve_field_info& field : AllFields()) {
    if (std::string_view(field.name) != "method") continue;
    std::vector<std::string> names = Split(field.range, ',');
    for (std::string& name : names) name.erase(0, name.find_first_not_of(' '));
    return names;
  }
  return {};
}

bool FieldBelongsTo(const varve_field_info& field, std::string_view method) {
  std::vector<std::string> names = Split(field.methods, ',');
  for (std::string& name : names) {
    name.erase(0, name.find_first_not_of(' '));
    if (name == "all" || name == method) return true;
  }
  return false;
}

std::string ConfigValue(const varve_config* config, const std::string& key) {
  size_t needed = 0;
  std::string text(256, '\0');
  Check(varve_config_get(config, key.c_str(), text.data(), text.size(), &needed), "settings");
  text.resize(text.find('\0'));
  return text;
}

std::string ConfigDifferences(const varve_config* config) {
  const std::string method = ConfigValue(config, "method");
  std::string out;
  for (const varve_field_info& field : AllFields()) {
    std::string value = ConfigValue(config, field.name);
    if (std::string_view(field.name) == "method" || value == field.default_value ||
        !FieldBelongsTo(field, method)) {
      continue;
    }
    std::replace(value.begin(), value.end(), ',', ';');
    out += fmt::format("{}{}={}", out.empty() ? "" : ",", field.name, value);
  }
  return out;
}

CacheSpec ParseCache(const std::string& text, const std::vector<std::string>& sets) {
  if (std::optional<CacheSpec> stock = ParseStock(text)) return std::move(*stock);

  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const bool preset = Contains(PresetNames(), name);
  if (!preset && !Contains(MethodNames(), name)) {
    Fail(ExitCode::kUsage, "unknown method \"{}\"; valid are {}", name, ValidNames());
  }
  CacheSpec spec;
  spec.label = text;
  spec.method = preset ? "age_tiered" : name;
  varve_config* raw = nullptr;
  Check(varve_config_create(&raw), "settings");
  spec.config.reset(raw);
  if (preset) {
    Check(varve_config_preset(raw, name.c_str()), name);
  } else {
    Check(varve_config_set(raw, "method", name.c_str()), name);
  }

  std::vector<std::string> assignments;
  if (colon != std::string::npos) assignments = Split(text.substr(colon + 1), '+');
  assignments.insert(assignments.end(), sets.begin(), sets.end());
  spec.settings = ConfigDifferences(raw);
  std::map<std::string, std::string> method_of_range;
  for (const std::string& assigned : assignments) {
    const Assignment assignment = ParseAssignment(assigned);
    if (assignment.range.empty() && assignment.field == "method") {
      Fail(ExitCode::kUsage, "--set {}: name the method itself, or a layer's as l0.method=...",
           assigned);
    }
    const auto own = method_of_range.find(assignment.range);
    const std::string& method = own == method_of_range.end() ? spec.method : own->second;
    if (!Uses(method, assignment)) {
      Fail(ExitCode::kUsage,
           "--set {}: {} does not use this field; `varve methods {}` lists what it uses", assigned,
           method, method);
    }
    Check(varve_config_set(raw, assignment.key().c_str(), assignment.value.c_str()),
          "--set " + assigned);
    if (assignment.field == "method") method_of_range[assignment.range] = assignment.value;
    spec.settings += (spec.settings.empty() ? "" : ",") + assigned;
  }
  Check(varve_config_check(raw), text);
  return spec;
}

CacheSpec WithSettings(const CacheSpec& cache, const std::vector<std::string>& sets) {
  CacheSpec changed;
  changed.label = cache.label;
  changed.method = cache.method;
  changed.settings = cache.settings;
  varve_config* raw = nullptr;
  Check(varve_config_clone(cache.config.get(), &raw), cache.label);
  changed.config.reset(raw);
  for (const std::string& set : sets) {
    Check(varve_config_set_list(raw, set.c_str()), "--set " + set);
    changed.settings += (changed.settings.empty() ? "" : ",") + set;
  }
  Check(varve_config_check(raw), cache.label);
  return changed;
}

std::vector<CacheSpec> ParseCaches(const std::string& list, const std::vector<std::string>& sets) {
  std::vector<CacheSpec> caches;
  std::vector<bool> used(sets.size(), false);
  for (const std::string& text : Split(list, ',')) {
    if (text.empty()) Fail(ExitCode::kUsage, "--methods {}: an empty name", list);
    std::vector<std::string> own;
    if (!ParseStock(text)) {
      const std::string name = text.substr(0, text.find(':'));
      const std::string method = Contains(PresetNames(), name) ? "age_tiered" : name;
      for (size_t i = 0; i < sets.size(); ++i) {
        if (!Uses(method, ParseAssignment(sets[i]))) continue;
        own.push_back(sets[i]);
        used[i] = true;
      }
    }
    for (const CacheSpec& earlier : caches) {
      if (earlier.label == text)
        Fail(ExitCode::kUsage, "--methods {}: {} is named twice", list, text);
    }
    caches.push_back(ParseCache(text, own));
  }
  for (size_t i = 0; i < sets.size(); ++i) {
    if (!used[i]) {
      Fail(ExitCode::kUsage,
           "--set {}: no cache in --methods {} uses this field, so it would do nothing", sets[i],
           list);
    }
  }
  return caches;
}

}  // namespace varve::cli
