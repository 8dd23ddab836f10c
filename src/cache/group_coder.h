// How one side (keys or values) of a group of tokens is coded in each tier. The grouped cache moves
// groups along the ladder of tiers and does not know the codec.
#ifndef VARVE_CACHE_GROUP_CODER_H_
#define VARVE_CACHE_GROUP_CODER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace varve {

class GroupCoder {
 public:
  virtual ~GroupCoder() = default;

  /// Bytes of one row's group in a tier.
  virtual size_t RowBytes(int tier) const = 0;

  /// tile f32 [group_size][dim] of one row -> payload in `tier`.
  virtual void Encode(int tier, int64_t row, const float* tile, std::byte* payload) = 0;

  /// One rung of the ladder.
  virtual void Step(int from_tier, int to_tier, int64_t row, const std::byte* src,
                    std::byte* dst) = 0;

  /// Tokens [first, first + n) of the group. Allocates nothing; safe from several threads.
  virtual void Decode(int tier, int64_t row, const std::byte* payload, int first, int n,
                      float* tile) const = 0;

  /// What encoding the first n_rows exact rows as a group of their own would read back as.
  virtual void RoundTrip(int tier, const std::byte* rows, int n_rows, int first, int n,
                         float* tile) const = 0;

  /// Called with every exact row that enters the cache, in order, while `WantsRows()`.
  virtual bool WantsRows() const { return false; }
  virtual void SeeRow(int64_t, const float*) {}

  /// Called before the first group leaves tier 0.
  virtual void BeforeFirstStep() {}

  /// Bytes of tables and scratch.
  virtual size_t held_bytes() const = 0;

  /// Takes over what the other coder has learned; row r of this one is row rows[r] of the other.
  virtual void CopyState(const GroupCoder&, const int64_t* /*rows*/, int64_t /*n_rows*/) {}
};

}  // namespace varve

#endif  // VARVE_CACHE_GROUP_CODER_H_
