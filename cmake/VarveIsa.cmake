# Compiler flags: warnings for a target, instruction-set flags for the kernel files named *_avx2.cc and *_avx512.cc.
# Everything else is plain x86-64, and no file may contract a*b+c on its own (spec section 1: one rounding an operation).

# Why: where g++ thinks that a lambda may throw it adds a weak symbol, and those files may have none.
set(varve_avx2_flags -mavx2 -mfma -mf16c -mbmi2 -fno-exceptions)
set(varve_avx512_flags ${varve_avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi
  -mprefer-vector-width=512)
# Why: g++ 12 takes its own AVX-512 intrinsics for reads of uninitialized registers (GCC bug 105593, fixed in 13).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND varve_avx512_flags -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

# Kernel references stay plain loops, so that a test compares two independent codes.
set(varve_reference_flags -fno-tree-vectorize)

# Properties of a source file are seen in one folder only: call it in each folder whose targets compile the file.
function(varve_set_isa_flags)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx2\\.cc$")
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS ${varve_avx2_flags} -fno-lto)
    elseif(source MATCHES "_avx512\\.cc$")
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS ${varve_avx512_flags} -fno-lto)
    elseif(source MATCHES "kernels/[a-z0-9]+/reference\\.cc$")
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS ${varve_reference_flags})
    endif()
  endforeach()
endfunction()

# Why -Wno-restrict: g++ 12 warns on `const char* + std::string` (GCC bug 105651, fixed in 13).
function(varve_set_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -ffp-contract=off
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
endfunction()
