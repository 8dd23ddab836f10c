/* varve: KV caches laid down in tiers of packed codes. The only ABI of the library.
 *
 * Conventions
 *  1. Every function returns a varve_status unless it cannot fail; varve_last_error() has the text
 * (thread-local), which names the field and the value at fault. After a failure the object is as it
 * was before the call.
 *  2. Handles are opaque and belong to whoever created them; each *_create has a *_destroy that
 * takes NULL.
 *  3. Buffers are the caller's. Shapes are written [a][b][c] with the last axis contiguous; sizes
 * carry their unit.
 *  4. Parameter structs open with struct_size = sizeof(the struct), so that fields can be added at
 * the end.
 *  5. A handle may be used by one thread at a time; different handles are independent.
 *  6. Nothing aborts, prints or throws past this header.
 */
#ifndef VARVE_VARVE_H_
#define VARVE_VARVE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define VARVE_API
#else
#define VARVE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors
 * ------------------------------------------------------------------------------------------------------
 */

typedef enum varve_status {
  VARVE_OK = 0,
  VARVE_ERROR_INVALID_ARGUMENT = 10,
  VARVE_ERROR_UNKNOWN_SETTING = 11,
  VARVE_ERROR_BAD_SETTING_VALUE = 12,
  VARVE_ERROR_SHAPE_MISMATCH = 13,
  VARVE_ERROR_NON_FINITE = 14,
  VARVE_ERROR_INVALID_STATE = 20,
  VARVE_ERROR_OUT_OF_MEMORY = 30,
  VARVE_ERROR_SIZE_OVERFLOW = 31,
  VARVE_ERROR_IO = 40,
  VARVE_ERROR_BAD_FORMAT = 50,
  VARVE_ERROR_CHECKSUM_MISMATCH = 51,
  VARVE_ERROR_INCOMPATIBLE = 52,
  VARVE_ERROR_UNSUPPORTED = 60
} varve_status;

/* Text of this thread's last failure; "" if none. Valid until the thread's next call. */
VARVE_API const char* varve_last_error(void);

/* Library version, "major.minor.patch". */
VARVE_API const char* varve_version(void);

/* Active kernel level: "scalar", "avx2" or "avx512" (VARVE_ISA caps it). */
VARVE_API const char* varve_isa(void);

/* ---- Settings
 * ----------------------------------------------------------------------------------------------------
 */

typedef struct varve_config varve_config;

/* Default settings of method age_tiered. */
VARVE_API varve_status varve_config_create(varve_config** out);
VARVE_API void varve_config_destroy(varve_config* config);
VARVE_API varve_status varve_config_clone(const varve_config* config, varve_config** out);

/* Sets one field by name ("method", "age_mid_boundary", "sink_tokens", ...). An unknown name or a
 * value that does not parse is an error that lists what would be valid; ranges are checked by
 * varve_config_check and when a cache is built. A name may carry a layer range: "l3.method",
 * "l0-1.age_bits_old_k", "first2.codec", "last2.sink_tokens". Integers are truncated ("7.9" is 7);
 * an empty value unsets an optional field. */
VARVE_API varve_status varve_config_set(varve_config* config, const char* key, const char* value);

/* Sets "key=value,key=value"; all or nothing. */
VARVE_API varve_status varve_config_set_list(varve_config* config, const char* assignments);

/* safe, balanced, small or seed. Resets every field but the method's own choice to the preset's. */
VARVE_API varve_status varve_config_preset(varve_config* config, const char* name);

/* Value of a field as text into buffer (NUL-terminated); *needed gets the bytes it takes. */
VARVE_API varve_status varve_config_get(const varve_config* config, const char* key, char* buffer,
                                        size_t capacity, size_t* needed);

/* Checks all fields together, as building a cache would (spec section 2.1). */
VARVE_API varve_status varve_config_check(const varve_config* config);

