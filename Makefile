# Everything a fresh clone needs: `make demo` and `make test` set the environment up by themselves, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
# torch first and by its exact version: a bare `torch` may resolve to a newer build that brings gigabytes of CUDA along.
# Where the default index's build wants another triton than constraints.txt, the CPU build is taken instead.
TORCH ?= torch==2.13.0
CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types layers unit gpu clean

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

setup: $(STAMP)  ## the virtual environment, once for a pyproject and constraints

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "autofuse needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet -c constraints.txt $(TORCH) || $(PIP) install --quiet --index-url $(CPU_INDEX) $(TORCH)
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## tune two functions for an H200 without having one, explain them, run them
	$(BIN)/python -m autofuse.cli.demo --folder .demo

test: $(STAMP) lint types layers unit  ## everything that CI checks

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright

layers: $(STAMP)
	$(BIN)/lint-imports --no-cache

unit: $(STAMP)
	$(BIN)/python -m pytest -q

gpu: $(STAMP)  ## the tests that need a GPU
	$(BIN)/python -m pytest -q -m gpu

clean:  ## everything that was built; the environment stays
	rm -rf build dist .demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache
