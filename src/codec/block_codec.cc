#include "codec/block_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/f16.h"
#include "codec/codebooks.h"
#include "codec/rotation.h"
#include "codec/row_coder.h"

namespace varve {
namespace {

/// Where a head's codes are: its runs in stored order, and the bytes each starts at.
struct HeadCoding {
  const BlockLayout* layout = nullptr;
  const KeyTable* table = nullptr;
  int n_runs = 0;
  std::array<CodeRun, 6> runs{};
  std::array<size_t, 6> byte_offset{};

  std::span<const CodeRun> used() const { return {runs.data(), static_cast<size_t>(n_runs)}; }
};

HeadCoding CodingOf(const BlockCoding& coding, int head) {
  HeadCoding result;
  result.layout = coding.layout;
  if (coding.layout->scheme.codec == Codec::kF16) return result;
  if (coding.layout->scheme.codec == Codec::kRotated) {
    result.n_runs = 1;
    result.runs[0] = {coding.layout->scheme.bits, 0, coding.layout->head_dim};
    return result;
  }
  const KeyTable& table = coding.tables[head];
  result.table = &table;
  for (int s = 0; s < table.n_segments; ++s) {
    const auto at = static_cast<size_t>(s);
    const KeySegment& segment = table.segments[at];
    int n = segment.n_channels;
    while (n > 0 && table.channel[static_cast<size_t>(segment.first_channel + n - 1)] < 0) --n;
    result.runs[at] = {segment.bits, segment.first_channel, n};
    result.byte_offset[at] = segment.byte_offset;
  }
  result.n_runs = table.n_segments;
  return result;
}

uint8_t* GainAt(const BlockLayout& layout, std::byte* payload, int token) {
  return reinterpret_cast<uint8_t*>(payload) + layout.code_bytes + 2 * static_cast<size_t>(token);
}

/// Values keep an 8-bit level as two's complement, keys biased by 128: each is its kernel's operand
/// as it stands.
unsigned StoredCode(Side side, int bits, unsigned code) {
  return side == Side::kValue && bits == 8 ? code ^ 0x80u : code;
}

void EncodeHead(const HeadCoding& coding, const float* row, int token, std::byte* payload) {
  const BlockLayout& layout = *coding.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  if (layout.scheme.codec == Codec::kF16) {
    std::byte* out = payload + static_cast<size_t>(token) * dim * 2;
    for (size_t i = 0; i < dim; ++i) {
      const uint16_t half = F32ToF16(row[i]);
      std::memcpy(out + 2 * i, &half, 2);
    }
    return;
  }
  std::array<float, kMaxHeadDim> y;
  if (coding.table == nullptr) {
    std::copy_n(row, dim, y.begin());
    Rotate(y.data(), layout.head_dim);
    const float unit = CodebookOf(layout.scheme.bits).unit;
    for (size_t i = 0; i < dim; ++i) y[i] *= unit;
  } else {
    for (size_t i = 0; i < coding.table->channel.size(); ++i) {
      const int channel = coding.table->channel[i];
      y[i] = channel < 0 ? 0.0f : row[channel] / coding.table->scale[i];
    }
  }
  std::array<uint8_t, kMaxHeadDim> codes;
  const uint16_t gain = CodeRow(coding.used(), y.data(), codes.data());
  for (int r = 0; r < coding.n_runs; ++r) {
    const CodeRun& run = coding.runs[static_cast<size_t>(r)];
    auto* segment =
        reinterpret_cast<uint8_t*>(payload) + coding.byte_offset[static_cast<size_t>(r)];
    for (int i = 0; i < run.n_channels; ++i) {
      const unsigned code = codes[static_cast<size_t>(run.first_channel + i)];
      PutCode(segment, run.bits, PositionOf(layout.side, i, token),
              StoredCode(layout.side, run.bits, code));
    }
  }
  std::memcpy(GainAt(layout, payload, token), &gain, 2);
}

void DecodeHeadRow(const HeadCoding& coding, const std::byte* payload, int token, float* row) {
  const BlockLayout& layout = *coding.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  if (layout.scheme.codec == Codec::kF16) {
    const std::byte* in = payload + static_cast<size_t>(token) * dim * 2;
    for (size_t i = 0; i < dim; ++i) {
      uint16_t half;
      std::memcpy(&half, in + 2 * i, 2);
      row[i] = F16ToF32(half);
    }
    return;
  }
  uint16_t gain_bits;
  std::memcpy(&gain_bits,
              reinterpret_cast<const uint8_t*>(payload) + layout.code_bytes +
                  2 * static_cast<size_t>(token),
              2);
  const float gain = F16ToF32(gain_bits);
  const float absent = std::isnan(gain) ? gain : 0.0f;
  for (size_t i = 0; i < dim; ++i) row[i] = absent;
  for (int r = 0; r < coding.n_runs; ++r) {
    const CodeRun& run = coding.runs[static_cast<size_t>(r)];
    const Codebook& book = CodebookOf(run.bits);
    const auto* segment =
        reinterpret_cast<const uint8_t*>(payload) + coding.byte_offset[static_cast<size_t>(r)];
    const float rotated_scale = gain / book.unit;
    for (int i = 0; i < run.n_channels; ++i) {
      const unsigned code = StoredCode(
          layout.side, run.bits, GetCode(segment, run.bits, PositionOf(layout.side, i, token)));
      const auto level = static_cast<float>(LevelOf(book, code));
      if (coding.table == nullptr) {
        row[i] = level * rotated_scale;
      } else {
        const auto stored = static_cast<size_t>(run.first_channel + i);
        row[coding.table->channel[stored]] = level * (gain * coding.table->scale[stored]);
      }
    }
  }
  if (coding.table == nullptr) Rotate(row, layout.head_dim);
}

}  // namespace

void EncodeRow(const BlockCoding& coding, int n_kv_heads, const float* row, int token,
               std::byte* block) {
  for (int head = 0; head < n_kv_heads; ++head) {
    EncodeHead(CodingOf(coding, head), row + static_cast<ptrdiff_t>(head) * coding.layout->head_dim,
               token, block + static_cast<size_t>(head) * coding.layout->head_bytes());
  }
}

void DecodeRow(const BlockCoding& coding, int n_kv_heads, const std::byte* block, int token,
               float* row) {
  for (int head = 0; head < n_kv_heads; ++head) {
    DecodeHeadRow(CodingOf(coding, head),
                  block + static_cast<size_t>(head) * coding.layout->head_bytes(), token,
                  row + static_cast<ptrdiff_t>(head) * coding.layout->head_dim);
  }
}

void DecodeHead(const BlockCoding& coding, int head, const std::byte* head_payload, float* tile) {
  const HeadCoding head_coding = CodingOf(coding, head);
  for (int token = 0; token < kBlockTokens; ++token) {
    DecodeHeadRow(head_coding, head_payload, token,
                  tile + static_cast<ptrdiff_t>(token) * coding.layout->head_dim);
  }
}

void RepackBlock(const BlockCoding& from, const BlockCoding& to, int n_kv_heads,
                 const std::byte* src, std::byte* dst) {
  std::array<float, kMaxHeadDim> row;
  for (int head = 0; head < n_kv_heads; ++head) {
    const HeadCoding source = CodingOf(from, head);
    const HeadCoding target = CodingOf(to, head);
    for (int token = 0; token < kBlockTokens; ++token) {
      DecodeHeadRow(source, src + static_cast<size_t>(head) * from.layout->head_bytes(), token,
                    row.data());
      EncodeHead(target, row.data(), token,
                 dst + static_cast<size_t>(head) * to.layout->head_bytes());
    }
  }
}

}  // namespace varve