/* One row of the table of settings. The texts live as long as the library. */
typedef struct varve_field_info {
  size_t struct_size;
  const char* name;
  const char* type; /* "int", "int or none", "int list", "double", "double or none", "bool", "text",
                       "choice" */
  const char* default_value; /* "" : unset */
  const char* range;         /* "1..16", "newest, oldest", ... */
  const char* methods;       /* "all", "none" (only checked) or a comma list */
  const char* help;
  const char* cost; /* what a larger value, or the switch, costs */
} varve_field_info;

VARVE_API size_t varve_field_count(void);
VARVE_API varve_status varve_field_get_info(size_t index, varve_field_info* out);

/* ---- Cell caches: one layer of a host that addresses its KV cache by cell (llama.cpp)
 * ------------------------------ */

typedef struct varve_cells varve_cells;

/* The last entry of an enum is no value of it: it makes any int a defined argument, so that a wrong
 * one can be refused. */
typedef enum varve_side { VARVE_KEY = 0, VARVE_VALUE = 1, VARVE_SIDE_INT = 0x7fffffff } varve_side;
typedef enum varve_type {
  VARVE_F32 = 0,
  VARVE_F16 = 1,
  VARVE_BF16 = 2,
  VARVE_TYPE_INT = 0x7fffffff
} varve_type;

/* How RoPE pairs the channels of a key head. */
typedef enum varve_rope_kind {
  VARVE_ROPE_NONE = 0,   /* each channel stands alone */
  VARVE_ROPE_NORMAL = 1, /* pairs (2i, 2i+1): ggml mode 0 */
  VARVE_ROPE_NEOX = 2,   /* pairs (i, i+n_dims/2): ggml mode 2 */
  VARVE_ROPE_KIND_INT = 0x7fffffff
} varve_rope_kind;

typedef struct varve_cells_params {
  size_t struct_size;
  int32_t n_cells;    /* cells in a stream, >= 1 */
  int32_t n_streams;  /* >= 1; cell c of stream s has the global index s*n_cells + c */
  int32_t n_kv_heads; /* >= 1 */
  int32_t head_dim_k; /* >= 1 */
  int32_t head_dim_v; /* 0: no value rows are stored, attention takes the first channels of the keys
                         (MLA) */
  int32_t layer;      /* index for per-layer settings */
  int32_t n_layers;
  varve_rope_kind rope_kind;
  int32_t n_rope_dims; /* channels that RoPE turns, <= head_dim_k */
} varve_cells_params;

VARVE_API varve_status varve_cells_create(const varve_config* config,
                                          const varve_cells_params* params, varve_cells** out);
VARVE_API void varve_cells_destroy(varve_cells* cells);

/* The pairing may become known only with the first graph; before the first table is fitted it may
 * still be set. */
VARVE_API varve_status varve_cells_set_rope(varve_cells* cells, varve_rope_kind kind,
                                            int32_t n_rope_dims);

/* Writes n rows of one side into the cells index[0..n). rows: `type` [n][n_kv_heads*head_dim],
 * `row_stride_bytes` apart. positions (may be NULL): each token's position; without it the order of
 * writing is the age. Blocks whose age allows it are demoted first, so the tokens of one call see
 * each other at the recent tier's precision. All or nothing. */
VARVE_API varve_status varve_cells_write(varve_cells* cells, varve_side side, const int64_t* index,
                                         const int32_t* positions, const void* rows,
                                         varve_type type, size_t row_stride_bytes, int32_t n,
                                         int32_t n_threads);

/* Decodes rows of consecutive cells [first, first+n) with pending rotations applied. rows: `type`
 * [n][n_kv_heads*head_dim]. Cells never written read as zeros. */
VARVE_API varve_status varve_cells_read(const varve_cells* cells, varve_side side, int64_t first,
                                        int32_t n, void* rows, varve_type type);

/* As varve_cells_read for cells index[0..n). */
VARVE_API varve_status varve_cells_gather(const varve_cells* cells, varve_side side,
                                          const int64_t* index, int32_t n, void* rows,
                                          varve_type type);

