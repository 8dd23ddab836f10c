#include "policy/settings.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "policy/settings_fields.h"

namespace varve {
namespace {

// What each preset changes against the defaults. Tuned on measurements: this table is the only
// place.
struct Preset {
  const char* name;
  const char* assignments;
};
constexpr Preset kPresets[] = {
    {"safe", "age_bits_old_k=4,age_bits_old_v=3,uniform_bits=8,bit_width_inlier=4"},
    {"balanced", ""},
    {"small", "age_mid_boundary=128,age_bits_old_k=3,age_bits_old_v=2,uniform_bits=3"},
    {"seed",
     "codec=group_affine,sink_tokens=0,tier_rule=oldest,retier=exact,exact_tail=false,value_axis="
     "channel,"
     "amc_tiering=call,amc_saliency_clamp=true,reject_non_finite=false,bf16_direct=false,head_dim="
     "128,"
     "head_dim_check=false"},
};

// Layers of a model whose depth is not known yet: far more than any model has.
constexpr int kAnyDepth = 1 << 20;

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

Status UnknownField(std::string_view key) {
  const auto fields = Fields();
  const Field& nearest =
      *std::min_element(fields.begin(), fields.end(), [&](const Field& a, const Field& b) {
        return EditDistance(key, a.name) < EditDistance(key, b.name);
      });
  std::string text =
      "unknown setting \"" + std::string(key) + "\"; nearest: " + nearest.name + "; valid:";
  for (const Field& field : fields) text += std::string(" ") + field.name;
  return Status(StatusCode::kUnknownSetting, std::move(text));
}

bool ParseLayer(std::string_view text, int* out) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && stop == text.data() + text.size() && *out >= 0 && *out < kAnyDepth;
}

// "l3", "l0-1", "first2", "last2".
bool ParseLayerRange(std::string_view text, LayerOverride* out) {
  int count = 0;
  if (text.starts_with("first")) {
    if (!ParseLayer(text.substr(5), &count) || count < 1) return false;
    out->last = count - 1;
    return true;
  }
  if (text.starts_with("last")) {
    if (!ParseLayer(text.substr(4), &count) || count < 1) return false;
    out->from_end = true;
    out->first = count;
    out->last = 1;
    return true;
  }
  if (!text.starts_with("l")) return false;
  text.remove_prefix(1);
  const size_t dash = text.find('-');
  if (!ParseLayer(text.substr(0, dash), &out->first)) return false;
  if (dash == std::string_view::npos) {
    out->last = out->first;
    return true;
  }
  return ParseLayer(text.substr(dash + 1), &out->last) && out->last >= out->first;
}

bool Covers(const LayerOverride& range, int layer, int n_layers) {
  if (!range.from_end) return layer >= range.first && layer <= range.last;
  const int from_end = n_layers - layer;
  return from_end >= range.last && from_end <= range.first;
}

Status Refused(const char* field, const std::string& value, const Settings& settings) {
  return Status(StatusCode::kBadSettingValue, std::string(field) + " = " + value +
                                                  " is not supported by method " +
                                                  MethodName(settings.method) + "; leave it unset");
}

Status CheckRefusedFields(const Settings& settings) {
  if (settings.bit_width_inlier.is_list) {
    return Status(StatusCode::kBadSettingValue,
                  "bit_width_inlier must be one number for one cache, got " +
                      GetField(settings, "bit_width_inlier").value());
  }
  if (!settings.observers.empty()) return Refused("observers", settings.observers, settings);
  if (settings.bit_width_outlier) {
    return Refused("bit_width_outlier", std::to_string(*settings.bit_width_outlier), settings);
  }
  if (settings.sliding_window)
    return Refused("sliding_window", std::to_string(*settings.sliding_window), settings);
  return Status();
}

Status CheckRange(const Settings& settings, const char* field) {
  return CheckFieldRange(settings, *FindField(field));
}

Status CheckAgeTiered(const Settings& settings) {
  VARVE_RETURN_IF_ERROR(CheckRange(settings, "age_recent_boundary"));
  if (settings.age_mid_boundary < settings.age_recent_boundary) {
    return Status(StatusCode::kBadSettingValue,
                  "age_mid_boundary must be at least age_recent_boundary = " +
                      std::to_string(settings.age_recent_boundary) + ", got " +
                      std::to_string(settings.age_mid_boundary));
  }
  for (const char* field : {"age_bits_recent", "age_bits_mid", "age_bits_old"}) {
    VARVE_RETURN_IF_ERROR(CheckRange(settings, field));
  }
  return Status();
}

Status CheckAmc(const Settings& settings) {
  VARVE_RETURN_IF_ERROR(CheckRange(settings, "amc_k_high"));
  VARVE_RETURN_IF_ERROR(CheckRange(settings, "amc_k_mid"));
  if (settings.amc_k_high + settings.amc_k_mid > 1.0) {
    return Status(StatusCode::kBadSettingValue, "amc_k_high + amc_k_mid must be at most 1, got " +
                                                    GetField(settings, "amc_k_high").value() +
                                                    " + " +
                                                    GetField(settings, "amc_k_mid").value());
  }
  if (settings.amc_adaptive_thresholds && !settings.amc_calib_variance) {
    return Status(StatusCode::kBadSettingValue,
                  "amc_adaptive_thresholds = true needs amc_calib_variance, got none");
  }
  return Status();
}

Status CheckKivi(const Settings& settings) {
  if (settings.use_metal_kernels.value_or(false)) {
    return Status(StatusCode::kBadSettingValue,
                  "use_metal_kernels = true needs Metal, which is not here");
  }
  return Status();
}

// What the per-token codecs can code: their codebooks' widths, and always whole tokens.
Status CheckPerToken(const Settings& settings) {
  if (!settings.exact_tail) {
    return Status(StatusCode::kBadSettingValue,
                  "exact_tail = false needs codec group_affine, got per_token");
  }
  const bool uniform = settings.method == Method::kUniform;
  for (const Side side : {Side::kKey, Side::kValue}) {
    for (const AgeTier tier : {AgeTier::kRecent, AgeTier::kMid, AgeTier::kOld}) {
      const int bits =
          uniform ? UniformBits(settings, side) : AgeTierBits(settings, tier, side, true);
      if (bits == 2 || bits == 3 || bits == 4 || bits == 8 || bits == 16) continue;
      constexpr const char* kTierFields[] = {"age_bits_recent", "age_bits_mid", "age_bits_old"};
      return Status(StatusCode::kBadSettingValue,
                    std::string(uniform ? "uniform_bits" : kTierFields[static_cast<size_t>(tier)]) +
                        (side == Side::kKey ? " of keys" : " of values") +
                        " must be 2, 3, 4, 8 or 16 with codec per_token, got " +
                        std::to_string(bits));
    }
  }
  return Status();
}

Status CheckOneLayer(const Settings& settings) {
  VARVE_RETURN_IF_ERROR(CheckRefusedFields(settings));
  switch (settings.method) {
    case Method::kAgeTiered:
      VARVE_RETURN_IF_ERROR(CheckAgeTiered(settings));
      break;
    case Method::kAmc:
      VARVE_RETURN_IF_ERROR(CheckAmc(settings));
      break;
    case Method::kKivi:
      VARVE_RETURN_IF_ERROR(CheckKivi(settings));
      break;
    case Method::kFp16:
    case Method::kUniform:
      break;
  }
  for (const Field& field : Fields()) {
    if (FieldBelongsTo(field, settings.method))
      VARVE_RETURN_IF_ERROR(CheckFieldRange(settings, field));
  }
  const bool per_token =
      settings.codec == CodecChoice::kPerToken &&
      (settings.method == Method::kUniform || settings.method == Method::kAgeTiered);
  return per_token ? CheckPerToken(settings) : Status();
}

}  // namespace

