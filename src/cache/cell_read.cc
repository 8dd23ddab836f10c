// Rows back out of a cell cache: exact where a sink is kept, else decoded, with the pending
// rotation applied.
#include <algorithm>
#include <string>
#include <vector>

#include "cache/cell_cache.h"

namespace varve {

void CellCache::DecodeCell(Side side, const Stream& stream, int32_t block_index, int token,
                           float* row) const {
  const auto s = static_cast<size_t>(side);
  const size_t n = row_elements(side);
  const uint32_t bit = uint32_t{1} << token;
  if (static_cast<size_t>(block_index) >= stream.blocks.size() ||
      (stream.blocks[static_cast<size_t>(block_index)].written[s] & bit) == 0) {
    std::fill_n(row, n, 0.0f);
    return;
  }
  const CellBlock& block = stream.blocks[static_cast<size_t>(block_index)];
  if ((block.exact[s] & bit) != 0) {
    const auto& exact = stream.exact_cells.find(block_index * kBlockTokens + token)->second.row[s];
    LoadRow(RowType::kF16, exact.data(), n, row);
    return;
  }
  DecodeRow(Coding(side, block.payload[s].stage), shape_.n_kv_heads, block.payload[s].data, token,
            row);
}

void CellCache::ReadCell(Side side, int64_t cell, float* row) const {
  const CellPlace place = Locate(cell);
  const Stream& stream = streams_[static_cast<size_t>(place.stream)];
  DecodeCell(side, stream, place.block, place.token, row);
  if (side == Side::kKey && static_cast<size_t>(place.block) < stream.blocks.size()) {
    const int32_t rotation = stream.blocks[static_cast<size_t>(place.block)].rotation(place.token);
    if (rotation != 0) rotations_.Apply(rotation, shape_.n_kv_heads, shape_.head_dim_k, row);
  }
}

Status CellCache::CheckRead(Side side, int32_t n, const void* rows, RowType type) const {
  VARVE_RETURN_IF_ERROR(CheckSide(side));
  if (static_cast<unsigned>(type) > 2) {
    return Status(StatusCode::kInvalidArgument, "type=" + std::to_string(static_cast<int>(type)) +
                                                    " must be 0 (f32), 1 (f16) or 2 (bf16)");
  }
  if (n > 0 && rows == nullptr) return Status(StatusCode::kInvalidArgument, "rows is NULL");
  return Status();
}

Status CellCache::Read(Side side, int64_t first, int32_t n, void* rows, RowType type) const {
  VARVE_RETURN_IF_ERROR(CheckRead(side, n, rows, type));
  VARVE_RETURN_IF_ERROR(CheckRange(first, n));
  const size_t elements = row_elements(side);
  std::vector<float> row(elements);
  auto* out = static_cast<std::byte*>(rows);
  for (int32_t i = 0; i < n; ++i, out += elements * RowTypeBytes(type)) {
    ReadCell(side, first + i, row.data());
    StoreRow(type, row.data(), elements, out);
  }
  return Status();
}

Status CellCache::Gather(Side side, const int64_t* index, int32_t n, void* rows,
                         RowType type) const {
  VARVE_RETURN_IF_ERROR(CheckRead(side, n, rows, type));
  if (n < 0)
    return Status(StatusCode::kInvalidArgument, "n=" + std::to_string(n) + " must not be negative");
  if (n > 0 && index == nullptr) return Status(StatusCode::kInvalidArgument, "index is NULL");
  for (int32_t i = 0; i < n; ++i) VARVE_RETURN_IF_ERROR(CheckRange(index[i], 1));
  const size_t elements = row_elements(side);
  std::vector<float> row(elements);
  auto* out = static_cast<std::byte*>(rows);
  for (int32_t i = 0; i < n; ++i, out += elements * RowTypeBytes(type)) {
    ReadCell(side, index[i], row.data());
    StoreRow(type, row.data(), elements, out);
  }
  return Status();
}

}  // namespace varve
