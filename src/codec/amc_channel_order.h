// The order in which AMC keeps channels: by descending variance on calibration data (spec section
// 6), applied when a token is written and undone when it is read. Kept in a text file so that it
// can be made once for a model.
#ifndef VARVE_CODEC_AMC_CHANNEL_ORDER_H_
#define VARVE_CODEC_AMC_CHANNEL_ORDER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace varve {

/// Permutation of channels by descending variance (mean of squared deviations from the channel's
/// mean); ties keep index order. x: f32 [n][dim], n >= 2. Errors: kInvalidArgument.
[[nodiscard]] Status AmcChannelOrder(const float* x, int64_t n, int dim, int32_t* order);

/// out = w gathered along its last axis: out[i][j] = w[i][order[j]]. w, out: f32 [n][dim].
void PermuteChannels(const float* w, int64_t n, std::span<const int32_t> order, float* out);

/// Errors unless `order` is a permutation of 0..size-1.
[[nodiscard]] Status CheckPermutation(std::span<const int32_t> order, const std::string& what);

/// Orders of one layer: [n_kv_heads][head_dim] each for keys and values.
struct AmcLayerOrder {
  int n_kv_heads = 0;
  int head_dim = 0;
  std::vector<int32_t> keys;
  std::vector<int32_t> values;
};

/// Reads layer `layer` of a file:
///   varve-channel-order 1 <n_layers> <n_kv_heads> <head_dim>
///   then a line for each layer, side (k, v) and head: <layer> <k|v> <head> <head_dim channels>
/// Errors: kIoError, kBadFormat, kIncompatible (no such layer).
[[nodiscard]] Result<AmcLayerOrder> ReadAmcLayerOrder(const std::string& path, int layer);

/// Writes all layers. Errors: kIoError, kInvalidArgument (not permutations, or layers that differ
/// in shape).
[[nodiscard]] Status WriteAmcOrders(const std::string& path, std::span<const AmcLayerOrder> layers);

}  // namespace varve

#endif  // VARVE_CODEC_AMC_CHANNEL_ORDER_H_