/* Moves packed rows between caches of one geometry, codes and side data alike: whole blocks keep
 * their tier and bytes, ragged ends are decoded and written at the recent tier. Ranges may overlap.
 */
VARVE_API varve_status varve_cells_copy(varve_cells* dst, int64_t dst_first, const varve_cells* src,
                                        int64_t src_first, int32_t n, varve_side side);

/* Forgets the given cells (both sides); they read as zeros and take no part in attention. */
VARVE_API varve_status varve_cells_forget(varve_cells* cells, int64_t first, int32_t n);

/* RoPE parameters of a shift, as ggml's ROPE operation has them. */
typedef struct varve_rope_params {
  size_t struct_size;
  int32_t n_dims;
  varve_rope_kind kind;
  int32_t n_ctx_orig;
  float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
  const float* freq_factors; /* [n_dims/2] or NULL */
  int32_t first_dim;         /* channel of the first pair; 0 when struct_size ends before it */
} varve_rope_params;

/* Turns the keys of cells [first, first+n) by delta[i] positions. The codes are not touched: the
 * rotation stays pending and is applied to q at attention and to rows that are read, so any number
 * of shifts is exact. Two exceptions decode, turn and write the rows anew, each time with the
 * recent tier's error: head_dim_v = 0 and first_dim other than 0. VARVE_ERROR_UNSUPPORTED if the
 * parameters scale keys (attn_factor, YaRN) or differ from those of pending rotations. */
VARVE_API varve_status varve_cells_shift(varve_cells* cells, int64_t first, const int32_t* delta,
                                         int32_t n, const varve_rope_params* rope);

/* One attention call over `n_cells` cells of a stream, starting at its first cell. Strides in
 * bytes. Semantics of ggml's FLASH_ATTN_EXT; V rows come from the value side (or the first
 * head_dim_v channels of the keys). */
typedef struct varve_attend_args {
  size_t struct_size;
  int32_t stream;
  int32_t n_cells;
  int32_t n_rows;     /* query tokens */
  int32_t n_heads;    /* a multiple of n_kv_heads */
  int32_t head_dim_v; /* width of an output row */
  const float* q;     /* [n_rows][n_heads][head_dim_k] by strides */
  size_t q_row_stride, q_head_stride;
  const void* mask; /* f16 [n_rows][>= n_cells] by stride, or NULL */
  size_t mask_row_stride, mask_head_stride;
  int32_t mask_heads; /* head h uses mask plane h % mask_heads; 1 when all share one */
  float scale, logit_softcap, max_bias;
  const float* sinks; /* [n_heads] attention-sink logits, or NULL */
  float* out;         /* [n_rows][n_heads][head_dim_v] by strides */
  size_t out_row_stride, out_head_stride;
  int32_t n_threads;
} varve_attend_args;

VARVE_API varve_status varve_cells_attend(varve_cells* cells, const varve_attend_args* args);

#define VARVE_MAX_TIERS 4

/* Figures of one layer; sums over streams. */
typedef struct varve_cells_stats {
  size_t struct_size;
  int64_t n_tokens; /* cells written */
  int64_t
      tier_tokens[VARVE_MAX_TIERS]; /* cells a tier: 0 recent, 1 mid, 2 old; 3: sinks kept exact */
  uint64_t packed_bytes; /* held: arena with its slack, exact rows, tables, book-keeping of cells */
  uint64_t payload_bytes;             /* of them: codes, gains and exact rows of written blocks */
  uint64_t f16_bytes;                 /* what f16 rows of the written cells would take */
  uint64_t n_demotions, n_promotions; /* payloads coded anew; K and V of a block count apart */
  double append_seconds, retier_seconds, attend_seconds;
  int32_t last_key_bits; /* width that keys end at; once tables are fitted, wider than the settings
                            say where key_error_limit holds this layer's keys back */
} varve_cells_stats;

VARVE_API varve_status varve_cells_get_stats(const varve_cells* cells, varve_cells_stats* out);

