# The one entrance. `make demo` and `make test` do all the set-up themselves, in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The tests also run on PyTorch. Leave it out with: make test TORCH=
TORCH ?= torch==2.13.0
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: help demo test lint types contract check bench clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "neverseen needs Python 3.11 or newer: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' $(TORCH)
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base ## learn, forget and compare digests on real digits
	$(RUN) -m benchmarks.demo

test: $(VENV)/.dev ## run every test
	$(RUN) -m pytest

lint: $(VENV)/.dev ## check style
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev ## check types, strictly
	$(VENV)/bin/mypy

contract: $(VENV)/.dev ## check that modules import only what stands below them
	$(VENV)/bin/lint-imports

check: lint types contract test ## all of the above

bench: $(VENV)/.dev ## measure the engine against the paper's recursion and scikit-learn
	$(RUN) -m benchmarks.engine

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
