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

/// 16 tokens of a head between two codings, and the codes of 32.
struct TileScratch {
  alignas(64) std::array<float, kRowFloats * kTileTokens> tile;
  alignas(64) std::array<float, kRowFloats * kTileTokens> stored;
  alignas(64) std::array<uint8_t, kRowFloats * kBlockTokens> codes;
};

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

  /// Re-encodes all tokens of a source that is already unpacked, 16 at a time. Neither is f16. A
  /// rotated source stays rotated on its way into a rotated coding.
  void Repack(const HeadCodec& source, const std::byte* source_payload, TileScratch& scratch,
              std::byte* payload) {
    const TileKernels& tile = *kernels_.tile;
    std::array<uint16_t, kBlockTokens> gains;
    for (int half = 0; half < kBlockTokens / kTileTokens; ++half) {
      const float* y = scratch.stored.data();
      if (source.is_rotated() && is_rotated()) {
        source.LoadTile(source_payload, half, CodebookOf(layout_.scheme.bits).unit,
                        scratch.stored.data());
      } else {
        source.DecodeTile(source_payload, half, scratch.stored.data(), scratch.tile.data());
        if (is_rotated()) {
          tile.rotate(scratch.tile.data(), layout_.head_dim, HadamardSize(layout_.head_dim),
                      CodebookOf(layout_.scheme.bits).unit);
          y = scratch.tile.data();
        } else {
          tile.gather(scratch.tile.data(), coding_.table->channel.data(), inverse_scale_.data(),
                      scratch.stored.data(), coding_.n_stored);
        }
      }
      CodeTile(kernels_, coding_.used(), rule(), y, scratch.codes.data() + half * kTileTokens,
               gains.data() + half * kTileTokens);
    }
    for (int r = 0; r < coding_.n_runs; ++r) {
      const CodeRun& run = coding_.runs[static_cast<size_t>(r)];
      tile.store(
          {layout_.side, run.bits, run.n_channels,
           scratch.codes.data() + run.first_channel * kBlockTokens,
           reinterpret_cast<uint8_t*>(payload) + coding_.byte_offset[static_cast<size_t>(r)]});
    }
    std::memcpy(payload + layout_.code_bytes, gains.data(), sizeof gains);
  }

  bool is_rotated() const { return layout_.scheme.codec == Codec::kRotated; }
  bool is_f16() const { return coding_.is_f16(); }

 private:
  GainRule rule() const {
    return coding_.table == nullptr ? GainRule::kKeepNorm : GainRule::kLeastSquares;
  }

  /// Stored channels of 16 tokens, [n_stored][16]; a rotated coding's in units of 1 / unit.
  void LoadTile(const std::byte* payload, int half, float unit, float* out) const {
    std::array<float, kTileTokens> gain;
    for (size_t t = 0; t < gain.size(); ++t) {
      gain[t] = GainOf(payload, half * kTileTokens + static_cast<int>(t));
      // Why not one factor: with unit 1 this is DecodeUnpacked()'s division, to the bit.
      if (is_rotated()) gain[t] = gain[t] * unit / CodebookOf(layout_.scheme.bits).unit;
    }
    size_t line = 0;
    for (const CodeRun& run : coding_.used()) {
      TileLoadArgs args;
      args.side = layout_.side;
      args.n_channels = run.n_channels;
      args.lines = lines_.data() + line * kLineBytes;
      args.half = half;
      args.gain = gain.data();
      args.scale =
          coding_.table != nullptr ? coding_.table->scale.data() + run.first_channel : nullptr;
      args.out = out + run.first_channel * kTileTokens;
      kernels_.tile->load(args);
      line += static_cast<size_t>(LinesOf(run));
    }
  }

  /// Decodes 16 tokens into tile [head_dim][16], through `stored`.
  void DecodeTile(const std::byte* payload, int half, float* stored, float* tile) const {
    if (is_rotated()) {
      LoadTile(payload, half, 1.0f, tile);
      kernels_.tile->rotate(tile, layout_.head_dim, HadamardSize(layout_.head_dim), 1.0f);
      return;
    }
    LoadTile(payload, half, 1.0f, stored);
    for (int t = 0; t < kTileTokens; ++t) {
      const float gain = GainOf(payload, half * kTileTokens + t);
      tile[t] = std::isnan(gain) ? gain : 0.0f;
    }
    for (int i = 1; i < layout_.head_dim; ++i)
      std::copy_n(tile, kTileTokens, tile + i * kTileTokens);
    for (const CodeRun& run : coding_.used()) {
      for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i) {
        std::copy_n(stored + i * kTileTokens, kTileTokens,
                    tile + coding_.table->channel[static_cast<size_t>(i)] * kTileTokens);
      }
    }
  }

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
    const uint16_t gain = CodeRow(kernels_, coding_.used(), rule(), stored_.data(), codes_.data());
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
  // Not cleared: every use writes what it reads.
  TileScratch scratch;
  for (int head = 0; head < n_kv_heads; ++head) {
    HeadCodec source(from, head);
    HeadCodec target(to, head);
    const std::byte* source_payload = HeadAt(src, *from.layout, head);
    std::byte* target_payload = HeadAt(dst, *to.layout, head);
    source.Unpack(source_payload);
    if (!source.is_f16() && !target.is_f16()) {
      target.Repack(source, source_payload, scratch, target_payload);
      continue;
    }
    for (int token = 0; token < kBlockTokens; ++token) {
      source.DecodeUnpacked(source_payload, token, scratch.tile.data());
      target.Encode(scratch.tile.data(), token, target_payload);
    }
  }
}

bool BlockIsSound(const BlockLayout& layout, int n_kv_heads, const std::byte* block,
                  bool may_be_nan) {
  constexpr uint16_t kMagnitude = 0x7fff;
  constexpr uint16_t kInfinity = 0x7c00;
  const bool is_f16 = layout.scheme.codec == Codec::kF16;
  if (is_f16 && may_be_nan) return true;
  const size_t n = is_f16 ? static_cast<size_t>(kBlockTokens) * static_cast<size_t>(layout.head_dim)
                          : layout.gain_bytes / sizeof(uint16_t);
  for (int head = 0; head < n_kv_heads; ++head, block += layout.head_bytes()) {
    const std::byte* halves = block + (is_f16 ? 0 : layout.code_bytes);
    for (size_t i = 0; i < n; ++i) {
      uint16_t half;
      std::memcpy(&half, halves + i * sizeof half, sizeof half);
      half &= kMagnitude;
      if (half == kInfinity || (half > kInfinity && !may_be_nan)) return false;
    }
  }
  return true;
}

}  // namespace varve
