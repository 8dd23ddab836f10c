# Instrumented builds: VARVE_SANITIZE (a list for -fsanitize, with commas) and VARVE_COVERAGE. Directory-wide, so that
# the library, its tests and everything that links them agree.

set(VARVE_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
option(VARVE_COVERAGE "Count executed lines for gcov" OFF)

if(VARVE_BUILD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(VARVE_SANITIZE)
  add_compile_options(-fsanitize=${VARVE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1)
  add_link_options(-fsanitize=${VARVE_SANITIZE})
endif()
if(VARVE_COVERAGE)
  add_compile_options(--coverage -O0)
  add_link_options(--coverage)
endif()
