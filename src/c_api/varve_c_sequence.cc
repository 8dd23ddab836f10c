#include <algorithm>

#include "base/checked_math.h"
#include "c_api/guard.h"
#include "c_api/handles.h"

namespace varve {
namespace {

// Sizes of the first release; later fields come at the end.
constexpr size_t kTensorSize = sizeof(varve_tensor);
constexpr size_t kAttendArgsSize = sizeof(varve_cache_attend_args);
constexpr size_t kStatsSize = sizeof(varve_cache_stats);

Status CheckType(varve_type type, const char* name) {
  if (type == VARVE_F32 || type == VARVE_F16 || type == VARVE_BF16) return Status();
  return Status(StatusCode::kInvalidArgument,
                std::string(name) + " must be VARVE_F32, VARVE_F16 or VARVE_BF16, got " +
                    std::to_string(static_cast<int>(type)));
}

Status CheckSide(varve_side side) {
  if (side == VARVE_KEY || side == VARVE_VALUE) return Status();
  return Status(StatusCode::kInvalidArgument, "side must be VARVE_KEY or VARVE_VALUE, got " +
                                                  std::to_string(static_cast<int>(side)));
}

Status MakeView(const varve_tensor* tensor, const char* name, TensorView* view) {
  VARVE_RETURN_IF_ERROR(CheckNotNull(tensor, name));
  VARVE_RETURN_IF_ERROR(CheckStructSize(tensor->struct_size, kTensorSize, name));
  VARVE_RETURN_IF_ERROR(CheckType(tensor->type, name));
  view->data = static_cast<const std::byte*>(tensor->data);
  view->type = static_cast<ElementType>(tensor->type);
  std::copy_n(tensor->shape, 4, view->shape);
  std::copy_n(tensor->stride, 4, view->stride);
  if (std::any_of(view->stride, view->stride + 4, [](int64_t stride) { return stride != 0; }))
    return Status();
  view->stride[3] = 1;
  for (int axis = 2; axis >= 0; --axis) {
    if (__builtin_mul_overflow(view->stride[axis + 1], std::max<int64_t>(view->shape[axis + 1], 1),
                               &view->stride[axis])) {
      return Status(StatusCode::kSizeOverflow, std::string(name) + " is too large to address");
    }
  }
  return Status();
}

Status CheckCapacity(size_t capacity, size_t needed) {
  if (capacity >= needed) return Status();
  return Status(
      StatusCode::kInvalidArgument,
      "capacity must be at least " + std::to_string(needed) + ", got " + std::to_string(capacity));
}

Status Adopt(Result<std::unique_ptr<SequenceCache>> made, varve_cache** out) {
  if (!made.ok()) return made.status();
  auto handle = std::make_unique<varve_cache>();
  handle->cache = std::move(made).value();
  *out = handle.release();
  return Status();
}

}  // namespace
}  // namespace varve

using varve::CheckNotNull;
using varve::Guard;
using varve::Status;
using varve::StatusCode;

varve_status varve_cache_create(const varve_config* config, int32_t layer, int32_t n_layers,
                                varve_cache** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
    return varve::Adopt(varve::MakeSequenceCache(config->settings, layer, n_layers), out);
  });
}

void varve_cache_destroy(varve_cache* cache) { delete cache; }

varve_status varve_cache_append(varve_cache* cache, const varve_tensor* keys,
                                const varve_tensor* values) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    varve::TensorView k, v;
    VARVE_RETURN_IF_ERROR(varve::MakeView(keys, "keys", &k));
    VARVE_RETURN_IF_ERROR(varve::MakeView(values, "values", &v));
    return cache->cache->Append(k, v);
  });
}

varve_status varve_cache_decode(const varve_cache* cache, varve_side side, int64_t first, int64_t n,
                                varve_type type, void* out, size_t capacity_bytes) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    VARVE_RETURN_IF_ERROR(varve::CheckSide(side));
    VARVE_RETURN_IF_ERROR(varve::CheckType(type, "type"));
    const varve::SequenceShape& shape = cache->cache->shape();
    const varve::Side which = static_cast<varve::Side>(side);
    if (n > 0 && n <= cache->cache->n_tokens()) {
      const size_t needed = static_cast<size_t>(shape.n_rows() * n * shape.head_dim(which)) *
                            varve::ElementBytes(static_cast<varve::ElementType>(type));
      VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
      VARVE_RETURN_IF_ERROR(varve::CheckCapacity(capacity_bytes, needed));
    }
    return cache->cache->Decode(which, first, n, static_cast<varve::ElementType>(type),
                                static_cast<std::byte*>(out));
  });
}

varve_status varve_cache_trim(varve_cache* cache, int64_t n, int64_t* removed) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    int64_t count = 0;
    Status status = cache->cache->Trim(n, &count);
    if (removed != nullptr) *removed = count;
    return status;
  });
}

varve_status varve_cache_clear(varve_cache* cache) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    cache->cache->Clear();
    return Status();
  });
}

varve_status varve_cache_reserve(varve_cache* cache, int64_t n) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    return cache->cache->Reserve(n);
  });
}

varve_status varve_cache_clone(const varve_cache* cache, varve_cache** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    return varve::Adopt(cache->cache->Clone(), out);
  });
}

varve_status varve_cache_select_rows(const varve_cache* cache, const int64_t* rows, int64_t n_rows,
                                     varve_cache** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    if (n_rows < 0)
      return Status(StatusCode::kInvalidArgument,
                    "n_rows must be at least 0, got " + std::to_string(n_rows));
    if (n_rows > 0) VARVE_RETURN_IF_ERROR(CheckNotNull(rows, "rows"));
    return varve::Adopt(cache->cache->SelectRows({rows, static_cast<size_t>(n_rows)}), out);
  });
}

