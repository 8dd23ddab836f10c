#include "codec/group_affine_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/f16.h"
#include "codec/group_affine_pack.h"

namespace varve {
namespace {

constexpr int kStrip = 64;

// lo and hi of params [first, first + n).
void LoadParams(const AffineBlockLayout& layout, const std::byte* block, size_t first, size_t n,
                float* lo, float* hi) {
  const size_t n_params = layout.shape.n_params();
  for (size_t i = 0; i < n; ++i) {
    lo[i] = LoadExact(layout.format, block, first + i);
    hi[i] = LoadExact(layout.format, block, n_params + first + i);
  }
}

void LoadRows(ExactFormat format, const std::byte* rows, size_t first, size_t n, float* to) {
  for (size_t i = 0; i < n; ++i) to[i] = LoadExact(format, rows, first + i);
}

// The one width of `from` that `bits` can be derived from by integers, else the first.
int SourceFor(const AffineBlockLayout& from, int bits) {
  for (int i = 0; i < from.n_widths; ++i) {
    if (!from.is_exact(i) && WidthsNest(from.widths[static_cast<size_t>(i)], bits)) return i;
  }
  return 0;
}

}  // namespace

float LoadExact(ExactFormat format, const std::byte* from, size_t index) {
  if (format == ExactFormat::kF32) {
    float x;
    std::memcpy(&x, from + index * sizeof(x), sizeof(x));
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, from + index * sizeof(bits), sizeof(bits));
  return format == ExactFormat::kF16 ? F16ToF32(bits) : Bf16ToF32(bits);
}

void StoreExact(ExactFormat format, float x, std::byte* to, size_t index) {
  if (format == ExactFormat::kF32) {
    std::memcpy(to + index * sizeof(x), &x, sizeof(x));
    return;
  }
  const uint16_t bits = format == ExactFormat::kF16 ? F32ToF16(x) : F32ToBf16(x);
  std::memcpy(to + index * sizeof(bits), &bits, sizeof(bits));
}

bool AffineBlockLayout::has_params() const {
  for (int i = 0; i < n_widths; ++i) {
    if (!is_exact(i)) return true;
  }
  return false;
}

size_t AffineBlockLayout::param_bytes() const {
  return has_params() ? 2 * shape.n_params() * ExactBytes(format) : 0;
}

size_t AffineBlockLayout::stream_bytes(int index) const {
  if (is_exact(index)) return shape.n_elements() * ExactBytes(format);
  return PackedCodeBytes(shape.n_elements(), widths[static_cast<size_t>(index)]);
}

size_t AffineBlockLayout::stream_offset(int index) const {
  size_t offset = param_bytes();
  for (int i = 0; i < index; ++i) offset += stream_bytes(i);
  return offset;
}

int AffineBlockLayout::find(int bits) const {
  for (int i = 0; i < n_widths; ++i) {
    if (widths[static_cast<size_t>(i)] == bits) return i;
  }
  return -1;
}

void AffineScratch::Fit(const GroupShape& shape) {
  lo.resize(std::max(lo.size(), shape.n_params()));
  hi.resize(std::max(hi.size(), shape.n_params()));
  tile.resize(std::max(tile.size(), shape.n_elements()));
  codes.resize(std::max(codes.size(), shape.n_elements()));
}

size_t AffineScratch::held_bytes() const {
  return (lo.capacity() + hi.capacity() + tile.capacity()) * sizeof(float) +
         codes.capacity() * sizeof(uint16_t);
}

void EncodeAffineBlock(const AffineBlockLayout& layout, const float* tile, AffineScratch& scratch,
                       std::byte* block) {
  const GroupShape& shape = layout.shape;
  const size_t n_elements = shape.n_elements();
  if (layout.has_params()) {
    FitGroups(shape, tile, scratch.lo.data(), scratch.hi.data());
    const size_t n_params = shape.n_params();
    for (size_t i = 0; i < n_params; ++i) {
      StoreExact(layout.format, scratch.lo[i], block, i);
      StoreExact(layout.format, scratch.hi[i], block, n_params + i);
    }
  }
  for (int i = 0; i < layout.n_widths; ++i) {
    std::byte* stream = block + layout.stream_offset(i);
    if (layout.is_exact(i)) {
      for (size_t e = 0; e < n_elements; ++e) StoreExact(layout.format, tile[e], stream, e);
      continue;
    }
    const int bits = layout.widths[static_cast<size_t>(i)];
    QuantizeGroups(shape, bits, tile, scratch.lo.data(), scratch.hi.data(), scratch.codes.data());
    PackCodes(bits, scratch.codes.data(), n_elements, stream);
  }
}

void DecodeAffineBlock(const AffineBlockLayout& layout, const std::byte* block, int first, int n,
                       float* tile) {
  const GroupShape& shape = layout.shape;
  const size_t dim = static_cast<size_t>(shape.dim);
  const std::byte* stream = block + layout.stream_offset(0);
  if (layout.is_exact(0)) {
    LoadRows(layout.format, stream, static_cast<size_t>(first) * dim, static_cast<size_t>(n) * dim,
             tile);
    return;
  }
  const int bits = layout.widths[0];
  std::array<uint16_t, kStrip> codes;
  std::array<float, kStrip> lo, hi, scale;
  const auto decode = [&](int token, int channel, int width) {
    const size_t element = static_cast<size_t>(token) * dim + static_cast<size_t>(channel);
    UnpackCodes(bits, stream, element, static_cast<size_t>(width), codes.data());
    float* out = tile + static_cast<size_t>(token - first) * dim + channel;
    for (int i = 0; i < width; ++i)
      out[i] = static_cast<float>(static_cast<int>(codes[i])) * scale[i] + lo[i];
  };
  if (shape.axis == GroupAxis::kTokens) {
    for (int token = first; token < first + n;) {
      const int group = token / shape.group_size;
      const int end = std::min((group + 1) * shape.group_size, first + n);
      for (int channel = 0; channel < shape.dim; channel += kStrip) {
        const int width = std::min(kStrip, shape.dim - channel);
        LoadParams(layout, block, static_cast<size_t>(group) * dim + static_cast<size_t>(channel),
                   static_cast<size_t>(width), lo.data(), hi.data());
        for (int i = 0; i < width; ++i) scale[i] = AffineScale(lo[i], hi[i], bits);
        for (int t = token; t < end; ++t) decode(t, channel, width);
      }
      token = end;
    }
    return;
  }
  const int n_groups = shape.n_groups();
  for (int token = first; token < first + n; ++token) {
    for (int group = 0; group < n_groups; ++group) {
      const int begin = group * shape.group_size;
      const int end = std::min(begin + shape.group_size, shape.dim);
      LoadParams(
          layout, block,
          static_cast<size_t>(token) * static_cast<size_t>(n_groups) + static_cast<size_t>(group),
          1, lo.data(), hi.data());
      lo.fill(lo[0]);
      scale.fill(AffineScale(lo[0], hi[0], bits));
      for (int channel = begin; channel < end; channel += kStrip) {
        decode(token, channel, std::min(kStrip, end - channel));
      }
    }
  }
}

void StepAffineBlock(const AffineBlockLayout& from, const AffineBlockLayout& to,
                     const std::byte* src, AffineScratch& scratch, std::byte* dst) {
  const GroupShape& shape = from.shape;
  const size_t n_elements = shape.n_elements();
  if (from.is_exact(0)) {
    DecodeAffineBlock(from, src, 0, shape.n_tokens, scratch.tile.data());
    EncodeAffineBlock(to, scratch.tile.data(), scratch, dst);
    return;
  }
  if (to.has_params()) std::memcpy(dst, src, to.param_bytes());
  for (int i = 0; i < to.n_widths; ++i) {
    const int bits = to.widths[static_cast<size_t>(i)];
    std::byte* stream = dst + to.stream_offset(i);
    const int carried = from.find(bits);
    if (carried >= 0) {
      std::memcpy(stream, src + from.stream_offset(carried), to.stream_bytes(i));
      continue;
    }
    if (to.is_exact(i)) {
      DecodeAffineBlock(from, src, 0, shape.n_tokens, scratch.tile.data());
      for (size_t e = 0; e < n_elements; ++e) StoreExact(to.format, scratch.tile[e], stream, e);
      continue;
    }
    const int source = SourceFor(from, bits);
    const int from_bits = from.widths[static_cast<size_t>(source)];
    LoadParams(from, src, 0, shape.n_params(), scratch.lo.data(), scratch.hi.data());
    UnpackCodes(from_bits, src + from.stream_offset(source), 0, n_elements, scratch.codes.data());
    RecodeGroups(shape, from_bits, bits, scratch.lo.data(), scratch.hi.data(),
                 scratch.codes.data());
    PackCodes(bits, scratch.codes.data(), n_elements, stream);
  }
}

bool ExactAreFinite(ExactFormat format, const std::byte* from, size_t n) {
  // All bits of the exponent set: infinite or not a number.
  const uint32_t exponent = format == ExactFormat::kF32   ? 0x7f800000u
                            : format == ExactFormat::kF16 ? 0x7c00u
                                                          : 0x7f80u;
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + i * ExactBytes(format), ExactBytes(format));
    finite = finite && (bits & exponent) != exponent;
  }
  return finite;
}

