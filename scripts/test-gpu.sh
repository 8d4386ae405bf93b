#!/usr/bin/env bash
# make test-gpu: builds the trainer against a CUDA LibTorch (the one of the
# Python that is active, or LOCKSTEP_TORCH) and runs what needs a GPU.
# Ends with pytest's summary line. make bench-gpu: with --bench, the benchmarks
# against PyTorch instead; further words go to bench/gpu.py.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi >/dev/null 2>&1; then
  echo "test-gpu: no usable GPU on this machine (nvidia-smi fails); skipped"
  exit 0
fi
python=${LOCKSTEP_PYTHON:-$(command -v python3)}
cmake --preset cuda -DLOCKSTEP_CONTROL=OFF -DLOCKSTEP_BENCH=ON \
  -DLOCKSTEP_PYTHON="$python" >/dev/null
if [ "${1:-}" = --bench ]; then
  shift
  ninja -C build-cuda --quiet lockstep-train gpu_step
  LOCKSTEP_BUILD=$PWD/build-cuda exec "$python" bench/gpu.py "$@"
fi
units=(collective data kernels models parallel recipes train)
ninja -C build-cuda lockstep-train "${units[@]/%/_test}"
for name in "${units[@]}"; do
  build-cuda/bin/"${name}"_test --gtest_brief=1
done
LOCKSTEP_BUILD=$PWD/build-cuda "$python" -m pytest -q -p no:cacheprovider \
  tests/gpu
