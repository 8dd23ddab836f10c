// Every kernel of the list at every level that this machine has.
#ifndef VARVE_TESTS_KERNELS_KERNELS_FIXTURE_H_
#define VARVE_TESTS_KERNELS_KERNELS_FIXTURE_H_

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/kernel_set.h"
#include "layout/code_lines.h"

namespace varve {

constexpr int kTokens = kBlockTokens;

class Kernels : public testing::TestWithParam<Isa> {
 protected:
  const KernelSet& set() const { return KernelsOf(GetParam()); }
  const KernelSet& reference() const { return KernelsOf(Isa::kScalar); }
  uint8_t Byte() { return static_cast<uint8_t>(random_()); }
  float Normal() { return std::normal_distribution<float>()(random_); }

  std::mt19937 random_{17};
};

inline std::string NameOf(const testing::TestParamInfo<Isa>& info) { return IsaName(info.param); }

inline std::vector<Isa> LevelsOfThisCpu() {
  std::vector<Isa> levels;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa <= DetectIsa()) levels.push_back(isa);
  }
  return levels;
}

}  // namespace varve

#endif  // VARVE_TESTS_KERNELS_KERNELS_FIXTURE_H_
