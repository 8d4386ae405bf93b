#!/usr/bin/env bash
# Under the sanitizers, as part of make test: unit tests without LibTorch and
# the fuzzers with address and undefined; modules that have threads with thread.
# The presets asan and tsan build the rest too, by hand:
# cmake --preset asan && ninja -C build-asan && ctest --preset asan.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

# Sources of these are compiled together, which takes a third of the time.
together="reach;fetch;cloud;launch;commands"

build() {  # preset, targets
  local preset=$1
  shift
  cmake --preset "$preset" -DLOCKSTEP_TRAINER=OFF -DLOCKSTEP_CONTROL=ON \
    -DLOCKSTEP_UNITY="$together" >"build-$preset.log" 2>&1 \
    || { cat "build-$preset.log"; exit 1; }
  mv "build-$preset.log" "build-$preset/configure.log"
  ninja -C "build-$preset" -j"$jobs" --quiet "$@"
}

check() {  # preset, labels, modules
  local preset=$1 labels=$2
  shift 2
  env --default-signal ctest --test-dir "build-$preset" -j"$jobs" \
    --output-on-failure --repeat until-pass:2 -L "$labels" -R "^($(IFS='|'; echo "$*"))\."
}

modules=(base os wire config record collective data_files forest reach
  economics fetch cloud)
build asan "${modules[@]/%/_test}" fuzzers
check asan 'unit|fuzz' "${modules[@]}" fuzz

threaded=(os wire record collective data_files forest reach economics)
build tsan "${threaded[@]/%/_test}"
check tsan unit "${threaded[@]}"
