#include "cache/sequence_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/checked_math.h"
#include "cache/settings_identity.h"

namespace varve {
namespace {

constexpr int64_t kSeedStep = 256;  // the original's buffer grows by this many tokens

std::string ShapeText(const TensorView& t) {
  std::string text = "[";
  for (int axis = 0; axis < 4; ++axis)
    text += (axis > 0 ? "," : "") + std::to_string(t.shape[axis]);
  return text + "]";
}

Status Mismatch(std::string text) { return Status(StatusCode::kShapeMismatch, std::move(text)); }

Status CheckOneTensor(const TensorView& t, const char* name) {
  constexpr const char* kAxes[] = {"batch", "heads", "tokens", "channels"};
  constexpr int64_t kMin[] = {1, 1, 0, 1};
  constexpr int64_t kMax[] = {SequenceCache::kMaxRows, SequenceCache::kMaxRows,
                              SequenceCache::kMaxTokens, SequenceCache::kMaxChannels};
  for (int axis = 0; axis < 4; ++axis) {
    if (t.shape[axis] < kMin[axis] || t.shape[axis] > kMax[axis]) {
      return Mismatch(std::string(name) + " shape " + ShapeText(t) + ": " + kAxes[axis] +
                      " must be in " + std::to_string(kMin[axis]) + ".." +
                      std::to_string(kMax[axis]));
    }
  }
  if (t.shape[0] * t.shape[1] > SequenceCache::kMaxRows)
    return Mismatch(std::string(name) + " shape " + ShapeText(t) + " is too large");
  if (t.shape[2] > 0 && t.data == nullptr) {
    return Status(StatusCode::kInvalidArgument, std::string(name) + " data is NULL");
  }
  return Status();
}

}  // namespace

ElementType SequenceCache::StorageType(ElementType k, ElementType v) const {
  return k == ElementType::kBf16 && v == ElementType::kBf16 ? ElementType::kBf16
                                                            : ElementType::kF16;
}

int64_t SequenceCache::SeedCapacityTokens(int64_t before, int64_t, int64_t n_new) const {
  return RoundUp(before + n_new, kSeedStep);
}

bool SequenceCache::ThroughF16() const {
  return !settings_.bf16_direct && settings_.method != Method::kKivi &&
         settings_.method != Method::kFp16;
}

float SequenceCache::RoundToStorage(float x) const {
  switch (shape_.type) {
    case ElementType::kF32:
      return x;
    case ElementType::kF16:
      return F16ToF32(F32ToF16(x));
    case ElementType::kBf16:
      break;
  }
  return Bf16ToF32(F32ToBf16(!ThroughF16() ? x : F16ToF32(F32ToF16(x))));
}

Status SequenceCache::CheckTensors(const TensorView& k, const TensorView& v) const {
  VARVE_RETURN_IF_ERROR(CheckOneTensor(k, "keys"));
  VARVE_RETURN_IF_ERROR(CheckOneTensor(v, "values"));
  for (int axis = 0; axis < 3; ++axis) {
    if (k.shape[axis] != v.shape[axis]) {
      return Mismatch("keys " + ShapeText(k) + " and values " + ShapeText(v) +
                      " differ in more than their channels");
    }
  }
  if (k.shape[2] > SequenceCache::kMaxTokens - n_tokens_)
    return Status(StatusCode::kSizeOverflow, "too many tokens in all");
  if (!has_shape_) {
    const int64_t wanted = settings_.head_dim.value_or(0);
    if (wanted != 0 && settings_.head_dim_check && (wanted != k.shape[3])) {
      return Mismatch("head_dim = " + std::to_string(wanted) + ", but keys are " + ShapeText(k));
    }
    return Status();
  }
  if (k.shape[0] != shape_.batch || k.shape[1] != shape_.n_kv_heads ||
      k.shape[3] != shape_.head_dim_k || v.shape[3] != shape_.head_dim_v) {
    return Mismatch("keys " + ShapeText(k) + ", values " + ShapeText(v) + "; the cache holds " +
                    std::to_string(shape_.batch) + " rows of " + std::to_string(shape_.n_kv_heads) +
                    " heads with " + std::to_string(shape_.head_dim_k) + " and " +
                    std::to_string(shape_.head_dim_v) + " channels");
  }
  return Status();
}

Status SequenceCache::CheckFinite(const TensorView& tensor, const char* name,
                                  ElementType storage) const {
  std::vector<float> row(static_cast<size_t>(tensor.shape[3]));
  // The per-token codecs keep a row's gain as f16, whatever the storage type.
  const bool narrows =
      (storage == ElementType::kF16 || settings_.codec == CodecChoice::kPerToken) &&
      tensor.type != ElementType::kF16;
  const float limit =
      narrows ? 65520.0f : std::numeric_limits<float>::infinity();  // from here on f16 is infinite
  for (int64_t b = 0; b < tensor.shape[0]; ++b) {
    for (int64_t h = 0; h < tensor.shape[1]; ++h) {
      for (int64_t t = 0; t < tensor.shape[2]; ++t) {
        tensor.LoadRow(b, h, t, row.data());
        int n_bad = 0;
        for (const float x : row) n_bad += std::fabs(x) < limit ? 0 : 1;
        if (n_bad == 0) continue;
        const size_t d =
            static_cast<size_t>(std::find_if_not(row.begin(), row.end(),
                                                 [&](float x) { return std::fabs(x) < limit; }) -
                                row.begin());
        return Status(
            StatusCode::kNonFinite,
            std::string(name) + "[" + std::to_string(b) + "," + std::to_string(h) + "," +
                std::to_string(t) + "," + std::to_string(d) + "] = " + std::to_string(row[d]) +
                (narrows && std::isfinite(row[d]) ? " does not fit f16" : " is not finite"));
      }
    }
  }
  return Status();
}

Status SequenceCache::SettleShape(const TensorView& k, const TensorView& v) {
  shape_.batch = k.shape[0];
  shape_.n_kv_heads = k.shape[1];
  shape_.head_dim_k = static_cast<int>(k.shape[3]);
  shape_.head_dim_v = static_cast<int>(v.shape[3]);
  shape_.type = StorageType(k.type, v.type);
  return Prepare();
}

Status SequenceCache::Append(const TensorView& k, const TensorView& v) {
  VARVE_RETURN_IF_ERROR(CheckTensors(k, v));
  const int64_t n = k.shape[2];
  if (settings_.reject_non_finite) {
    const ElementType storage = has_shape_ ? shape_.type : StorageType(k.type, v.type);
    VARVE_RETURN_IF_ERROR(CheckFinite(k, "keys", storage));
    VARVE_RETURN_IF_ERROR(CheckFinite(v, "values", storage));
  }
  if (!has_shape_) {
    // A first call that fails leaves the shape open again.
    struct Undo {
      SequenceCache* cache;
      ~Undo() {
        if (cache != nullptr) cache->Clear();
      }
    } undo{this};
    has_shape_ = true;
    VARVE_RETURN_IF_ERROR(SettleShape(k, v));
    if (n > 0) VARVE_RETURN_IF_ERROR(AppendTokens(k, v, n));
    undo.cache = nullptr;
  } else if (n > 0) {
    VARVE_RETURN_IF_ERROR(AppendTokens(k, v, n));
  }
  seed_capacity_ = SeedCapacityTokens(n_tokens_, seed_capacity_, n);
  n_tokens_ += n;
  tokens_seen_ += shape_.n_rows() * n;
  return Status();
}

Status SequenceCache::Trim(int64_t n, int64_t* removed) {
  *removed = 0;
  if (n < 0)
    return Status(StatusCode::kInvalidArgument, "n must be at least 0, got " + std::to_string(n));
  const int64_t dropped = std::min(n, n_tokens_);
  if (dropped > 0) VARVE_RETURN_IF_ERROR(KeepTokens(n_tokens_ - dropped));
  n_tokens_ -= dropped;
  *removed = dropped;
  return Status();
}

void SequenceCache::Clear() {
  if (has_shape_) Reset();
  has_shape_ = false;
  n_tokens_ = tokens_seen_ = seed_capacity_ = 0;
}

Result<std::unique_ptr<SequenceCache>> SequenceCache::SelectRows(
    std::span<const int64_t> rows) const {
  for (const int64_t row : rows) {
    if (row < 0 || row >= shape_.batch) {
      return Status(
          StatusCode::kInvalidArgument,
          "row must be in 0.." + std::to_string(shape_.batch - 1) + ", got " + std::to_string(row));
    }
  }
  if (rows.empty() && has_shape_)
    return Status(StatusCode::kInvalidArgument, "rows must name at least one row");
  std::vector<BatchRow> sources;
  for (const int64_t row : rows) sources.push_back({this, row});
  return CopyOf(sources);
}

Result<std::unique_ptr<SequenceCache>> SequenceCache::CopyOf(std::span<const BatchRow> rows) const {
  std::unique_ptr<SequenceCache> copy = MakeEmpty();
  copy->set_layer(layer_, n_layers_);
  if (!has_shape_) return copy;
  copy->shape_ = shape_;
  copy->shape_.batch = static_cast<int64_t>(rows.size());
  if (copy->shape_.n_rows() > kMaxRows) return Status(StatusCode::kSizeOverflow, "too many rows");
  VARVE_RETURN_IF_ERROR(copy->Prepare());
  VARVE_RETURN_IF_ERROR(copy->CopyRows(rows));
  copy->has_shape_ = true;
  copy->n_tokens_ = n_tokens_;
  for (const BatchRow& from : rows) {
    copy->seed_capacity_ = std::max(copy->seed_capacity_, from.cache->seed_capacity_);
    copy->tokens_seen_ += from.cache->tokens_seen_ / from.cache->shape_.batch;
  }
  return copy;
}

Status SequenceCache::CheckMerge(const SequenceCache& other) const {
  if (layer_ != other.layer_ || n_layers_ != other.n_layers_) {
    return Status(StatusCode::kIncompatible, "layer " + std::to_string(other.layer_) + " of " +
                                                 std::to_string(other.n_layers_) + ", layer " +
                                                 std::to_string(layer_) + " of " +
                                                 std::to_string(n_layers_) + " before it");
  }
  VARVE_RETURN_IF_ERROR(CheckSettingsLines(settings_, SettingsLines(other.settings_)));
  if (!has_shape_ || !other.has_shape_)
    return Status(StatusCode::kInvalidState, "a cache without tokens has no rows to merge");
  if (shape_.n_kv_heads != other.shape_.n_kv_heads ||
      shape_.head_dim_k != other.shape_.head_dim_k ||
      shape_.head_dim_v != other.shape_.head_dim_v || shape_.type != other.shape_.type ||
      n_tokens_ != other.n_tokens_) {
    const auto text = [](const SequenceCache& cache) {
      return std::to_string(cache.n_tokens_) + " tokens, " +
             std::to_string(cache.shape_.n_kv_heads) + " heads of " +
             std::to_string(cache.shape_.head_dim_k) + " and " +
             std::to_string(cache.shape_.head_dim_v) + " channels, type " +
             std::to_string(static_cast<int>(cache.shape_.type));
    };
    return Mismatch(text(other) + "; before it " + text(*this));
  }
  if (IsLaidOutAs(other)) return Status();
  return Status(
      StatusCode::kInvalidState,
      "its tokens are in other tiers than those before it (one was trimmed, or has another "
      "channel order)");
}

Result<std::unique_ptr<SequenceCache>> SequenceCache::Merge(
    std::span<const SequenceCache* const> caches) {
  if (caches.empty()) return Status(StatusCode::kInvalidArgument, "n_caches must be at least 1");
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < caches.size(); ++i) {
    if (const Status checked = caches[0]->CheckMerge(*caches[i]); !checked.ok())
      return Status(checked.code(), "caches[" + std::to_string(i) + "]: " + checked.text());
    for (int64_t row = 0; row < caches[i]->shape_.batch; ++row) rows.push_back({caches[i], row});
  }
  return caches[0]->CopyOf(rows);
}

