// Min/max groups as the coder of a grouped cache.
#ifndef VARVE_CACHE_AFFINE_CODER_H_
#define VARVE_CACHE_AFFINE_CODER_H_

#include <array>
#include <span>

#include "cache/group_coder.h"
#include "codec/group_affine_block.h"

namespace varve {

class AffineCoder : public GroupCoder {
 public:
  /// bits: one width a tier, finest first. carry: widths that do not nest are carried along
  /// (RetierRule::kExact).
  AffineCoder(const GroupShape& shape, ExactFormat format, bool exact_at_16,
              std::span<const int> bits, bool carry);

  size_t RowBytes(int tier) const override { return layouts_[static_cast<size_t>(tier)].bytes(); }
  void Encode(int tier, int64_t row, const float* tile, std::byte* payload) override;
  void Step(int from_tier, int to_tier, int64_t row, const std::byte* src, std::byte* dst) override;
  void Decode(int tier, int64_t row, const std::byte* payload, int first, int n,
              float* tile) const override;
  void RoundTrip(int tier, const std::byte* rows, int n_rows, int first, int n,
                 float* tile) const override;
  CodingRecord Describe(int tier) const override;
  bool IsSound(int tier, const std::byte* payload, bool may_be_nan) const override;
  size_t held_bytes() const override;

 private:
  std::array<AffineBlockLayout, 3> layouts_;
  AffineScratch scratch_;
};

}  // namespace varve

#endif  // VARVE_CACHE_AFFINE_CODER_H_
