/* Plain C11 against the installed header: prints the version, then makes and drops a set of
 * settings. */
#include <stdio.h>
#include <varve/varve.h>

int main(void) {
  varve_config* config = NULL;
  if (varve_config_create(&config) != VARVE_OK) return 1;
  if (varve_config_set(config, "sink_tokens", "8") != VARVE_OK) return 2;
  if (varve_config_set(config, "no_such_setting", "1") != VARVE_ERROR_UNKNOWN_SETTING) return 3;
  varve_config_destroy(config);
  puts(varve_version());
  return 0;
}