Result<std::unique_ptr<SequenceCache>> SequenceCache::Clone() const {
  std::vector<int64_t> rows(static_cast<size_t>(shape_.batch));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return SelectRows(rows);
}

Status SequenceCache::Reserve(int64_t n) {
  if (n < 0 || n > SequenceCache::kMaxTokens) {
    return Status(StatusCode::kInvalidArgument, "n must be in 0.." +
                                                    std::to_string(SequenceCache::kMaxTokens) +
                                                    ", got " + std::to_string(n));
  }
  if (!has_shape_ || n <= n_tokens_) return Status();
  return ReserveTokens(n);
}

Status SequenceCache::Decode(Side side, int64_t first, int64_t n, ElementType type,
                             std::byte* out) const {
  if (first < 0 || n < 0 || first > n_tokens_ || n > n_tokens_ - first) {
    return Status(StatusCode::kInvalidArgument, "tokens " + std::to_string(first) + " + " +
                                                    std::to_string(n) + " are not within the " +
                                                    std::to_string(n_tokens_) + " held");
  }
  const size_t dim = static_cast<size_t>(shape_.head_dim(side));
  std::vector<float> tile(kTileTokens * dim);
  const bool through_f16 = type == ElementType::kBf16 && ThroughF16();
  for (int64_t row = 0; row < shape_.n_rows(); ++row) {
    for (int64_t at = first; at < first + n;) {
      const int step = static_cast<int>(std::min<int64_t>(TileTokens(at), first + n - at));
      DecodeTile(side, row, at, step, tile.data());
      const size_t n_elements = static_cast<size_t>(step) * dim;
      if (through_f16) {
        for (size_t i = 0; i < n_elements; ++i) tile[i] = F16ToF32(F32ToF16(tile[i]));
      }
      StoreElements(type, tile.data(), n_elements, out);
      out += n_elements * ElementBytes(type);
      at += step;
    }
  }
  return Status();
}

