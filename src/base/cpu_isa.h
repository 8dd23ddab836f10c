// Which instruction sets this process may use; asked once, capped by VARVE_ISA.
#ifndef VARVE_BASE_CPU_ISA_H_
#define VARVE_BASE_CPU_ISA_H_

namespace varve {

/// Kernel levels, weakest first. kAvx2 needs AVX2+FMA+F16C; kAvx512 needs F, BW, DQ, VL, VNNI,
/// VBMI.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

/// The best level that CPU and operating system support, whatever VARVE_ISA says.
Isa DetectIsa();

/// DetectIsa() capped by the environment variable VARVE_ISA (scalar, avx2, avx512); read once.
Isa ActiveIsa();

const char* IsaName(Isa isa);

}  // namespace varve

#endif  // VARVE_BASE_CPU_ISA_H_
