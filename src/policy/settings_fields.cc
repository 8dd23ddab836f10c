#include "policy/settings_fields.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <type_traits>

namespace varve {
namespace {

constexpr double kIntMin = std::numeric_limits<int>::min();
constexpr double kIntMax = std::numeric_limits<int>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMaxTokens = 1 << 30;
constexpr double kMaxGroup = 1 << 16;

using S = Settings;
constexpr Field kFields[] = {
    {"method", &S::method, "all", 0, 0, "how the cache stores its tokens", ""},
    {"codec", &S::codec, "uniform,age_tiered", 0, 0,
     "group_affine: min/max groups; per_token: rope_pair keys and rotated values; auto: per_token "
     "where the host "
     "addresses cells, group_affine in sequence caches",
     "per_token: a rotation of each query and output"},
    {"sink_tokens", &S::sink_tokens, "uniform,kivi,age_tiered,amc", 0, 65536,
     "first tokens of a sequence that stay exact, as f16 rows",
     "16 bits an element for these tokens"},
    {"age_recent_boundary", &S::age_recent_boundary, "age_tiered", 1, kMaxTokens,
     "tokens younger than this are in the recent tier", "more tokens at the recent width"},
    {"age_mid_boundary", &S::age_mid_boundary, "age_tiered", 1, kMaxTokens,
     "tokens younger than this, and not recent, are in the mid tier; not below age_recent_boundary",
     "more tokens at the mid width"},
    {"age_bits_recent", &S::age_bits_recent, "age_tiered", 1, 16,
     "bits of the recent tier; 16 keeps it exact", "bits"},
    {"age_bits_mid", &S::age_bits_mid, "age_tiered", 1, 16, "bits of the mid tier", "bits"},
    {"age_bits_old", &S::age_bits_old, "age_tiered", 1, 16,
     "bits of the old tier; per_token codecs give keys one more unless age_bits_old_k is set",
     "bits"},
    {"age_bits_recent_k", &S::age_bits_recent_k, "age_tiered", 1, 16, "keys of the recent tier",
     "bits"},
    {"age_bits_recent_v", &S::age_bits_recent_v, "age_tiered", 1, 16, "values of the recent tier",
     "bits"},
    {"age_bits_mid_k", &S::age_bits_mid_k, "age_tiered", 1, 16, "keys of the mid tier", "bits"},
    {"age_bits_mid_v", &S::age_bits_mid_v, "age_tiered", 1, 16, "values of the mid tier", "bits"},
    {"age_bits_old_k", &S::age_bits_old_k, "age_tiered", 1, 16, "keys of the old tier", "bits"},
    {"age_bits_old_v", &S::age_bits_old_v, "age_tiered", 1, 16, "values of the old tier", "bits"},
    {"key_error_limit", &S::key_error_limit, "age_tiered", 0, kInf,
     "per_token codecs behind a host: a layer's keys go to a tier only if its table predicts at "
     "most "
     "this rms error of a logit; 0: always",
     "the keys of such a layer stay at the width of the tier before"},
    {"value_skip_share", &S::value_skip_share, "uniform,age_tiered", 0, 0.5,
     "per_token codecs behind a host: values of a block are passed over while all that are hold at "
     "most this share of a query's weights; 0: none",
     "an output moves by at most this times the largest value"},
    {"age_group_size", &S::age_group_size, "age_tiered", 1, kMaxGroup,
     "tokens that share one min/max and one tier (group_affine)",
     "32/age_group_size bits an element for min and max; the tail of up to age_group_size-1 tokens "
     "stays at 16 bits"},
    {"tier_rule", &S::tier_rule, "age_tiered", 0, 0,
     "which token's age decides a group's tier: newest (never coarser than its age allows) or "
     "oldest (the original's)",
     "newest: up to age_group_size-1 tokens a boundary stay one tier finer"},
    {"retier", &S::retier, "age_tiered", 0, 0,
     "a width that does not divide the one before: recode (decode and encode again) or exact (as "
     "if from raw values)",
     "exact: the coming tier's codes are held beside the present ones"},
    {"exact_tail", &S::exact_tail, "uniform,age_tiered", 0, 0,
     "tokens of a group that is not full yet read back exactly; false quantizes them anew on every "
     "read",
     "nothing: the tail is held exactly either way"},
    {"value_axis", &S::value_axis, "uniform,age_tiered", 0, 0,
     "min/max groups of values run over a token's channels (token) or over the tokens of a channel "
     "(channel)",
     ""},
    {"uniform_bits", &S::uniform_bits, "uniform", 1, 16, "bits of every token", "bits"},
    {"uniform_bits_k", &S::uniform_bits_k, "uniform", 1, 16, "bits of keys", "bits"},
    {"uniform_bits_v", &S::uniform_bits_v, "uniform", 1, 16, "bits of values", "bits"},
    {"uniform_group_size", &S::uniform_group_size, "uniform", 1, kMaxGroup,
     "elements that share one min/max", "32/uniform_group_size bits an element"},
    {"bit_width_inlier", &S::bit_width_inlier, "kivi", 1, 16, "bits of kivi; one number", "bits"},
    {"kivi_group_size", &S::kivi_group_size, "kivi", 1, kMaxGroup,
     "tokens (keys) or channels (values) that share one min/max",
     "32/kivi_group_size bits an element"},
    {"residual_length", &S::residual_length, "kivi", 0, kMaxTokens, "newest tokens that stay exact",
     "16 bits an element for these tokens"},
    {"amc_k_high", &S::amc_k_high, "amc", 0, 1,
     "share of tokens kept whole; with amc_k_mid at most 1", "16 bits an element for this share"},
    {"amc_k_mid", &S::amc_k_mid, "amc", 0, 1,
     "share of tokens kept at a third of the channels and 8 bits",
     "2.7 bits an element for this share"},
    {"amc_use_query_saliency", &S::amc_use_query_saliency, "amc", 0, 0,
     "saliency also looks at the angle to the mean key", "one mean key a head"},
    {"amc_query_alpha", &S::amc_query_alpha, "amc", 0, 1,
     "weight of the magnitude against the angle", ""},
    {"amc_adaptive_thresholds", &S::amc_adaptive_thresholds, "amc", 0, 0,
     "thresholds follow the variance of the window; needs amc_calib_variance", ""},
    {"amc_threshold_window", &S::amc_threshold_window, "amc", 1, 65536,
     "saliencies in the trailing window", "time a token grows with it"},
    {"amc_gamma", &S::amc_gamma, "amc", 0, kInf, "how strongly thresholds follow the variance", ""},
    {"amc_calib_variance", &S::amc_calib_variance, "amc", 0, kInf,
     "variance of saliency on calibration data", ""},
    {"amc_groups", &S::amc_groups, "amc", 0, 0,
     "what shares one min/max: a token's kept channels (token, the original's) or amc_group_size "
     "of them (channels)",
     "channels: 32 bits a group"},
    {"amc_group_size", &S::amc_group_size, "amc", 1, kMaxGroup,
     "channels of a group with amc_groups=channels", "32/amc_group_size bits a kept element"},
    {"amc_tiering", &S::amc_tiering, "amc", 0, 0,
     "tier by rank in a trailing window (running) or within one call (call, the original's)",
     "running: 2 bytes a token and head"},
    {"amc_saliency_clamp", &S::amc_saliency_clamp, "amc", 0, 0,
     "cap mean |k| at 1 as the original does, which makes large keys tie", ""},
    {"amc_channel_order", &S::amc_channel_order, "amc", 0, 0,
     "file with the order in which channels are kept, a layer and KV head", ""},
    {"rope", &S::rope, "uniform,age_tiered", 0, 0,
     "how RoPE pairs key channels (per_token codecs): none, normal (2i, 2i+1) or neox (i, i+n/2)",
     ""},
    {"rope_dims", &S::rope_dims, "uniform,age_tiered", 1, kMaxGroup,
     "channels that RoPE turns; unset: all", ""},
    {"reject_non_finite", &S::reject_non_finite, "all", 0, 0,
     "refuse tokens with NaN or infinity; false stores them and their group reads as NaN", ""},
    {"bf16_direct", &S::bf16_direct, "uniform,age_tiered,amc", 0, 0,
     "bf16 caches decode straight to bf16; false goes through f16 first, as the original", ""},
    {"head_dim", &S::head_dim, "all", 1, kMaxGroup,
     "channels of a head; unset: taken from the first call", ""},
    {"head_dim_check", &S::head_dim_check, "all", 0, 0,
     "refuse tokens whose width differs from head_dim; false uses head_dim for the counters only, "
     "as the original",
     ""},
    {"seed", &S::seed, "all", kIntMin, kIntMax,
     "accepted for the original's configurations; no method draws numbers", ""},
    {"bit_width_outlier", &S::bit_width_outlier, "none", kIntMin, kIntMax,
     "no method has it: any value is refused", ""},
    {"sliding_window", &S::sliding_window, "none", kIntMin, kIntMax,
     "no method has it: any value is refused", ""},
    {"observers", &S::observers, "none", 0, 0, "no method has it: any value is refused", ""},
    {"jl_dim", &S::jl_dim, "none", kIntMin, kIntMax,
     "checked by the builder (at most head_dim), used by no method", ""},
    {"n_outlier_channels", &S::n_outlier_channels, "none", kIntMin, kIntMax,
     "checked by the builder (below head_dim), used by no method", ""},
    {"n_calib_tokens", &S::n_calib_tokens, "none", kIntMin, kIntMax,
     "checked by the builder (at least 1), used by no method", ""},
    {"use_metal_kernels", &S::use_metal_kernels, "kivi", 0, 0,
     "true is refused: there is no Metal here", ""},
};

// Names of the enumerators, in their order.
constexpr std::array kMethodNames = {"fp16", "uniform", "kivi", "age_tiered", "amc"};
constexpr std::array kCodecNames = {"auto", "group_affine", "per_token"};
constexpr std::array kTierRuleNames = {"newest", "oldest"};
constexpr std::array kValueAxisNames = {"token", "channel"};
constexpr std::array kRetierNames = {"recode", "exact"};
constexpr std::array kAmcTieringNames = {"running", "call"};
constexpr std::array kAmcGroupsNames = {"token", "channels"};
constexpr std::array kRopeNames = {"none", "normal", "neox"};

std::span<const char* const> ChoiceNames(Method) { return kMethodNames; }
std::span<const char* const> ChoiceNames(CodecChoice) { return kCodecNames; }
std::span<const char* const> ChoiceNames(TierRule) { return kTierRuleNames; }
std::span<const char* const> ChoiceNames(ValueAxis) { return kValueAxisNames; }
std::span<const char* const> ChoiceNames(RetierRule) { return kRetierNames; }
std::span<const char* const> ChoiceNames(AmcTiering) { return kAmcTieringNames; }
std::span<const char* const> ChoiceNames(AmcGroups) { return kAmcGroupsNames; }
std::span<const char* const> ChoiceNames(RopeChoice) { return kRopeNames; }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool Parse(std::string_view text, double* out) {
  const char* end = text.data() + text.size();
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end && !text.empty();
}

bool Parse(std::string_view text, int* out) {
  double value = 0;
  if (!Parse(text, &value) || !(value > kIntMin - 1 && value < kIntMax + 1)) return false;
  *out = static_cast<int>(value);
  return true;
}

bool Parse(std::string_view text, bool* out) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") {
    *out = true;
    return true;
  }
  if (text == "false" || text == "0" || text == "no" || text == "off") {
    *out = false;
    return true;
  }
  return false;
}

