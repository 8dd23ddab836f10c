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
#include "kernels/kernel_set.h"

namespace varve {
namespace {

constexpr size_t kRowFloats = kMaxHeadDim + kMaxPackRuns * 16 + kPackSlack;

/// One head's coding: its runs in stored order, the bytes each starts at, and the tables in reach.
struct HeadCoding {
  const BlockLayout* layout = nullptr;
  const KeyTable* table = nullptr;  ///< rope_pair
  int n_runs = 0;
  int n_stored = 0;  ///< channels, padding included
  std::array<CodeRun, kMaxPackRuns> runs{};
  std::array<size_t, kMaxPackRuns> byte_offset{};

  bool is_f16() const { return layout->scheme.codec == Codec::kF16; }
  std::span<const CodeRun> used() const { return {runs.data(), static_cast<size_t>(n_runs)}; }
};

HeadCoding CodingOf(const BlockCoding& coding, int head) {
  HeadCoding result;
  result.layout = coding.layout;
  if (coding.layout->scheme.codec == Codec::kF16) return result;
  if (coding.layout->scheme.codec == Codec::kRotated) {
    result.n_runs = 1;
    result.n_stored = coding.layout->padded_dim;
    result.runs[0] = {coding.layout->scheme.bits, 0, coding.layout->head_dim};
    return result;
  }
  const KeyTable& table = coding.tables[head];
  result.table = &table;
  result.n_runs = table.n_segments;
  result.n_stored = static_cast<int>(table.channel.size());
  for (int s = 0; s < table.n_segments; ++s) {
    const auto at = static_cast<size_t>(s);
    const KeySegment& segment = table.segments[at];
    int n = segment.n_channels;
    while (n > 0 && table.channel[static_cast<size_t>(segment.first_channel + n - 1)] < 0) --n;
    result.runs[at] = {segment.bits, segment.first_channel, n};
    result.byte_offset[at] = segment.byte_offset;
  }
  return result;
}

/// A head's rows on their way between f32 and a block. Holds what one head needs, so that a loop
/// over tokens sets it up once.
class HeadCodec {
 public:
  HeadCodec(const BlockCoding& coding, int head)
      : kernels_(ActiveKernels()), coding_(CodingOf(coding, head)), layout_(*coding_.layout) {
    if (coding_.table == nullptr) return;
    for (size_t i = 0; i < coding_.table->scale.size(); ++i)
      inverse_scale_[i] = 1.0f / coding_.table->scale[i];
  }

  const BlockLayout& layout() const { return layout_; }

  /// Codes row [head_dim] into slot `token`.
  void Encode(const float* row, int token, std::byte* payload) {
    if (coding_.is_f16()) {
      for (int i = 0; i < layout_.head_dim; ++i) {
        const uint16_t half = F32ToF16(row[i]);
        std::memcpy(
            payload + 2 * (static_cast<size_t>(token) * static_cast<size_t>(layout_.head_dim) +
                           static_cast<size_t>(i)),
            &half, sizeof half);
      }
      return;
    }
    if (coding_.table != nullptr) {
      kernels_.rows->gather(row, coding_.table->channel.data(), inverse_scale_.data(), 1.0f,
                            stored_.data(), coding_.n_stored);
    } else {
      std::copy_n(row, layout_.head_dim, stored_.data());
      kernels_.rows->rotate(stored_.data(), layout_.head_dim, HadamardSize(layout_.head_dim),
                            CodebookOf(layout_.scheme.bits).unit);
    }
    EncodeStored(token, payload);
  }

  /// Decodes slot `token` into row [head_dim].
  void Decode(const std::byte* payload, int token, float* row) {
    Unpack(payload);
    DecodeUnpacked(payload, token, row);
  }

  /// Brings the head's codes into product lines, from which DecodeUnpacked() reads.
  void Unpack(const std::byte* payload) {
    if (coding_.is_f16()) return;
    size_t line = 0;
    for (int r = 0; r < coding_.n_runs; ++r) {
      const CodeRun& run = coding_.runs[static_cast<size_t>(r)];
      UnpackArgs args;
      args.side = layout_.side;
      args.bits = run.bits;
      args.n_lines = LinesOf(run);
      args.codes =
          reinterpret_cast<const uint8_t*>(payload) + coding_.byte_offset[static_cast<size_t>(r)];
      args.lines = lines_.data() + line * kLineBytes;
      kernels_.unpack(args);
      line += static_cast<size_t>(args.n_lines);
    }
  }

  void DecodeUnpacked(const std::byte* payload, int token, float* row) {
    if (coding_.is_f16()) {
      kernels_.rows->from_f16(reinterpret_cast<const uint16_t*>(payload) +
                                  static_cast<ptrdiff_t>(token) * layout_.head_dim,
                              row, layout_.head_dim);
      return;
    }
    const float gain = GainOf(payload, token);
    if (coding_.table == nullptr) {
      Load(token, gain / CodebookOf(layout_.scheme.bits).unit, row);
      kernels_.rows->rotate(row, layout_.head_dim, HadamardSize(layout_.head_dim), 1.0f);
      return;
    }
    Load(token, gain, stored_.data());
    std::fill_n(row, layout_.head_dim, std::isnan(gain) ? gain : 0.0f);
    for (const CodeRun& run : coding_.used()) {
      for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i) {
        row[coding_.table->channel[static_cast<size_t>(i)]] = stored_[static_cast<size_t>(i)];
      }
    }
  }

