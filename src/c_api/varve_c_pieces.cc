#include <cmath>
#include <memory>
#include <vector>

#include "c_api/guard.h"
#include "codec/amc_channel_order.h"
#include "codec/amc_saliency.h"
#include "codec/group_affine.h"
#include "codec/group_affine_pack.h"
#include "policy/age_policy.h"
#include "policy/amc_policy.h"

struct varve_amc_thresholds {
  varve::RingBuffer window;
  double calib_variance;
  double gamma;
};

namespace varve {
namespace {

Status CheckRange(int64_t value, int64_t low, int64_t high, const char* name) {
  if (value >= low && value <= high) return Status();
  return Status(StatusCode::kBadSettingValue,
                std::string(name) + " must be in " + std::to_string(low) + ".." +
                    std::to_string(high) + ", got " + std::to_string(value));
}

constexpr int64_t kMaxTokens = 1 << 28;
constexpr int64_t kMaxDim = 1 << 16;

Status MakeShape(int64_t n, int64_t dim, int64_t group_size, varve_axis axis, GroupShape* shape) {
  VARVE_RETURN_IF_ERROR(CheckRange(n, 0, kMaxTokens, "n"));
  VARVE_RETURN_IF_ERROR(CheckRange(dim, 1, kMaxDim, "dim"));
  VARVE_RETURN_IF_ERROR(CheckRange(group_size, 1, kMaxTokens, "group_size"));
  VARVE_RETURN_IF_ERROR(CheckRange(axis, VARVE_AXIS_CHANNEL, VARVE_AXIS_TOKEN, "axis"));
  shape->axis = axis == VARVE_AXIS_CHANNEL ? GroupAxis::kTokens : GroupAxis::kChannels;
  shape->n_tokens = static_cast<int>(n);
  shape->dim = static_cast<int>(dim);
  shape->group_size = static_cast<int>(group_size);
  return Status();
}

// Whole 3 bytes for 3-bit codes, as in the seeds' BitPackBuffer.
size_t PaddedCodeBytes(size_t n, int bits) {
  return bits == 3 ? (n + 7) / 8 * 3 : PackedCodeBytes(n, bits);
}

}  // namespace
}  // namespace varve

using varve::CheckNotNull;
using varve::CheckRange;
using varve::Guard;
using varve::Status;
using varve::StatusCode;

varve_status varve_group_quantize(const float* x, int64_t n, int64_t dim, int32_t bits,
                                  int64_t group_size, varve_axis axis, uint16_t* codes,
                                  float* scale, float* zero) {
  return Guard([&]() -> Status {
    varve::GroupShape shape;
    VARVE_RETURN_IF_ERROR(varve::MakeShape(n, dim, group_size, axis, &shape));
    VARVE_RETURN_IF_ERROR(CheckRange(bits, 1, 16, "bits"));
    if (n == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(x, "x"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(codes, "codes"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(scale, "scale"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(zero, "zero"));
    for (size_t i = 0; i < shape.n_elements(); ++i) {
      if (std::isfinite(x[i])) continue;
      return Status(StatusCode::kNonFinite, "x[" + std::to_string(i / static_cast<size_t>(dim)) +
                                                "," + std::to_string(i % static_cast<size_t>(dim)) +
                                                "] is not finite");
    }
    std::vector<float> hi(shape.n_params());
    varve::FitGroups(shape, x, zero, hi.data());
    varve::QuantizeGroups(shape, bits, x, zero, hi.data(), codes);
    for (size_t i = 0; i < hi.size(); ++i) scale[i] = varve::AffineScale(zero[i], hi[i], bits);
    return Status();
  });
}

varve_status varve_group_dequantize(const uint16_t* codes, const float* scale, const float* zero,
                                    int64_t n, int64_t dim, int64_t group_size, varve_axis axis,
                                    float* x) {
  return Guard([&]() -> Status {
    varve::GroupShape shape;
    VARVE_RETURN_IF_ERROR(varve::MakeShape(n, dim, group_size, axis, &shape));
    if (n == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(codes, "codes"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(scale, "scale"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(zero, "zero"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(x, "x"));
    const size_t n_groups = static_cast<size_t>(shape.n_groups());
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t d = 0; d < dim; ++d) {
        const size_t param =
            axis == VARVE_AXIS_CHANNEL
                ? static_cast<size_t>(t / group_size * dim + d)
                : static_cast<size_t>(t) * n_groups + static_cast<size_t>(d / group_size);
        x[t * dim + d] = static_cast<float>(codes[t * dim + d]) * scale[param] + zero[param];
      }
    }
    return Status();
  });
}

varve_status varve_pack_codes(const uint16_t* codes, size_t n, int32_t bits, uint8_t* packed,
                              size_t capacity, size_t* needed) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckRange(bits, 1, 16, "bits"));
    if (n > SIZE_MAX / 32)
      return Status(StatusCode::kSizeOverflow, "n = " + std::to_string(n) + " is too large");
    const size_t bytes = varve::PaddedCodeBytes(n, bits);
    if (needed != nullptr) *needed = bytes;
    if ((packed == nullptr && capacity == 0) || n == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(codes, "codes"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(packed, "packed"));
    if (capacity < bytes) {
      return Status(StatusCode::kInvalidArgument, "capacity must be at least " +
                                                      std::to_string(bytes) + ", got " +
                                                      std::to_string(capacity));
    }
    for (size_t i = 0; i < n; ++i) {
      if ((codes[i] >> bits) == 0) continue;
      return Status(StatusCode::kInvalidArgument,
                    "codes[" + std::to_string(i) + "] = " + std::to_string(codes[i]) +
                        " does not fit " + std::to_string(bits) + " bits");
    }
    std::fill_n(packed, bytes, uint8_t{0});
    varve::PackCodes(bits, codes, n, reinterpret_cast<std::byte*>(packed));
    return Status();
  });
}

varve_status varve_unpack_codes(const uint8_t* packed, size_t packed_bytes, size_t n, int32_t bits,
                                uint16_t* codes) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckRange(bits, 1, 16, "bits"));
    if (n > SIZE_MAX / 32)
      return Status(StatusCode::kSizeOverflow, "n = " + std::to_string(n) + " is too large");
    const size_t needed = varve::PackedCodeBytes(n, bits);
    if (packed_bytes < needed) {
      return Status(StatusCode::kInvalidArgument, "packed_bytes must be at least " +
                                                      std::to_string(needed) + ", got " +
                                                      std::to_string(packed_bytes));
    }
    if (n == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(packed, "packed"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(codes, "codes"));
    varve::UnpackCodes(bits, reinterpret_cast<const std::byte*>(packed), 0, n, codes);
    return Status();
  });
}

