// Tensors that callers hand to a sequence cache: [B,H,S,D] with strides, f32, f16 or bf16.
#ifndef VARVE_CACHE_SEQUENCE_TENSOR_H_
#define VARVE_CACHE_SEQUENCE_TENSOR_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/f16.h"

namespace varve {

/// Numbers as in varve_type of varve.h.
enum class ElementType : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

inline float LoadElement(ElementType type, const std::byte* from) {
  if (type == ElementType::kF32) {
    float x;
    std::memcpy(&x, from, sizeof(x));
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return type == ElementType::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

inline void StoreElement(ElementType type, float x, std::byte* to) {
  if (type == ElementType::kF32) {
    std::memcpy(to, &x, sizeof(x));
    return;
  }
  const uint16_t bits = type == ElementType::kF16 ? F32ToF16(x) : F32ToBf16(x);
  std::memcpy(to, &bits, sizeof(bits));
}

/// n consecutive elements to f32. `from` is aligned to its elements or not.
inline void LoadElements(ElementType type, const std::byte* from, size_t n, float* to) {
  if (type == ElementType::kF32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  const bool f16 = type == ElementType::kF16;
  for (size_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, from + i * sizeof(half), sizeof(half));
    if (!f16) {
      to[i] = Bf16ToF32(half);
      continue;
    }
    // F16ToF32 without branches, so that it runs in vectors: a scaling puts the exponent right,
    // subnormals included.
    const uint32_t magnitude = half & 0x7fffu;
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
    to[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special |
                                 static_cast<uint32_t>(half & 0x8000u) << 16);
  }
}

inline void StoreElements(ElementType type, const float* from, size_t n, std::byte* to) {
  const size_t step = ElementBytes(type);
  for (size_t i = 0; i < n; ++i) StoreElement(type, from[i], to + i * step);
}

/// shape and strides: batch, head, token, channel. Strides in elements, possibly 0 or negative.
struct TensorView {
  const std::byte* data = nullptr;
  ElementType type = ElementType::kF16;
  int64_t shape[4] = {0, 0, 0, 0};
  int64_t stride[4] = {0, 0, 0, 0};

  const std::byte* at(int64_t batch, int64_t head, int64_t token) const {
    const int64_t offset = batch * stride[0] + head * stride[1] + token * stride[2];
    return data + offset * static_cast<int64_t>(ElementBytes(type));
  }

  /// One token's channels to f32.
  void LoadRow(int64_t batch, int64_t head, int64_t token, float* row) const {
    const std::byte* from = at(batch, head, token);
    if (stride[3] == 1) return LoadElements(type, from, static_cast<size_t>(shape[3]), row);
    const int64_t step = stride[3] * static_cast<int64_t>(ElementBytes(type));
    for (int64_t d = 0; d < shape[3]; ++d) row[d] = LoadElement(type, from + d * step);
  }
};

}  // namespace varve

#endif  // VARVE_CACHE_SEQUENCE_TENSOR_H_
