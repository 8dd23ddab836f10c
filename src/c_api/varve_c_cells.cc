// varve_cells_*: structs and status codes on the outside, CellCache within.
#include <algorithm>
#include <cstddef>
#include <string>

#include "c_api/guard.h"
#include "c_api/handles.h"
#include "policy/settings.h"
#include "varve/varve.h"

namespace varve {
namespace {

Status CheckSide(varve_side side) {
  if (side == VARVE_KEY || side == VARVE_VALUE) return Status();
  return Status(StatusCode::kInvalidArgument, "side=" + std::to_string(static_cast<int>(side)) +
                                                  " must be VARVE_KEY (0) or VARVE_VALUE (1)");
}

Status CheckType(varve_type type) {
  if (type == VARVE_F32 || type == VARVE_F16 || type == VARVE_BF16) return Status();
  return Status(StatusCode::kInvalidArgument, "type=" + std::to_string(static_cast<int>(type)) +
                                                  " must be VARVE_F32, VARVE_F16 or VARVE_BF16");
}

Result<RopePairing> PairingOf(varve_rope_kind kind) {
  switch (kind) {
    case VARVE_ROPE_NONE:
      return RopePairing::kNone;
    case VARVE_ROPE_NORMAL:
      return RopePairing::kInterleaved;
    case VARVE_ROPE_NEOX:
      return RopePairing::kHalves;
    case VARVE_ROPE_KIND_INT:
      break;
  }
  return Status(StatusCode::kInvalidArgument,
                "rope_kind=" + std::to_string(static_cast<int>(kind)) +
                    " must be 0 (none), 1 (normal) or 2 (neox)");
}

struct LayerSetup {
  Settings settings;
  CellShape shape;
};

Result<LayerSetup> SetUpLayer(const varve_config* config, const varve_cells_params* params) {
  VARVE_RETURN_IF_ERROR(CheckNotNull(config, "config"));
  VARVE_RETURN_IF_ERROR(CheckNotNull(params, "params"));
  VARVE_RETURN_IF_ERROR(
      CheckStructSize(params->struct_size, sizeof(varve_cells_params), "varve_cells_params"));
  auto settings = SettingsForLayer(config->settings, params->layer, params->n_layers);
  if (!settings.ok()) return settings.status();
  auto pairing = PairingOf(params->rope_kind);
  if (!pairing.ok()) return pairing.status();
  CellShape shape;
  shape.n_cells = params->n_cells;
  shape.n_streams = params->n_streams;
  shape.n_kv_heads = params->n_kv_heads;
  shape.head_dim_k = params->head_dim_k;
  shape.head_dim_v = params->head_dim_v;
  shape.pairing = pairing.value();
  shape.n_rope_dims = params->n_rope_dims;
  return LayerSetup{std::move(settings).value(), shape};
}

/// Byte stride to element stride; strides of dimensions of one element may be anything.
Result<ptrdiff_t> ElementStride(size_t bytes, size_t element_bytes, bool used, const char* field) {
  if (!used) return ptrdiff_t{0};
  if (bytes % element_bytes == 0) return static_cast<ptrdiff_t>(bytes / element_bytes);
  return Status(StatusCode::kInvalidArgument, std::string(field) + "=" + std::to_string(bytes) +
                                                  " must be a multiple of " +
                                                  std::to_string(element_bytes));
}

Result<CellAttendArgs> AttendArgsOf(const varve_attend_args* in) {
  VARVE_RETURN_IF_ERROR(CheckNotNull(in, "args"));
  VARVE_RETURN_IF_ERROR(
      CheckStructSize(in->struct_size, sizeof(varve_attend_args), "varve_attend_args"));
  CellAttendArgs args;
  args.stream = in->stream;
  args.n_cells = in->n_cells;
  args.n_rows = in->n_rows;
  args.n_heads = in->n_heads;
  args.head_dim_v = in->head_dim_v;
  args.q = in->q;
  args.mask = static_cast<const uint16_t*>(in->mask);
  args.mask_heads = in->mask_heads;
  args.scale = in->scale;
  args.logit_softcap = in->logit_softcap;
  args.max_bias = in->max_bias;
  args.sinks = in->sinks;
  args.out = in->out;
  const bool rows = in->n_rows > 1;
  const bool heads = in->n_heads > 1;
  const bool mask = in->mask != nullptr;
  const struct {
    ptrdiff_t* to;
    size_t bytes;
    size_t element_bytes;
    bool used;
    const char* field;
  } strides[] = {
      {&args.q_row_stride, in->q_row_stride, sizeof(float), rows, "q_row_stride"},
      {&args.q_head_stride, in->q_head_stride, sizeof(float), heads, "q_head_stride"},
      {&args.mask_row_stride, in->mask_row_stride, sizeof(uint16_t), mask && rows,
       "mask_row_stride"},
      {&args.mask_head_stride, in->mask_head_stride, sizeof(uint16_t), mask && in->mask_heads > 1,
       "mask_head_stride"},
      {&args.out_row_stride, in->out_row_stride, sizeof(float), rows, "out_row_stride"},
      {&args.out_head_stride, in->out_head_stride, sizeof(float), heads, "out_head_stride"},
  };
  for (const auto& stride : strides) {
    auto elements = ElementStride(stride.bytes, stride.element_bytes, stride.used, stride.field);
    if (!elements.ok()) return elements.status();
    *stride.to = elements.value();
  }
  return args;
}

}  // namespace
}  // namespace varve

