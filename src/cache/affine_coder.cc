#include "cache/affine_coder.h"

namespace varve {

AffineCoder::AffineCoder(const GroupShape& shape, ExactFormat format, bool exact_at_16,
                         std::span<const int> bits, bool carry) {
  scratch_.Fit(shape);
  for (size_t tier = 0; tier < bits.size(); ++tier) {
    AffineBlockLayout& layout = layouts_[tier];
    layout.shape = shape;
    layout.format = format;
    layout.exact_at_16 = exact_at_16;
    layout.widths[static_cast<size_t>(layout.n_widths++)] = bits[tier];
    int present = bits[tier];
    for (size_t later = tier + 1; carry && later < bits.size(); ++later) {
      if (exact_at_16 && present == 16) break;  // everything later follows from exact rows
      const bool to_exact = exact_at_16 && bits[later] == 16;
      if ((to_exact || !WidthsNest(present, bits[later])) && layout.find(bits[later]) < 0) {
        layout.widths[static_cast<size_t>(layout.n_widths++)] = bits[later];
      }
      present = bits[later];
    }
  }
}

void AffineCoder::Encode(int tier, int64_t, const float* tile, std::byte* payload) {
  EncodeAffineBlock(layouts_[static_cast<size_t>(tier)], tile, scratch_, payload);
}

void AffineCoder::Step(int from_tier, int to_tier, int64_t, const std::byte* src, std::byte* dst) {
  StepAffineBlock(layouts_[static_cast<size_t>(from_tier)], layouts_[static_cast<size_t>(to_tier)],
                  src, scratch_, dst);
}

void AffineCoder::Decode(int tier, int64_t, const std::byte* payload, int first, int n,
                         float* tile) const {
  DecodeAffineBlock(layouts_[static_cast<size_t>(tier)], payload, first, n, tile);
}

void AffineCoder::RoundTrip(int tier, const std::byte* rows, int n_rows, int first, int n,
                            float* tile) const {
  const AffineBlockLayout& layout = layouts_[static_cast<size_t>(tier)];
  if (layout.is_exact(0)) {
    DecodeAffineBlock(layout, rows, first, n, tile);
    return;
  }
  GroupShape shape = layout.shape;
  shape.n_tokens = n_rows;
  RoundTripRows(shape, layout.widths[0], layout.format, rows, first, n, tile);
}

CodingRecord AffineCoder::Describe(int tier) const {
  return DescribeAffine(layouts_[static_cast<size_t>(tier)]);
}

bool AffineCoder::IsSound(int tier, const std::byte* payload, bool may_be_nan) const {
  return AffineBlockIsSound(layouts_[static_cast<size_t>(tier)], payload, may_be_nan);
}

size_t AffineCoder::held_bytes() const { return scratch_.held_bytes(); }

}  // namespace varve
