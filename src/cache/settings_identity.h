// The settings of a cache as a session file holds them: one "name=value" line for every field that
// the method uses.
#ifndef VARVE_CACHE_SETTINGS_IDENTITY_H_
#define VARVE_CACHE_SETTINGS_IDENTITY_H_

#include <string>
#include <string_view>

#include "base/status.h"
#include "policy/settings.h"

namespace varve {

/// Settings of one layer, overrides resolved. Left out are `seed` (no method draws numbers),
/// `amc_channel_order` (the order itself is stored), `head_dim` where it is only a check, and
/// codec=auto is written as what it stands for in a sequence cache.
std::string SettingsLines(const Settings& settings);

/// Compares lines of a session with `own`; a field that the session does not have counts as its
/// default. Errors: kIncompatible (field and both values), kUnsupported (a field of a later
/// version), kBadFormat.
[[nodiscard]] Status CheckSettingsLines(const Settings& own, std::string_view lines);

}  // namespace varve

#endif  // VARVE_CACHE_SETTINGS_IDENTITY_H_
