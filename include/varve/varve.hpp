// varve in C++20: a header over varve.h with owning handles, spans and results, under the names of
// the original caches.
//
//   varve::CacheConfig config;                                  // age_tiered, 8/4/2 bits
//   auto cache = varve::AgeTieredKVCache::create(config);       // Result<AgeTieredKVCache>
//   auto kv = cache->update_and_fetch(varve::Tensor::of(k, {B, H, S, D}), varve::Tensor::of(v, {B,
//   H, S, D})); cache->attend(...);                                         // straight from the
//   packed codes
//
// No function throws but for std::bad_alloc from the standard library; what can fail returns Status
// or Result<T>.
#ifndef VARVE_VARVE_HPP_
#define VARVE_VARVE_HPP_

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "varve/varve.h"

namespace varve {
inline namespace api {

/// VARVE_OK, or an error with its text.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(varve_status code, std::string text) : code_(code), text_(std::move(text)) {}
  /// The status of a C call, with this thread's text.
  static Status of(varve_status code) {
    return code == VARVE_OK ? Status() : Status(code, varve_last_error());
  }

  bool ok() const { return code_ == VARVE_OK; }
  explicit operator bool() const { return ok(); }
  varve_status code() const { return code_; }
  const std::string& text() const { return text_; }

 private:
  varve_status code_ = VARVE_OK;
  std::string text_;
};

/// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

/// The settings of all methods; starts with the defaults of age_tiered.
class CacheConfig {
 public:
  CacheConfig() {
    varve_config* raw = nullptr;
    if (varve_config_create(&raw) == VARVE_OK) config_.reset(raw);
  }
  CacheConfig(const CacheConfig& other) {
    varve_config* raw = nullptr;
    if (varve_config_clone(other.get(), &raw) == VARVE_OK) config_.reset(raw);
  }
  CacheConfig& operator=(CacheConfig other) {
    config_.swap(other.config_);
    return *this;
  }
  CacheConfig(CacheConfig&&) noexcept = default;

  Status set(const char* key, const char* value) {
    return Status::of(varve_config_set(get(), key, value));
  }
  Status set(const char* key, const std::string& value) { return set(key, value.c_str()); }
  template <typename T>
  requires std::is_arithmetic_v<T> Status set(const char* key, T value) {
    if constexpr (std::is_same_v<T, bool>) {
      return set(key, value ? "true" : "false");
    } else {
      std::array<char, 64> text{};
      std::to_chars(text.data(), text.data() + text.size() - 1, value);
      return set(key, text.data());
    }
  }
  /// "key=value,key=value"
  Status set_list(const char* assignments) {
    return Status::of(varve_config_set_list(get(), assignments));
  }
  Status preset(const char* name) { return Status::of(varve_config_preset(get(), name)); }
  Status check() const { return Status::of(varve_config_check(get())); }

  Result<std::string> field(const char* key) const {
    size_t needed = 0;
    Status status = Status::of(varve_config_get(get(), key, nullptr, 0, &needed));
    if (!status) return status;
    std::string text(needed, '\0');
    status = Status::of(varve_config_get(get(), key, text.data(), text.size(), &needed));
    if (!status) return status;
    text.resize(needed - 1);
    return text;
  }

  varve_config* get() const { return config_.get(); }

 private:
  struct Destroy {
    void operator()(varve_config* config) const { varve_config_destroy(config); }
  };
  std::unique_ptr<varve_config, Destroy> config_;
};

/// K or V of one call, [B][H][S][D]; does not own its data.
struct Tensor : varve_tensor {
  Tensor() : varve_tensor{} { struct_size = sizeof(varve_tensor); }
  Tensor(varve_type type_of_data, const void* from, std::array<int64_t, 4> dims,
         std::array<int64_t, 4> strides = {0, 0, 0, 0})
      : Tensor() {
    data = from;
    type = type_of_data;
    for (size_t axis = 0; axis < 4; ++axis) {
      shape[axis] = dims[axis];
      stride[axis] = strides[axis];
    }
  }
  /// Contiguous f32.
  static Tensor of(std::span<const float> values, std::array<int64_t, 4> dims) {
    return Tensor(VARVE_F32, values.data(), dims);
  }
};

/// A tensor that owns its data, contiguous [B][H][S][D].
struct Array {
  varve_type type = VARVE_F16;
  std::array<int64_t, 4> shape = {0, 0, 0, 0};
  std::vector<std::byte> bytes;

