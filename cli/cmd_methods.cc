// varve methods: every method, preset and setting, with what each costs.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "commands.h"
#include "support/failure.h"
#include "support/methods.h"
#include "support/output.h"
#include "support/table.h"

namespace varve::cli {
namespace {

constexpr int kSchemaVersion = 1;

struct MethodFacts {
  const char* name;
  const char* family;
  const char* blurb;
  bool in_plugin;  ///< one token at a time, as a host that addresses cells needs
};

constexpr std::array<MethodFacts, 5> kFacts = {{
    {"fp16", "reference", "Exact half floats: nothing saved, nothing lost.", true},
    {"uniform", "quantization", "The same bits for every token, whatever its age.", true},
    {"kivi", "quantization",
     "Min/max groups, keys along tokens, values along channels; newest tokens exact.", false},
    {"age_tiered", "quantization",
     "Recent tokens 8 bits, older ones 4, the oldest 3 (keys) and 2 (values).", true},
    {"amc", "quantization", "Rank and bits by a token's saliency; needs whole calls of tokens.",
     false},
}};

constexpr std::array<std::pair<const char*, const char*>, 4> kPresetBlurbs = {{
    {"safe", "a fifth of stock q4_0's KLD or less"},
    {"balanced", "the default: a third of stock q4_0's KLD or less"},
    {"small", "half of stock q4_0's KLD or less"},
    {"seed", "the arithmetic of the original 8/4/2 cache, for comparison"},
}};

const MethodFacts* FactsOf(const std::string& name) {
  for (const MethodFacts& facts : kFacts) {
    if (name == facts.name) return &facts;
  }
  return nullptr;
}

std::string PresetSettings(const std::string& name) { return ParseCache(name, {}).settings; }

/// "a=1,b=2" -> "a=1, b=2", so that it can be wrapped.
std::string Spaced(const std::string& settings) {
  std::string spaced;
  for (char c : settings) spaced += c == ',' ? std::string(", ") : std::string(1, c);
  return spaced.empty() ? "the defaults" : spaced;
}

Json FieldJson(const varve_field_info& field) {
  const std::string type = field.type;
  return {{"name", field.name},
          {"type", type},
          {"default", field.default_value},
          {"optional", type.find("or none") != std::string::npos},
          {"range", field.range},
          {"help", field.help},
          {"cost", field.cost}};
}

Json MethodJson(const std::string& name) {
  Json json = {{"name", name}};
  if (const MethodFacts* facts = FactsOf(name)) {
    json["family"] = facts->family;
    json["blurb"] = facts->blurb;
    json["in_plugin"] = facts->in_plugin;
  }
  json["compresses_keys"] = name != "fp16";
  json["compresses_values"] = name != "fp16";
  json["config_fields"] = Json::array();
  json["field_schema"] = Json::array();
  for (const varve_field_info& field : AllFields()) {
    if (!FieldBelongsTo(field, name) || std::string(field.name) == "method") continue;
    json["config_fields"].push_back(field.name);
    json["field_schema"].push_back(FieldJson(field));
  }
  return json;
}

void PrintOverview() {
  Table methods({"<method", "<in llama.cpp", "<what it does"});
  for (const std::string& name : MethodNames()) {
    const MethodFacts* facts = FactsOf(name);
    methods.AddRow(
        {name, facts && facts->in_plugin ? "yes" : "library only", facts ? facts->blurb : ""});
  }
  Table presets({"<preset", "<what for", "<settings of age_tiered"});
  for (const auto& [name, blurb] : kPresetBlurbs)
    presets.AddRow({name, blurb, Spaced(PresetSettings(name))});
  WriteStdout(methods.ToString() + "\n" + presets.ToString() +
              "\n`varve methods NAME` lists the settings of a method. llama.cpp's own types (f16, "
              "q8_0, q4_0, ...)\n"
              "can be named beside them in --methods.\n");
}

void PrintFields(const std::string& name) {
  std::string out;
  if (const MethodFacts* facts = FactsOf(name))
    out += fmt::format("{}: {}\n\n", name, facts->blurb);
  for (const varve_field_info& field : AllFields()) {
    if (!FieldBelongsTo(field, name) || std::string(field.name) == "method") continue;
    const std::string value = *field.default_value ? field.default_value : "unset";
    out += fmt::format("{} = {}   {}: {}\n", field.name, value, field.type, field.range);
    std::string text = field.help;
    if (*field.cost) text += fmt::format(". Costs: {}", field.cost);
    for (const std::string& line : WrapText(text, kMaxColumns - 4)) out += "    " + line + "\n";
  }
  WriteStdout(out);
}

}  // namespace

void AddMethods(CLI::App& app) {
  struct Options {
    std::string name;
    std::string family;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, "methods", "list methods, presets and settings",
                 "  varve methods\n  varve methods age_tiered\n  varve methods --json");
  command->add_option("name", options->name, "a method whose settings to list")->type_name("NAME");
  command->add_option("--family", options->family, "only methods of this family")
      ->check(CLI::IsMember({"reference", "quantization"}));
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/methods.json)");
  command->callback([options] {
    std::vector<std::string> names;
    for (const std::string& name : MethodNames()) {
      const MethodFacts* facts = FactsOf(name);
      const bool named = options->name.empty() || options->name == name;
      const bool in_family = options->family.empty() || (facts && options->family == facts->family);
      if (named && in_family) names.push_back(name);
    }
    if (names.empty()) {
      std::string valid;
      for (const std::string& name : MethodNames()) valid += (valid.empty() ? "" : ", ") + name;
      Fail(ExitCode::kUsage, "no method \"{}\"{}; there are {}", options->name,
           options->family.empty() ? "" : " in family " + options->family, valid);
    }
    if (options->json) {
      Json json = MakeResult("methods", kSchemaVersion);
      json["methods"] = Json::array();
      for (const std::string& name : names) json["methods"].push_back(MethodJson(name));
      json["presets"] = Json::array();
      for (const auto& [name, blurb] : kPresetBlurbs) {
        json["presets"].push_back(
            {{"name", name}, {"blurb", blurb}, {"settings", PresetSettings(name)}});
      }
      WriteJson(json);
    } else if (options->name.empty()) {
      PrintOverview();
    } else {
      PrintFields(options->name);
    }
  });
}

}  // namespace varve::cli
