#!/usr/bin/env bash
# tools/setup.sh STEP...
#
# Installs what tieshard is built and tested with, says what it does, and does nothing the second time. `make` calls it;
# nobody has to. Steps:
#
#   core    Debian packages: compiler, CMake, Ninja, ccache, nlohmann-json, CLI11, yaml-cpp, xxHash, GoogleTest
#   build   core, and: Gloo's headers; a virtual environment in .venv with the torch wheel (LibTorch) and nanobind
#   test    build, and: iproute2, groff, Chromium, the Python packages of tests/requirements.txt
#   format  .venv with the pinned clang-format and clang-tidy
#   fuzz    core, and: clang with libFuzzer
#
# Debian packages are installed with apt-get where this runs as root. Elsewhere the missing ones are named, with the
# command that installs them, and the exit status is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH="torch==2.13.0" # the wheel also has LibTorch's headers, libraries and CMake files
NANOBIND="nanobind==3.1.0" # as pyproject.toml has it
VENV=.venv
PYTHON="${PYTHON:-python3}"

say() { echo "setup: $*"; }

# --- Debian packages --------------------------------------------------------------------------------------------------

# Tools count as present when their command runs, wherever they come from; libraries when the package is installed.
has_package() {
  case "$1" in
    g++ | cmake | ccache | make | git | python3) command -v "$1" >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    clang-14) command -v clang++-14 >/dev/null ;;
    python3-venv) "$PYTHON" -c "import ensurepip, venv" 2>/dev/null ;;
    *) [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] ;;
  esac
}

need_packages() {
  local missing=() package
  for package in "$@"; do
    has_package "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local command="apt-get install -y --no-install-recommends ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    say "missing: ${missing[*]}"
    say "these are Debian 12's package names, and there is no apt-get here: install their equivalents, then run this again"
    exit 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    say "missing: ${missing[*]}"
    say "install them, then run this again:"
    echo "  sudo $command"
    exit 1
  fi
  say "installing Debian packages: ${missing[*]}"
  mkdir -p build
  local log=build/setup-apt.log
  export DEBIAN_FRONTEND=noninteractive
  apt-get update </dev/null >"$log" 2>&1 || say "apt-get update failed; trying with the package lists at hand"
  if ! $command </dev/null >>"$log" 2>&1; then
    tail -n 20 "$log"
    say "this failed: $command"
    exit 1
  fi
}

# --- Python packages --------------------------------------------------------------------------------------------------

need_venv() {
  [ -x "$VENV/bin/python" ] && return
  say "making the virtual environment $VENV"
  "$PYTHON" -m venv "$VENV"
}

# pip_once NAME KEY ARGUMENTS...: pip install, unless the last one of this NAME had the same KEY.
pip_once() {
  local stamp="$VENV/stamps/$1" key="$2"
  shift 2
  [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && return
  say "pip install $*"
  if ! "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"; then
    say "this failed: $VENV/bin/python -m pip install $*"
    exit 1
  fi
  mkdir -p "$VENV/stamps"
  echo "$key" >"$stamp"
}

# pip_file FILE [PIP OPTIONS...]: the same for a requirements file, keyed on its content and torch's version.
pip_file() {
  local file="$1"
  shift
  pip_once "$(echo "$file" | tr / -)" "$TORCH $(sha256sum <"$file")" "$@" -r "$file"
}

need_torch() {
  need_venv
  pip_once torch "$TORCH" "$TORCH"
}

# --- Steps ------------------------------------------------------------------------------------------------------------

CORE_PACKAGES=(g++ cmake ninja-build ccache make git python3 python3-venv
  nlohmann-json3-dev libcli11-dev libyaml-cpp-dev libxxhash-dev libgtest-dev libgmock-dev)
BUILD_PACKAGES=("${CORE_PACKAGES[@]}" libgloo-dev)
TEST_PACKAGES=("${BUILD_PACKAGES[@]}" iproute2 groff-base chromium)
FUZZ_PACKAGES=("${CORE_PACKAGES[@]}" clang-14 libclang-rt-14-dev)

setup_core() {
  need_packages "${CORE_PACKAGES[@]}"
}

setup_build() {
  need_packages "${BUILD_PACKAGES[@]}"
  need_torch
  pip_once nanobind "$NANOBIND" "$NANOBIND"
}

setup_test() {
  setup_build
  need_packages "${TEST_PACKAGES[@]}"
  pip_file tests/requirements.txt
  pip_file tests/requirements-no-deps.txt --no-deps
}

setup_format() {
  need_packages python3 python3-venv
  need_venv
  pip_file tools/requirements.txt
}

setup_fuzz() {
  need_packages "${FUZZ_PACKAGES[@]}"
}

for step in "$@"; do
  case "$step" in
    core | build | test | format | fuzz) "setup_$step" ;;
    *)
      say "unknown step $step (core, build, test, format, fuzz)"
      exit 1
      ;;
  esac
done
