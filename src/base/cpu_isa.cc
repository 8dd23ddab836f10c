#include "base/cpu_isa.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace varve {

namespace {

// Why: clang 14 does not know "f16c" in __builtin_cpu_supports.
bool HasF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

Isa DetectIsa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi2") || !HasF16c()) {
    return Isa::kScalar;
  }
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
}

namespace {

Isa CappedIsa() {
  const char* cap = std::getenv("VARVE_ISA");
  const std::string_view name = cap != nullptr ? cap : "";
  Isa limit = Isa::kAvx512;
  if (name == "scalar") limit = Isa::kScalar;
  if (name == "avx2") limit = Isa::kAvx2;
  return std::min(limit, DetectIsa());
}

}  // namespace

Isa ActiveIsa() {
  static const Isa active = CappedIsa();
  return active;
}

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace varve