/* What an estimate supposes to be written. Zero-initialise: fields left 0 mean what they say. */
typedef struct varve_cells_workload {
  size_t struct_size;
  int64_t n_tokens; /* of each stream, in order: token t goes to cell t mod n_cells, so past n_cells
                       cells are written over, as under a host's sliding window */
  int32_t n_batch;  /* tokens a call; 0: 1 */
  int32_t n_decoded;     /* the last of them, which came one a call, after a prompt */
  int32_t last_key_bits; /* where key_error_limit stops a layer's keys depends on the model: what
                            varve_cells_stats of a run says, or 0: nowhere, or 16: at the width they
                            are written in, the most that the limit can do */
} varve_cells_workload;

/* varve_cells_stats.packed_bytes that one layer with these parameters will have after this work.
 * Nothing is allocated for packed rows. Errors: those of varve_cells_create, and
 * VARVE_ERROR_INVALID_ARGUMENT for the work. */
VARVE_API varve_status varve_cells_estimate(const varve_config* config,
                                            const varve_cells_params* params,
                                            const varve_cells_workload* work,
                                            uint64_t* packed_bytes);

/* ---- Sequence caches: whole sequences, tensors [B,H,S,D], the seeds' methods
 * -------------------------------------- */

typedef struct varve_cache varve_cache;

/* K or V of one call: [B][H][S][D] by strides (in elements, 0 and negative ones included). */
typedef struct varve_tensor {
  size_t struct_size;
  const void* data;
  varve_type type;
  int64_t shape[4];  /* batch, KV heads, tokens, channels */
  int64_t stride[4]; /* all 0: contiguous */
} varve_tensor;

/* A cache for layer 0..n_layers-1 of a model. Its method and settings are those of the config for
 * that layer; shapes and types are taken from the first call of varve_cache_append. Errors: those
 * of varve_config_check. */
VARVE_API varve_status varve_cache_create(const varve_config* config, int32_t layer,
                                          int32_t n_layers, varve_cache** out);
VARVE_API void varve_cache_destroy(varve_cache* cache);

/* Appends S >= 0 tokens, keys [B,H,S,Dk] and values [B,H,S,Dv]. All or nothing. Rows are stored as
 * bf16 if both are bf16, else as f16 (kivi keeps the input's type). NaN and infinity are refused
 * unless reject_non_finite is false. */
VARVE_API varve_status varve_cache_append(varve_cache* cache, const varve_tensor* keys,
                                          const varve_tensor* values);

/* Tokens [first, first + n) of one side, reconstructed: out `type` [B][H][n][D], contiguous,
 * capacity_bytes long. */
VARVE_API varve_status varve_cache_decode(const varve_cache* cache, varve_side side, int64_t first,
                                          int64_t n, varve_type type, void* out,
                                          size_t capacity_bytes);

/* Removes the newest min(n, tokens held) tokens; *removed (may be NULL) gets their number. A group
 * that is cut goes back to exact rows of what its codes say. */
VARVE_API varve_status varve_cache_trim(varve_cache* cache, int64_t n, int64_t* removed);

/* Empties the cache; shapes and types are open again. */
VARVE_API varve_status varve_cache_clear(varve_cache* cache);

/* Gets memory for n tokens in all; nothing happens before the first call has settled the shape. */
VARVE_API varve_status varve_cache_reserve(varve_cache* cache, int64_t n);

/* An independent cache with the same content. */
VARVE_API varve_status varve_cache_clone(const varve_cache* cache, varve_cache** out);

/* An independent cache whose batch row i is row rows[i] of this one (beams: a row may be taken
 * twice or not at all). Codes and exact rows are copied as they are. */
VARVE_API varve_status varve_cache_select_rows(const varve_cache* cache, const int64_t* rows,
                                               int64_t n_rows, varve_cache** out);

/* An independent cache with the batch rows of all, in order, for batched serving: caches of one
 * layer with the same settings that hold as many tokens in the same tiers. Codes are copied as they
 * are; varve_cache_select_rows takes rows out again. */
