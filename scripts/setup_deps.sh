#!/usr/bin/env bash
# Installs the Debian packages a part of the work needs, or prints the one line that does when not root.
# usage: scripts/setup_deps.sh [build] [lint] [bench] [fuzz] [browser]      (default: build)
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

packages=""
for part in "${@:-build}"; do
  case "$part" in
    build)
      packages="$packages g++ cmake ninja-build ccache pkg-config binutils python3 python3-pip libgtest-dev"
      packages="$packages libcli11-dev libfmt-dev nlohmann-json3-dev" ;;
    lint) packages="$packages clang-format-14 clang-tidy-14 libomp-14-dev" ;;
    bench) packages="$packages libbenchmark-dev" ;;
    browser) packages="$packages chromium" ;;
    fuzz) packages="$packages clang-14 libclang-rt-14-dev libomp-14-dev" ;;
    *) fail "unknown part \"$part\"; valid: build lint bench fuzz browser" ;;
  esac
done

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

command -v dpkg-query >/dev/null || fail "not a Debian system; please install what these provide: $packages"
missing=""
for package in $packages; do
  # Any Python 3.9 with pip will do, wherever it comes from.
  case "$package" in
    python3 | python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
  esac
  is_installed "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
  say "some packages are missing; please run:"
  printf '  sudo apt-get install -y --no-install-recommends%s\n' "$missing" >&2
  exit 1
fi
say "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
retry apt-get update -qq >/dev/null
# shellcheck disable=SC2086
retry apt-get install -y -qq --no-install-recommends $missing >/dev/null </dev/null