Status SequenceCache::TokenTiers(int64_t row, std::span<uint8_t> tiers) const {
  if (row < 0 || row >= shape_.n_rows()) {
    return Status(StatusCode::kInvalidArgument, "row must be in 0.." +
                                                    std::to_string(shape_.n_rows() - 1) + ", got " +
                                                    std::to_string(row));
  }
  if (static_cast<int64_t>(tiers.size()) != n_tokens_) {
    return Status(StatusCode::kInvalidArgument, "tiers must have room for " +
                                                    std::to_string(n_tokens_) + ", got " +
                                                    std::to_string(tiers.size()));
  }
  FillTokenTiers(row, tiers.data());
  return Status();
}

Status SequenceCache::SetChannelOrder(const AmcLayerOrder&) {
  return Status(StatusCode::kUnsupported, std::string("method ") + MethodName(settings_.method) +
                                              " keeps all channels: it takes no channel order");
}

SequenceStats SequenceCache::Stats() const {
  SequenceStats stats;
  stats.n_tokens = n_tokens_;
  stats.tokens_seen = tokens_seen_;
  const int64_t channels = shape_.head_dim_k + shape_.head_dim_v;
  stats.full_seq_bytes = shape_.n_rows() * n_tokens_ * channels * 2;
  stats.seed_nbytes =
      shape_.n_rows() * seed_capacity_ * channels * static_cast<int64_t>(ElementBytes(shape_.type));
  stats.stored_bytes = arena_.held_bytes();
  FillStats(&stats);
  if (stats.nominal_bytes > 0) {
    stats.nominal_ratio =
        static_cast<double>(stats.full_seq_bytes) / static_cast<double>(stats.nominal_bytes);
  }
  return stats;
}

}  // namespace varve