  /// Re-encodes slot `token` of a rotated source (already unpacked) into this rotated coding,
  /// without rotating back and forth.
  void EncodeRotated(HeadCodec& source, const std::byte* source_payload, int token,
                     std::byte* payload) {
    const float ratio =
        CodebookOf(layout_.scheme.bits).unit / CodebookOf(source.layout_.scheme.bits).unit;
    source.Load(token, source.GainOf(source_payload, token) * ratio, stored_.data());
    EncodeStored(token, payload);
  }

  bool is_rotated() const { return layout_.scheme.codec == Codec::kRotated; }

 private:
  int LinesOf(const CodeRun& run) const {
    const int granule = Granule(layout_.side, run.bits);
    const int channels = (run.n_channels + granule - 1) / granule * granule;
    return channels / 2;  // 32 tokens of a channel are half a line
  }

  float GainOf(const std::byte* payload, int token) const {
    uint16_t gain;
    std::memcpy(&gain, payload + layout_.code_bytes + 2 * static_cast<size_t>(token), sizeof gain);
    return F16ToF32(gain);
  }

  void Load(int token, float gain, float* out) {
    size_t line = 0;
    for (const CodeRun& run : coding_.used()) {
      PackLoadArgs args;
      args.side = layout_.side;
      args.n_channels = run.n_channels;
      args.lines = lines_.data() + line * kLineBytes;
      args.token = token;
      args.scale =
          coding_.table != nullptr ? coding_.table->scale.data() + run.first_channel : nullptr;
      args.gain = gain;
      args.out = out + run.first_channel;
      kernels_.pack_load(args);
      line += static_cast<size_t>(LinesOf(run));
    }
  }

  void EncodeStored(int token, std::byte* payload) {
    const GainRule rule = coding_.table == nullptr ? GainRule::kKeepNorm : GainRule::kLeastSquares;
    const uint16_t gain = CodeRow(kernels_, coding_.used(), rule, stored_.data(), codes_.data());
    for (int r = 0; r < coding_.n_runs; ++r) {
      const CodeRun& run = coding_.runs[static_cast<size_t>(r)];
      PackStoreArgs args;
      args.side = layout_.side;
      args.bits = run.bits;
      args.n_channels = run.n_channels;
      args.codes = codes_.data() + run.first_channel;
      args.token = token;
      args.segment =
          reinterpret_cast<uint8_t*>(payload) + coding_.byte_offset[static_cast<size_t>(r)];
      kernels_.pack_store(args);
    }
    std::memcpy(payload + layout_.code_bytes + 2 * static_cast<size_t>(token), &gain, sizeof gain);
  }

  const KernelSet& kernels_;
  HeadCoding coding_;
  const BlockLayout& layout_;
  // Not cleared: every use writes what it reads, up to vector tails whose lanes are dropped.
  alignas(64) std::array<float, kRowFloats> stored_;
  alignas(64) std::array<uint8_t, kRowFloats> codes_;
  alignas(64) std::array<float, kRowFloats> inverse_scale_;
  alignas(64) std::array<uint8_t, kRowFloats * kBlockTokens> lines_;
};

std::byte* HeadAt(std::byte* block, const BlockLayout& layout, int head) {
  return block + static_cast<size_t>(head) * layout.head_bytes();
}

const std::byte* HeadAt(const std::byte* block, const BlockLayout& layout, int head) {
  return block + static_cast<size_t>(head) * layout.head_bytes();
}

}  // namespace

void EncodeRow(const BlockCoding& coding, int n_kv_heads, const float* row, int token,
               std::byte* block) {
  for (int head = 0; head < n_kv_heads; ++head) {
    HeadCodec codec(coding, head);
    codec.Encode(row + static_cast<ptrdiff_t>(head) * coding.layout->head_dim, token,
                 HeadAt(block, *coding.layout, head));
  }
}

void DecodeRow(const BlockCoding& coding, int n_kv_heads, const std::byte* block, int token,
               float* row) {
  for (int head = 0; head < n_kv_heads; ++head) {
    HeadCodec codec(coding, head);
    codec.Decode(HeadAt(block, *coding.layout, head), token,
                 row + static_cast<ptrdiff_t>(head) * coding.layout->head_dim);
  }
}

void DecodeHead(const BlockCoding& coding, int head, const std::byte* head_payload, float* tile) {
  HeadCodec codec(coding, head);
  codec.Unpack(head_payload);
  for (int token = 0; token < kBlockTokens; ++token) {
    codec.DecodeUnpacked(head_payload, token,
                         tile + static_cast<ptrdiff_t>(token) * coding.layout->head_dim);
  }
}

void RepackBlock(const BlockCoding& from, const BlockCoding& to, int n_kv_heads,
                 const std::byte* src, std::byte* dst) {
  std::array<float, kRowFloats> row;
  for (int head = 0; head < n_kv_heads; ++head) {
    HeadCodec source(from, head);
    HeadCodec target(to, head);
    const std::byte* source_payload = HeadAt(src, *from.layout, head);
    std::byte* target_payload = HeadAt(dst, *to.layout, head);
    source.Unpack(source_payload);
    for (int token = 0; token < kBlockTokens; ++token) {
      if (source.is_rotated() && target.is_rotated()) {
        target.EncodeRotated(source, source_payload, token, target_payload);
      } else {
        source.DecodeUnpacked(source_payload, token, row.data());
        target.Encode(row.data(), token, target_payload);
      }
    }
  }
}

}  // namespace varve