int32_t varve_age_tier(int64_t age, int64_t recent_boundary, int64_t mid_boundary) {
  if (age < 0 || recent_boundary <= 0 || mid_boundary < recent_boundary) return -1;
  return static_cast<int32_t>(varve::TierOfAge(age, recent_boundary, mid_boundary));
}

int64_t varve_age_tiered_bytes(const int64_t* tokens, const int32_t* bits, int64_t head_dim) {
  if (tokens == nullptr || bits == nullptr) return 0;
  return varve::AgeTieredBytes({tokens[0], tokens[1], tokens[2]}, {bits[0], bits[1], bits[2]},
                               head_dim);
}

int64_t varve_amc_kept_bytes(const int64_t* tokens, int64_t head_dim) {
  if (tokens == nullptr || head_dim < 1 || head_dim > varve::kMaxDim) return 0;
  return varve::AmcKeptBytes({tokens[0], tokens[1], tokens[2]}, static_cast<int>(head_dim));
}

int64_t varve_full_f16_bytes(int64_t n_tokens, int64_t head_dim) {
  return varve::FullF16Bytes(n_tokens, head_dim);
}

varve_status varve_amc_tier_shape(int32_t tier, int64_t head_dim, int32_t* rank, int32_t* bits) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckRange(tier, 0, varve::kAmcTiers - 1, "tier"));
    VARVE_RETURN_IF_ERROR(CheckRange(head_dim, 1, varve::kMaxDim, "head_dim"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(rank, "rank"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(bits, "bits"));
    const varve::AmcTierShape shape =
        varve::AmcShapeOf(static_cast<varve::AmcTier>(tier), static_cast<int>(head_dim));
    *rank = shape.rank;
    *bits = shape.bits;
    return Status();
  });
}

varve_status varve_amc_tier_counts(int64_t n, double k_high, double k_mid, int64_t* counts) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckRange(n, 0, int64_t{1} << 52, "n"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(counts, "counts"));
    if (!(k_high >= 0 && k_mid >= 0 && k_high + k_mid <= 1.0)) {
      return Status(StatusCode::kBadSettingValue,
                    "k_high and k_mid must be at least 0 and together at most 1, got " +
                        std::to_string(k_high) + " and " + std::to_string(k_mid));
    }
    const auto all = varve::AmcTierCounts(n, k_high, k_mid);
    std::copy(all.begin(), all.end(), counts);
    return Status();
  });
}