bool AffineBlockIsSound(const AffineBlockLayout& layout, const std::byte* block, bool may_be_nan) {
  if (layout.has_params()) {
    const size_t n_params = layout.shape.n_params();
    for (size_t i = 0; i < n_params; ++i) {
      const float lo = LoadExact(layout.format, block, i);
      const float hi = LoadExact(layout.format, block, n_params + i);
      const bool range = std::isfinite(lo) && std::isfinite(hi) && lo <= hi;
      if (!range && !(may_be_nan && std::isnan(lo) && std::isnan(hi))) return false;
    }
  }
  for (int i = 0; i < layout.n_widths && !may_be_nan; ++i) {
    if (layout.is_exact(i) && !ExactAreFinite(layout.format, block + layout.stream_offset(i),
                                              layout.shape.n_elements())) {
      return false;
    }
  }
  return true;
}

void RoundTripRows(const GroupShape& shape, int bits, ExactFormat format, const std::byte* rows,
                   int first, int n, float* tile) {
  const size_t dim = static_cast<size_t>(shape.dim);
  // One group of one line: `count` elements `step` apart, the requested ones at [out_first,
  // out_first + out_n).
  const auto round_trip = [&](size_t start, size_t step, int count, int out_first, int out_n,
                              float* out) {
    float lo = LoadExact(format, rows, start);
    float hi = lo;
    bool finite = true;
    for (int i = 0; i < count; ++i) {
      const float x = LoadExact(format, rows, start + static_cast<size_t>(i) * step);
      lo = x < lo ? x : lo;
      hi = x > hi ? x : hi;
      finite = finite && x - x == 0.0f;
    }
    if (!finite) lo = hi = std::numeric_limits<float>::quiet_NaN();
    GroupShape one{GroupAxis::kTokens, 1, 1, 1};
    for (int i = out_first; i < out_first + out_n; ++i) {
      const float x = LoadExact(format, rows, start + static_cast<size_t>(i) * step);
      uint16_t code = 0;
      QuantizeGroups(one, bits, &x, &lo, &hi, &code);
      DequantizeGroups(one, bits, &lo, &hi, 0, 1, &code,
                       out + static_cast<size_t>(i - out_first) * step);
    }
  };
  if (shape.axis == GroupAxis::kTokens) {
    for (size_t d = 0; d < dim; ++d) round_trip(d, dim, shape.n_tokens, first, n, tile + d);
    return;
  }
  for (int token = first; token < first + n; ++token) {
    for (int channel = 0; channel < shape.dim; channel += shape.group_size) {
      const int width = std::min(shape.group_size, shape.dim - channel);
      round_trip(static_cast<size_t>(token) * dim + static_cast<size_t>(channel), 1, width, 0,
                 width, tile + static_cast<size_t>(token - first) * dim + channel);
    }
  }
}

}  // namespace varve
