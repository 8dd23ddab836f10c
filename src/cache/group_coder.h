// How one side (keys or values) of a group of tokens is coded in each tier. The grouped cache moves
// groups along the ladder of tiers and does not know the codec.
#ifndef VARVE_CACHE_GROUP_CODER_H_
#define VARVE_CACHE_GROUP_CODER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "session/bytes.h"
#include "session/coding.h"

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

  /// What encoding the first n_rows exact rows as a group of their own would read back as. Coders
  /// that code token by token have no groups that could be short; caches with exact_tail=false do
  /// not use them.
  virtual void RoundTrip(int /*tier*/, const std::byte* /*rows*/, int /*n_rows*/, int /*first*/,
                         int /*n*/, float* /*tile*/) const {}

  /// True while the coder has to learn from rows before it can code FirstTableTier() and the tiers
  /// below.
  virtual bool Learns() const { return false; }
  virtual int FirstTableTier() const { return 0; }
  /// Keeps what is known, so that RollBack() can return to it.
  virtual void BeginLearning() {}
  virtual void Learn(int64_t /*row*/, const float* /*values*/) {}
  virtual void Fit() {}
  virtual void EndLearning() noexcept {}
  virtual void RollBack() noexcept {}

  /// How a tier is coded, for a session file.
  virtual CodingRecord Describe(int tier) const = 0;
  /// Whether a payload from outside is one that Encode() could have made.
  virtual bool IsSound(int tier, const std::byte* payload, bool may_be_nan) const = 0;
  /// What was learned: the tables once they are fitted, until then the statistics.
  virtual bool has_tables() const { return false; }
  virtual void SaveTables(ByteWriter* /*to*/) const {}
  virtual Status LoadTables(ByteReader* /*from*/) { return Status(); }
  virtual void SaveStatistics(ByteWriter* /*to*/) const {}
  virtual Status LoadStatistics(ByteReader* /*from*/) { return Status(); }

  /// Bytes of tables and scratch.
  virtual size_t held_bytes() const = 0;

  /// Takes over what another coder has learned: its rows `rows` become this one's next rows.
  virtual void CopyState(const GroupCoder& /*other*/, std::span<const int64_t> /*rows*/) {}
};

}  // namespace varve

#endif  // VARVE_CACHE_GROUP_CODER_H_
