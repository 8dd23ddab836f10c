// Reads NPY 1.0/2.0 files: C order, little endian, <f2 <f4 <f8 <u2 <i4 <i8 |u1 |i1.
#ifndef VARVE_TESTS_GOLDEN_NPY_H_
#define VARVE_TESTS_GOLDEN_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace golden {

struct NpyArray {
  std::string descr;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  bool is_bf16 = false;  // <u2 that the manifest calls bfloat16

  int64_t size() const;
  size_t element_bytes() const;
  /// Element as a number; f16 and bf16 are widened.
  double at(int64_t index) const;
};

/// Throws std::runtime_error with the path in its text.
NpyArray ReadNpy(const std::string& path);

}  // namespace golden

#endif  // VARVE_TESTS_GOLDEN_NPY_H_
