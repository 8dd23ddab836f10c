#include "policy/settings.h"

#include <gtest/gtest.h>

#include "policy/settings_fields.h"
#include "varve/varve.h"

namespace varve {
namespace {

Status Set(Settings* settings, const char* list) { return SetFields(settings, list); }

TEST(Settings, EveryFieldSurvivesPrintingAndParsing) {
  for (const char* preset : {"safe", "balanced", "small", "seed"}) {
    Settings settings;
    ASSERT_TRUE(ApplyPreset(&settings, preset).ok()) << preset;
    Settings copy;
    for (const Field& field : Fields()) {
      const std::string text = FieldText(settings, field);
      ASSERT_TRUE(ParseField(&copy, field, text).ok()) << field.name << " " << text;
      EXPECT_EQ(FieldText(copy, field), text) << field.name;
    }
  }
}

TEST(Settings, EveryPresetPassesTheChecksOfEveryMethod) {
  for (const char* preset : {"safe", "balanced", "small", "seed"}) {
    for (const char* method : {"fp16", "uniform", "kivi", "age_tiered", "amc"}) {
      Settings settings;
      ASSERT_TRUE(SetField(&settings, "method", method).ok());
      ASSERT_TRUE(ApplyPreset(&settings, preset).ok());
      EXPECT_STREQ(MethodName(settings.method), method);
      EXPECT_TRUE(CheckSettings(settings).ok())
          << preset << " " << method << CheckSettings(settings).text();
    }
  }
}

TEST(Settings, NumbersParseAsTheSeedsDo) {
  Settings settings;
  ASSERT_TRUE(Set(&settings,
                  "age_bits_old=7.9,age_recent_boundary= 12 ,amc_k_high=0.2,bit_width_inlier=[2;3]")
                  .ok());
  EXPECT_EQ(settings.age_bits_old, 7);
  EXPECT_EQ(settings.age_recent_boundary, 12);
  EXPECT_EQ(settings.amc_k_high, 0.2);
  EXPECT_EQ(settings.bit_width_inlier, (BitWidths{{2, 3}, true}));
  ASSERT_TRUE(Set(&settings, "age_bits_old_k=3").ok());
  ASSERT_TRUE(Set(&settings, "age_bits_old_k=").ok());
  EXPECT_FALSE(settings.age_bits_old_k.has_value());
}

TEST(Settings, AnUnknownNameGetsTheNearestAndAll) {
  Settings settings;
  const Status status = SetField(&settings, "age_bit_old", "2");
  EXPECT_EQ(status.code(), StatusCode::kUnknownSetting);
  EXPECT_NE(status.text().find("nearest: age_bits_old;"), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("sink_tokens"), std::string::npos);
}

TEST(Settings, AValueThatDoesNotParseNamesFieldValueAndChoices) {
  Settings settings;
  const Status number = SetField(&settings, "age_bits_old", "two");
  EXPECT_EQ(number.code(), StatusCode::kBadSettingValue);
  EXPECT_NE(number.text().find("age_bits_old = \"two\""), std::string::npos) << number.text();
  EXPECT_NE(number.text().find("1..16"), std::string::npos);
  const Status choice = SetField(&settings, "tier_rule", "middle");
  EXPECT_NE(choice.text().find("newest, oldest"), std::string::npos) << choice.text();
  for (const char* bad : {"nan", "inf", "1e30", "", "8 bits"}) {
    EXPECT_FALSE(SetField(&settings, "age_bits_old", bad).ok()) << bad;
  }
}

TEST(Settings, AListIsAllOrNothing) {
  Settings settings;
  EXPECT_FALSE(Set(&settings, "age_bits_old=3,nonsense=1").ok());
  EXPECT_EQ(settings.age_bits_old, 2);
  EXPECT_FALSE(Set(&settings, "age_bits_old").ok());
}

TEST(Settings, ChecksNameFieldAndValue) {
  struct Case {
    const char* assignments;
    const char* names;
    const char* value;
  };
  constexpr Case kCases[] = {
      {"age_recent_boundary=0", "age_recent_boundary", "0"},
      {"age_recent_boundary=100,age_mid_boundary=50", "age_mid_boundary", "50"},
      {"age_bits_mid=17", "age_bits_mid", "17"},
      {"age_bits_old_v=0", "age_bits_old_v", "0"},
      {"age_group_size=0", "age_group_size", "0"},
      {"sink_tokens=-1", "sink_tokens", "-1"},
      {"sliding_window=4", "sliding_window", "4"},
      {"observers=x", "observers", "x"},
      {"bit_width_outlier=3", "bit_width_outlier", "3"},
      {"method=amc,amc_k_high=1.5", "amc_k_high", "1.5"},
      {"method=amc,amc_k_high=nan", "amc_k_high", "nan"},
      {"method=amc,amc_k_high=0.8,amc_k_mid=0.5", "amc_k_mid", "0.5"},
      {"method=amc,amc_adaptive_thresholds=true", "amc_calib_variance", "none"},
      {"method=amc,amc_query_alpha=3", "amc_query_alpha", "3"},
      {"method=amc,amc_threshold_window=0", "amc_threshold_window", "0"},
      {"method=amc,amc_gamma=nan", "amc_gamma", "nan"},
      {"method=kivi,bit_width_inlier=0", "bit_width_inlier", "0"},
      {"method=kivi,bit_width_inlier=[2;2]", "bit_width_inlier", "[2;2]"},
      {"method=kivi,bit_width_inlier=[2]", "bit_width_inlier", "[2]"},
      {"method=kivi,kivi_group_size=0", "kivi_group_size", "0"},
      {"method=kivi,residual_length=-1", "residual_length", "-1"},
      {"method=kivi,use_metal_kernels=true", "use_metal_kernels", "true"},
      {"method=uniform,uniform_bits=0", "uniform_bits", "0"},
      {"last1.age_bits_old=99", "age_bits_old", "99"},
  };
  for (const Case& one : kCases) {
    Settings settings;
    ASSERT_TRUE(Set(&settings, one.assignments).ok()) << one.assignments;
    const Status status = CheckSettings(settings);
    EXPECT_EQ(status.code(), StatusCode::kBadSettingValue) << one.assignments;
    EXPECT_NE(status.text().find(one.names), std::string::npos) << status.text();
    EXPECT_NE(status.text().find(one.value), std::string::npos) << status.text();
  }
  Settings other_method;
  ASSERT_TRUE(Set(&other_method, "method=kivi,age_recent_boundary=0").ok());
  EXPECT_TRUE(CheckSettings(other_method).ok());
}

TEST(Settings, LayerRangesCountFromBothEnds) {
  Settings settings;
  ASSERT_TRUE(Set(&settings,
                  "l0-1.age_bits_old=4,last2.age_bits_old=8,l3.method=fp16,first1.age_bits_old_k=6")
                  .ok());
  const auto at = [&](int layer) { return SettingsForLayer(settings, layer, 6).value(); };
  EXPECT_EQ(at(0).age_bits_old, 4);
  EXPECT_EQ(at(0).age_bits_old_k, 6);
  EXPECT_EQ(at(1).age_bits_old, 4);
  EXPECT_EQ(at(1).age_bits_old_k, std::nullopt);
  EXPECT_EQ(at(2).age_bits_old, 2);
  EXPECT_EQ(at(3).method, Method::kFp16);
  EXPECT_EQ(at(4).age_bits_old, 8);
  EXPECT_EQ(at(5).age_bits_old, 8);
  EXPECT_FALSE(SettingsForLayer(settings, 6, 6).ok());
  EXPECT_FALSE(SetField(&settings, "l2-1.age_bits_old", "4").ok());
  EXPECT_FALSE(SetField(&settings, "layer2.age_bits_old", "4").ok());
}

TEST(Settings, OldKeysGetOneMoreBitUnderPerTokenCodecs) {
  Settings settings;
  EXPECT_EQ(AgeTierBits(settings, AgeTier::kOld, Side::kKey, true), 3);
  EXPECT_EQ(AgeTierBits(settings, AgeTier::kOld, Side::kKey, false), 2);
  EXPECT_EQ(AgeTierBits(settings, AgeTier::kOld, Side::kValue, true), 2);
  settings.age_bits_old_k = 5;
  EXPECT_EQ(AgeTierBits(settings, AgeTier::kOld, Side::kKey, true), 5);
}

TEST(SettingsOfTheCApi, EveryFieldIsListedAndReadable) {
  varve_config* config = nullptr;
  ASSERT_EQ(varve_config_create(&config), VARVE_OK);
  ASSERT_GT(varve_field_count(), 40u);
  for (size_t i = 0; i < varve_field_count(); ++i) {
    varve_field_info info = {};
    info.struct_size = sizeof(info);
    ASSERT_EQ(varve_field_get_info(i, &info), VARVE_OK);
    char text[256];
    size_t needed = 0;
    ASSERT_EQ(varve_config_get(config, info.name, text, sizeof(text), &needed), VARVE_OK)
        << varve_last_error();
    EXPECT_STREQ(text, info.default_value);
    EXPECT_EQ(needed, std::string(text).size() + 1);
  }
  EXPECT_EQ(varve_config_set(config, "bogus", "1"), VARVE_ERROR_UNKNOWN_SETTING);
  EXPECT_NE(std::string(varve_last_error()).find("bogus"), std::string::npos);
  EXPECT_EQ(varve_config_set(nullptr, "bogus", "1"), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_config_check(config), VARVE_OK);
  EXPECT_STREQ(varve_last_error(), "");
  varve_config_destroy(config);
}

}  // namespace
}  // namespace varve
