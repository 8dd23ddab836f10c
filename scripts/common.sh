# Shared by the setup scripts: where the cache is, progress lines, checksums. Sourced, never run.

VARVE_CACHE_DIR="${VARVE_CACHE_DIR:-${HOME:-/root}/.cache/varve}"
DOWNLOADS="$VARVE_CACHE_DIR/dl"
mkdir -p "$DOWNLOADS"

say() { printf 'varve: %s\n' "$*" >&2; }
fail() {
  printf 'varve: error: %s\n' "$*" >&2
  exit 1
}

# has_sha256 FILE DIGEST: true when the file is there and is the right one.
has_sha256() {
  [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]
}

# check_sha256 FILE DIGEST
check_sha256() {
  has_sha256 "$1" "$2" || fail "$1 has sha256 $(sha256sum "$1" | cut -d' ' -f1), expected $2"
}

# lock NAME: one setup of a kind at a time; a second one waits for the first and then finds its work done.
lock() {
  exec 8>"$VARVE_CACHE_DIR/.$1.lock"
  flock 8
}

# retry COMMAND...: up to three tries, for downloads.
retry() {
  local try
  for try in 1 2 3; do
    "$@" && return 0
    [ "$try" = 3 ] || { say "that failed; again in $((try * 3)) s"; sleep $((try * 3)); }
  done
  return 1
}