  size_t size() const {
    return static_cast<size_t>(shape[0]) * static_cast<size_t>(shape[1]) *
           static_cast<size_t>(shape[2]) * static_cast<size_t>(shape[3]);
  }
  /// T is float for VARVE_F32 and uint16_t (raw bits) for VARVE_F16 and VARVE_BF16.
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  Tensor view() const { return Tensor(type, bytes.data(), shape); }
};

struct KeysAndValues {
  Array keys;
  Array values;
};

/// One attention call of a cache; contiguous q [B][n_heads][n_queries][Dk] and mask [n_queries][n].
struct AttendOptions {
  int64_t n_heads = 0;
  int64_t n_queries = 1;
  float scale = 1.0f;
  float logit_softcap = 0.0f;
  bool causal = false;
  int64_t first_position = 0;
  std::span<const float> mask;   ///< [n_queries][n], shared by rows and heads; empty: none
  std::span<const float> sinks;  ///< [n_heads]; empty: none
  int n_threads = 1;
};

/// A cache of any method.
class KVCache {
 public:
  static Result<KVCache> create(const CacheConfig& config, int layer = 0, int n_layers = 1) {
    varve_cache* raw = nullptr;
    const Status status = Status::of(varve_cache_create(config.get(), layer, n_layers, &raw));
    if (!status.ok()) return status;
    return KVCache(raw);
  }

  Status append(const Tensor& keys, const Tensor& values) {
    return Status::of(varve_cache_append(get(), &keys, &values));
  }

  /// Appends, and decodes all tokens of both sides in the storage type. For comparison with the
  /// original; attend() needs no decoded copy.
  Result<KeysAndValues> update_and_fetch(const Tensor& keys, const Tensor& values) {
    const Status status = append(keys, values);
    if (!status.ok()) return status;
    return fetch();
  }

  Result<KeysAndValues> fetch() const {
    KeysAndValues all;
    const varve_cache_stats now = stats();
    for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) {
      Result<Array> decoded = decode(side, 0, now.n_tokens, now.storage_type);
      if (!decoded.ok()) return decoded.status();
      (side == VARVE_KEY ? all.keys : all.values) = std::move(decoded).value();
    }
    return all;
  }

  /// Tokens [first, first + n) of one side.
  Result<Array> decode(varve_side side, int64_t first, int64_t n, varve_type type) const {
    const varve_cache_stats now = stats();
    Array out;
    out.type = type;
    out.shape = {now.batch, now.n_kv_heads, n, side == VARVE_KEY ? now.head_dim_k : now.head_dim_v};
    if (first >= 0 && n >= 0 && n <= now.n_tokens)
      out.bytes.resize(out.size() * (type == VARVE_F32 ? 4 : 2));
    const Status status = Status::of(
        varve_cache_decode(get(), side, first, n, type, out.bytes.data(), out.bytes.size()));
    if (!status.ok()) return status;
    return out;
  }

