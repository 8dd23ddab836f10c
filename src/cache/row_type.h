// Rows as hosts hand them over: f32, f16 or bf16, to and from the f32 that the codecs work on.
#ifndef VARVE_CACHE_ROW_TYPE_H_
#define VARVE_CACHE_ROW_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/f16.h"

namespace varve {

/// Same numbers as varve_type.
enum class RowType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

inline size_t RowTypeBytes(RowType type) { return type == RowType::kF32 ? 4 : 2; }

/// n elements at `src`, of any alignment, to f32.
inline void LoadRow(RowType type, const void* src, size_t n, float* row) {
  if (type == RowType::kF32) {
    std::memcpy(row, src, n * sizeof(float));
    return;
  }
  const auto* bytes = static_cast<const std::byte*>(src);
  for (size_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, bytes + 2 * i, sizeof half);
    row[i] = type == RowType::kF16 ? F16ToF32(half) : Bf16ToF32(half);
  }
}

/// n elements of f32 to `dst`, of any alignment, rounded to nearest even.
inline void StoreRow(RowType type, const float* row, size_t n, void* dst) {
  if (type == RowType::kF32) {
    std::memcpy(dst, row, n * sizeof(float));
    return;
  }
  auto* bytes = static_cast<std::byte*>(dst);
  for (size_t i = 0; i < n; ++i) {
    const uint16_t half = type == RowType::kF16 ? F32ToF16(row[i]) : F32ToBf16(row[i]);
    std::memcpy(bytes + 2 * i, &half, sizeof half);
  }
}

}  // namespace varve

#endif  // VARVE_CACHE_ROW_TYPE_H_