Status SetField(Settings* settings, std::string_view key, std::string_view value) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) {
    const Field* field = FindField(key);
    return field != nullptr ? ParseField(settings, *field, value) : UnknownField(key);
  }
  LayerOverride override;
  if (!ParseLayerRange(key.substr(0, dot), &override)) {
    return Status(StatusCode::kUnknownSetting, "layer range \"" + std::string(key.substr(0, dot)) +
                                                   "\" of setting \"" + std::string(key) +
                                                   "\" is not l3, l0-1, first2 or last2");
  }
  const Field* field = FindField(key.substr(dot + 1));
  if (field == nullptr) return UnknownField(key.substr(dot + 1));
  Settings probe;
  VARVE_RETURN_IF_ERROR(ParseField(&probe, *field, value));
  override.key = field->name;
  override.value = value;
  settings->overrides.push_back(std::move(override));
  return Status();
}

Status SetFields(Settings* settings, std::string_view assignments) {
  Settings changed = *settings;
  while (!assignments.empty()) {
    const size_t comma = assignments.find(',');
    const std::string_view one = assignments.substr(0, comma);
    const size_t equals = one.find('=');
    if (equals == std::string_view::npos) {
      return Status(StatusCode::kBadSettingValue, "\"" + std::string(one) + "\" is not key=value");
    }
    VARVE_RETURN_IF_ERROR(SetField(&changed, one.substr(0, equals), one.substr(equals + 1)));
    assignments =
        comma == std::string_view::npos ? std::string_view() : assignments.substr(comma + 1);
  }
  *settings = std::move(changed);
  return Status();
}

