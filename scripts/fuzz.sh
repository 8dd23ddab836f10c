#!/usr/bin/env bash
# Runs each libFuzzer target of build/fuzz for some seconds, from its corpus; what is new goes to build/fuzz/corpus.
# usage: scripts/fuzz.sh SECONDS [TARGET...]
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

seconds="$1"
shift
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
  for source in fuzz/fuzz_*.cc; do targets+=("$(basename "$source" .cc)"); done
fi
status=0
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target"
  say "$target for $seconds s"
  "build/fuzz/bin/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$target-" "build/fuzz/corpus/$target" "fuzz/corpus/$target" 2>&1 | tail -12 || status=1
  [ "${PIPESTATUS[0]}" = 0 ] || status=1
done
exit $status
