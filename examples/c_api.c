/* The same from C11: settings by name with errors that say what would be right, a sequence cache,
 * and its tokens read back. */
#include <math.h>
#include <stdio.h>
#include <varve/varve.h>

enum { kHeads = 2, kTokens = 256, kHeadDim = 64, kElements = kHeads * kTokens * kHeadDim };

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, varve_last_error());
  return 1;
}

int main(void) {
  static float keys[kElements], decoded[kElements];
  varve_config* config = NULL;
  if (varve_config_create(&config)) return fail("settings");

  /* A name that does not exist is refused, and the text lists what does. */
  if (varve_config_set(config, "age_bits_odl", "2") != VARVE_ERROR_UNKNOWN_SETTING) return 1;
  printf("%.60s...\n", varve_last_error());

  varve_cache* cache = NULL;
  if (varve_config_set_list(config, "method=uniform,uniform_bits=8")) return fail("settings");
  if (varve_cache_create(config, 0, 1, &cache)) return fail("cache");

  for (int i = 0; i < kElements; ++i) keys[i] = sinf((float)i * 0.1f);
  varve_tensor tensor = {.struct_size = sizeof tensor,
                         .data = keys,
                         .type = VARVE_F32,
                         .shape = {1, kHeads, kTokens, kHeadDim}};
  if (varve_cache_append(cache, &tensor, &tensor)) return fail("append");
  if (varve_cache_decode(cache, VARVE_KEY, 0, kTokens, VARVE_F32, decoded, sizeof decoded))
    return fail("decode");

  float worst = 0.0f;
  for (int i = 0; i < kElements; ++i) worst = fmaxf(worst, fabsf(decoded[i] - keys[i]));
  varve_cache_stats stats = {.struct_size = sizeof stats};
  if (varve_cache_get_stats(cache, &stats)) return fail("stats");
  printf("%lld tokens, largest error %.4f\n", (long long)stats.n_tokens, (double)worst);
  varve_cache_destroy(cache);
  varve_config_destroy(config);
  return worst < 0.01f ? 0 : 1;
}
