#!/usr/bin/env bash
# tools/fuzz.sh [NAME...]
#
# Builds the libFuzzer programs and runs each, or those named (json, family, ...), for FUZZ_SECONDS (30) over its seeds in
# tests/fuzz/corpus, two at a time. What they find on the way is kept in build/fuzz/corpus, what they print in
# build/fuzz/logs; an input that crashes one is left in build/fuzz/crashes, and the status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset fuzz
cmake --build --preset fuzz
mkdir -p build/fuzz/crashes build/fuzz/logs

fuzz() {
  local name=$1 seconds=$2 log=build/fuzz/logs/$1.log
  mkdir -p "build/fuzz/corpus/$name"
  if "build/fuzz/fuzz/fuzz_$name" -max_total_time="$seconds" -dict=tests/fuzz/checkpoint.dict -rss_limit_mb=2048 -timeout=10 \
    -max_len=16384 -artifact_prefix="build/fuzz/crashes/$name-" -print_final_stats=1 \
    "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    local runs coverage
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -d' ' -f2)
    echo "fuzz $name: $runs executions in $seconds s, $coverage edges covered, nothing found"
  else
    tail -n 40 "$log"
    echo "fuzz $name: FAILED; the input is in build/fuzz/crashes"
    return 1
  fi
}
export -f fuzz

if [ $# -eq 0 ]; then
  for program in build/fuzz/fuzz/fuzz_*; do
    set -- "$@" "${program##*/fuzz_}"
  done
fi
printf '%s\n' "$@" | xargs -P 2 -I{} bash -c 'fuzz "$1" "$2"' fuzz {} "${FUZZ_SECONDS:-30}"
echo "$# targets fuzzed, nothing found"
