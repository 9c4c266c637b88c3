# Everything starts here. Each target installs what it needs first (tools/setup.sh says what) and is quick the next time.

.DEFAULT_GOAL := help
SHELL := /bin/bash
JOBS ?= $(shell nproc)
SOURCE_DIRS := $(wildcard tieshard tests bench examples)

export VIRTUAL_ENV := $(CURDIR)/.venv
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
# Without these two, ccache refuses every file that uses the precompiled torch header.
export CCACHE_SLOPPINESS := pch_defines,time_macros

.PHONY: help
help: ## Show this list
	@echo "make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-20s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the optimised programs: build/bin/tieshard and build/bin/tieshard-runtime
	@tools/setup.sh build
	@cmake --preset release
	@cmake --build --preset release --target programs

.PHONY: demo
demo: build ## Make, load, shard, train and export a small tied model on 2 ranks (about a minute)
	@build/bin/tieshard demo

.PHONY: test
test: ## Build and run every test, with a summary at the end
	@tools/setup.sh test fuzz
	@tools/test.sh

.PHONY: asan
asan: ## Build everything with AddressSanitizer and UBSan, and run the tests so
	@tools/setup.sh build
	@tools/test.sh asan

.PHONY: fuzz
fuzz: ## Fuzz the parsers of files with libFuzzer, FUZZ_SECONDS (30) each
	@tools/setup.sh fuzz
	@tools/fuzz.sh

.PHONY: bench-load
bench-load: build ## Measure loading against the peers (docs/benchmarks.md)
	@tools/setup.sh test
	@python bench/bench_load.py $(ARGS)

.PHONY: bench-plan
bench-plan: build ## Measure opening, planning and diagnosing 1,000 to 100,000 tensors (docs/benchmarks.md)
	@tools/setup.sh test
	@python bench/bench_plan.py $(ARGS)

.PHONY: bench-collectives
bench-collectives: build ## Measure collectives over shared memory against Gloo (docs/benchmarks.md)
	@cmake --build --preset release --target bench_collectives
	@build/release/bench/bench_collectives $(ARGS)

.PHONY: bench-step
bench-step: build ## Measure a training step against the peers (docs/benchmarks.md)
	@tools/setup.sh test
	@python bench/bench_step.py $(ARGS)

.PHONY: bench-checkpoint
bench-checkpoint: build ## Measure saving, exporting and resharding against PyTorch and cp (docs/benchmarks.md)
	@tools/setup.sh test
	@python bench/bench_checkpoint.py $(ARGS)

.PHONY: bench-lora
bench-lora: build ## Measure LoRA against PEFT and against full training; fails above 0.4 of its memory (docs/benchmarks.md)
	@tools/setup.sh test
	@python bench/bench_lora.py $(ARGS)

.PHONY: bench-families
bench-families: build ## Measure a step of dense and mixture models against transformers (docs/benchmarks.md)
	@tools/setup.sh test
	@python bench/bench_families.py $(ARGS)

.PHONY: bench-sharding
bench-sharding: build ## Measure what sharding adds to a step, by layers and by ranks (docs/benchmarks.md)
	@cmake --build --preset release --target bench_sharding
	@build/release/bench/bench_sharding $(ARGS)

.PHONY: bench-optimizer
bench-optimizer: build ## Measure an optimizer's step against PyTorch's, and the guard's check (docs/benchmarks.md)
	@tools/setup.sh test
	@cmake --build --preset release --target bench_optimizer
	@python bench/bench_optimizer.py $(ARGS)

.PHONY: format
format: ## Format all C++ files in place
	@tools/setup.sh format
	@find $(SOURCE_DIRS) -name '*.h' -o -name '*.cpp' | xargs clang-format -i

.PHONY: format-check
format-check: ## Fail when a C++ file is not formatted
	@tools/setup.sh format
	@find $(SOURCE_DIRS) -name '*.h' -o -name '*.cpp' | xargs clang-format --dry-run --Werror

.PHONY: lint
lint: format-check ## format-check, the rules between rooms, and clang-tidy on the torch-free rooms
	@tools/setup.sh core
	@tools/check_rooms.py
	@cmake --preset core
	@find tieshard/core tieshard/cli -name '*.cpp' -not -path '*/runtime/*' | \
	  xargs -P $(JOBS) -n 4 clang-tidy -p build/core --quiet --extra-arg=-Wno-unknown-warning-option

.PHONY: clean
clean: ## Remove build/ (the virtual environment stays)
	@rm -rf build
