#!/usr/bin/env bash
# Builds everything that does not need LibTorch under the sanitizers and runs
# its unit tests; the fuzzers run in the address build.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

stage() {  # preset, ctest label expression
  local preset=$1 labels=$2
  cmake --preset "$preset" -DLOCKSTEP_TRAINER=OFF >"build-$preset.log" 2>&1 \
    || { cat "build-$preset.log"; exit 1; }
  mv "build-$preset.log" "build-$preset/configure.log"
  ninja -C "build-$preset" -j"$jobs" --quiet
  ctest --test-dir "build-$preset" -j"$jobs" --output-on-failure -L "$labels"
}

stage asan 'unit|fuzz'
stage tsan 'unit'
