#!/usr/bin/env bash
# Stock llama.cpp, unpatched, from the source distribution of llama-cpp-python: downloaded, checked, unpacked and built
# once into $VARVE_CACHE_DIR/llama.cpp/{src,bin,lib}. Each step that is already done is skipped, so it can be stopped and
# started again.
# usage: scripts/setup_llama.sh [--source-only]
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

VERSION=0.3.36
SDIST_SHA256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
TOOLS="llama-cli llama-server llama-bench llama-batched-bench llama-perplexity llama-completion"
HOME_DIR="$VARVE_CACHE_DIR/llama.cpp"
SDIST="$DOWNLOADS/llama_cpp_python-$VERSION.tar.gz"

# Why: `pip download` of a source distribution runs its build backend for the metadata, which here means fetching a
# build system and a minute's wait. A backend that only names the package gives pip what it asks for; should pip ever
# refuse it, the slow way still works.
download_sdist() {
  local work
  work="$(mktemp -d)"
  mkdir -p "$work/scikit_build_core"
  : >"$work/scikit_build_core/__init__.py"
  cat >"$work/scikit_build_core/build.py" <<PY
import pathlib


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name = "llama_cpp_python-$VERSION.dist-info"
    folder = pathlib.Path(metadata_directory, name)
    folder.mkdir()
    folder.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: $VERSION\n")
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    raise NotImplementedError
PY
  printf 'llama-cpp-python==%s --hash=sha256:%s\n' "$VERSION" "$SDIST_SHA256" >"$work/requirements.txt"
  local common="--quiet --no-deps --no-binary :all: --dest $DOWNLOADS"
  # shellcheck disable=SC2086
  PYTHONPATH="$work" python3 -m pip download $common --no-build-isolation --require-hashes \
    -r "$work/requirements.txt" </dev/null ||
    python3 -m pip download $common "llama-cpp-python==$VERSION" </dev/null
  local status=$?
  rm -rf "$work"
  return $status
}

# CPU features are named one by one, as GGML_NATIVE=ON may pick code (AMX) that this compiler gets wrong.
cpu_options() {
  local flags
  flags=" $(sed -n '/^flags/{s/.*: //p;q}' /proc/cpuinfo 2>/dev/null) "
  has() { case "$flags" in *" $1 "*) echo ON ;; *) echo OFF ;; esac; }
  echo "-DGGML_NATIVE=OFF -DGGML_SSE42=$(has sse4_2) -DGGML_AVX=$(has avx) -DGGML_AVX2=$(has avx2) -DGGML_FMA=$(has fma)" \
    "-DGGML_F16C=$(has f16c) -DGGML_BMI2=$(has bmi2) -DGGML_AVX512=$(has avx512f)" \
    "-DGGML_AVX512_VBMI=$(has avx512vbmi) -DGGML_AVX512_VNNI=$(has avx512_vnni) -DGGML_AVX512_BF16=$(has avx512_bf16)"
}

build_options() {
  # The programs look for their libraries beside themselves, so that the folder can be moved.
  echo "-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF" \
    "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_MTMD=OFF -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON" \
    "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib;\$ORIGIN $(cpu_options)"
}

lock llama
stamp="$SDIST_SHA256 $(build_options)"
if [ -f "$HOME_DIR/stamp" ] && [ "$(cat "$HOME_DIR/stamp")" = "$stamp" ]; then
  exit 0
fi

if [ "$(cat "$HOME_DIR/src.stamp" 2>/dev/null)" != "$SDIST_SHA256" ]; then
  if ! has_sha256 "$SDIST" "$SDIST_SHA256"; then
    say "downloading llama.cpp (sdist llama-cpp-python $VERSION, 77 MB)"
    retry download_sdist || fail "cannot download llama-cpp-python==$VERSION with pip"
    check_sha256 "$SDIST" "$SDIST_SHA256"
  fi
  say "unpacking llama.cpp"
  rm -rf "$HOME_DIR/src.part"
  mkdir -p "$HOME_DIR/src.part"
  tar -xzf "$SDIST" -C "$HOME_DIR/src.part" --strip-components=3 "llama_cpp_python-$VERSION/vendor/llama.cpp"
  # Why: the sdist carries git's pointer file of a submodule, which makes git commands inside the tree fail.
  rm -rf "$HOME_DIR/src.part/.git" "$HOME_DIR/src"
  mv "$HOME_DIR/src.part" "$HOME_DIR/src"
  echo "$SDIST_SHA256" >"$HOME_DIR/src.stamp"
fi
[ "${1:-}" = --source-only ] && exit 0

# A tree with other options or of another generator is configured anew; its objects are kept where they still fit.
say "configuring llama.cpp"
generator=""
[ -f "$HOME_DIR/build/CMakeCache.txt" ] || generator="-G Ninja"
IFS=' ' read -r -a options <<<"$(build_options)"
launcher=""
command -v ccache >/dev/null && launcher="-DGGML_CCACHE=ON"
# shellcheck disable=SC2086
cmake -S "$HOME_DIR/src" -B "$HOME_DIR/build" $generator "${options[@]}" $launcher >"$HOME_DIR/cmake.log" 2>&1 ||
  { tail -20 "$HOME_DIR/cmake.log" >&2; fail "cannot configure llama.cpp; see $HOME_DIR/cmake.log"; }

say "building llama.cpp: $TOOLS (about 7 minutes on 2 cores, once)"
started=$(date +%s)
# shellcheck disable=SC2086
cmake --build "$HOME_DIR/build" -j "$(nproc)" --target $TOOLS </dev/null 2>&1 | tee "$HOME_DIR/build.log" |
  awk -v t="$started" '/^\[/ { split($0, a, "]"); gsub(/[\[ ]/, "", a[1]); if (++n % 25 == 0) { print "varve: llama.cpp " a[1]; fflush() } }' >&2
[ "${PIPESTATUS[0]}" = 0 ] || { grep -E 'error|Error' "$HOME_DIR/build.log" | head -20 >&2; fail "cannot build llama.cpp; see $HOME_DIR/build.log"; }

mkdir -p "$HOME_DIR/bin" "$HOME_DIR/lib"
for tool in $TOOLS; do
  cp -f "$HOME_DIR/build/bin/$tool" "$HOME_DIR/bin/$tool.part"
  mv -f "$HOME_DIR/bin/$tool.part" "$HOME_DIR/bin/$tool"
done
for library in "$HOME_DIR"/build/bin/lib*.so*; do
  name="$(basename "$library")"
  cp -Pf "$library" "$HOME_DIR/lib/.$name.part"
  mv -f "$HOME_DIR/lib/.$name.part" "$HOME_DIR/lib/$name"
done
"$HOME_DIR/bin/llama-bench" --help >/dev/null || fail "the llama.cpp that was built does not start"
echo "$stamp" >"$HOME_DIR/stamp"
say "llama.cpp is ready in $HOME_DIR ($(($(date +%s) - started)) s)"