Result<std::string> GetField(const Settings& settings, std::string_view key) {
  const Field* field = FindField(key);
  if (field == nullptr) return UnknownField(key);
  return FieldText(settings, *field);
}

Status ApplyPreset(Settings* settings, std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (name != preset.name) continue;
    Settings changed;
    changed.method = settings->method;
    VARVE_RETURN_IF_ERROR(SetFields(&changed, preset.assignments));
    *settings = std::move(changed);
    return Status();
  }
  return Status(StatusCode::kBadSettingValue,
                "preset must be safe, balanced, small or seed, got \"" + std::string(name) + "\"");
}

Status CheckSettings(const Settings& settings) {
  VARVE_RETURN_IF_ERROR(CheckOneLayer(settings));
  for (const LayerOverride& range : settings.overrides) {
    const int layer = range.from_end ? kAnyDepth - range.first : range.first;
    Result<Settings> resolved = SettingsForLayer(settings, layer, kAnyDepth);
    if (!resolved.ok()) return resolved.status();
    VARVE_RETURN_IF_ERROR(CheckOneLayer(resolved.value()));
  }
  return Status();
}

Result<Settings> SettingsForLayer(const Settings& settings, int layer, int n_layers) {
  if (layer < 0 || layer >= n_layers) {
    return Status(
        StatusCode::kInvalidArgument,
        "layer must be in 0.." + std::to_string(n_layers - 1) + ", got " + std::to_string(layer));
  }
  Settings resolved = settings;
  resolved.overrides.clear();
  for (const LayerOverride& range : settings.overrides) {
    if (!Covers(range, layer, n_layers)) continue;
    VARVE_RETURN_IF_ERROR(ParseField(&resolved, *FindField(range.key), range.value));
  }
  return resolved;
}

int AgeTierBits(const Settings& settings, AgeTier tier, Side side, bool per_token) {
  const bool key = side == Side::kKey;
  switch (tier) {
    case AgeTier::kRecent:
      return (key ? settings.age_bits_recent_k : settings.age_bits_recent_v)
          .value_or(settings.age_bits_recent);
    case AgeTier::kMid:
      return (key ? settings.age_bits_mid_k : settings.age_bits_mid_v)
          .value_or(settings.age_bits_mid);
    case AgeTier::kOld:
      break;
  }
  if (!key) return settings.age_bits_old_v.value_or(settings.age_bits_old);
  const int finer = settings.age_bits_old < 8 ? settings.age_bits_old + 1 : settings.age_bits_old;
  return settings.age_bits_old_k.value_or(per_token ? finer : settings.age_bits_old);
}

int UniformBits(const Settings& settings, Side side) {
  return (side == Side::kKey ? settings.uniform_bits_k : settings.uniform_bits_v)
      .value_or(settings.uniform_bits);
}

}  // namespace varve