using varve::CheckNotNull;
using varve::CheckStructSize;
using varve::Guard;
using varve::RowType;
using varve::Side;
using varve::Status;

varve_status varve_cells_create(const varve_config* config, const varve_cells_params* params,
                                varve_cells** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    auto setup = varve::SetUpLayer(config, params);
    if (!setup.ok()) return setup.status();
    auto cache = varve::CellCache::Create(setup.value().settings, setup.value().shape);
    if (!cache.ok()) return cache.status();
    *out = new varve_cells{std::move(cache).value()};
    return Status();
  });
}

void varve_cells_destroy(varve_cells* cells) { delete cells; }

varve_status varve_cells_set_rope(varve_cells* cells, varve_rope_kind kind, int32_t n_rope_dims) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    auto pairing = varve::PairingOf(kind);
    if (!pairing.ok()) return pairing.status();
    return cells->cache->SetRope(pairing.value(), n_rope_dims);
  });
}

varve_status varve_cells_write(varve_cells* cells, varve_side side, const int64_t* index,
                               const int32_t* positions, const void* rows, varve_type type,
                               size_t row_stride_bytes, int32_t n, int32_t n_threads) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    VARVE_RETURN_IF_ERROR(varve::CheckSide(side));
    VARVE_RETURN_IF_ERROR(varve::CheckType(type));
    return cells->cache->Write(static_cast<Side>(side), index, positions, rows,
                               static_cast<RowType>(type), row_stride_bytes, n, n_threads);
  });
}

varve_status varve_cells_read(const varve_cells* cells, varve_side side, int64_t first, int32_t n,
                              void* rows, varve_type type) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    VARVE_RETURN_IF_ERROR(varve::CheckSide(side));
    VARVE_RETURN_IF_ERROR(varve::CheckType(type));
    return cells->cache->Read(static_cast<Side>(side), first, n, rows, static_cast<RowType>(type));
  });
}

varve_status varve_cells_gather(const varve_cells* cells, varve_side side, const int64_t* index,
                                int32_t n, void* rows, varve_type type) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    VARVE_RETURN_IF_ERROR(varve::CheckSide(side));
    VARVE_RETURN_IF_ERROR(varve::CheckType(type));
    return cells->cache->Gather(static_cast<Side>(side), index, n, rows,
                                static_cast<RowType>(type));
  });
}

