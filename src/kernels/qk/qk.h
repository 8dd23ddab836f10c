// qk: logits of up to seven queries a KV head with the 32 keys of one block, straight from the
// codes.
//
//   logit[n][t] = gain[t] * ( wide_scale[n] * sum_wide level[c][t] * q16[n][c]  +  narrow_scale[n]
//   * sum_narrow level * q8 )
//
// The query was multiplied by the channels' scales and rounded to integers beforehand
// (PrepareQuery): 16 bits in the wide runs, 8 in the narrow ones, which come last and hold little
// of the logit. Sums are exact integers, and the narrow part is added in one rounding (fma), so all
// ISAs agree to the bit. Included by the kernel files of this family and by cache/attend.
#ifndef VARVE_KERNELS_QK_QK_H_
#define VARVE_KERNELS_QK_QK_H_

#include <cstddef>
#include <cstdint>

namespace varve {

inline constexpr int kMaxQkQueries = 7;
inline constexpr int kMaxQkRuns = 6;

/// Stored channels of one width, in whole groups of quads (4 channels).
struct QkRun {
  int bits = 0;
  int n_quads = 0;
  size_t byte_offset = 0;
};

/// How a head's keys are coded: wide runs first.
struct QkRuns {
  int n_runs = 0;
  int n_wide_runs = 0;
  int n_quads = 0;
  int n_wide_quads = 0;
  QkRun run[kMaxQkRuns];
};

/// A batch of prepared queries. `operand` is in the ISA's own order, QkOperandBytes() long, 64-byte
/// aligned.
struct QkQueries {
  int n = 0;  ///< 1..7
  const void* operand = nullptr;
  float wide_scale[kMaxQkQueries] = {};
  float narrow_scale[kMaxQkQueries] = {};
  int32_t start[kMaxQkQueries][3] =
      {};  ///< AVX-512: -128 * sum of the operand (wide high, wide low, narrow)
};

/// One block and some KV heads, each with a batch of equally many queries.
struct QkArgs {
  int n_heads = 1;
  const QkRuns* runs = nullptr;        ///< [n_heads]
  const uint8_t* codes = nullptr;      ///< of the first head
  const uint16_t* gains = nullptr;     ///< f16 [32], of the first head
  size_t head_stride = 0;              ///< bytes from one head's codes, and gains, to the next's
  const QkQueries* queries = nullptr;  ///< [n_heads]
  float* logits = nullptr;             ///< [n_heads][n][32]
  const uint8_t* next = nullptr;       ///< what is read after this: whole lines, fetched on the way
  size_t next_stride = 0;              ///< bytes from one head's to the next's; 0: nothing to fetch
};

using QkKernel = void (*)(const QkArgs& args);

/// Bytes of one batch's operand: 8 a quad and query.
constexpr size_t QkOperandBytes(const QkRuns& runs, int n) {
  return static_cast<size_t>(runs.n_quads) * static_cast<size_t>(n) * 8;
}

struct QkPackArgs {
  const QkRuns* runs = nullptr;
  int n = 0;
  const int16_t* q =
      nullptr;  ///< [n][4 * n_quads], |q| <= 32639 in wide runs and 127 in narrow ones
  QkQueries* queries = nullptr;
  void* operand = nullptr;
};

/// Brings integer queries into the ISA's operand order and sets n, operand and start.
using QkPackKernel = void (*)(const QkPackArgs& args);

void QkReference(const QkArgs& args);
void QkPackReference(const QkPackArgs& args);
void QkAvx2(const QkArgs& args);
void QkPackAvx2(const QkPackArgs& args);
void QkAvx512(const QkArgs& args);
void QkPackAvx512(const QkPackArgs& args);

}  // namespace varve

#endif  // VARVE_KERNELS_QK_QK_H_
