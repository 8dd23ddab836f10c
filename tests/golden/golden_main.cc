// varve-golden [FOLDER]: runs every case of a folder of golden vectors (manifest.json and arrays/),
// made with the original package, through varve's public API. The folder is the argument, else
// VARVE_GOLDEN_DIR, else the one in the tree. A line a case, then "N passed, N failed"; the exit
// code is 0 when none failed.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

#include "golden/golden_case.h"

namespace golden {

NpyArray LoadArray(const std::string& folder, const Json& entry) {
  NpyArray array = ReadNpy(folder + "/" + entry["file"].get<std::string>());
  array.is_bf16 = entry["dtype"] == "bfloat16";
  if (array.shape != entry["shape"].get<std::vector<int64_t>>()) {
    throw Failure(entry["file"].get<std::string>() + ": shape differs from the manifest");
  }
  return array;
}

void ExpectNear(double got, double want, double relative, const std::string& what) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return;
  if (std::fabs(got - want) <= relative * std::fabs(want)) return;
  char text[128];
  std::snprintf(text, sizeof(text), " is %.17g, expected %.17g", got, want);
  throw Failure(what + text);
}

std::string SettingText(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text = "[";
  for (const Json& one : value) text += (text.size() > 1 ? ";" : "") + SettingText(one);
  return text + "]";
}

namespace {

const std::map<std::string, std::function<std::string(const std::string&, const Json&)>> kRunners =
    {
        {"cache", RunCacheCase},
        {"group_quant", RunGroupQuant},
        {"kivi_quantizer", RunKiviQuantizer},
        {"amc_calibration", RunAmcCalibration},
        {"amc_thresholds", RunAmcThresholds},
        {"bitpack", RunBitpack},
        {"formulas", RunFormulas},
        {"config_errors", RunConfigErrors},
};

// Python writes NaN and Infinity bare, which JSON does not know: they become strings, as settings
// take them.
std::string QuoteNonFinite(const std::string& json) {
  std::string quoted;
  bool in_string = false;
  for (size_t i = 0; i < json.size();) {
    for (const char* name : {"NaN", "Infinity", "-Infinity"}) {
      if (in_string || json.compare(i, std::strlen(name), name) != 0) continue;
      quoted += std::string("\"") +
                (name[0] == 'N'   ? "nan"
                 : name[0] == '-' ? "-inf"
                                  : "inf") +
                "\"";
      i += std::strlen(name);
    }
    if (i >= json.size()) break;
    if (in_string && json[i] == '\\') quoted += json[i++];
    if (json[i] == '"') in_string = !in_string;
    quoted += json[i++];
  }
  return quoted;
}

int RunFolder(const std::string& folder) {
  std::ifstream file(folder + "/manifest.json");
  if (!file) {
    std::fprintf(stderr, "varve-golden: cannot open %s/manifest.json\n", folder.c_str());
    return 2;
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Json manifest = Json::parse(QuoteNonFinite(text), nullptr, false);
  if (manifest.is_discarded() || !manifest.contains("cases")) {
    std::fprintf(stderr, "varve-golden: %s/manifest.json is not a manifest\n", folder.c_str());
    return 2;
  }
  int n_passed = 0;
  int n_failed = 0;
  for (const Json& one : manifest["cases"]) {
    const std::string name = one.value("id", "?");
    try {
      const auto runner = kRunners.find(one.at("type").get<std::string>());
      if (runner == kRunners.end())
        throw Failure("case type " + one["type"].dump() + " is not known");
      const std::string remark = runner->second(folder, one);
      std::printf("PASS %s%s\n", name.c_str(), remark.empty() ? "" : (" (" + remark + ")").c_str());
      ++n_passed;
    } catch (const std::exception& error) {
      std::printf("FAIL %s: %s\n", name.c_str(), error.what());
      ++n_failed;
    }
  }
  std::printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed == 0 && n_passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace golden

int main(int argc, char** argv) {
  const char* from_environment = std::getenv("VARVE_GOLDEN_DIR");
  const char* folder = argc > 1                      ? argv[1]
                       : from_environment != nullptr ? from_environment
                                                     : VARVE_GOLDEN_DEFAULT_DIR;
  return golden::RunFolder(folder);
}
