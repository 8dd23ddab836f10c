#include "cache/pending_rotation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace varve {
namespace {

/// Pair index at which a wave makes `n_turns` turns over the trained context (YaRN, arXiv
/// 2309.00071, section 3.2).
double YarnCorrectionDim(int n_dims, int n_ctx_orig, double n_turns, double base) {
  return n_dims * std::log(n_ctx_orig / (n_turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(base));
}

PendingRotation MakeRotation(RopePairing pairing, const std::vector<double>& angles,
                             int32_t delta) {
  PendingRotation rotation;
  rotation.pairing = pairing;
  rotation.n_dims = static_cast<int>(2 * angles.size());
  rotation.cos.reserve(angles.size());
  rotation.sin.reserve(angles.size());
  for (const double angle : angles) {
    rotation.cos.push_back(static_cast<float>(std::cos(delta * angle)));
    rotation.sin.push_back(static_cast<float>(std::sin(delta * angle)));
  }
  return rotation;
}

void TurnHeads(const PendingRotation& rotation, int first_dim, int n_kv_heads, int head_dim,
               float* row) {
  const size_t n_pairs = rotation.cos.size();
  const bool interleaved = rotation.pairing == RopePairing::kInterleaved;
  for (int h = 0; h < n_kv_heads; ++h) {
    float* x = row + static_cast<ptrdiff_t>(h) * head_dim + first_dim;
    for (size_t i = 0; i < n_pairs; ++i) {
      const size_t a = interleaved ? 2 * i : i;
      const size_t b = interleaved ? 2 * i + 1 : i + n_pairs;
      const float x0 = x[a];
      const float x1 = x[b];
      x[a] = x0 * rotation.cos[i] - x1 * rotation.sin[i];
      x[b] = x0 * rotation.sin[i] + x1 * rotation.cos[i];
    }
  }
}

Status CheckRope(const RopeShift& rope, int head_dim) {
  if (rope.pairing == RopePairing::kNone) {
    return Status(StatusCode::kInvalidArgument, "kind: keys without RoPE cannot be shifted");
  }
  if (rope.first_dim < 0 || rope.first_dim > head_dim - 2) {
    return Status(StatusCode::kInvalidArgument, "first_dim=" + std::to_string(rope.first_dim) +
                                                    " must be in 0.." +
                                                    std::to_string(head_dim - 2));
  }
  if (rope.n_dims < 2 || rope.n_dims % 2 != 0 || rope.n_dims > head_dim - rope.first_dim) {
    return Status(StatusCode::kInvalidArgument, "n_dims=" + std::to_string(rope.n_dims) +
                                                    " must be even and in 2.." +
                                                    std::to_string(head_dim - rope.first_dim));
  }
  if (!(rope.freq_base > 0.0f) || !std::isfinite(rope.freq_base)) {
    return Status(StatusCode::kInvalidArgument,
                  "freq_base=" + std::to_string(rope.freq_base) + " must be above 0");
  }
  if (!std::isfinite(rope.freq_scale) || !std::isfinite(rope.ext_factor) ||
      !std::isfinite(rope.attn_factor)) {
    return Status(StatusCode::kInvalidArgument,
                  "freq_scale, ext_factor and attn_factor must be finite");
  }
  if (rope.ext_factor != 0.0f &&
      (rope.n_ctx_orig < 1 || !(rope.beta_fast > 0.0f) || !(rope.beta_slow > 0.0f) ||
       !(rope.freq_scale > 0.0f) || rope.freq_base == 1.0f)) {
    return Status(StatusCode::kInvalidArgument,
                  "ext_factor=" + std::to_string(rope.ext_factor) +
                      " needs n_ctx_orig, beta_fast, beta_slow and freq_scale above 0 and "
                      "freq_base other than 1");
  }
  return Status();
}

}  // namespace

Result<std::vector<double>> RopeAnglesPerPosition(const RopeShift& rope, int head_dim) {
  VARVE_RETURN_IF_ERROR(CheckRope(rope, head_dim));
  double magnitude = rope.attn_factor;
  double low = 0.0;
  double high = 0.0;
  if (rope.ext_factor != 0.0f) {
    magnitude *= 1.0 + 0.1 * std::log(1.0 / rope.freq_scale);
    low = std::max(0.0, std::floor(YarnCorrectionDim(rope.n_dims, rope.n_ctx_orig, rope.beta_fast,
                                                     rope.freq_base)));
    high = std::min(
        rope.n_dims - 1.0,
        std::ceil(YarnCorrectionDim(rope.n_dims, rope.n_ctx_orig, rope.beta_slow, rope.freq_base)));
  }
  if (std::abs(magnitude - 1.0) > 1e-4) {
    return Status(StatusCode::kUnsupported, "attn_factor=" + std::to_string(rope.attn_factor) +
                                                ": a shift that scales keys by " +
                                                std::to_string(magnitude) + " is no rotation");
  }
  std::vector<double> angles(static_cast<size_t>(rope.n_dims) / 2);
  for (size_t i = 0; i < angles.size(); ++i) {
    double extrapolated =
        std::pow(static_cast<double>(rope.freq_base), -2.0 * static_cast<double>(i) / rope.n_dims);
    if (rope.freq_factors != nullptr) {
      if (!std::isfinite(rope.freq_factors[i]) || rope.freq_factors[i] == 0.0f) {
        return Status(StatusCode::kInvalidArgument,
                      "freq_factors[" + std::to_string(i) + "] must be finite and not 0");
      }
      extrapolated /= rope.freq_factors[i];
    }
    const double interpolated = rope.freq_scale * extrapolated;
    angles[i] = interpolated;
    if (rope.ext_factor != 0.0f) {
      const double ramp =
          std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
      const double mix = (1.0 - ramp) * rope.ext_factor;
      angles[i] = interpolated * (1.0 - mix) + extrapolated * mix;
    }
  }
  return angles;
}

void TurnKeyRow(RopePairing pairing, const std::vector<double>& angles, int first_dim,
                int32_t delta, int n_kv_heads, int head_dim, float* row) {
  TurnHeads(MakeRotation(pairing, angles, delta), first_dim, n_kv_heads, head_dim, row);
}

RotationSet::RotationSet() : deltas_(1, 0), rotations_(1) {}

Status RotationSet::SetAngles(RopePairing pairing, std::vector<double> angles) {
  if (pairing == pairing_ && angles == angles_) return Status();
  if (rotations_.size() > 1) {
    return Status(StatusCode::kUnsupported,
                  "rope: cells are still behind by a shift with other RoPE parameters (n_dims=" +
                      std::to_string(2 * angles_.size()) + ", now " +
                      std::to_string(2 * angles.size()) + ")");
  }
  pairing_ = pairing;
  angles_ = std::move(angles);
  return Status();
}

Status RotationSet::Restore(RopePairing pairing, std::vector<double> angles,
                            std::vector<int32_t> deltas) {
  std::vector<int32_t> sorted = deltas;
  std::sort(sorted.begin(), sorted.end());
  if (std::binary_search(sorted.begin(), sorted.end(), 0) ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return Status(StatusCode::kBadFormat, "pending rotations: a delta is 0 or there twice");
  }
  pairing_ = pairing;
  angles_ = std::move(angles);
  for (const int32_t delta : deltas) rotations_.push_back(MakeRotation(pairing_, angles_, delta));
  deltas_.insert(deltas_.end(), deltas.begin(), deltas.end());
  return Status();
}

void RotationSet::Keep(const std::vector<bool>& used, std::vector<int32_t>& renumbered) {
  size_t n = 1;
  for (size_t i = 1; i < rotations_.size(); ++i) {
    if (!used[i]) continue;
    if (n != i) {
      rotations_[n] = std::move(rotations_[i]);
      deltas_[n] = deltas_[i];
    }
    renumbered[i] = static_cast<int32_t>(n++);
  }
  rotations_.resize(n);
  deltas_.resize(n);
}

int32_t RotationSet::Intern(int32_t delta) {
  const auto found = std::find(deltas_.begin(), deltas_.end(), delta);
  if (found != deltas_.end()) return static_cast<int32_t>(found - deltas_.begin());
  PendingRotation rotation = MakeRotation(pairing_, angles_, delta);
  deltas_.reserve(deltas_.size() + 1);
  rotations_.push_back(std::move(rotation));
  deltas_.push_back(delta);
  return static_cast<int32_t>(deltas_.size() - 1);
}

void RotationSet::Apply(int32_t index, int n_kv_heads, int head_dim, float* row) const {
  const PendingRotation& rotation = rotations_[static_cast<size_t>(index)];
  TurnHeads(rotation, 0, n_kv_heads, head_dim, row);
}

size_t RotationSet::held_bytes() const {
  return angles_.size() * sizeof(double) +
         rotations_.size() * (sizeof(PendingRotation) + sizeof(int32_t)) +
         (rotations_.size() - 1) * angles_.size() * 2 * sizeof(float);
}

}  // namespace varve
