/* A C11 program that uses varve.h alone: a cache is filled, read, attended to, trimmed and copied,
 * and every wrong call is answered with an error and a text. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "varve/varve.h"

static int n_failures = 0;

static void expect(int condition, const char* what, int line) {
  if (condition) return;
  fprintf(stderr, "line %d: %s (last error: \"%s\")\n", line, what, varve_last_error());
  ++n_failures;
}
#define EXPECT(condition) expect((condition) != 0, #condition, __LINE__)
#define EXPECT_ERROR(call, code, word)                \
  do {                                                \
    EXPECT((call) == (code));                         \
    EXPECT(strstr(varve_last_error(), word) != NULL); \
  } while (0)

enum { kBatch = 1, kHeads = 2, kTokens = 300, kHeadDim = 16 };

static varve_tensor tensor_of(const float* data, int64_t n) {
  varve_tensor tensor;
  memset(&tensor, 0, sizeof(tensor));
  tensor.struct_size = sizeof(tensor);
  tensor.data = data;
  tensor.type = VARVE_F32;
  tensor.shape[0] = kBatch;
  tensor.shape[1] = kHeads;
  tensor.shape[2] = n;
  tensor.shape[3] = kHeadDim;
  return tensor;
}

static void use_a_cache(const float* data) {
  varve_config* config = NULL;
  varve_cache* cache = NULL;
  varve_cache* copy = NULL;
  varve_cache* none = NULL;
  EXPECT(varve_config_create(&config) == VARVE_OK);
  EXPECT(varve_config_set_list(config, "age_recent_boundary=32,age_mid_boundary=128") == VARVE_OK);
  EXPECT(varve_cache_create(config, 0, 1, &cache) == VARVE_OK);

  varve_tensor keys = tensor_of(data, kTokens);
  EXPECT(varve_cache_reserve(cache, 1000) == VARVE_OK);
  EXPECT(varve_cache_append(cache, &keys, &keys) == VARVE_OK);
  varve_cache_stats stats;
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  EXPECT(varve_cache_get_stats(cache, &stats) == VARVE_OK);
  EXPECT(stats.n_tokens == kTokens && stats.n_kv_heads == kHeads && stats.head_dim_k == kHeadDim);
  EXPECT(stats.tier_tokens[0] == kHeads * 32 && stats.tier_tokens[2] == kHeads * (kTokens - 128));
  EXPECT(stats.payload_bytes < (uint64_t)stats.full_seq_bytes / 2);

  const size_t n_values = (size_t)kHeads * kTokens * kHeadDim;
  float* decoded = malloc(n_values * sizeof(float));
  EXPECT(varve_cache_decode(cache, VARVE_KEY, 0, kTokens, VARVE_F32, decoded,
                            n_values * sizeof(float)) == VARVE_OK);
  for (size_t i = 0; i < 4 * kHeadDim; ++i) EXPECT(fabsf(decoded[i] - data[i]) < 1e-3f); /* sinks */
  EXPECT_ERROR(varve_cache_decode(cache, VARVE_KEY, 0, kTokens, VARVE_F32, decoded, 8),
               VARVE_ERROR_INVALID_ARGUMENT, "capacity");
  EXPECT_ERROR(
      varve_cache_decode(cache, VARVE_KEY, 299, 2, VARVE_F32, decoded, n_values * sizeof(float)),
      VARVE_ERROR_INVALID_ARGUMENT, "299");
  free(decoded);

  float q[kHeads * kHeadDim];
  float out[kHeads * kHeadDim];
  for (int i = 0; i < kHeads * kHeadDim; ++i) q[i] = 0.1f * (float)(i % 5);
  varve_cache_attend_args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.n_heads = kHeads;
  args.n_queries = 1;
  args.q = q;
  args.q_stride[1] = args.out_stride[1] = kHeadDim;
  args.scale = 0.25f;
  args.out = out;
  args.n_threads = 1;
  EXPECT(varve_cache_attend(cache, &args) == VARVE_OK);
  for (int i = 0; i < kHeads * kHeadDim; ++i) EXPECT(isfinite(out[i]));
  args.n_heads = 3;
  EXPECT_ERROR(varve_cache_attend(cache, &args), VARVE_ERROR_INVALID_ARGUMENT, "n_heads");

  const int64_t rows[2] = {0, 0};
  int64_t removed = 0;
  EXPECT(varve_cache_select_rows(cache, rows, 2, &copy) == VARVE_OK);
  EXPECT(varve_cache_trim(copy, 1000, &removed) == VARVE_OK);
  EXPECT(removed == kTokens);
  varve_cache_destroy(copy);
  EXPECT(varve_cache_clone(cache, &copy) == VARVE_OK);
  EXPECT(varve_cache_clear(cache) == VARVE_OK);
  EXPECT(varve_cache_get_stats(copy, &stats) == VARVE_OK);
  EXPECT(stats.n_tokens == kTokens);

  static char session[1 << 17];
  size_t session_bytes = 0;
  EXPECT(varve_cache_snapshot(&copy, 1, "model", session, sizeof session, &session_bytes) ==
         VARVE_OK);
  EXPECT(varve_cache_restore(&cache, 1, "model", session, session_bytes) == VARVE_OK);
  EXPECT_ERROR(varve_cache_restore(&cache, 1, "other", session, session_bytes),
               VARVE_ERROR_INCOMPATIBLE, "model is \"model\" in the session, \"other\" here");
  varve_cache* pair[2];
  pair[0] = cache;
  pair[1] = copy;
  varve_cache* merged = NULL;
  EXPECT(varve_cache_merge(pair, 2, &merged) == VARVE_OK);
  EXPECT(varve_cache_get_stats(merged, &stats) == VARVE_OK);
  EXPECT(stats.n_tokens == kTokens && stats.batch == 2);
  varve_cache_destroy(merged);
  EXPECT(varve_cache_clear(cache) == VARVE_OK);

  float bad[kHeads * kHeadDim] = {0};
  bad[3] = NAN;
  varve_tensor not_finite = tensor_of(bad, 1);
  EXPECT_ERROR(varve_cache_append(copy, &not_finite, &not_finite), VARVE_ERROR_NON_FINITE,
               "keys[0,0,0,3]");
  varve_tensor no_size = keys;
  no_size.struct_size = 3;
  EXPECT_ERROR(varve_cache_append(copy, &no_size, &keys), VARVE_ERROR_INVALID_ARGUMENT,
               "struct_size");
  varve_tensor negative = keys;
  negative.shape[2] = -4;
  EXPECT_ERROR(varve_cache_append(copy, &negative, &negative), VARVE_ERROR_SHAPE_MISMATCH,
               "tokens");
  varve_tensor no_data = tensor_of(NULL, 1);
  EXPECT_ERROR(varve_cache_append(copy, &no_data, &no_data), VARVE_ERROR_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(varve_cache_append(NULL, &keys, &keys), VARVE_ERROR_INVALID_ARGUMENT,
               "cache is NULL");
  EXPECT_ERROR(varve_cache_append(copy, NULL, &keys), VARVE_ERROR_INVALID_ARGUMENT, "keys is NULL");
  EXPECT_ERROR(varve_cache_trim(copy, -1, NULL), VARVE_ERROR_INVALID_ARGUMENT, "-1");
  EXPECT_ERROR(varve_cache_reserve(copy, INT64_MAX), VARVE_ERROR_INVALID_ARGUMENT, "n must be");
  EXPECT_ERROR(varve_cache_select_rows(copy, rows, -1, &none), VARVE_ERROR_INVALID_ARGUMENT,
               "n_rows");
  varve_cache_destroy(copy);
  varve_cache_destroy(cache);
  varve_cache_destroy(NULL);

  EXPECT(varve_config_set(config, "age_bits_old", "17") == VARVE_OK);
  EXPECT_ERROR(varve_cache_create(config, 0, 1, &none), VARVE_ERROR_BAD_SETTING_VALUE,
               "age_bits_old must be 1..16, got 17");
  EXPECT_ERROR(varve_config_set(config, "age_bits_odl", "2"), VARVE_ERROR_UNKNOWN_SETTING,
               "age_bits_old");
  varve_config_destroy(config);
  varve_config_destroy(NULL);
}

