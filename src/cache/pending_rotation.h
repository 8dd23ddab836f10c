// Shifts that have not touched the codes: the angles of a RoPE shift, and the distinct shifts that
// cells are behind by.
#ifndef VARVE_CACHE_PENDING_ROTATION_H_
#define VARVE_CACHE_PENDING_ROTATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/attend.h"

namespace varve {

/// RoPE as ggml's ROPE operation is told it.
struct RopeShift {
  RopePairing pairing = RopePairing::kNone;
  int n_dims = 0;
  int first_dim = 0;  ///< channel of the first pair
  int n_ctx_orig = 0;
  float freq_base = 10000.0f;
  float freq_scale = 1.0f;
  float ext_factor = 0.0f;
  float attn_factor = 1.0f;
  float beta_fast = 0.0f;
  float beta_slow = 0.0f;
  const float* freq_factors = nullptr;  ///< [n_dims/2] or null
};

/// Angle in radians that one position turns each pair by, [n_dims/2]: freq_base^(-2i/n_dims) /
/// freq_factors[i], blended between interpolation (times freq_scale) and extrapolation over YaRN's
/// ramp when ext_factor is not 0. Errors: kInvalidArgument for a field out of range; kUnsupported
/// when the operation would also scale the keys (attn_factor times YaRN's magnitude is not 1),
/// since a scaling is no rotation.
[[nodiscard]] Result<std::vector<double>> RopeAnglesPerPosition(const RopeShift& rope,
                                                                int head_dim);

/// Turns the heads of a key row, f32 [n_kv_heads][head_dim], by delta positions, from channel
/// first_dim on.
void TurnKeyRow(RopePairing pairing, const std::vector<double>& angles, int first_dim,
                int32_t delta, int n_kv_heads, int head_dim, float* row);

/// The distinct shifts in use. Index 0 is "none". Cells hold indices, so equal shifts share one
/// rotation.
class RotationSet {
 public:
  RotationSet();

  /// Takes the angles of later Intern calls. Errors: kUnsupported if they differ from those of
  /// rotations there are.
  [[nodiscard]] Status SetAngles(RopePairing pairing, std::vector<double> angles);

  /// Drops rotations that are not used; renumbered[old] is set to the new number of those that
  /// stay. Both [size()].
  void Keep(const std::vector<bool>& used, std::vector<int32_t>& renumbered);
  void Clear() {
    rotations_.resize(1);
    deltas_.resize(1);
  }

  /// Takes rotations 1..n of a session into an empty set. Errors: kBadFormat (a delta of 0, or the
  /// same twice).
  [[nodiscard]] Status Restore(RopePairing pairing, std::vector<double> angles,
                               std::vector<int32_t> deltas);

  /// Index of the rotation by `delta` positions, made if new.
  int32_t Intern(int32_t delta);

  int32_t delta(int32_t index) const { return deltas_[static_cast<size_t>(index)]; }
  std::span<const PendingRotation> rotations() const { return rotations_; }
  size_t size() const { return rotations_.size(); }
  RopePairing pairing() const { return pairing_; }
  const std::vector<double>& angles() const { return angles_; }

  /// Turns the heads of a key row, f32 [n_kv_heads][head_dim], by a rotation.
  void Apply(int32_t index, int n_kv_heads, int head_dim, float* row) const;

  /// Bytes of the tables.
  size_t held_bytes() const;

 private:
  RopePairing pairing_ = RopePairing::kNone;
  std::vector<double> angles_;  ///< radians a position, [n_dims/2]
  std::vector<int32_t> deltas_;
  std::vector<PendingRotation> rotations_;
};

}  // namespace varve

#endif  // VARVE_CACHE_PENDING_ROTATION_H_
