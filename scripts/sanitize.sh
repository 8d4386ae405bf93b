#!/usr/bin/env bash
# Under the sanitizers, as part of make test: the shared modules, the
# collectives, the readers and the fuzzers with address and undefined; the
# modules that have threads with thread. The presets asan and tsan build the
# rest too, by hand: cmake --preset asan && ninja -C build-asan &&
# ctest --preset asan.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)

configure() {  # preset
  cmake --preset "$1" -DLOCKSTEP_TRAINER=OFF -DLOCKSTEP_CONTROL=OFF >"build-$1.log" 2>&1 \
    || { cat "build-$1.log"; exit 1; }
  mv "build-$1.log" "build-$1/configure.log"
}

configure asan
ninja -C build-asan -j"$jobs" --quiet
env --default-signal ctest --test-dir build-asan -j"$jobs" --output-on-failure -L 'unit|fuzz'

threaded=(os wire record collective data_files)
configure tsan
ninja -C build-tsan -j"$jobs" --quiet "${threaded[@]/%/_test}"
env --default-signal ctest --test-dir build-tsan -j"$jobs" --output-on-failure -L unit \
  -R "^($(IFS='|'; echo "${threaded[*]}"))\."
