#include "codec/amc_channel_order.h"

#include <algorithm>
#include <fstream>
#include <numeric>

namespace varve {
namespace {

constexpr const char* kMagic = "varve-channel-order";
constexpr int kVersion = 1;
constexpr int64_t kMaxEntries = int64_t{1} << 28;

Status Bad(const std::string& path, const std::string& why) {
  return Status(StatusCode::kBadFormat, "channel order file \"" + path + "\": " + why);
}

std::span<const int32_t> HeadOrder(const std::vector<int32_t>& orders, int head, int dim) {
  return std::span(orders).subspan(static_cast<size_t>(head) * static_cast<size_t>(dim),
                                   static_cast<size_t>(dim));
}

}  // namespace

Status AmcChannelOrder(const float* x, int64_t n, int dim, int32_t* order) {
  if (n < 2)
    return Status(StatusCode::kInvalidArgument, "n must be at least 2, got " + std::to_string(n));
  if (dim < 1)
    return Status(StatusCode::kInvalidArgument,
                  "head_dim must be at least 1, got " + std::to_string(dim));
  std::vector<float> variance(static_cast<size_t>(dim));
  for (int d = 0; d < dim; ++d) {
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(x[i * dim + d]);
    mean /= static_cast<double>(n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double deviation = static_cast<double>(x[i * dim + d]) - mean;
      sum += deviation * deviation;
    }
    variance[static_cast<size_t>(d)] = static_cast<float>(sum / static_cast<double>(n));
  }
  std::iota(order, order + dim, 0);
  std::stable_sort(order, order + dim, [&](int32_t a, int32_t b) {
    return variance[static_cast<size_t>(a)] > variance[static_cast<size_t>(b)];
  });
  return Status();
}

void PermuteChannels(const float* w, int64_t n, std::span<const int32_t> order, float* out) {
  const size_t dim = order.size();
  for (int64_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < dim; ++j)
      out[static_cast<size_t>(i) * dim + j] = w[static_cast<size_t>(i) * dim + order[j]];
  }
}

Status CheckPermutation(std::span<const int32_t> order, const std::string& what) {
  std::vector<bool> seen(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t channel = order[i];
    if (channel < 0 || channel >= static_cast<int64_t>(order.size()) ||
        seen[static_cast<size_t>(channel)]) {
      return Status(StatusCode::kInvalidArgument,
                    what + "[" + std::to_string(i) + "] = " + std::to_string(channel) +
                        " does not make a permutation of 0.." + std::to_string(order.size() - 1));
    }
    seen[static_cast<size_t>(channel)] = true;
  }
  return Status();
}

Result<AmcLayerOrder> ReadAmcLayerOrder(const std::string& path, int layer) {
  std::ifstream file(path);
  if (!file) return Status(StatusCode::kIoError, "amc_channel_order: cannot open \"" + path + "\"");
  std::string magic;
  int version = 0;
  int64_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  if (!(file >> magic >> version >> n_layers >> n_kv_heads >> head_dim) || magic != kMagic) {
    return Bad(path,
               "does not open with \"" + std::string(kMagic) + " 1 n_layers n_kv_heads head_dim\"");
  }
  if (version != kVersion)
    return Bad(path, "version " + std::to_string(version) + ", this library reads 1");
  if (n_layers < 1 || n_kv_heads < 1 || head_dim < 1 || n_layers > kMaxEntries ||
      n_kv_heads > kMaxEntries || head_dim > (1 << 16) || n_kv_heads * head_dim > kMaxEntries) {
    return Bad(path, "absurd shape");
  }
  if (layer < 0 || layer >= n_layers) {
    return Status(StatusCode::kIncompatible, "channel order file \"" + path + "\" has " +
                                                 std::to_string(n_layers) + " layers, layer " +
                                                 std::to_string(layer) + " is asked for");
  }
  AmcLayerOrder order;
  order.n_kv_heads = static_cast<int>(n_kv_heads);
  order.head_dim = static_cast<int>(head_dim);
  std::vector<int32_t> row(static_cast<size_t>(head_dim));
  for (int64_t line = 0; line < n_layers * 2 * n_kv_heads; ++line) {
    const int64_t want_layer = line / (2 * n_kv_heads);
    const std::string want_side = line / n_kv_heads % 2 == 0 ? "k" : "v";
    int64_t got_layer = 0, got_head = 0;
    std::string got_side;
    bool ok = static_cast<bool>(file >> got_layer >> got_side >> got_head);
    for (int32_t& channel : row) ok = ok && static_cast<bool>(file >> channel);
    if (!ok) return Bad(path, "ends early, at line " + std::to_string(line + 2));
    if (got_layer != want_layer || got_side != want_side || got_head != line % n_kv_heads) {
      return Bad(path, "line " + std::to_string(line + 2) + " is out of order");
    }
    const Status status = CheckPermutation(row, "line " + std::to_string(line + 2));
    if (!status.ok()) return Bad(path, status.text());
    if (got_layer != layer) continue;
    std::vector<int32_t>& into = want_side == "k" ? order.keys : order.values;
    into.insert(into.end(), row.begin(), row.end());
  }
  return order;
}

Status WriteAmcOrders(const std::string& path, std::span<const AmcLayerOrder> layers) {
  if (layers.empty())
    return Status(StatusCode::kInvalidArgument, "n_layers must be at least 1, got 0");
  const AmcLayerOrder& first = layers[0];
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const AmcLayerOrder& one = layers[layer];
    const size_t n = static_cast<size_t>(one.n_kv_heads) * static_cast<size_t>(one.head_dim);
    if (one.n_kv_heads != first.n_kv_heads || one.head_dim != first.head_dim ||
        one.keys.size() != n || one.values.size() != n || n == 0) {
      return Status(StatusCode::kInvalidArgument,
                    "layer " + std::to_string(layer) + " differs in its shape");
    }
    for (int head = 0; head < one.n_kv_heads; ++head) {
      VARVE_RETURN_IF_ERROR(CheckPermutation(HeadOrder(one.keys, head, one.head_dim), "keys"));
      VARVE_RETURN_IF_ERROR(CheckPermutation(HeadOrder(one.values, head, one.head_dim), "values"));
    }
  }
  std::ofstream file(path, std::ios::trunc);
  file << kMagic << ' ' << kVersion << ' ' << layers.size() << ' ' << first.n_kv_heads << ' '
       << first.head_dim << '\n';
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (const char* side : {"k", "v"}) {
      const std::vector<int32_t>& orders = *side == 'k' ? layers[layer].keys : layers[layer].values;
      for (int head = 0; head < first.n_kv_heads; ++head) {
        file << layer << ' ' << side << ' ' << head;
        for (const int32_t channel : HeadOrder(orders, head, first.head_dim))
          file << ' ' << channel;
        file << '\n';
      }
    }
  }
  file.close();
  if (!file) return Status(StatusCode::kIoError, "cannot write \"" + path + "\"");
  return Status();
}

}  // namespace varve