  /// out [B][n_heads][n_queries][Dv]
  Result<std::vector<float>> attend(std::span<const float> q, const AttendOptions& options) const {
    const varve_cache_stats now = stats();
    const auto refuse = [](const char* field, int64_t value, const std::string& rule) {
      return Status(VARVE_ERROR_SHAPE_MISMATCH,
                    std::string(field) + " must be " + rule + ", got " + std::to_string(value));
    };
    const auto size_is = [](size_t size, int64_t wanted) {
      return static_cast<int64_t>(size) == wanted;
    };
    if (options.n_heads < 0) return refuse("n_heads", options.n_heads, "at least 0");
    if (options.n_queries < 0) return refuse("n_queries", options.n_queries, "at least 0");
    if (now.batch == 0)
      return Status(VARVE_ERROR_INVALID_STATE,
                    "the cache is empty: it has no shape to attend with");
    // Why: counts are checked by division before they are multiplied, so that no product overflows.
    const auto n_q = static_cast<int64_t>(q.size());
    if (options.n_heads > n_q) return refuse("n_heads", options.n_heads, "at most the size of q");
    if (options.n_heads > 0 && options.n_queries > n_q / options.n_heads) {
      return refuse("n_queries", options.n_queries, "at most the size of q over n_heads");
    }
    const int64_t n_rows = now.batch * options.n_heads * options.n_queries;
    if (!size_is(q.size(), n_rows * now.head_dim_k)) {
      return refuse("the size of q", n_q,
                    "B*n_heads*n_queries*Dk = " + std::to_string(n_rows * now.head_dim_k));
    }
    if (!options.mask.empty() && !size_is(options.mask.size(), options.n_queries * now.n_tokens)) {
      return refuse("the size of mask", static_cast<int64_t>(options.mask.size()),
                    "n_queries*n = " + std::to_string(options.n_queries * now.n_tokens));
    }
    if (!options.sinks.empty() && !size_is(options.sinks.size(), options.n_heads)) {
      return refuse("the size of sinks", static_cast<int64_t>(options.sinks.size()),
                    "n_heads = " + std::to_string(options.n_heads));
    }
    std::vector<float> out(static_cast<size_t>(n_rows * now.head_dim_v));
    varve_cache_attend_args args = {};
    args.struct_size = sizeof(args);
    args.n_heads = options.n_heads;
    args.n_queries = options.n_queries;
    args.q = q.data();
    args.out = out.data();
    for (const auto& [stride, dim] :
         {std::pair(args.q_stride, now.head_dim_k), std::pair(args.out_stride, now.head_dim_v)}) {
      stride[0] = options.n_heads * options.n_queries * dim;
      stride[1] = options.n_queries * dim;
      stride[2] = dim;
    }
    args.mask = options.mask.empty() ? nullptr : options.mask.data();
    args.mask_stride[2] = now.n_tokens;
    args.causal = options.causal ? 1 : 0;
    args.first_position = options.first_position;
    args.scale = options.scale;
    args.logit_softcap = options.logit_softcap;
    args.sinks = options.sinks.empty() ? nullptr : options.sinks.data();
    args.n_threads = options.n_threads;
    const Status status = Status::of(varve_cache_attend(get(), &args));
    if (!status.ok()) return status;
    return out;
  }

  /// Removes the newest tokens; the number really removed.
  Result<int64_t> trim(int64_t n) {
    int64_t removed = 0;
    const Status status = Status::of(varve_cache_trim(get(), n, &removed));
    if (!status.ok()) return status;
    return removed;
  }
  Status clear() { return Status::of(varve_cache_clear(get())); }
  Status reserve(int64_t n) { return Status::of(varve_cache_reserve(get(), n)); }

  Result<KVCache> clone() const {
    varve_cache* raw = nullptr;
    const Status status = Status::of(varve_cache_clone(get(), &raw));
    if (!status.ok()) return status;
    return KVCache(raw);
  }
  /// Batch row i of the result is row rows[i] of this cache.
  Result<KVCache> select_rows(std::span<const int64_t> rows) const {
    varve_cache* raw = nullptr;
    const Status status = Status::of(
        varve_cache_select_rows(get(), rows.data(), static_cast<int64_t>(rows.size()), &raw));
    if (!status.ok()) return status;
    return KVCache(raw);
  }

  /// One cache with the batch rows of all, in order: caches of one layer with the same settings
  /// that hold as many tokens in the same tiers. select_rows() takes rows out again.
  static Result<KVCache> merge(std::span<const KVCache> caches) {
    std::vector<varve_cache*> handles;
    for (const KVCache& cache : caches) handles.push_back(cache.get());
    varve_cache* raw = nullptr;
    const Status status = Status::of(varve_cache_merge(handles.data(), handles.size(), &raw));
    if (!status.ok()) return status;
    return KVCache(raw);
  }

