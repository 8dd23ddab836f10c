#include "codec/block_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "base/checked_math.h"
#include "base/f16.h"
#include "codec/codebooks.h"
#include "codec/rotation.h"
#include "codec/row_coder.h"
#include "kernels/kernel_set.h"

namespace varve {
namespace {

constexpr uint32_t kAllTokens = ~uint32_t{0};

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

/// A head's unpacked product lines.
struct HeadLines {
  alignas(64) std::array<uint8_t, kRowFloats * kBlockTokens> bytes;
};

/// A head of a block between two codings.
struct RepackScratch {
  HeadLines lines;
  alignas(64) std::array<uint8_t, kMaxTileChannels * kBlockTokens> codes;
  alignas(64) std::array<int16_t, (kMaxTileChannels + 1) * kBlockTokens> tile;
};

/// A head's rows on their way between f32 and a block. Holds what one head needs, so that loops
/// over tokens set it up once, and over heads of one coding too.
class HeadCodec {
 public:
  /// `lines` is for decoding alone.
  HeadCodec(const BlockCoding& coding, int head, HeadLines* lines = nullptr)
      : kernels_(ActiveKernels()),
        of_heads_(coding),
        head_(head),
        coding_(CodingOf(coding, head)),
        layout_(*coding_.layout),
        lines_(lines) {}

  const BlockLayout& layout() const { return layout_; }

