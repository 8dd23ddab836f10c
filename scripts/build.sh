#!/usr/bin/env bash
# Configures and builds one preset into build/<preset>.
# usage: scripts/build.sh release|dev|asan-ubsan|tsan|fuzz|coverage [ninja targets...]
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

preset="$1"
shift
options=()
case "$preset" in
  # These link against llama.cpp; the others test the library alone.
  release | dev)
    options=(-DVARVE_LLAMA_CPP_DIR="$VARVE_CACHE_DIR/llama.cpp" -DVARVE_BUILD_GGML=ON -DVARVE_BUILD_CLI=ON)
    [ -d "$VARVE_CACHE_DIR/llama.cpp/src" ] || scripts/setup_llama.sh
    ;;
esac
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_C_COMPILER_LAUNCHER=ccache
cmake --preset "$preset" "${options[@]}" >"/tmp/varve-cmake-$$.log" 2>&1 ||
  { cat "/tmp/varve-cmake-$$.log" >&2; rm -f "/tmp/varve-cmake-$$.log"; fail "cmake --preset $preset failed"; }
rm -f "/tmp/varve-cmake-$$.log"
cmake --build "build/$preset" -j "${JOBS:-$(nproc)}" ${1:+--target "$@"}