bool Parse(std::string_view text, std::string* out) {
  *out = text;
  return true;
}

bool Parse(std::string_view text, BitWidths* out) {
  const bool is_list = text.size() >= 2 && text.front() == '[' && text.back() == ']';
  if (is_list) text = text.substr(1, text.size() - 2);
  std::vector<int> values;
  while (!text.empty()) {
    const size_t comma = text.find_first_of(",;");
    int value = 0;
    if (!Parse(Trim(text.substr(0, comma)), &value)) return false;
    values.push_back(value);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  if (!is_list && values.size() != 1) return false;
  *out = {std::move(values), is_list};
  return true;
}

template <typename T>
bool Parse(std::string_view text, std::optional<T>* out) {
  if (text.empty() || text == "none") {
    out->reset();
    return true;
  }
  T value{};
  if (!Parse(text, &value)) return false;
  *out = value;
  return true;
}

template <typename E>
requires std::is_enum_v<E>
bool Parse(std::string_view text, E* out) {
  const auto names = ChoiceNames(E());
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) {
      *out = static_cast<E>(i);
      return true;
    }
  }
  return false;
}

std::string Text(int value) { return std::to_string(value); }
std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(const std::string& value) { return value; }

std::string Text(double value) {
  std::array<char, 32> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

std::string Text(const BitWidths& widths) {
  if (!widths.is_list) return Text(widths.values[0]);
  std::string text = "[";
  for (const int value : widths.values) text += (text.size() > 1 ? ";" : "") + Text(value);
  return text + "]";
}

template <typename T>
std::string Text(const std::optional<T>& value) {
  return value.has_value() ? Text(*value) : std::string();
}

template <typename E>
requires std::is_enum_v<E> std::string Text(E value) {
  return ChoiceNames(value)[static_cast<size_t>(value)];
}

template <typename T>
using MemberType = std::remove_cvref_t<decltype(std::declval<Settings>().*std::declval<T>())>;

std::string NumberRange(const Field& field) {
  const bool no_min = field.min <= kIntMin;
  const bool no_max = field.max >= kIntMax;
  if (no_min && no_max) return "any number";
  if (no_max) return "at least " + Text(field.min);
  return Text(field.min) + ".." + Text(field.max);
}

template <typename T>
std::string RangeOf(const Field& field) {
  if constexpr (std::is_enum_v<T>) {
    std::string text;
    for (const char* name : ChoiceNames(T()))
      text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
    return "true, false or none";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (std::is_same_v<T, std::optional<int>> ||
                       std::is_same_v<T, std::optional<double>>) {
    return NumberRange(field) + " or none";
  } else {
    return NumberRange(field);
  }
}

Status OutOfRange(const Field& field, const std::string& value) {
  return Status(StatusCode::kBadSettingValue,
                std::string(field.name) + " must be " + FieldRange(field) + ", got " + value);
}

}  // namespace

std::span<const Field> Fields() { return kFields; }

const Field* FindField(std::string_view name) {
  for (const Field& field : kFields) {
    if (name == field.name) return &field;
  }
  return nullptr;
}

const char* FieldTypeName(const Field& field) {
  return std::visit(
      [](auto member) -> const char* {
        using T = MemberType<decltype(member)>;
        if constexpr (std::is_enum_v<T>) return "choice";
        if constexpr (std::is_same_v<T, int>) return "int";
        if constexpr (std::is_same_v<T, std::optional<int>>) return "int or none";
        if constexpr (std::is_same_v<T, BitWidths>) return "int list";
        if constexpr (std::is_same_v<T, double>) return "double";
        if constexpr (std::is_same_v<T, std::optional<double>>) return "double or none";
        if constexpr (std::is_same_v<T, bool>) return "bool";
        if constexpr (std::is_same_v<T, std::optional<bool>>) return "bool or none";
        return "text";
      },
      field.member);
}

std::string FieldRange(const Field& field) {
  return std::visit([&](auto member) { return RangeOf<MemberType<decltype(member)>>(field); },
                    field.member);
}

std::string FieldText(const Settings& settings, const Field& field) {
  return std::visit([&](auto member) { return Text(settings.*member); }, field.member);
}

Status ParseField(Settings* settings, const Field& field, std::string_view text) {
  text = Trim(text);
  const bool parsed =
      std::visit([&](auto member) { return Parse(text, &(settings->*member)); }, field.member);
  if (parsed) return Status();
  return Status(StatusCode::kBadSettingValue,
                std::string(field.name) + " = \"" + std::string(text) + "\" is not " +
                    FieldTypeName(field) + " (valid: " + FieldRange(field) + ")");
}

Status CheckFieldRange(const Settings& settings, const Field& field) {
  const auto inside = [&](double value) { return value >= field.min && value <= field.max; };
  return std::visit(
      [&](auto member) -> Status {
        using T = MemberType<decltype(member)>;
        const T& value = settings.*member;
        bool ok = true;
        if constexpr (std::is_same_v<T, int> || std::is_same_v<T, double>) ok = inside(value);
        if constexpr (std::is_same_v<T, std::optional<int>> ||
                      std::is_same_v<T, std::optional<double>>) {
          ok = !value.has_value() || inside(*value);
        }
        if constexpr (std::is_same_v<T, BitWidths>) {
          for (const int one : value.values) ok = ok && inside(one);
        }
        return ok ? Status() : OutOfRange(field, FieldText(settings, field));
      },
      field.member);
}

bool FieldBelongsTo(const Field& field, Method method) {
  const std::string_view methods = field.methods;
  if (methods == "all") return true;
  const std::string_view name = MethodName(method);
  for (size_t at = 0; at < methods.size();) {
    const size_t comma = std::min(methods.find(',', at), methods.size());
    if (methods.substr(at, comma - at) == name) return true;
    at = comma + 1;
  }
  return false;
}

const char* MethodName(Method method) { return kMethodNames[static_cast<size_t>(method)]; }

}  // namespace varve
