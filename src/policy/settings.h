// The settings of a cache: one flat struct for all methods, under the seeds' field names with their
// defaults, and the named switches that choose between their arithmetic and the right one.
// Everything about a field (name, type, range, help) is in the table of settings_fields.cc.
#ifndef VARVE_POLICY_SETTINGS_H_
#define VARVE_POLICY_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "layout/scheme.h"

namespace varve {

enum class Method : uint8_t { kFp16, kUniform, kKivi, kAgeTiered, kAmc };

/// kAuto: group_affine in sequence caches, per_token (rope_pair keys, rotated values) in cell
/// caches.
enum class CodecChoice : uint8_t { kAuto, kGroupAffine, kPerToken };

/// Which token of a group decides its tier.
enum class TierRule : uint8_t {
  kNewest,  ///< no token is coarser than its age allows
  kOldest,  ///< the seeds'
};

/// Along what a min/max group of values runs (keys always along tokens).
enum class ValueAxis : uint8_t { kToken, kChannel };

/// How group codes reach a width that does not nest in theirs (spec section 13).
enum class RetierRule : uint8_t {
  kRecode,  ///< decode and encode: a second rounding, no further bytes
  kExact,   ///< codes of the coming width are carried along until it is reached
};

/// How AMC picks a token's tier.
enum class AmcTiering : uint8_t {
  kRunning,  ///< rank in a trailing window; does not depend on how tokens are split into calls
  kCall,     ///< percentiles within one call, as the seeds do
};

/// What shares one (lo, hi) in AMC.
enum class AmcGroups : uint8_t { kToken, kChannels };

enum class RopeChoice : uint8_t { kNone, kNormal, kNeox };

/// bit_width_inlier: one number, or a list with one entry for each layer (brackets, also around a
/// single entry).
struct BitWidths {
  std::vector<int> values;
  bool is_list = false;

  friend bool operator==(const BitWidths&, const BitWidths&) = default;
};

/// One "range.key=value" assignment. Layers count from the start, or from the end when from_end: 1
/// is the last layer.
struct LayerOverride {
  bool from_end = false;
  int first = 0;
  int last = 0;  ///< inclusive; from_end: first >= last
  std::string key;
  std::string value;
};

struct Settings {
  Method method = Method::kAgeTiered;

  // Of every method.
  std::optional<int> head_dim;  ///< unset: from the first call
  BitWidths bit_width_inlier = {{2}, false};
  std::optional<int> bit_width_outlier;
  int seed = 42;
  std::optional<int> sliding_window;
  std::string observers;
  std::optional<int> jl_dim;
  std::optional<int> n_outlier_channels;
  std::optional<int> n_calib_tokens;
  CodecChoice codec = CodecChoice::kAuto;
  RopeChoice rope = RopeChoice::kNone;
  std::optional<int> rope_dims;  ///< unset: all channels of a key head
  int sink_tokens = 4;
  double key_error_limit = 0.6;
  double value_skip_share = 0;
  bool exact_tail = true;
  ValueAxis value_axis = ValueAxis::kToken;
  bool reject_non_finite = true;
  bool bf16_direct = true;
  bool head_dim_check = true;

  // uniform
  int uniform_bits = 4;
  std::optional<int> uniform_bits_k;
  std::optional<int> uniform_bits_v;
  int uniform_group_size = 32;

  // age_tiered
  int age_recent_boundary = 128;
  int age_mid_boundary = 1024;
  int age_bits_recent = 8;
  int age_bits_mid = 4;
  int age_bits_old = 2;
  std::optional<int> age_bits_recent_k;
  std::optional<int> age_bits_recent_v;
  std::optional<int> age_bits_mid_k;
  std::optional<int> age_bits_mid_v;
  std::optional<int> age_bits_old_k;
  std::optional<int> age_bits_old_v;
  int age_group_size = 32;
  TierRule tier_rule = TierRule::kNewest;
  RetierRule retier = RetierRule::kRecode;

  // amc
  double amc_k_high = 0.20;
  double amc_k_mid = 0.30;
  bool amc_use_query_saliency = false;
  double amc_query_alpha = 0.5;
  bool amc_adaptive_thresholds = false;
  int amc_threshold_window = 64;
  double amc_gamma = 0.1;
  std::optional<double> amc_calib_variance;
  int amc_group_size = 32;
  AmcGroups amc_groups = AmcGroups::kToken;
  AmcTiering amc_tiering = AmcTiering::kRunning;
  bool amc_saliency_clamp = false;
  std::string amc_channel_order;  ///< path of a channel order file, "" for none

  // kivi
  int kivi_group_size = 32;
  int residual_length = 128;
  std::optional<bool> use_metal_kernels;

  std::vector<LayerOverride> overrides;  ///< in the order they were set; later ones win
};

/// Age tiers, finest first.
enum class AgeTier : uint8_t { kRecent = 0, kMid = 1, kOld = 2 };
inline constexpr int kAgeTiers = 3;

const char* MethodName(Method method);

/// Sets one field from text. key is a field name, optionally behind a layer range: "l3.", "l0-1.",
/// "first2.", "last2.". Integers are truncated as the seeds do ("7.9" is 7); an optional field
/// becomes unset by an empty value. Errors: kUnknownSetting (names the nearest field and lists
/// all), kBadSettingValue (field, value, what is valid).
[[nodiscard]] Status SetField(Settings* settings, std::string_view key, std::string_view value);

/// Sets "key=value,key=value"; nothing is set when one of them is wrong. A comma inside a list
/// value is written ';'.
[[nodiscard]] Status SetFields(Settings* settings, std::string_view assignments);

/// A field as text; an unset optional field is "". Errors: kUnknownSetting.
[[nodiscard]] Result<std::string> GetField(const Settings& settings, std::string_view key);

/// safe, balanced, small or seed: every field takes the preset's value, `method` stays. Errors:
/// kBadSettingValue.
[[nodiscard]] Status ApplyPreset(Settings* settings, std::string_view name);

/// The checks of spec section 2.1 and 12 (D-12) for the method in use, in the seeds' order, layer
/// overrides included.
[[nodiscard]] Status CheckSettings(const Settings& settings);

/// The settings with the overrides of `layer` (0..n_layers-1) applied; the result has no overrides.
[[nodiscard]] Result<Settings> SettingsForLayer(const Settings& settings, int layer, int n_layers);

/// Bits of an age tier on one side: age_bits_<tier>_<side>, else age_bits_<tier>. Under the
/// per-token codecs keys of the old tier get one more bit than age_bits_old (at most 8) unless
/// age_bits_old_k says otherwise.
int AgeTierBits(const Settings& settings, AgeTier tier, Side side, bool per_token);

/// uniform_bits_<side>, else uniform_bits.
int UniformBits(const Settings& settings, Side side);

}  // namespace varve

#endif  // VARVE_POLICY_SETTINGS_H_
