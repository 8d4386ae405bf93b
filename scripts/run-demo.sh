#!/usr/bin/env bash
# make run: trains a small DCGAN on Fashion-MNIST on two local ranks for about
# two minutes and shows what came of it. PRICE is dollars an hour of this
# machine; the default is an on-demand price of a 2-core cloud machine.
set -euo pipefail
cd "$(dirname "$0")/.."
exec build/bin/lockstep run examples/dcgan-fashion.yaml \
  --price "${PRICE:-0.0928}" "$@"