VARVE_API varve_status varve_cache_merge(varve_cache* const* caches, size_t n_caches,
                                         varve_cache** out);

/* softmax(softcap(scale * q K^T) + mask) V straight from the codes; at most 32 decoded rows exist
 * at a time. Strides in elements. Query head h reads KV head h / (n_heads / H). A query with
 * nothing to attend to gives zeros. */
typedef struct varve_cache_attend_args {
  size_t struct_size;
  int64_t n_heads;   /* a multiple of H */
  int64_t n_queries; /* a batch row */
  const float* q;    /* [B][n_heads][n_queries][Dk] */
  int64_t q_stride[3];
  const float* mask; /* added to the logits, [B][n_heads][n_queries][n], or NULL; a stride of 0
                        shares a plane */
  int64_t mask_stride[3];
  int32_t causal;         /* non-zero: query i sees keys 0 .. first_position + i only */
  int64_t first_position; /* of query 0; for the newest tokens: tokens held - n_queries */
  float scale;
  float logit_softcap; /* 0: none, else cap * tanh(x / cap) */
  const float* sinks;  /* [n_heads] logits that only add to the denominator, or NULL */
  float* out;          /* [B][n_heads][n_queries][Dv] */
  int64_t out_stride[3];
  int32_t n_threads; /* the result does not depend on it */
} varve_cache_attend_args;

VARVE_API varve_status varve_cache_attend(const varve_cache* cache,
                                          const varve_cache_attend_args* args);

typedef struct varve_cache_stats {
  size_t struct_size;
  int64_t batch, n_kv_heads, head_dim_k, head_dim_v; /* 0 before the first call */
  varve_type storage_type;
  int64_t n_tokens;       /* held by each head */
  int64_t tokens_seen;    /* sum over calls of B*H*S */
  int64_t tier_tokens[3]; /* by own age: recent, mid, old; amc: high, mid, low; over all rows */
  int64_t full_seq_bytes; /* f16 K and V of the tokens held */
  uint64_t
      stored_bytes; /* everything held: codes, parameters, exact rows, indices, slack, scratch */
  uint64_t payload_bytes; /* of it: codes, parameters and exact rows of tokens held */
  /* The seeds' figures: codes only, no parameters, no tail. */
  int64_t nominal_bytes; /* age_tiered_bytes, amc_kept_bytes; kivi: key + value + residual */
  double nominal_ratio;  /* full_seq_bytes / nominal_bytes, 1 when empty */
  int64_t seed_nbytes;   /* the original's padded buffer of exact rows */
  int64_t compressed_key_bytes, compressed_value_bytes, fp16_key_bytes, fp16_value_bytes,
      residual_fp16_bytes;
  int64_t n_quantized; /* tokens that are coded (kivi) */
  double assigned_avg_bits;
} varve_cache_stats;

VARVE_API varve_status varve_cache_get_stats(const varve_cache* cache, varve_cache_stats* out);

/* Tier of each group of tokens, oldest first, 3 for exact rows; *n gets their number (age_tiered,
 * uniform, kivi). */
VARVE_API varve_status varve_cache_group_tiers(const varve_cache* cache, uint8_t* tiers,
                                               size_t capacity, size_t* n);

/* Tier of each token of row b*H + h as it is stored, 3 for exact rows. tiers [n_tokens]. */
VARVE_API varve_status varve_cache_token_tiers(const varve_cache* cache, int64_t row,
                                               uint8_t* tiers, size_t capacity);

/* Order in which amc keeps channels, applied on writing and undone on reading; only while the cache
 * is empty. keys, values: [n_kv_heads][head_dim], a permutation a head. */
VARVE_API varve_status varve_cache_set_channel_order(varve_cache* cache, int32_t n_kv_heads,
                                                     int32_t head_dim, const int32_t* keys,
                                                     const int32_t* values);

