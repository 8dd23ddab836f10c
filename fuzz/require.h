// What a fuzz target holds to be always true; a fuzzer, a debugger and ctest all see an abort.
#ifndef VARVE_FUZZ_REQUIRE_H_
#define VARVE_FUZZ_REQUIRE_H_

#include <cstdio>
#include <cstdlib>

#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

#endif  // VARVE_FUZZ_REQUIRE_H_
