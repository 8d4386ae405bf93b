# What people type. Everything is set up on the way; see README.md.

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
BUILD := build
ARGS ?=

.PHONY: all build build-all setup setup-test run test test-gpu sanitize bench bench-gpu soak \
  install format clean

all: build

setup:
	@scripts/setup.sh

# With the real parts that the tests and benchmarks start.
setup-test:
	@scripts/setup.sh test

# Configures once; ninja itself re-runs CMake when a build file changes.
$(BUILD)/build.ninja: | setup
	@cmake --preset release >$(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	@mkdir -p $(BUILD) && mv $(BUILD).log $(BUILD)/configure.log

# The two programs; build-all adds the test and benchmark programs.
build: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j$(JOBS) --quiet lockstep lockstep-train

build-all: setup $(BUILD)/build.ninja
	@ninja -C $(BUILD) -j$(JOBS) --quiet

run: build
	@scripts/run-demo.sh $(ARGS)

# A test that fails runs once more, and both ends are printed: real sshd, Slurm,
# docker and PyTorch on a busy machine fail for reasons of their own.
test: setup-test build-all sanitize
	@env --default-signal ctest --test-dir $(BUILD) -j$(JOBS) --output-on-failure \
	  --repeat until-pass:2 $(ARGS)

# Readers and unit tests without LibTorch under address, undefined and thread
# sanitizers; fuzzers run for a bounded time.
sanitize: setup
	@scripts/sanitize.sh

test-gpu:
	@scripts/test-gpu.sh

bench: setup-test build-all
	@LOCKSTEP_BUILD=$(abspath $(BUILD)) .venv/bin/python3 bench/run.py $(ARGS)

bench-gpu:
	@scripts/test-gpu.sh --bench $(ARGS)

soak: build-all
	@LOCKSTEP_SOAK=1 LOCKSTEP_BUILD=$(abspath $(BUILD)) \
	  .venv/bin/python3 -m pytest -q -p no:cacheprovider tests/test_resume.py \
	  tests/test_keeper.py tests/test_supervision.py tests/test_leaks.py tests/test_probes_hosts.py \
	  tests/test_store.py tests/test_s3.py $(ARGS)

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX) --strip

format:
	@git ls-files '*.h' '*.cpp' | xargs .venv/bin/clang-format -i

clean:
	rm -rf build build-*