/* ---- Sessions: caches that outlive the process, or go back to an earlier state
 * ------------------------------------
 * A session holds the caches of a list, usually a model's layers, packed as they are;
 * docs/format.md has its bytes. A cache that was loaded goes on exactly as the saved one would
 * have.
 *
 * caches: n_caches handles. model: the caller's fingerprint of its model, kept in the session, or
 * NULL. A load with a model needs a session saved with the same one. Loading needs caches made with
 * the settings, the layer and (when they hold tokens) the shape that were saved; else
 * VARVE_ERROR_INCOMPATIBLE with the field and both values. All caches take the session's content,
 * or, after any error, none does.
 */

/* Writes beside `path` and renames once everything is on disk: a save that fails leaves what was
 * there, and no part of a file. (If only the folder's entry cannot be synced, the new file is there
 * and whole, and the error says "fsync" of the folder.) */
VARVE_API varve_status varve_cache_save(varve_cache* const* caches, size_t n_caches,
                                        const char* model, const char* path);

/* VARVE_ERROR_IO, _BAD_FORMAT, _CHECKSUM_MISMATCH, _INCOMPATIBLE or _UNSUPPORTED (a later format).
 */
VARVE_API varve_status varve_cache_load(varve_cache* const* caches, size_t n_caches,
                                        const char* model, const char* path);

/* *n_bytes: what varve_cache_snapshot writes. */
VARVE_API varve_status varve_cache_snapshot_bound(varve_cache* const* caches, size_t n_caches,
                                                  const char* model, size_t* n_bytes);

/* The bytes of a session file into a buffer; *n_bytes gets their number, also when capacity is too
 * small. */
VARVE_API varve_status varve_cache_snapshot(varve_cache* const* caches, size_t n_caches,
                                            const char* model, void* buffer, size_t capacity,
                                            size_t* n_bytes);
VARVE_API varve_status varve_cache_restore(varve_cache* const* caches, size_t n_caches,
                                           const char* model, const void* buffer, size_t n_bytes);

/* The same for cell caches. Pending rotations and what the key tables are fitted from come along;
 * the pairing (varve_cells_set_rope) must be the saved one. */
VARVE_API varve_status varve_cells_save(varve_cells* const* caches, size_t n_caches,
                                        const char* model, const char* path);
VARVE_API varve_status varve_cells_load(varve_cells* const* caches, size_t n_caches,
                                        const char* model, const char* path);
VARVE_API varve_status varve_cells_snapshot_bound(varve_cells* const* caches, size_t n_caches,
                                                  const char* model, size_t* n_bytes);
VARVE_API varve_status varve_cells_snapshot(varve_cells* const* caches, size_t n_caches,
                                            const char* model, void* buffer, size_t capacity,
                                            size_t* n_bytes);
VARVE_API varve_status varve_cells_restore(varve_cells* const* caches, size_t n_caches,
                                           const char* model, const void* buffer, size_t n_bytes);

/* ---- The pieces of the seeds' methods
 * ------------------------------------------------------------------------------ */

typedef enum varve_axis {
  VARVE_AXIS_CHANNEL = 0, /* a group is one channel of group_size tokens: params [groups][dim] */
  VARVE_AXIS_TOKEN = 1,   /* a group is group_size channels of one token: params [n][groups] */
  VARVE_AXIS_INT = 0x7fffffff
} varve_axis;

/* Min/max group quantizer, bits 1..16: scale = max((hi-lo)/(2^bits-1), 1e-8), code =
 * clamp(rint((x-lo)/scale)), x' = code*scale + lo, all in f32. x, codes: [n][dim]; scale, zero (=
 * lo): by axis. NaN and infinity are refused. */
VARVE_API varve_status varve_group_quantize(const float* x, int64_t n, int64_t dim, int32_t bits,
                                            int64_t group_size, varve_axis axis, uint16_t* codes,
                                            float* scale, float* zero);
VARVE_API varve_status varve_group_dequantize(const uint16_t* codes, const float* scale,
                                              const float* zero, int64_t n, int64_t dim,
                                              int64_t group_size, varve_axis axis, float* x);

