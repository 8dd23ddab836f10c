// The table of fields: parsing, printing, ranges and help of every setting come from it.
#ifndef VARVE_POLICY_SETTINGS_FIELDS_H_
#define VARVE_POLICY_SETTINGS_FIELDS_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "policy/settings.h"

namespace varve {

/// Where a field lives, and with it its type.
using FieldMember =
    std::variant<int Settings::*, std::optional<int> Settings::*, BitWidths Settings::*,
                 double Settings::*, std::optional<double> Settings::*, bool Settings::*,
                 std::optional<bool> Settings::*, std::string Settings::*, Method Settings::*,
                 CodecChoice Settings::*, TierRule Settings::*, ValueAxis Settings::*,
                 RetierRule Settings::*, AmcTiering Settings::*, AmcGroups Settings::*,
                 RopeChoice Settings::*>;

struct Field {
  const char* name;
  FieldMember member;
  const char* methods;  ///< "all" or a comma list
  double min;           ///< of a number; checked when a cache is built
  double max;
  const char* help;
  const char* cost;  ///< what a larger value (or the switch) costs; "" if nothing
};

std::span<const Field> Fields();

/// The field of that name, or null.
const Field* FindField(std::string_view name);

/// "int", "int or none", "int list", "double", "double or none", "bool", "bool or none", "text" or
/// "choice".
const char* FieldTypeName(const Field& field);

/// What may be written: "1..16", "true or false", "newest, oldest", ...
std::string FieldRange(const Field& field);

/// The field's value as text, "" when unset.
std::string FieldText(const Settings& settings, const Field& field);

/// Parses and stores. Errors: kBadSettingValue with field, value and FieldRange().
[[nodiscard]] Status ParseField(Settings* settings, const Field& field, std::string_view text);

/// kBadSettingValue when a number (or one of a list) lies outside min..max; an unset field is
/// inside.
[[nodiscard]] Status CheckFieldRange(const Settings& settings, const Field& field);

/// True if `method` uses the field.
bool FieldBelongsTo(const Field& field, Method method);

}  // namespace varve

#endif  // VARVE_POLICY_SETTINGS_FIELDS_H_
