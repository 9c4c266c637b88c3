#!/usr/bin/env bash
# tools/test.sh [STEP...]
#
# Runs the test steps named, by default all of `make test`, goes on after a failure, and ends with a summary. Exit status
# 0 only when every step passed. What each step printed stays in build/logs/<step>.log. Steps: core, core-asan,
# core-tsan, release, asan (CMake presets with a workflow of that name), python, and fuzz (each target for FUZZ_SECONDS,
# here 5). `core` is not among the default ones: core-asan builds the same rooms without torch and runs the same tests.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/logs

run_step() {
  case "$1" in
    python) .venv/bin/python -m pytest tests -q -ra ;;
    fuzz) FUZZ_SECONDS="${FUZZ_SECONDS:-5}" tools/fuzz.sh ;;
    *) cmake --workflow --preset "$1" ;;
  esac
}

# The line in which ctest, pytest or tools/fuzz.sh counts what it ran.
closing_line() {
  grep -E '^[0-9]+% tests passed|^[0-9]+ targets fuzzed|^=* ?[0-9]+ (passed|failed|error).* in [0-9.]+s' "$1" | tail -n 1 | tr -d '='
}

summary=()
failures=0
[ $# -gt 0 ] || set -- core-asan core-tsan release python fuzz
for name in "$@"; do
  echo "=== $name"
  log=build/logs/$name.log
  started=$SECONDS
  if run_step "$name" </dev/null 2>&1 | tee "$log"; then
    verdict=passed
  else
    verdict=FAILED
    failures=$((failures + 1))
  fi
  summary+=("$(printf '%-10s %-7s %4d s  %s' "$name" $verdict $((SECONDS - started)) "$(closing_line "$log")")")
done

echo
echo "=== summary"
printf '%s\n' "${summary[@]}"
[ "$failures" -eq 0 ] && echo "all passed" || echo "$failures of ${#summary[@]} steps FAILED; logs are in build/logs"
[ "$failures" -eq 0 ]