/* Codes of 1..16 bits as a little-endian bit string; for 3 bits the tail is padded to whole 3
 * bytes, as in the seeds' BitPackBuffer. *needed gets the bytes. A code that does not fit is an
 * error. */
VARVE_API varve_status varve_pack_codes(const uint16_t* codes, size_t n, int32_t bits,
                                        uint8_t* packed, size_t capacity, size_t* needed);
VARVE_API varve_status varve_unpack_codes(const uint8_t* packed, size_t packed_bytes, size_t n,
                                          int32_t bits, uint16_t* codes);

/* 0 recent, 1 mid, 2 old; -1 for a negative age or boundaries out of order. */
VARVE_API int32_t varve_age_tier(int64_t age, int64_t recent_boundary, int64_t mid_boundary);

/* sum over tiers of tokens * ceil(head_dim*bits/8) * 2, the seeds' nominal bytes of K and V.
 * tokens, bits: [3]. */
VARVE_API int64_t varve_age_tiered_bytes(const int64_t* tokens, const int32_t* bits,
                                         int64_t head_dim);
VARVE_API int64_t varve_amc_kept_bytes(const int64_t* tokens, int64_t head_dim);
VARVE_API int64_t varve_full_f16_bytes(int64_t n_tokens, int64_t head_dim);

/* Channels and bits that amc keeps of a token in tier 0 high, 1 mid, 2 low. */
VARVE_API varve_status varve_amc_tier_shape(int32_t tier, int64_t head_dim, int32_t* rank,
                                            int32_t* bits);

/* Tokens a tier of one call of n (spec section 5.2). counts [3]. */
VARVE_API varve_status varve_amc_tier_counts(int64_t n, double k_high, double k_mid,
                                             int64_t* counts);

/* Saliency of n keys [n][dim] as one call: mean |k|, capped at 1 if clamp; use_query: mixed with
 * the angle to the mean key by alpha. out [n]. */
VARVE_API varve_status varve_amc_saliency(const float* keys, int64_t n, int64_t dim,
                                          int32_t use_query, double alpha, int32_t clamp,
                                          float* out);

/* Tiers of one call by saliency, ties by lower index. tiers [n]. */
VARVE_API varve_status varve_amc_assign_tiers(const float* saliency, int64_t n, double k_high,
                                              double k_mid, uint8_t* tiers);

/* Channels by descending variance of x [n][dim], n >= 2. order [dim]. */
VARVE_API varve_status varve_amc_channel_order(const float* x, int64_t n, int64_t dim,
                                               int32_t* order);

/* Writes the file that the setting amc_channel_order names. keys, values:
 * [n_layers][n_kv_heads][head_dim]. */
VARVE_API varve_status varve_amc_write_channel_orders(const char* path, int32_t n_layers,
                                                      int32_t n_kv_heads, int32_t head_dim,
                                                      const int32_t* keys, const int32_t* values);

/* Adaptive thresholds over a window of the last `window` saliencies. */
typedef struct varve_amc_thresholds varve_amc_thresholds;
VARVE_API varve_status varve_amc_thresholds_create(int32_t window, double calib_variance,
                                                   double gamma, varve_amc_thresholds** out);
VARVE_API void varve_amc_thresholds_destroy(varve_amc_thresholds* thresholds);
VARVE_API varve_status varve_amc_thresholds_push(varve_amc_thresholds* thresholds,
                                                 const float* saliency, size_t n);
/* base * (1 - gamma * ln(max(v, 1e-8) / max(calib_variance, 1e-8))); with fewer than 2 entries the
 * bases. *n_entries (may be NULL) gets the entries in the window. */
VARVE_API varve_status varve_amc_thresholds_get(const varve_amc_thresholds* thresholds,
                                                double high_base, double low_base, double* high,
                                                double* low, size_t* n_entries);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* VARVE_VARVE_H_ */
