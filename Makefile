# The things one does here; each installs what it lacks and builds into build/<preset>.
SHELL := /bin/bash
VARVE_CACHE_DIR ?= $(HOME)/.cache/varve
export VARVE_CACHE_DIR
JOBS ?= $(shell nproc)
RELEASE := build/release

.PHONY: help build demo test test-models bench fuzz lint format clean

help:
	@echo 'make build        programs in $(RELEASE)/bin, libraries in $(RELEASE)/lib (gets and builds stock llama.cpp once)'
	@echo 'make demo         a real model answers from a long text: stock f16, stock q4_0 and varve, side by side'
	@echo 'make test         all tests: release, asan-ubsan, formatting, clang-tidy, README examples, the plugin with SmolLM2'
	@echo 'make test-models  the slow tests with Gemma 3 and Qwen2.5 too'
	@echo 'make bench        kernels, llama-bench at depths, append, memory and quality beside stock; JSON and chart in build/bench'
	@echo 'make fuzz         libFuzzer, FUZZ_SECONDS (default 60) for each target'
	@echo 'make lint         formatting, clang-tidy, layers, names      make format   applies the formatting'

build:
	@scripts/setup_deps.sh build bench
	@scripts/setup_llama.sh
	@scripts/build.sh release

demo:
	@scripts/setup_deps.sh build bench
	@scripts/setup_llama.sh
	@scripts/build.sh release varve_cli ggml-varve
	@scripts/setup_models.sh smollm2 text
	@python3 scripts/demo.py

test:
	@scripts/setup_deps.sh build lint bench browser
	@python3 scripts/run_tests.py

test-models:
	@scripts/setup_deps.sh build bench
	@python3 scripts/run_tests.py --only models

bench: build
	@scripts/setup_models.sh smollm2 qwen text
	@python3 bench/run.py

fuzz:
	@scripts/setup_deps.sh build fuzz
	@scripts/build.sh fuzz
	@scripts/fuzz.sh $${FUZZ_SECONDS:-60}

lint:
	@scripts/setup_deps.sh build lint
	@python3 scripts/lint.py

format:
	@scripts/setup_deps.sh lint
	@python3 scripts/lint.py --fix-format

clean:
	rm -rf build