  /// The cache as a session file of its own; `model` is the caller's fingerprint of its model.
  /// save_session() has the layers of a model in one file.
  Status save(const std::string& path, const std::string& model = "") const {
    varve_cache* const own = get();
    return Status::of(varve_cache_save(&own, 1, model.c_str(), path.c_str()));
  }
  /// Takes the content of a session saved from a cache with these settings; unchanged on error.
  Status load(const std::string& path, const std::string& model = "") {
    varve_cache* const own = get();
    return Status::of(varve_cache_load(&own, 1, model.c_str(), path.c_str()));
  }
  /// The same in memory.
  Result<std::vector<std::byte>> snapshot(const std::string& model = "") const {
    varve_cache* const own = get();
    size_t n_bytes = 0;
    Status status = Status::of(varve_cache_snapshot_bound(&own, 1, model.c_str(), &n_bytes));
    if (!status.ok()) return status;
    std::vector<std::byte> bytes(n_bytes);
    status = Status::of(
        varve_cache_snapshot(&own, 1, model.c_str(), bytes.data(), bytes.size(), &n_bytes));
    if (!status.ok()) return status;
    return bytes;
  }
  Status restore(std::span<const std::byte> bytes, const std::string& model = "") {
    varve_cache* const own = get();
    return Status::of(varve_cache_restore(&own, 1, model.c_str(), bytes.data(), bytes.size()));
  }

  varve_cache_stats stats() const {
    varve_cache_stats now = {};
    now.struct_size = sizeof(now);
    (void)varve_cache_get_stats(get(), &now);
    return now;
  }

  int64_t offset() const { return stats().n_tokens; }
  int64_t size() const { return stats().n_tokens; }
  bool empty() const { return stats().n_tokens == 0; }
  int64_t tokens_kept() const { return stats().n_tokens; }
  int64_t tokens_seen() const { return stats().tokens_seen; }
  int64_t full_seq_bytes() const { return stats().full_seq_bytes; }
  /// Everything held, measured from the allocations.
  uint64_t stored_bytes() const { return stats().stored_bytes; }
  /// The original's ratio: codes only, no parameters, no tail.
  double compression_ratio() const { return stats().nominal_ratio; }
  static constexpr bool is_trimmable() { return true; }

  std::vector<uint8_t> token_tiers(int64_t row) const {
    std::vector<uint8_t> tiers(static_cast<size_t>(stats().n_tokens));
    if (varve_cache_token_tiers(get(), row, tiers.data(), tiers.size()) != VARVE_OK) tiers.clear();
    return tiers;
  }

  varve_cache* get() const { return cache_.get(); }

 protected:
  explicit KVCache(varve_cache* cache) : cache_(cache) {}

  /// A cache of the derived class, whatever method the config names.
  template <typename Derived>
  static Result<Derived> create_as(const CacheConfig& config, const char* method, int layer,
                                   int n_layers) {
    CacheConfig own = config;
    const Status status = own.set("method", method);
    if (!status.ok()) return status;
    Result<KVCache> made = create(own, layer, n_layers);
    if (!made.ok()) return made.status();
    return Derived(std::move(made).value());
  }

 private:
  struct Destroy {
    void operator()(varve_cache* cache) const { varve_cache_destroy(cache); }
  };
  std::unique_ptr<varve_cache, Destroy> cache_;
};

/// The layers of a model in one session file.
inline Status save_session(std::span<const KVCache> caches, const std::string& path,
                           const std::string& model = "") {
  std::vector<varve_cache*> handles;
  for (const KVCache& cache : caches) handles.push_back(cache.get());
  return Status::of(varve_cache_save(handles.data(), handles.size(), model.c_str(), path.c_str()));
}

/// All caches take the session's content, or none does.
inline Status load_session(std::span<KVCache> caches, const std::string& path,
                           const std::string& model = "") {
  std::vector<varve_cache*> handles;
  for (const KVCache& cache : caches) handles.push_back(cache.get());
  return Status::of(varve_cache_load(handles.data(), handles.size(), model.c_str(), path.c_str()));
}

class FP16KVCache : public KVCache {
 public:
  explicit FP16KVCache(KVCache&& cache) : KVCache(std::move(cache)) {}
  static Result<FP16KVCache> create(const CacheConfig& config = {}, int layer = 0,
                                    int n_layers = 1) {
    return create_as<FP16KVCache>(config, "fp16", layer, n_layers);
  }
};

