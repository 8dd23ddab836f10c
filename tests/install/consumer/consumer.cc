// The C++ face against the installed headers: prints the version.
#include <cstdio>
#include <varve/varve.hpp>

int main() {
  std::puts(varve_version());
  return 0;
}
