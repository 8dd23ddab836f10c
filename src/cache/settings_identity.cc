#include "cache/settings_identity.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "policy/settings_fields.h"

namespace varve {
namespace {

struct Line {
  std::string_view name;
  std::string_view value;
};

bool IsIdentity(const Settings& settings, const Field& field) {
  const std::string_view name = field.name;
  if (name == "seed" || name == "amc_channel_order") return false;
  if (name == "head_dim" && settings.head_dim_check) return false;
  return FieldBelongsTo(field, settings.method);
}

std::string IdentityText(const Settings& settings, const Field& field) {
  if (std::string_view(field.name) == "codec" && settings.codec == CodecChoice::kAuto) {
    Settings resolved = settings;
    resolved.codec = CodecChoice::kGroupAffine;
    return FieldText(resolved, field);
  }
  return FieldText(settings, field);
}

Status Differs(std::string_view name, std::string_view stored, std::string_view own) {
  const auto shown = [](std::string_view value) {
    return value.empty() ? std::string("unset") : std::string(value);
  };
  return Status(StatusCode::kIncompatible, std::string(name) + " is " + shown(stored) +
                                               " in the session, " + shown(own) + " here");
}

Result<std::vector<Line>> Split(std::string_view text) {
  std::vector<Line> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const size_t equals = text.find('=');
    if (end == std::string_view::npos || equals >= end)
      return Status(StatusCode::kBadFormat, "settings are not lines of name=value");
    lines.push_back({text.substr(0, equals), text.substr(equals + 1, end - equals - 1)});
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

std::string SettingsLines(const Settings& settings) {
  std::string lines;
  for (const Field& field : Fields()) {
    if (!IsIdentity(settings, field)) continue;
    lines += std::string(field.name) + "=" + IdentityText(settings, field) + "\n";
  }
  return lines;
}

Status CheckSettingsLines(const Settings& own, std::string_view lines) {
  const Result<std::vector<Line>> stored = Split(lines);
  if (!stored.ok()) return stored.status();
  const auto find = [&](std::string_view name) {
    return std::find_if(stored.value().begin(), stored.value().end(),
                        [&](const Line& line) { return line.name == name; });
  };
  const Settings defaults;
  for (const Field& field : Fields()) {
    if (!IsIdentity(own, field)) continue;
    const auto line = find(field.name);
    const std::string value =
        line != stored.value().end() ? std::string(line->value) : IdentityText(defaults, field);
    if (value != IdentityText(own, field))
      return Differs(field.name, value, IdentityText(own, field));
  }
  for (const Line& line : stored.value()) {
    const Field* field = FindField(line.name);
    if (field == nullptr) {
      return Status(StatusCode::kUnsupported,
                    "settings: \"" + std::string(line.name) + "\" is not known to this version");
    }
    if (!IsIdentity(own, *field)) return Differs(line.name, line.value, "");
  }
  return Status();
}

}  // namespace varve