class UniformKVCache : public KVCache {
 public:
  explicit UniformKVCache(KVCache&& cache) : KVCache(std::move(cache)) {}
  static Result<UniformKVCache> create(const CacheConfig& config = {}, int layer = 0,
                                       int n_layers = 1) {
    return create_as<UniformKVCache>(config, "uniform", layer, n_layers);
  }
};

class AgeTieredKVCache : public KVCache {
 public:
  explicit AgeTieredKVCache(KVCache&& cache) : KVCache(std::move(cache)) {}
  static Result<AgeTieredKVCache> create(const CacheConfig& config = {}, int layer = 0,
                                         int n_layers = 1) {
    return create_as<AgeTieredKVCache>(config, "age_tiered", layer, n_layers);
  }

  /// Codes only, the original's figure; stored_bytes() is what is held.
  int64_t age_tiered_bytes() const { return stats().nominal_bytes; }
  int64_t tokens_recent() const { return stats().tier_tokens[0]; }
  int64_t tokens_mid() const { return stats().tier_tokens[1]; }
  int64_t tokens_old() const { return stats().tier_tokens[2]; }
  std::vector<uint8_t> group_tiers() const {
    size_t n = 0;
    (void)varve_cache_group_tiers(get(), nullptr, 0, &n);
    std::vector<uint8_t> tiers(n);
    (void)varve_cache_group_tiers(get(), tiers.data(), tiers.size(), &n);
    return tiers;
  }
};

class AMCKVCache : public KVCache {
 public:
  explicit AMCKVCache(KVCache&& cache) : KVCache(std::move(cache)) {}
  static Result<AMCKVCache> create(const CacheConfig& config = {}, int layer = 0,
                                   int n_layers = 1) {
    return create_as<AMCKVCache>(config, "amc", layer, n_layers);
  }

  /// Codes only, the original's figure; stored_bytes() is what is held.
  int64_t amc_kept_bytes() const { return stats().nominal_bytes; }
  int64_t tokens_high() const { return stats().tier_tokens[0]; }
  int64_t tokens_mid() const { return stats().tier_tokens[1]; }
  int64_t tokens_low() const { return stats().tier_tokens[2]; }
  /// keys, values: [n_kv_heads][head_dim]
  Status set_channel_order(int n_kv_heads, int head_dim, std::span<const int32_t> keys,
                           std::span<const int32_t> values) {
    const size_t n = static_cast<size_t>(n_kv_heads) * static_cast<size_t>(head_dim);
    if (keys.size() != n || values.size() != n) {
      return Status(VARVE_ERROR_SHAPE_MISMATCH,
                    "keys and values must have n_kv_heads*head_dim = " + std::to_string(n) +
                        " entries, got " + std::to_string(keys.size()) + " and " +
                        std::to_string(values.size()));
    }
    return Status::of(
        varve_cache_set_channel_order(get(), n_kv_heads, head_dim, keys.data(), values.data()));
  }
};

class KIVIKVCache : public KVCache {
 public:
  explicit KIVIKVCache(KVCache&& cache) : KVCache(std::move(cache)) {}
  static Result<KIVIKVCache> create(const CacheConfig& config = {}, int layer = 0,
                                    int n_layers = 1) {
    return create_as<KIVIKVCache>(config, "kivi", layer, n_layers);
  }

  int64_t compressed_key_bytes() const { return stats().compressed_key_bytes; }
  int64_t compressed_value_bytes() const { return stats().compressed_value_bytes; }
  int64_t fp16_key_bytes() const { return stats().fp16_key_bytes; }
  int64_t fp16_value_bytes() const { return stats().fp16_value_bytes; }
  int64_t residual_fp16_bytes() const { return stats().residual_fp16_bytes; }
  int64_t n_quantized() const { return stats().n_quantized; }
  double effective_compression_ratio() const { return stats().nominal_ratio; }
  double assigned_avg_bits() const { return stats().assigned_avg_bits; }
};

