// Size arithmetic on values that come from outside: every product and sum says when it overflows.
#ifndef VARVE_BASE_CHECKED_MATH_H_
#define VARVE_BASE_CHECKED_MATH_H_

#include <cstddef>
#include <cstdint>

namespace varve {

/// a*b into *out; false if it does not fit size_t.
[[nodiscard]] constexpr bool CheckedMul(size_t a, size_t b, size_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}

/// a+b into *out; false if it does not fit size_t.
[[nodiscard]] constexpr bool CheckedAdd(size_t a, size_t b, size_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

template <typename T>
constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
constexpr T RoundUp(T a, T multiple) {
  return CeilDiv(a, multiple) * multiple;
}

}  // namespace varve

#endif  // VARVE_BASE_CHECKED_MATH_H_