varve_status varve_amc_saliency(const float* keys, int64_t n, int64_t dim, int32_t use_query,
                                double alpha, int32_t clamp, float* out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckRange(n, 0, varve::kMaxTokens, "n"));
    VARVE_RETURN_IF_ERROR(CheckRange(dim, 1, varve::kMaxDim, "dim"));
    if (n == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(keys, "keys"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    const int width = static_cast<int>(dim);
    std::vector<float> mean(static_cast<size_t>(dim));
    if (use_query != 0) varve::MeanKey(keys, static_cast<int>(n), width, mean.data());
    for (int64_t t = 0; t < n; ++t) {
      const float* key = keys + t * dim;
      out[t] = use_query != 0
                   ? varve::QueryAwareSaliency(key, mean.data(), width, alpha, clamp != 0)
                   : varve::MagnitudeSaliency(key, width, clamp != 0);
    }
    return Status();
  });
}

varve_status varve_amc_assign_tiers(const float* saliency, int64_t n, double k_high, double k_mid,
                                    uint8_t* tiers) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckRange(n, 0, varve::kMaxTokens, "n"));
    if (n == 0) return Status();
    VARVE_RETURN_IF_ERROR(CheckNotNull(saliency, "saliency"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(tiers, "tiers"));
    std::vector<uint32_t> order;
    varve::AssignAmcTiers({saliency, static_cast<size_t>(n)}, k_high, k_mid, order,
                          reinterpret_cast<varve::AmcTier*>(tiers));
    return Status();
  });
}

varve_status varve_amc_channel_order(const float* x, int64_t n, int64_t dim, int32_t* order) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckRange(dim, 1, varve::kMaxDim, "dim"));
    if (n >= 2) VARVE_RETURN_IF_ERROR(CheckNotNull(x, "x"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(order, "order"));
    return varve::AmcChannelOrder(x, n, static_cast<int>(dim), order);
  });
}

varve_status varve_amc_write_channel_orders(const char* path, int32_t n_layers, int32_t n_kv_heads,
                                            int32_t head_dim, const int32_t* keys,
                                            const int32_t* values) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(path, "path"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(keys, "keys"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(values, "values"));
    VARVE_RETURN_IF_ERROR(CheckRange(n_layers, 1, 1 << 20, "n_layers"));
    VARVE_RETURN_IF_ERROR(CheckRange(n_kv_heads, 1, 1 << 20, "n_kv_heads"));
    VARVE_RETURN_IF_ERROR(CheckRange(head_dim, 1, varve::kMaxDim, "head_dim"));
    const size_t n = static_cast<size_t>(n_kv_heads) * static_cast<size_t>(head_dim);
    std::vector<varve::AmcLayerOrder> layers(static_cast<size_t>(n_layers));
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      layers[layer].n_kv_heads = n_kv_heads;
      layers[layer].head_dim = head_dim;
      layers[layer].keys.assign(keys + layer * n, keys + (layer + 1) * n);
      layers[layer].values.assign(values + layer * n, values + (layer + 1) * n);
    }
    return varve::WriteAmcOrders(path, layers);
  });
}

varve_status varve_amc_thresholds_create(int32_t window, double calib_variance, double gamma,
                                         varve_amc_thresholds** out) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    *out = nullptr;
    VARVE_RETURN_IF_ERROR(CheckRange(window, 1, varve::kMaxTokens, "window"));
    if (!std::isfinite(calib_variance) || !std::isfinite(gamma)) {
      return Status(StatusCode::kBadSettingValue, "calib_variance and gamma must be finite, got " +
                                                      std::to_string(calib_variance) + " and " +
                                                      std::to_string(gamma));
    }
    *out = new varve_amc_thresholds{varve::RingBuffer(window), calib_variance, gamma};
    return Status();
  });
}

void varve_amc_thresholds_destroy(varve_amc_thresholds* thresholds) { delete thresholds; }

varve_status varve_amc_thresholds_push(varve_amc_thresholds* thresholds, const float* saliency,
                                       size_t n) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(thresholds, "thresholds"));
    if (n > 0) VARVE_RETURN_IF_ERROR(CheckNotNull(saliency, "saliency"));
    for (size_t i = 0; i < n; ++i) thresholds->window.Push(saliency[i]);
    return Status();
  });
}

varve_status varve_amc_thresholds_get(const varve_amc_thresholds* thresholds, double high_base,
                                      double low_base, double* high, double* low,
                                      size_t* n_entries) {
  return Guard([&]() -> Status {
    VARVE_RETURN_IF_ERROR(CheckNotNull(thresholds, "thresholds"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(high, "high"));
    VARVE_RETURN_IF_ERROR(CheckNotNull(low, "low"));
    const varve::AmcThresholds adapted = varve::AdaptAmcThresholds(
        thresholds->window, {high_base, low_base}, thresholds->calib_variance, thresholds->gamma);
    *high = adapted.high;
    *low = adapted.low;
    if (n_entries != nullptr) *n_entries = static_cast<size_t>(thresholds->window.size());
    return Status();
  });
}