/// What a cache needs to know of a model.
struct ModelShape {
  /// A layer that differs. Without attention it gets a plain f16 cache.
  struct Layer {
    int layer = 0;
    bool attention = true;
    int n_kv_heads = 0;  ///< 0: as the model
    int head_dim_k = 0;
    int head_dim_v = 0;
  };

  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim_k = 0;
  int head_dim_v = 0;  ///< 0: as head_dim_k
  std::vector<Layer> layers;
};

/// Fluent settings. The first setter that fails decides what build() returns.
class CacheBuilder {
 public:
  CacheBuilder() = default;
  explicit CacheBuilder(CacheConfig config) : config_(std::move(config)) {}

  /// Any field of varve_field_get_info by its name.
  template <typename T>
  CacheBuilder& with(const char* field, const T& value) {
    const Status status = config_.set(field, value);
    if (error_.ok() && !status.ok()) error_ = status;
    return *this;
  }
  CacheBuilder& with_preset(const char* name) {
    const Status status = config_.preset(name);
    if (error_.ok() && !status.ok()) error_ = status;
    return *this;
  }
  CacheBuilder& with_method(const std::string& method) { return with("method", method); }
  CacheBuilder& with_head_dim(int64_t head_dim) { return with("head_dim", head_dim); }
  CacheBuilder& with_bit_width(int64_t inlier) { return with("bit_width_inlier", inlier); }
  CacheBuilder& with_bit_width(int64_t inlier, int64_t outlier) {
    return with("bit_width_inlier", inlier).with("bit_width_outlier", outlier);
  }
  CacheBuilder& with_bit_width(std::span<const int> inlier) {
    std::string list = "[";
    for (const int bits : inlier) list += (list.size() > 1 ? ";" : "") + std::to_string(bits);
    return with("bit_width_inlier", list + "]");
  }
  CacheBuilder& with_jl_dim(int64_t jl_dim) { return with("jl_dim", jl_dim); }
  CacheBuilder& with_n_outlier_channels(int64_t n) { return with("n_outlier_channels", n); }
  CacheBuilder& with_n_calib_tokens(int64_t n) { return with("n_calib_tokens", n); }
  CacheBuilder& with_seed(int64_t seed) { return with("seed", seed); }
  CacheBuilder& with_sliding_window(int64_t window) { return with("sliding_window", window); }
  CacheBuilder& with_observer(const std::string& observer) { return with("observers", observer); }
  CacheBuilder& with_age_boundaries(int64_t recent, int64_t mid) {
    return with("age_recent_boundary", recent).with("age_mid_boundary", mid);
  }
  CacheBuilder& with_age_bits(int64_t recent, int64_t mid, int64_t old) {
    return with("age_bits_recent", recent).with("age_bits_mid", mid).with("age_bits_old", old);
  }

  /// The settings, checked as build() would.
  Result<CacheConfig> config() const {
    if (!error_.ok()) return error_;
    const Status status = check();
    if (!status.ok()) return status;
    return config_;
  }

  Result<KVCache> build() const {
    Result<CacheConfig> checked = config();
    if (!checked.ok()) return checked.status();
    return KVCache::create(*checked);
  }

