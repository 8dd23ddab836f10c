// What every sequence cache puts into a session file, and its way back.
#include <algorithm>
#include <string>

#include "cache/sequence_cache.h"
#include "cache/settings_identity.h"

namespace varve {
namespace {

/// Integers before the settings.
constexpr size_t kFixedBytes = 11 * sizeof(int64_t);
constexpr int64_t kMaxCount = int64_t{1} << 62;

Status Bad(const std::string& what) { return Status(StatusCode::kBadFormat, what); }

Status CheckSame(const char* field, int64_t stored, int64_t own) {
  if (stored == own) return Status();
  return Status(StatusCode::kIncompatible, std::string(field) + " is " + std::to_string(stored) +
                                               " in the session, " + std::to_string(own) + " here");
}

Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return Bad(std::string(field) + " must be in " + std::to_string(low) + ".." +
             std::to_string(high) + ", got " + std::to_string(value));
}

}  // namespace

void SequenceCache::Save(uint32_t index, SessionWriter* writer) const {
  ByteWriter& own = writer->Add(SectionType::kCache, index).own;
  own.Put(static_cast<int64_t>(layer_));
  own.Put(static_cast<int64_t>(n_layers_));
  own.Put(int64_t{has_shape_});
  const SequenceShape shape = has_shape_ ? shape_ : SequenceShape{};
  own.Put(shape.batch);
  own.Put(shape.n_kv_heads);
  own.Put(int64_t{shape.head_dim_k});
  own.Put(int64_t{shape.head_dim_v});
  own.Put(static_cast<int64_t>(has_shape_ ? shape.type : ElementType::kF32));
  own.Put(n_tokens_);
  own.Put(tokens_seen_);
  own.Put(seed_capacity_);
  own.PutAll(SettingsLines(settings_));
  SaveContent(index, writer);
}

// Shape and counters; what this cache holds itself has nothing to say against them by now.
Status SequenceCache::LoadShape(ByteReader* from) {
  const bool has_shape = from->Get<int64_t>() != 0;
  const std::array<int64_t, 5> shape = {from->Get<int64_t>(), from->Get<int64_t>(),
                                        from->Get<int64_t>(), from->Get<int64_t>(),
                                        from->Get<int64_t>()};
  const auto n_tokens = from->Get<int64_t>();
  const auto tokens_seen = from->Get<int64_t>();
  const auto seed_capacity = from->Get<int64_t>();
  if (!has_shape) {
    const bool zeros = std::all_of(shape.begin(), shape.end(), [](int64_t x) { return x == 0; });
    if (zeros && n_tokens == 0 && tokens_seen == 0 && seed_capacity == 0) return Status();
    return Bad("a cache without a shape has counters");
  }
  VARVE_RETURN_IF_ERROR(CheckRange("batch", shape[0], 1, kMaxRows));
  VARVE_RETURN_IF_ERROR(CheckRange("n_kv_heads", shape[1], 1, kMaxRows / shape[0]));
  VARVE_RETURN_IF_ERROR(CheckRange("head_dim_k", shape[2], 1, kMaxChannels));
  VARVE_RETURN_IF_ERROR(CheckRange("head_dim_v", shape[3], 1, kMaxChannels));
  VARVE_RETURN_IF_ERROR(
      CheckRange("storage_type", shape[4], settings_.method == Method::kKivi ? 0 : 1, 2));
  const bool exact_width = settings_.head_dim.has_value() && settings_.head_dim_check;
  if (exact_width) VARVE_RETURN_IF_ERROR(CheckSame("head_dim", shape[2], *settings_.head_dim));
  VARVE_RETURN_IF_ERROR(CheckRange("n_tokens", n_tokens, 0, kMaxTokens));
  VARVE_RETURN_IF_ERROR(CheckRange("tokens_seen", tokens_seen, 0, kMaxCount));
  VARVE_RETURN_IF_ERROR(CheckRange("seed_capacity", seed_capacity, 0, 2 * kMaxTokens));
  // All counters of bytes fit their integers when eight bytes an element do.
  int64_t elements = 0;
  if (__builtin_mul_overflow(shape[0] * shape[1] * (shape[2] + shape[3]) * 8,
                             std::max(n_tokens, seed_capacity), &elements)) {
    return Bad("n_tokens = " + std::to_string(n_tokens) + " and seed_capacity = " +
               std::to_string(seed_capacity) + " are too large for the shape");
  }
  shape_ = {shape[0], shape[1], static_cast<int>(shape[2]), static_cast<int>(shape[3]),
            static_cast<ElementType>(shape[4])};
  has_shape_ = true;
  n_tokens_ = n_tokens;
  tokens_seen_ = tokens_seen;
  seed_capacity_ = seed_capacity;
  return Status();
}

Result<std::unique_ptr<SequenceCache>> SequenceCache::Load(uint32_t index,
                                                           SessionReader* reader) const {
  Result<std::vector<std::byte>> bytes = reader->Read(SectionType::kCache, index);
  if (!bytes.ok()) return bytes.status();
  if (bytes.value().size() < kFixedBytes) return Bad("cut short");
  ByteReader fixed(std::span(bytes.value()).first(kFixedBytes));
  const auto lines = std::span(bytes.value()).subspan(kFixedBytes);
  VARVE_RETURN_IF_ERROR(CheckSame("layer", fixed.Get<int64_t>(), layer_));
  VARVE_RETURN_IF_ERROR(CheckSame("n_layers", fixed.Get<int64_t>(), n_layers_));
  VARVE_RETURN_IF_ERROR(
      CheckSettingsLines(settings_, {reinterpret_cast<const char*>(lines.data()), lines.size()}));
  std::unique_ptr<SequenceCache> loaded = MakeEmpty();
  loaded->set_layer(layer_, n_layers_);
  VARVE_RETURN_IF_ERROR(loaded->LoadShape(&fixed));
  if (has_shape_ && loaded->has_shape_) {
    VARVE_RETURN_IF_ERROR(CheckSame("batch", loaded->shape_.batch, shape_.batch));
    VARVE_RETURN_IF_ERROR(CheckSame("n_kv_heads", loaded->shape_.n_kv_heads, shape_.n_kv_heads));
    VARVE_RETURN_IF_ERROR(CheckSame("head_dim_k", loaded->shape_.head_dim_k, shape_.head_dim_k));
    VARVE_RETURN_IF_ERROR(CheckSame("head_dim_v", loaded->shape_.head_dim_v, shape_.head_dim_v));
    VARVE_RETURN_IF_ERROR(CheckSame("storage_type", static_cast<int64_t>(loaded->shape_.type),
                                    static_cast<int64_t>(shape_.type)));
  }
  VARVE_RETURN_IF_ERROR(loaded->LoadContent(index, reader));
  return loaded;
}

}  // namespace varve