static void use_the_pieces(const float* data) {
  uint16_t codes[64];
  float scale[16], zero[16], back[64];
  EXPECT(varve_group_quantize(data, 4, 16, 8, 4, VARVE_AXIS_CHANNEL, codes, scale, zero) ==
         VARVE_OK);
  EXPECT(varve_group_dequantize(codes, scale, zero, 4, 16, 4, VARVE_AXIS_CHANNEL, back) ==
         VARVE_OK);
  for (int i = 0; i < 64; ++i) EXPECT(fabsf(back[i] - data[i]) <= scale[i % 16]);
  EXPECT_ERROR(varve_group_quantize(data, 4, 16, 17, 4, VARVE_AXIS_CHANNEL, codes, scale, zero),
               VARVE_ERROR_BAD_SETTING_VALUE, "bits");
  uint8_t packed[64];
  size_t needed = 0;
  EXPECT(varve_pack_codes(codes, 64, 8, packed, sizeof(packed), &needed) == VARVE_OK &&
         needed == 64);
  EXPECT_ERROR(varve_pack_codes(codes, 64, 1, packed, sizeof(packed), &needed),
               VARVE_ERROR_INVALID_ARGUMENT, "fit");
  EXPECT(varve_age_tier(5, 8, 24) == 0 && varve_age_tier(24, 8, 24) == 2 &&
         varve_age_tier(-1, 8, 24) == -1);
}

int main(void) {
  static float data[kBatch * kHeads * kTokens * kHeadDim];
  unsigned state = 1;
  for (size_t i = 0; i < sizeof(data) / sizeof(data[0]); ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
  use_a_cache(data);
  use_the_pieces(data);
  printf("%d failures\n", n_failures);
  return n_failures == 0 ? 0 : 1;
}