  /// One cache a layer. A list in bit_width_inlier has one entry for each layer with attention.
  static Result<std::vector<KVCache>> for_model(const ModelShape& model,
                                                const CacheConfig& config) {
    const auto refuse = [](const char* field, int value, const std::string& rule) {
      return Status(VARVE_ERROR_INVALID_ARGUMENT, std::string("model.") + field + " must be " +
                                                      rule + ", got " + std::to_string(value));
    };
    if (model.n_layers < 1) return refuse("n_layers", model.n_layers, "at least 1");
    if (model.n_kv_heads < 1) return refuse("n_kv_heads", model.n_kv_heads, "at least 1");
    if (model.n_heads < 0 || model.n_heads % model.n_kv_heads != 0) {
      return refuse("n_heads", model.n_heads,
                    "a multiple of n_kv_heads = " + std::to_string(model.n_kv_heads));
    }
    if (model.head_dim_k < 1) return refuse("head_dim_k", model.head_dim_k, "at least 1");
    if (model.head_dim_v < 0) return refuse("head_dim_v", model.head_dim_v, "at least 0");
    const auto layer_of = [&](int layer) {
      for (const ModelShape::Layer& one : model.layers) {
        if (one.layer == layer) return one;
      }
      return ModelShape::Layer{.layer = layer};
    };
    size_t n_attention = 0;
    for (int layer = 0; layer < model.n_layers; ++layer)
      n_attention += layer_of(layer).attention ? 1 : 0;
    Result<std::vector<std::string>> widths = bit_widths(config);
    if (!widths.ok()) return widths.status();
    const bool one_width = !config.field("bit_width_inlier").value().starts_with('[');
    if (!one_width && widths->size() != n_attention) {
      return Status(VARVE_ERROR_BAD_SETTING_VALUE,
                    "bit_width_inlier has " + std::to_string(widths->size()) + " entries for " +
                        std::to_string(n_attention) + " layers with attention");
    }
    std::vector<KVCache> caches;
    size_t attention_index = 0;
    for (int layer = 0; layer < model.n_layers; ++layer) {
      const ModelShape::Layer one = layer_of(layer);
      CacheConfig own = config;
      const int head_dim_k = one.head_dim_k > 0 ? one.head_dim_k : model.head_dim_k;
      const int model_v = model.head_dim_v > 0 ? model.head_dim_v : model.head_dim_k;
      const int head_dim_v = one.head_dim_v > 0 ? one.head_dim_v : model_v;
      Status status;
      if (!one.attention) {
        status = own.set("method", "fp16");
      } else {
        status = own.set("bit_width_inlier", (*widths)[one_width ? 0 : attention_index]);
        if (status.ok() && head_dim_k == head_dim_v) status = own.set("head_dim", head_dim_k);
        ++attention_index;
      }
      if (!status.ok()) return status;
      Result<KVCache> made = KVCache::create(own, layer, model.n_layers);
      if (!made.ok()) {
        return Status(made.status().code(),
                      "layer " + std::to_string(layer) + ": " + made.status().text());
      }
      caches.push_back(std::move(made).value());
    }
    return caches;
  }

 private:
  static Result<std::vector<std::string>> bit_widths(const CacheConfig& config) {
    Result<std::string> text = config.field("bit_width_inlier");
    if (!text.ok()) return text.status();
    std::string_view list = *text;
    if (!list.empty() && list.front() == '[') list = list.substr(1, list.size() - 2);
    std::vector<std::string> widths;
    while (!list.empty()) {
      const size_t end = list.find(';');
      widths.emplace_back(list.substr(0, end));
      list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
    }
    return widths;
  }

  std::optional<long> number(const char* field) const {
    const Result<std::string> text = config_.field(field);
    long value = 0;
    if (!text.ok() || text->empty()) return std::nullopt;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
    return value;
  }

  Status check() const {
    constexpr long kDefaultHeadDim = 128;
    const auto refuse = [](const char* field, const std::string& value, const std::string& rule) {
      return Status(VARVE_ERROR_BAD_SETTING_VALUE,
                    std::string(field) + " must be " + rule + ", got " + value);
    };
    const long head_dim = number("head_dim").value_or(kDefaultHeadDim);
    if (head_dim < 1) return refuse("head_dim", std::to_string(head_dim), "at least 1");
    const Result<std::string> width = config_.field("bit_width_inlier");
    if (!width.ok()) return width.status();
    if (number("bit_width_inlier").value_or(0) < 1) {
      return refuse("bit_width_inlier", *width, "one number, at least 1 (a list needs for_model)");
    }
    const std::optional<long> jl_dim = number("jl_dim");
    if (jl_dim && *jl_dim > head_dim)
      return refuse("jl_dim", std::to_string(*jl_dim), "at most head_dim");
    const std::optional<long> n_outlier = number("n_outlier_channels");
    if (n_outlier && *n_outlier >= head_dim) {
      return refuse("n_outlier_channels", std::to_string(*n_outlier), "below head_dim");
    }
    const std::optional<long> n_calib = number("n_calib_tokens");
    if (n_calib && *n_calib < 1)
      return refuse("n_calib_tokens", std::to_string(*n_calib), "at least 1");
    return config_.check();
  }

  CacheConfig config_;
  Status error_;
};

}  // namespace api
}  // namespace varve

#endif  // VARVE_VARVE_HPP_
