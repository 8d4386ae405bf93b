#!/usr/bin/env bash
# make test-gpu: builds the trainer against a CUDA LibTorch (the one of the
# Python that is active, or LOCKSTEP_TORCH) and runs what needs a GPU.
# Ends with pytest's summary line.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi >/dev/null 2>&1; then
  echo "test-gpu: no usable GPU on this machine (nvidia-smi fails); skipped"
  exit 0
fi
python=${LOCKSTEP_PYTHON:-$(command -v python3)}
if [ "${1:-}" = --bench ]; then
  echo "bench-gpu: GPU benchmarks are not part of this version" >&2
  exit 2
fi
cmake --preset cuda -DLOCKSTEP_CONTROL=OFF -DLOCKSTEP_BENCH=OFF \
  -DLOCKSTEP_PYTHON="$python" >/dev/null
units=(collective data kernels models parallel train)
ninja -C build-cuda lockstep-train "${units[@]/%/_test}"
for name in "${units[@]}"; do
  build-cuda/bin/"${name}"_test --gtest_brief=1
done
LOCKSTEP_BUILD=$PWD/build-cuda "$python" -m pytest -q -p no:cacheprovider \
  tests/gpu
