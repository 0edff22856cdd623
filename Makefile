# tilejit: `make demo` and `make test` set everything up by themselves; `make help` lists the rest.

PYTHON ?= python3
VENV   ?= .venv
# The torch to install. `TORCH=torch==2.13.0` picks one version; the default is the newest.
TORCH  ?= torch
NVRTC  ?= nvidia-cuda-nvrtc>=13.0,<14
JOBS   ?= 2

BIN := $(VENV)/bin
# A Python that already has a CUDA torch may lend it: make SITE=--system-site-packages setup
SITE ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu check bench docs notebooks clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/.ready: pyproject.toml
	$(PYTHON) -m venv $(SITE) $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q "$(NVRTC)" -e ".[test,check,sass]"
	touch $@

setup: $(BIN)/.ready ## create the virtual environment and install everything

demo: setup ## run the main job: a row softmax, compiled, checked, run and compared with torch
	$(BIN)/python -m tilejit.demo

test: setup ## run the tests that need no GPU (and skip the others with a reason)
	$(BIN)/python -m pytest -q -n $(JOBS)

test-gpu: setup ## run the same cases on the GPU and renew the evidence page
	$(BIN)/python -m pytest -q -n $(JOBS) -m gpu --require-gpu --evidence=tilejit/families/evidence.json tests
	$(BIN)/python -m tests.evidence_page

check: setup ## formatting, lint, strict types, import arrows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_arrows.py

bench: setup ## run the benchmarks against torch and Triton on the GPU; results in benchmarks/results
	$(BIN)/python -m benchmarks.run

docs: setup ## renew the generated pages and build the site in build/site
	$(BIN)/python -m tests.evidence_page
	$(BIN)/python -m tests.language_page
	$(BIN)/python -m tests.tcgen05_page
	$(BIN)/python -m tests.sim.test_planted_bugs
	$(BIN)/python -m tests.error_index
	$(BIN)/python -m tests.contract_page
	$(BIN)/python -m benchmarks.summary
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site

notebooks: setup ## make executed notebooks of the tutorials in build/notebooks
	mkdir -p build/notebooks
	for script in tutorials/*.py; do \
	  $(BIN)/jupytext --quiet --to ipynb --execute --set-kernel python3 \
	    -o build/notebooks/$$(basename $$script .py).ipynb $$script || exit 1; \
	done

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