  /// Goes over to another head.
  void TakeHead(int head) {
    if (coding_.table == nullptr || head == head_) return;
    head_ = head;
    coding_ = CodingOf(of_heads_, head);
    has_inverse_scale_ = has_rule_ = false;
  }

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
      kernels_.rows->gather(row, coding_.table->channel.data(), InverseScale(), 1.0f,
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
    for (size_t r = 0; r < coding_.used().size(); ++r) {
      const CodeRun& run = coding_.runs[r];
      UnpackArgs args;
      args.side = layout_.side;
      args.bits = run.bits;
      args.n_lines = LinesOf(run);
      args.codes = reinterpret_cast<const uint8_t*>(payload) + coding_.byte_offset[r];
      run_lines_[r] = args.codes;
      if (run.bits == 8) continue;  // they are product lines as they lie
      args.lines = lines_->bytes.data() + line * kLineBytes;
      run_lines_[r] = args.lines;
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

  /// Re-encodes tokens of a source that is already unpacked.
  void Repack(HeadCodec& source, const std::byte* source_payload, uint32_t tokens,
              RepackScratch& scratch, std::byte* payload) {
    if (source.is_rotated() && is_rotated() && IsCoarse()) {
      Recode(source, source_payload, tokens, scratch, payload);
    } else if (!source.is_f16() && coding_.table != nullptr && IsCoarse() && FitsTile() &&
               source.FitsTile()) {
      RecodeTile(source, source_payload, tokens, scratch, payload);
    } else {
      std::array<float, kMaxHeadDim> row;
      for (uint32_t left = tokens; left != 0; left &= left - 1) {
        const int token = std::countr_zero(left);
        source.DecodeUnpacked(source_payload, token, row.data());
        Encode(row.data(), token, payload);
      }
    }
  }

  bool is_rotated() const { return layout_.scheme.codec == Codec::kRotated; }
  bool is_f16() const { return coding_.is_f16(); }

 private:
  GainRule gain_rule() const {
    return coding_.table == nullptr ? GainRule::kKeepNorm : GainRule::kLeastSquares;
  }

  const PackCodeArgs& Rule() {
    if (!has_rule_) rule_ = RowRule(coding_.used(), gain_rule());
    has_rule_ = true;
    return rule_;
  }

  /// Some run has codes that the row's root mean square finds (codec/row_coder.h).
  bool IsCoarse() const {
    return std::any_of(coding_.used().begin(), coding_.used().end(),
                       [](const CodeRun& run) { return run.bits <= 4; });
  }

  bool FitsTile() const {
    return coding_.n_stored <= kMaxTileChannels &&
           (!is_rotated() || HadamardSize(layout_.head_dim) <= kMaxTileRotation);
  }

  /// Of the table's stored channels.
  const float* InverseScale() {
    if (!has_inverse_scale_) {
      for (size_t i = 0; i < coding_.table->scale.size(); ++i)
        inverse_scale_[i] = 1.0f / coding_.table->scale[i];
      has_inverse_scale_ = true;
    }
    return inverse_scale_.data();
  }

  template <typename Args>
  static void SetRule(const PackCodeArgs& rule, Args& args) {
    args.allowed_error = rule.allowed_error;
    args.window_low = rule.window_low;
    args.window_high = rule.window_high;
  }

  /// From one rotated coding to another, both in the rotation's own coordinates.
  void Recode(const HeadCodec& source, const std::byte* source_payload, uint32_t tokens,
              RepackScratch& scratch, std::byte* payload) {
    const Codebook& book = CodebookOf(layout_.scheme.bits);
    RecodeArgs args;
    args.side = layout_.side;
    args.bits = layout_.scheme.bits;
    args.n_channels = layout_.head_dim;
    args.lines = source.run_lines_[0];
    args.tokens = tokens;
    source.LoadGains(source_payload, book.unit / CodebookOf(source.layout_.scheme.bits).unit,
                     args.gain_in);
    args.nominal = static_cast<float>(layout_.head_dim) * book.rms_level * book.rms_level;
    SetRule(Rule(), args);
    args.codes = scratch.codes.data();
    kernels_.recode(args);
    Store(args.codes, args.gain, tokens, payload);
    for (uint32_t left = tokens & ~args.settled; left != 0; left &= left - 1) {
      const int token = std::countr_zero(left);
      kernels_.pack_load({layout_.side, layout_.head_dim, args.lines, token, nullptr,
                          args.gain_in[token], stored_.data()});
      EncodeStored(token, payload);
    }
  }

  /// Into a rope_pair coding.
  void RecodeTile(const HeadCodec& source, const std::byte* source_payload, uint32_t tokens,
                  RepackScratch& scratch, std::byte* payload) {
    TileCodeArgs args;
    int16_t* tile = scratch.tile.data();
    for (size_t r = 0; r < source.coding_.used().size(); ++r) {
      const CodeRun& run = source.coding_.runs[r];
      kernels_.tile->load(
          {run.n_channels, source.run_lines_[r], tile + run.first_channel * kBlockTokens});
    }
    args.tile = tile;
    args.tokens = tokens;
    std::array<int16_t, kRowFloats> from;
    std::array<float, kRowFloats> factor;
    float unit = 1;
    if (source.is_rotated()) {
      const int size = HadamardSize(layout_.head_dim);
      kernels_.tile->rotate(tile, layout_.head_dim, size);
      unit = CodebookOf(source.layout_.scheme.bits).unit * std::sqrt(static_cast<float>(size));
      args.source = coding_.table->channel.data();
      args.factor = InverseScale();
    } else {
      const auto zeros = static_cast<int16_t>(source.coding_.n_stored);
      std::fill_n(tile + zeros * kBlockTokens, kBlockTokens, static_cast<int16_t>(0));
      source.Locate(coding_, zeros, from.data(), factor.data());
      args.source = from.data();
      args.factor = factor.data();
    }
    source.LoadGains(source_payload, 1.0f / unit, args.gain_in);

    const PackCodeArgs& rule = Rule();
    SetRule(rule, args);
    args.nominal = rule.nominal;
    args.n_runs = coding_.n_runs;
    size_t line = 0;
    for (int r = 0; r < coding_.n_runs; ++r) {
      const PackRun& run = rule.run[r];
      args.run[r] = {run.bits, run.first_channel, run.n_channels, run.weight};
      args.lines[r] = scratch.codes.data() + line * kLineBytes;
      line += static_cast<size_t>(CodedLinesOf(coding_.runs[static_cast<size_t>(r)]));
    }
    kernels_.tile->code(args);
    Store(scratch.codes.data(), args.gain, tokens, payload);
    for (uint32_t left = tokens & ~args.settled; left != 0; left &= left - 1) {
      const int token = std::countr_zero(left);
      for (const CodeRun& run : coding_.used()) {
        for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i) {
          const auto level = static_cast<float>(tile[args.source[i] * kBlockTokens + token]);
          stored_[static_cast<size_t>(i)] = args.gain_in[token] * (args.factor[i] * level);
        }
      }
      EncodeStored(token, payload);
    }
  }

  /// gain[32] * factor
  void LoadGains(const std::byte* payload, float factor, float* gain) const {
    kernels_.rows->from_f16(reinterpret_cast<const uint16_t*>(payload + layout_.code_bytes), gain,
                            kBlockTokens);
    for (int t = 0; t < kBlockTokens; ++t) gain[t] *= factor;
  }

  /// Where this rope_pair coding holds the channels that another stores, `nowhere` if it does not,
  /// and the ratios of their scales.
  void Locate(const HeadCoding& other, int16_t nowhere, int16_t* from, float* factor) const {
    std::array<int16_t, kMaxHeadDim> place;
    std::fill_n(place.begin(), layout_.head_dim, nowhere);
    for (const CodeRun& run : coding_.used()) {
      for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i)
        place[static_cast<size_t>(coding_.table->channel[static_cast<size_t>(i)])] =
            static_cast<int16_t>(i);
    }
    for (const CodeRun& run : other.used()) {
      for (int i = run.first_channel; i < run.first_channel + run.n_channels; ++i) {
        const auto at = static_cast<size_t>(i);
        const int16_t here = place[static_cast<size_t>(other.table->channel[at])];
        const float scale =
            here == nowhere ? 0.0f : coding_.table->scale[static_cast<size_t>(here)];
        from[i] = here;
        factor[i] = scale / other.table->scale[at];
      }
    }
  }

