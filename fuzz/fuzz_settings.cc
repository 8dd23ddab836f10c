// Settings from text: lines "key=value,..." or "!preset". An accepted list reads back and can be
// set again; a refused one changes nothing and says why.
#include <string>
#include <vector>

#include "byte_reader.h"
#include "require.h"
#include "varve/varve.h"

namespace {

std::string Get(const varve_config* config, const char* key) {
  size_t needed = 0;
  REQUIRE(varve_config_get(config, key, nullptr, 0, &needed) == VARVE_OK || needed > 0);
  std::string text(needed, '\0');
  REQUIRE(varve_config_get(config, key, text.data(), text.size(), &needed) == VARVE_OK);
  REQUIRE(needed == text.size() && text.back() == '\0');
  text.pop_back();
  return text;
}

std::vector<std::string> AllFields(const varve_config* config) {
  std::vector<std::string> values;
  for (size_t i = 0; i < varve_field_count(); ++i) {
    varve_field_info info = {};
    info.struct_size = sizeof info;
    REQUIRE(varve_field_get_info(i, &info) == VARVE_OK);
    values.push_back(Get(config, info.name));
  }
  return values;
}

void RequireReadsBack(const varve_config* config) {
  varve_config* copy = nullptr;
  REQUIRE(varve_config_create(&copy) == VARVE_OK);
  const std::vector<std::string> values = AllFields(config);
  for (size_t i = 0; i < values.size(); ++i) {
    varve_field_info info = {};
    info.struct_size = sizeof info;
    REQUIRE(varve_field_get_info(i, &info) == VARVE_OK);
    REQUIRE(varve_config_set(copy, info.name, values[i].c_str()) == VARVE_OK);
  }
  REQUIRE(AllFields(copy) == values);
  varve_config_destroy(copy);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  varve_fuzz::ByteReader input(data, size);
  varve_config* config = nullptr;
  REQUIRE(varve_config_create(&config) == VARVE_OK);
  while (!input.done()) {
    const std::string line = input.Text('\n');
    const std::vector<std::string> before = AllFields(config);
    const bool is_preset = !line.empty() && line[0] == '!';
    const varve_status status = is_preset ? varve_config_preset(config, line.c_str() + 1)
                                          : varve_config_set_list(config, line.c_str());
    if (status != VARVE_OK) {
      REQUIRE(*varve_last_error() != '\0');
      REQUIRE(AllFields(config) == before);
    }
    if (varve_config_check(config) != VARVE_OK) REQUIRE(*varve_last_error() != '\0');
  }
  RequireReadsBack(config);
  varve_config_destroy(config);
  return 0;
}
