#!/usr/bin/env bash
# Builds the libFuzzer programs and runs each for FUZZ_SECONDS (30) over its seeds in tests/fuzz/corpus. What they find
# on the way is kept in build/fuzz/corpus; an input that crashes one is left in build/fuzz/crashes, and the status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset fuzz
cmake --build --preset fuzz
mkdir -p build/fuzz/crashes
for program in build/fuzz/fuzz/fuzz_*; do
  name=${program##*/fuzz_}
  echo "fuzzing $name for ${FUZZ_SECONDS:-30} s"
  mkdir -p "build/fuzz/corpus/$name"
  "$program" -max_total_time="${FUZZ_SECONDS:-30}" -dict=tests/fuzz/checkpoint.dict -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="build/fuzz/crashes/$name-" -verbosity=0 -print_final_stats=1 "build/fuzz/corpus/$name" "tests/fuzz/corpus/$name"
done
