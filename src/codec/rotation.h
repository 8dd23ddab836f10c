// The rotation of the rotated codec. It spreads a row's energy over its channels, so that one scale
// serves them all.
#ifndef VARVE_CODEC_ROTATION_H_
#define VARVE_CODEC_ROTATION_H_

namespace varve {

/// Side of the Walsh-Hadamard blocks for a head: the largest power of two that divides head_dim.
constexpr int HadamardSize(int head_dim) { return head_dim & -head_dim; }

/// x -> R x in place, R = I (x) H_n / sqrt(n) with n = HadamardSize(head_dim): block-diagonal
/// unless head_dim is a power of two. R is orthonormal and symmetric, so it is its own inverse. x:
/// [head_dim].
void Rotate(float* x, int head_dim);

}  // namespace varve

#endif  // VARVE_CODEC_ROTATION_H_