  /// Packs the product lines of all runs, and the gains; if only some tokens are wanted, those.
  void Store(const uint8_t* lines, const uint16_t* gain, uint32_t tokens, std::byte* payload) {
    for (size_t r = 0; r < coding_.used().size(); ++r) {
      const CodeRun& run = coding_.runs[r];
      const int n_lines = CodedLinesOf(run);
      auto* segment = reinterpret_cast<uint8_t*>(payload) + coding_.byte_offset[r];
      if (tokens == kAllTokens) {
        kernels_.pack_lines({run.bits, n_lines, lines, segment});
      } else {
        for (uint32_t left = tokens; left != 0; left &= left - 1)
          StoreToken(run, lines, std::countr_zero(left), segment);
      }
      lines += static_cast<size_t>(n_lines) * kLineBytes;
    }
    std::byte* gains = payload + layout_.code_bytes;
    if (tokens == kAllTokens) {
      std::memcpy(gains, gain, kBlockTokens * sizeof *gain);
      return;
    }
    for (uint32_t left = tokens; left != 0; left &= left - 1) {
      const auto token = static_cast<size_t>(std::countr_zero(left));
      std::memcpy(gains + 2 * token, gain + token, sizeof *gain);
    }
  }

  void StoreToken(const CodeRun& run, const uint8_t* lines, int token, uint8_t* segment) {
    for (int i = 0; i < run.n_channels; ++i) {
      const CodePosition at = PositionOf(layout_.side, i, token);
      codes_[static_cast<size_t>(i)] =
          lines[static_cast<size_t>(at.line) * kLineBytes + static_cast<size_t>(at.byte)];
    }
    kernels_.pack_store({layout_.side, run.bits, run.n_channels, codes_.data(), token, segment});
  }

