#include "kv_layer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "log.h"

namespace varve::plugin {
namespace {

constexpr size_t kChunkBytes =
    size_t{1} << 20;  ///< decoded rows held at a time while bytes are read or written

bool AllZero(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

int64_t RowsPerChunk(const KvTensor& tensor) {
  return std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes / tensor.row_bytes));
}

bool IsPackable(ggml_type type) { return type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

}  // namespace

bool ToVarveType(ggml_type type, varve_type* out) {
  switch (type) {
    case GGML_TYPE_F32:
      *out = VARVE_F32;
      return true;
    case GGML_TYPE_F16:
      *out = VARVE_F16;
      return true;
    case GGML_TYPE_BF16:
      *out = VARVE_BF16;
      return true;
    default:
      return false;
  }
}

KvLayer::KvLayer(int index, std::string tag, ConfigPtr config, AddressRange* range,
                 std::mutex* mutex)
    : index_(index),
      tag_(std::move(tag)),
      config_(std::move(config)),
      range_(range),
      mutex_(mutex) {}

bool KvLayer::AddTensor(varve_side side, const ggml_tensor* declared, size_t offset) {
  const std::lock_guard lock(*mutex_);
  KvTensor& added = tensor(side);
  added = {this,
           side,
           declared->type,
           offset,
           ggml_nbytes(declared),
           ggml_row_size(declared->type, declared->ne[0]),
           declared->ne[0],
           declared->ne[1],
           declared->ne[2]};
  const KvTensor& other = tensor(side == VARVE_KEY ? VARVE_VALUE : VARVE_KEY);
  if (form_ == KvForm::kPlain) return range_->MakeWritable(offset, added.bytes);
  if (!IsPackable(added.type)) {
    return MakePlainLocked(std::string("its declared type is ") + ggml_type_name(added.type) +
                               " and only f16 and bf16 are packed",
                           false);
  }
  if (other.present() && (other.n_cells != added.n_cells || other.n_streams != added.n_streams)) {
    return MakePlainLocked("its K and V have different numbers of cells", false);
  }
  return true;
}

KvForm KvLayer::form() const {
  const std::lock_guard lock(*mutex_);
  return form_;
}

std::string KvLayer::plain_reason() const {
  const std::lock_guard lock(*mutex_);
  return plain_reason_;
}

bool KvLayer::LearnAttention(HeadShape key, int head_dim_v) {
  const std::lock_guard lock(*mutex_);
  if (form_ == KvForm::kPacked || attention_seen_)
    return key_heads_ == key && head_dim_v_ == head_dim_v;
  key_heads_ = key;
  head_dim_v_ = head_dim_v;
  attention_seen_ = true;
  return true;
}

void KvLayer::LearnWrite(varve_side side, HeadShape heads) {
  const std::lock_guard lock(*mutex_);
  if (form_ != KvForm::kUndecided || attention_seen_ || !heads.known()) return;
  if (side == VARVE_KEY) {
    key_heads_ = heads;
  } else {
    head_dim_v_ = heads.head_dim;
  }
}

void KvLayer::LearnRope(RopeShape rope) {
  const std::lock_guard lock(*mutex_);
  if (rope == rope_) return;
  rope_ = rope;
  // Once a table is fitted the pairing stands; a later write of another kind is coded with it all
  // the same.
  if (cells_ != nullptr) (void)varve_cells_set_rope(cells_.get(), rope.kind, rope.n_dims);
}

bool KvLayer::Failed(const char* what) const {
  Say("layer %d: %s failed: %s", index_, what, varve_last_error());
  return false;
}

bool KvLayer::MakePlain(const std::string& reason, bool loud) {
  const std::lock_guard lock(*mutex_);
  return MakePlainLocked(reason, loud);
}

bool KvLayer::MakePlainLocked(const std::string& reason, bool loud) {
  if (form_ == KvForm::kPlain) return true;
  for (const KvTensor* moved : {&key_, &value_}) {
    if (!moved->present()) continue;
    if (!range_->MakeWritable(moved->offset, moved->bytes)) {
      Say("layer %d: the system has no %zu MiB for plain storage", index_, moved->bytes >> 20);
      return false;
    }
    if (form_ != KvForm::kPacked) continue;
    const int64_t n_rows = moved->n_cells * moved->n_streams;
    std::vector<std::byte> rows;
    for (int64_t first = 0; first < n_rows; first += RowsPerChunk(*moved)) {
      rows.resize(static_cast<size_t>(std::min(RowsPerChunk(*moved), n_rows - first)) *
                  moved->row_bytes);
      const size_t at = static_cast<size_t>(first) * moved->row_bytes;
      if (!ReadBytesLocked(*moved, at, rows.data(), rows.size())) return false;
      if (!AllZero(rows)) std::memcpy(PlainData(*moved) + at, rows.data(), rows.size());
    }
  }
  cells_.reset();
  form_ = KvForm::kPlain;
  plain_reason_ = reason;
  if (loud) Say("layer %d goes to plain storage: %s", index_, reason.c_str());
  return true;
}

bool KvLayer::Settle() {
  const std::lock_guard lock(*mutex_);
  return SettleLocked();
}

bool KvLayer::SettleLocked() {
  if (form_ != KvForm::kUndecided) return true;
  if (!key_.present()) return MakePlainLocked("it has no K tensor", false);
  if (!key_heads_.known()) return MakePlainLocked("no graph has shown its head size yet", false);
  if (value_.present() && head_dim_v_ * key_heads_.n_heads != value_.row_elements) {
    return MakePlainLocked("the heads of its V do not fill a row", false);
  }
  varve_cells_params params = {};
  params.struct_size = sizeof(params);
  params.n_cells = static_cast<int32_t>(key_.n_cells);
  params.n_streams = static_cast<int32_t>(key_.n_streams);
  params.n_kv_heads = key_heads_.n_heads;
  params.head_dim_k = key_heads_.head_dim;
  params.head_dim_v = value_.present() ? head_dim_v_ : 0;
  params.layer = index_;
  params.n_layers = n_layers_;
  params.rope_kind = rope_.kind;
  params.n_rope_dims = rope_.n_dims;
  varve_cells* cells = nullptr;
  if (varve_cells_create(config_.get(), &params, &cells) != VARVE_OK) {
    return MakePlainLocked(varve_last_error(), false);
  }
  cells_.reset(cells);
  form_ = KvForm::kPacked;
  return true;
}

bool KvLayer::WriteRows(varve_side side, const std::vector<int64_t>& index,
                        const std::vector<int32_t>& positions, const void* rows, varve_type type,
                        size_t row_stride_bytes, int n_threads) {
  const std::lock_guard lock(*mutex_);
  const int64_t n_rows = key_.n_cells * key_.n_streams;
  for (const int64_t cell : index) {
    if (cell >= 0 && cell < n_rows) continue;
    Say("layer %d: cell %lld is outside 0..%lld", index_, static_cast<long long>(cell),
        static_cast<long long>(n_rows - 1));
    return false;
  }
  if (side == VARVE_KEY) {
    last_index_ = index;
    last_positions_ = positions;
  }
  const bool as_keys = side == VARVE_VALUE && positions.empty() && index == last_index_;
  return WriteRowsLocked(tensor(side), index, as_keys ? last_positions_ : positions, rows, type,
                         row_stride_bytes, n_threads);
}

bool KvLayer::WriteRowsLocked(const KvTensor& to, const std::vector<int64_t>& index,
                              const std::vector<int32_t>& positions, const void* rows,
                              varve_type type, size_t row_stride_bytes, int n_threads) {
  const varve_status status = varve_cells_write(
      cells_.get(), to.side, index.data(), positions.empty() ? nullptr : positions.data(), rows,
      type, row_stride_bytes, static_cast<int32_t>(index.size()), n_threads);
  return status == VARVE_OK || Failed("a write");
}

bool KvLayer::ReadBytes(varve_side side, size_t offset, void* data, size_t size) const {
  const std::lock_guard lock(*mutex_);
  return ReadBytesLocked(tensor(side), offset, data, size);
}

bool KvLayer::ReadBytesLocked(const KvTensor& from, size_t offset, void* data, size_t size) const {
  if (form_ == KvForm::kPlain) {
    std::memcpy(data, PlainData(from) + offset, size);
    return true;
  }
  std::memset(data, 0, size);
  if (form_ == KvForm::kUndecided) return true;
  varve_type type;
  if (!ToVarveType(from.type, &type)) return false;
  std::vector<std::byte> rows;
  auto* out = static_cast<std::byte*>(data);
  while (size > 0) {
    const size_t row = offset / from.row_bytes;
    const size_t skip = offset % from.row_bytes;
    const int64_t n_wanted =
        static_cast<int64_t>((skip + size + from.row_bytes - 1) / from.row_bytes);
    const int64_t n_rows = std::min(n_wanted, RowsPerChunk(from));
    rows.resize(static_cast<size_t>(n_rows) * from.row_bytes);
    if (varve_cells_read(cells_.get(), from.side, static_cast<int64_t>(row),
                         static_cast<int32_t>(n_rows), rows.data(), type) != VARVE_OK) {
      return Failed("a read");
    }
    const size_t n_taken = std::min(size, rows.size() - skip);
    std::memcpy(out, rows.data() + skip, n_taken);
    out += n_taken;
    offset += n_taken;
    size -= n_taken;
  }
  return true;
}

bool KvLayer::WriteBytes(varve_side side, size_t offset, const void* data, size_t size,
                         int n_threads) {
  const std::lock_guard lock(*mutex_);
  const KvTensor& to = tensor(side);
  if (!SettleLocked()) return false;
  if (form_ == KvForm::kPlain) {
    std::memcpy(PlainData(to) + offset, data, size);
    return true;
  }
  varve_type type;
  if (!ToVarveType(to.type, &type)) return false;
  std::vector<std::byte> rows;
  const auto* in = static_cast<const std::byte*>(data);
  while (size > 0) {
    const size_t row = offset / to.row_bytes;
    const size_t skip = offset % to.row_bytes;
    const size_t room = static_cast<size_t>(RowsPerChunk(to)) * to.row_bytes - skip;
    const size_t n_taken = std::min(size, room);
    const size_t n_rows = (skip + n_taken + to.row_bytes - 1) / to.row_bytes;
    rows.resize(n_rows * to.row_bytes);
    // Rows that the range covers only in part keep the rest of what they hold.
    const bool partial_head = skip != 0;
    const bool partial_tail = (skip + n_taken) % to.row_bytes != 0;
    if (partial_head && !ReadBytesLocked(to, row * to.row_bytes, rows.data(), to.row_bytes))
      return false;
    if (partial_tail && (n_rows > 1 || !partial_head) &&
        !ReadBytesLocked(to, (row + n_rows - 1) * to.row_bytes,
                         rows.data() + (n_rows - 1) * to.row_bytes, to.row_bytes)) {
      return false;
    }
    std::memcpy(rows.data() + skip, in, n_taken);
    std::vector<int64_t> index(n_rows);
    std::iota(index.begin(), index.end(), static_cast<int64_t>(row));
    if (!WriteRowsLocked(to, index, {}, rows.data(), type, to.row_bytes, n_threads)) return false;
    in += n_taken;
    offset += n_taken;
    size -= n_taken;
  }
  return true;
}

bool KvLayer::CopyRows(varve_side side, int64_t first, const KvLayer& from, int64_t from_first,
                       int64_t n) {
  if (mutex_ != from.mutex_) return false;  // two buffers: through bytes, one lock at a time
  const std::lock_guard lock(*mutex_);
  if (from.form_ != KvForm::kPacked || form_ == KvForm::kPlain ||
      tensor(side).type != from.tensor(side).type) {
    return false;
  }
  if (!SettleLocked() || form_ != KvForm::kPacked) return false;
  return varve_cells_copy(cells_.get(), first, from.cells_.get(), from_first,
                          static_cast<int32_t>(n), side) == VARVE_OK;
}

bool KvLayer::Attend(const varve_attend_args& args) {
  const std::lock_guard lock(*mutex_);
  return varve_cells_attend(cells_.get(), &args) == VARVE_OK || Failed("attention");
}

varve_status KvLayer::Shift(int64_t first, const std::vector<int32_t>& delta,
                            const varve_rope_params& rope) {
  const std::lock_guard lock(*mutex_);
  const varve_status status = varve_cells_shift(cells_.get(), first, delta.data(),
                                                static_cast<int32_t>(delta.size()), &rope);
  if (status != VARVE_OK && status != VARVE_ERROR_UNSUPPORTED) Failed("a shift");
  return status;
}

void KvLayer::Clear() {
  const std::lock_guard lock(*mutex_);
  last_index_.clear();
  last_positions_.clear();
  if (form_ == KvForm::kPlain) {
    for (const KvTensor* cleared : {&key_, &value_}) {
      if (cleared->present()) range_->Zero(cleared->offset, cleared->bytes);
    }
  } else if (form_ == KvForm::kPacked) {
    const auto n_rows = static_cast<int32_t>(key_.n_cells * key_.n_streams);
    if (varve_cells_forget(cells_.get(), 0, n_rows) != VARVE_OK) Failed("clearing");
  }
}

bool KvLayer::Stats(varve_cells_stats* stats) const {
  const std::lock_guard lock(*mutex_);
  *stats = {};
  stats->struct_size = sizeof(*stats);
  return form_ == KvForm::kPacked && varve_cells_get_stats(cells_.get(), stats) == VARVE_OK;
}

}  // namespace varve::plugin