varve_status varve_cache_merge(varve_cache* const* caches, size_t n_caches, varve_cache** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    VARVE_RETURN_IF_ERROR(CheckNotNull(caches, "caches"));
    std::vector<const varve::SequenceCache*> all;
    for (size_t i = 0; i < n_caches; ++i) {
      VARVE_RETURN_IF_ERROR(CheckNotNull(caches[i], "caches[" + std::to_string(i) + "]"));
      all.push_back(caches[i]->cache.get());
    }
    return varve::Adopt(varve::SequenceCache::Merge(all), out);
  });
}

varve_status varve_cache_attend(const varve_cache* cache, const varve_cache_attend_args* args) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(args, "args"));
    VARVE_RETURN_IF_ERROR(varve::CheckStructSize(args->struct_size, varve::kAttendArgsSize,
                                                 "varve_cache_attend_args"));
    varve::SequenceAttendArgs inner;
    inner.n_heads = args->n_heads;
    inner.n_queries = args->n_queries;
    inner.q = args->q;
    std::copy_n(args->q_stride, 3, inner.q_stride.begin());
    inner.mask = args->mask;
    std::copy_n(args->mask_stride, 3, inner.mask_stride.begin());
    inner.causal = args->causal != 0;
    inner.first_position = args->first_position;
    inner.scale = args->scale;
    inner.logit_softcap = args->logit_softcap;
    inner.sinks = args->sinks;
    inner.out = args->out;
    std::copy_n(args->out_stride, 3, inner.out_stride.begin());
    inner.n_threads = args->n_threads;
    return cache->cache->Attend(inner);
  });
}

varve_status varve_cache_get_stats(const varve_cache* cache, varve_cache_stats* out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    VARVE_RETURN_IF_ERROR(
        varve::CheckStructSize(out->struct_size, varve::kStatsSize, "varve_cache_stats"));
    const varve::SequenceStats stats = cache->cache->Stats();
    const varve::SequenceShape& shape = cache->cache->shape();
    const bool known = cache->cache->has_shape();
    out->batch = known ? shape.batch : 0;
    out->n_kv_heads = known ? shape.n_kv_heads : 0;
    out->head_dim_k = known ? shape.head_dim_k : 0;
    out->head_dim_v = known ? shape.head_dim_v : 0;
    out->storage_type = static_cast<varve_type>(shape.type);
    out->n_tokens = stats.n_tokens;
    out->tokens_seen = stats.tokens_seen;
    std::copy(stats.tier_tokens.begin(), stats.tier_tokens.end(), out->tier_tokens);
    out->full_seq_bytes = stats.full_seq_bytes;
    out->stored_bytes = stats.stored_bytes;
    out->payload_bytes = stats.payload_bytes;
    out->nominal_bytes = stats.nominal_bytes;
    out->nominal_ratio = stats.nominal_ratio;
    out->seed_nbytes = stats.seed_nbytes;
    out->compressed_key_bytes = stats.compressed_key_bytes;
    out->compressed_value_bytes = stats.compressed_value_bytes;
    out->fp16_key_bytes = stats.fp16_key_bytes;
    out->fp16_value_bytes = stats.fp16_value_bytes;
    out->residual_fp16_bytes = stats.residual_fp16_bytes;
    out->n_quantized = stats.n_quantized;
    out->assigned_avg_bits = stats.assigned_avg_bits;
    return Status();
  });
}

varve_status varve_cache_group_tiers(const varve_cache* cache, uint8_t* tiers, size_t capacity,
                                     size_t* n) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    const std::vector<uint8_t> all = cache->cache->GroupTiers();
    if (n != nullptr) *n = all.size();
    if (tiers == nullptr && capacity == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(tiers, "tiers"));
    VARVE_RETURN_IF_ERROR(varve::CheckCapacity(capacity, all.size()));
    std::copy(all.begin(), all.end(), tiers);
    return Status();
  });
}

varve_status varve_cache_token_tiers(const varve_cache* cache, int64_t row, uint8_t* tiers,
                                     size_t capacity) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    const size_t n = static_cast<size_t>(cache->cache->n_tokens());
    if (n > 0) VARVE_RETURN_IF_ERROR(CheckNotNull(tiers, "tiers"));
    VARVE_RETURN_IF_ERROR(varve::CheckCapacity(capacity, n));
    return cache->cache->TokenTiers(row, {tiers, n});
  });
}

varve_status varve_cache_set_channel_order(varve_cache* cache, int32_t n_kv_heads, int32_t head_dim,
                                           const int32_t* keys, const int32_t* values) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cache, "cache"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(keys, "keys"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(values, "values"));
    if (n_kv_heads < 1 || head_dim < 1) {
      return Status(StatusCode::kInvalidArgument,
                    "n_kv_heads and head_dim must be at least 1, got " +
                        std::to_string(n_kv_heads) + " and " + std::to_string(head_dim));
    }
    const size_t n = static_cast<size_t>(n_kv_heads) * static_cast<size_t>(head_dim);
    varve::AmcLayerOrder order;
    order.n_kv_heads = n_kv_heads;
    order.head_dim = head_dim;
    order.keys.assign(keys, keys + n);
    order.values.assign(values, values + n);
    return cache->cache->SetChannelOrder(order);
  });
}