  /// Product lines that hold a run's codes: whole quads of keys, vectors of 16 channels of values.
  int CodedLinesOf(const CodeRun& run) const {
    const auto n_channels = static_cast<size_t>(run.n_channels);
    return static_cast<int>((layout_.side == Side::kKey ? RoundUp(n_channels, size_t{4})
                                                        : RoundUp(n_channels, size_t{16})) /
                            2);
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
    for (size_t r = 0; r < coding_.used().size(); ++r) {
      const CodeRun& run = coding_.runs[r];
      PackLoadArgs args;
      args.side = layout_.side;
      args.n_channels = run.n_channels;
      args.lines = run_lines_[r];
      args.token = token;
      args.scale =
          coding_.table != nullptr ? coding_.table->scale.data() + run.first_channel : nullptr;
      args.gain = gain;
      args.out = out + run.first_channel;
      kernels_.pack_load(args);
    }
  }

  void EncodeStored(int token, std::byte* payload) {
    const uint16_t gain =
        CodeRow(kernels_, coding_.used(), gain_rule(), stored_.data(), codes_.data());
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
  const BlockCoding& of_heads_;
  int head_;
  HeadCoding coding_;
  const BlockLayout& layout_;
  HeadLines* lines_;
  std::array<const uint8_t*, kMaxPackRuns> run_lines_{};  ///< unpacked product lines of each run
  // Not cleared: every use writes what it reads, up to vector tails whose lanes are dropped.
  alignas(64) std::array<float, kRowFloats> stored_;
  alignas(64) std::array<uint8_t, kRowFloats> codes_;
  alignas(64) std::array<float, kRowFloats> inverse_scale_;
  PackCodeArgs rule_;
  bool has_inverse_scale_ = false;
  bool has_rule_ = false;
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
  const BlockLayout& layout = *coding.layout;
  if (layout.scheme == Scheme{Codec::kRotated, 8} &&
      ActiveKernels().pack_append({layout.side, layout.head_dim, n_kv_heads, CodebookOf(8).unit,
                                   row, token, reinterpret_cast<uint8_t*>(block),
                                   layout.head_bytes(), layout.code_bytes}))
    return;
  HeadCodec codec(coding, 0);
  for (int head = 0; head < n_kv_heads; ++head) {
    codec.TakeHead(head);
    codec.Encode(row + static_cast<ptrdiff_t>(head) * coding.layout->head_dim, token,
                 HeadAt(block, *coding.layout, head));
  }
}

void DecodeRow(const BlockCoding& coding, int n_kv_heads, const std::byte* block, int token,
               float* row) {
  HeadLines lines;  // not cleared: what is read is written before
  HeadCodec codec(coding, 0, &lines);
  for (int head = 0; head < n_kv_heads; ++head) {
    codec.TakeHead(head);
    codec.Decode(HeadAt(block, *coding.layout, head), token,
                 row + static_cast<ptrdiff_t>(head) * coding.layout->head_dim);
  }
}

void DecodeHead(const BlockCoding& coding, int head, const std::byte* head_payload, float* tile) {
  HeadLines lines;
  HeadCodec codec(coding, head, &lines);
  codec.Unpack(head_payload);
  for (int token = 0; token < kBlockTokens; ++token) {
    codec.DecodeUnpacked(head_payload, token,
                         tile + static_cast<ptrdiff_t>(token) * coding.layout->head_dim);
  }
}

void RepackRows(const BlockCoding& from, const BlockCoding& to, int n_kv_heads, uint32_t tokens,
                const std::byte* src, std::byte* dst) {
  RepackScratch scratch;  // not cleared: what is read is written before
  HeadCodec source(from, 0, &scratch.lines);
  HeadCodec target(to, 0);
  for (int head = 0; head < n_kv_heads; ++head) {
    source.TakeHead(head);
    target.TakeHead(head);
    const std::byte* source_payload = HeadAt(src, *from.layout, head);
    source.Unpack(source_payload);
    target.Repack(source, source_payload, tokens, scratch, HeadAt(dst, *to.layout, head));
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

void RepackBlock(const BlockCoding& from, const BlockCoding& to, int n_kv_heads,
                 const std::byte* src, std::byte* dst) {
  RepackRows(from, to, n_kv_heads, kAllTokens, src, dst);
}

}  // namespace varve