varve_status varve_cells_copy(varve_cells* dst, int64_t dst_first, const varve_cells* src,
                              int64_t src_first, int32_t n, varve_side side) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(dst, "dst"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(src, "src"));
    VARVE_RETURN_IF_ERROR(varve::CheckSide(side));
    return dst->cache->CopyFrom(*src->cache, dst_first, src_first, n, static_cast<Side>(side));
  });
}

varve_status varve_cells_forget(varve_cells* cells, int64_t first, int32_t n) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    return cells->cache->Forget(first, n);
  });
}

varve_status varve_cells_shift(varve_cells* cells, int64_t first, const int32_t* delta, int32_t n,
                               const varve_rope_params* rope) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(rope, "rope"));
    VARVE_RETURN_IF_ERROR(CheckStructSize(rope->struct_size, offsetof(varve_rope_params, first_dim),
                                          "varve_rope_params"));
    auto pairing = varve::PairingOf(rope->kind);
    if (!pairing.ok()) return pairing.status();
    varve::RopeShift shift;
    shift.pairing = pairing.value();
    shift.n_dims = rope->n_dims;
    shift.n_ctx_orig = rope->n_ctx_orig;
    shift.freq_base = rope->freq_base;
    shift.freq_scale = rope->freq_scale;
    shift.ext_factor = rope->ext_factor;
    shift.attn_factor = rope->attn_factor;
    shift.beta_fast = rope->beta_fast;
    shift.beta_slow = rope->beta_slow;
    shift.freq_factors = rope->freq_factors;
    if (rope->struct_size >= sizeof(varve_rope_params)) shift.first_dim = rope->first_dim;
    return cells->cache->Shift(first, delta, n, shift);
  });
}

varve_status varve_cells_attend(varve_cells* cells, const varve_attend_args* args) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    auto converted = varve::AttendArgsOf(args);
    if (!converted.ok()) return converted.status();
    return cells->cache->Attend(converted.value(), args->n_threads);
  });
}

varve_status varve_cells_get_stats(const varve_cells* cells, varve_cells_stats* out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(cells, "cells"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    VARVE_RETURN_IF_ERROR(
        CheckStructSize(out->struct_size, sizeof(varve_cells_stats), "varve_cells_stats"));
    const varve::CellStats stats = cells->cache->Stats();
    out->n_tokens = stats.n_tokens;
    for (size_t t = 0; t < stats.tier_tokens.size(); ++t)
      out->tier_tokens[t] = stats.tier_tokens[t];
    out->packed_bytes = stats.packed_bytes;
    out->payload_bytes = stats.payload_bytes;
    out->f16_bytes = stats.f16_bytes;
    out->n_demotions = stats.n_demotions;
    out->n_promotions = stats.n_promotions;
    out->append_seconds = stats.append_seconds;
    out->retier_seconds = stats.retier_seconds;
    out->attend_seconds = stats.attend_seconds;
    out->last_key_bits = stats.last_key_bits;
    return Status();
  });
}

varve_status varve_cells_estimate(const varve_config* config, const varve_cells_params* params,
                                  const varve_cells_workload* work, uint64_t* packed_bytes) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(work, "work"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(packed_bytes, "packed_bytes"));
    VARVE_RETURN_IF_ERROR(
        CheckStructSize(work->struct_size, sizeof(varve_cells_workload), "varve_cells_workload"));
    auto setup = varve::SetUpLayer(config, params);
    if (!setup.ok()) return setup.status();
    if (work->n_batch < 0) {
      return Status(varve::StatusCode::kInvalidArgument,
                    "n_batch=" + std::to_string(work->n_batch) + " must not be negative");
    }
    const int32_t n_batch = std::max(work->n_batch, 1);
    auto bytes =
        varve::EstimateCellBytes(setup.value().settings, setup.value().shape,
                                 {work->n_tokens, n_batch, work->n_decoded, work->last_key_bits});
    if (!bytes.ok()) return bytes.status();
    *packed_bytes = bytes.value();
    return Status();
  });
}
