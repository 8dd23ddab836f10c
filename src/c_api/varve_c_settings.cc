#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "base/cpu_isa.h"
#include "c_api/guard.h"
#include "policy/settings_fields.h"

namespace varve {
namespace {

thread_local std::array<char, 2048> last_error{};

// Texts that varve_field_info points to; built once, never freed while the library is loaded.
struct FieldTexts {
  std::string default_value;
  std::string range;
};

const std::vector<FieldTexts>& AllFieldTexts() {
  static const std::vector<FieldTexts> texts = [] {
    std::vector<FieldTexts> all;
    const Settings defaults;
    for (const Field& field : Fields())
      all.push_back({FieldText(defaults, field), FieldRange(field)});
    return all;
  }();
  return texts;
}

}  // namespace

void SetLastError(std::string_view text) noexcept {
  const size_t n = std::min(text.size(), last_error.size() - 1);
  std::memcpy(last_error.data(), text.data(), n);
  last_error[n] = '\0';
}

}  // namespace varve

using varve::CheckNotNull;
using varve::Guard;
using varve::Status;
using varve::StatusCode;

const char* varve_last_error(void) { return varve::last_error.data(); }

const char* varve_version(void) { return VARVE_VERSION_TEXT; }

const char* varve_isa(void) { return varve::IsaName(varve::ActiveIsa()); }

varve_status varve_config_create(varve_config** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    *out = std::make_unique<varve_config>().release();
    return Status();
  });
}

varve_status varve_config_clone(const varve_config* config, varve_config** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    *out = std::make_unique<varve_config>(*config).release();
    return Status();
  });
}

void varve_config_destroy(varve_config* config) { delete config; }

varve_status varve_config_set(varve_config* config, const char* key, const char* value) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(key, "key"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(value, "value"));
    return varve::SetField(&config->settings, key, value);
  });
}

varve_status varve_config_set_list(varve_config* config, const char* assignments) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(assignments, "assignments"));
    return varve::SetFields(&config->settings, assignments);
  });
}

varve_status varve_config_preset(varve_config* config, const char* name) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(name, "name"));
    return varve::ApplyPreset(&config->settings, name);
  });
}

varve_status varve_config_get(const varve_config* config, const char* key, char* buffer,
                              size_t capacity, size_t* needed) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(key, "key"));
    const varve::Result<std::string> text = varve::GetField(config->settings, key);
    if (!text.ok()) return text.status();
    const size_t bytes = text.value().size() + 1;
    if (needed != nullptr) *needed = bytes;
    if (buffer == nullptr && capacity == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(buffer, "buffer"));
    if (capacity < bytes) {
      return Status(StatusCode::kInvalidArgument, "capacity must be at least " +
                                                      std::to_string(bytes) + ", got " +
                                                      std::to_string(capacity));
    }
    std::memcpy(buffer, text.value().c_str(), bytes);
    return Status();
  });
}

varve_status varve_config_check(const varve_config* config) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
    return varve::CheckSettings(config->settings);
  });
}

size_t varve_field_count(void) { return varve::Fields().size(); }

varve_status varve_field_get_info(size_t index, varve_field_info* out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    VARVE_RETURN_IF_ERROR(
        varve::CheckStructSize(out->struct_size, sizeof(varve_field_info), "varve_field_info"));
    if (index >= varve::Fields().size()) {
      return Status(StatusCode::kInvalidArgument, "index must be below " +
                                                      std::to_string(varve::Fields().size()) +
                                                      ", got " + std::to_string(index));
    }
    const varve::Field& field = varve::Fields()[index];
    const varve::FieldTexts& texts = varve::AllFieldTexts()[index];
    out->name = field.name;
    out->type = varve::FieldTypeName(field);
    out->default_value = texts.default_value.c_str();
    out->range = texts.range.c_str();
    out->methods = field.methods;
    out->help = field.help;
    out->cost = field.cost;
    return Status();
  });
}
