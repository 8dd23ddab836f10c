// softmax: turns the logits of 32 cells into the integer weights that pv multiplies, for any
// number of items. An item is one query and one block.
//
//   x[t] = logit[t] (in octaves: the query carries log2 e), soft-capped, + slope * bias[t]
//   e    = ceil(max x)            w[t] = 2^(x[t] - e)                     sum = sum_t w[t]
//   weight[t] = round(w[t] * gain[t] * 32767 / gain_max)                  unit *= gain_max / 32767
//
// A cell with bias -inf, or past the live bits, takes no part whatever its logit and gain hold. A
// NaN among the others makes `sum` NaN. The exponent is an integer, so block results combine by
// exact powers of two, which are found here as well. Included by the kernel files of this family
// and by cache/attend.
#ifndef VARVE_KERNELS_SOFTMAX_SOFTMAX_H_
#define VARVE_KERNELS_SOFTMAX_SOFTMAX_H_

#include <cstddef>
#include <cstdint>

namespace varve {

/// Items are worked on this many at a time; arrays of one entry an item have room for whole groups.
inline constexpr int kSoftmaxGroup = 16;

/// e of an item without any cell, or with a NaN or +inf.
inline constexpr int32_t kNoExponent = INT32_MIN;

struct SoftmaxArgs {
  int n_items = 0;
  /// No item has a bias, every one has v_gains, and cap is 0; `bias` is not looked at.
  bool open = false;
  float cap = 0;                       ///< soft-cap in octaves: x = cap * tanh(logit); 0: none
  float* logits = nullptr;             ///< [n_items][32]; becomes w where v_gains is null
  const float* const* bias = nullptr;  ///< [n_items] of [32] octaves, null: all cells, unbiased
  const float* slope = nullptr;        ///< [n_items]
  const uint16_t* const* v_gains = nullptr;  ///< [n_items] of f16 [32], null: plain rows
  void* weights = nullptr;  ///< [n_items] 64 bytes each, in the ISA's own order, 64-byte aligned
  int32_t* exponent = nullptr;  ///< [n_items] out: e
  float* sum = nullptr;         ///< [n_items] out
  /// [n_items] in: worth of a level of the values; out: worth of a weight times a level, 0 with
  /// kNoExponent.
  float* unit = nullptr;
  float* room = nullptr;  ///< [2][n_items], for the kernel's own use

  // How the items enter results that stand at 2^base.
  const int32_t* base = nullptr;  ///< [n_items]
  float* share = nullptr;         ///< [n_items] out: sum * 2^(e - base)
  float* factor = nullptr;        ///< [n_items] out: unit * 2^(e - base)
  /// out: every e lies kMinOctaves to kMaxOctaves above its base. Where one does not, share and
  /// factor take 0 for the power. kNoExponent lies 0 above itself.
  bool near = false;
};

/// A result may stand this many octaves below a block before it is brought down.
inline constexpr int kMaxOctaves = 60;

/// Blocks this far below a result add nothing that f32 could hold.
inline constexpr int kMinOctaves = -120;

using SoftmaxKernel = void (*)(SoftmaxArgs& args);

/// Coefficients of 2^r on [0, 1), r = x - floor(x): exact at 0, relative error at most 8.6e-5.
/// Values lie in [1, 2), so a power of two can be added to their exponent bits.
constexpr int kExp2Degree = 3;
constexpr float kExp2Coefficient[kExp2Degree + 1] = {1.0f, 0.6951167583465576f,
                                                     0.22764499485492706f, 0.07706703990697861f};

void SoftmaxReference(SoftmaxArgs& args);
void SoftmaxAvx2(SoftmaxArgs& args);
void SoftmaxAvx512(SoftmaxArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_SOFTMAX_SOFTMAX_H_
