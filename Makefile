# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test lint docs bench drill walkthrough clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/.ready  ## create the environment (quick when nothing changed)

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,learn,nvflare,flower]"
	# What is compared with it needs only torch, numpy and POT; all that the package lists would add fifty packages.
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt torchcfm
	touch $@

demo: setup  ## train on two silos; ends with a table and a report
	$(BIN)/anabranch demo

test: lint  ## lint, types, layers, unit tests, doctests
	$(BIN)/python -m pytest -n 2

lint: setup  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: setup  ## check that every example in the documentation runs
	$(BIN)/python -m pytest README.md docs src -n 2

bench: setup  ## speed against torchcfm in the same run, as ratios
	$(BIN)/anabranch bench

drill: setup  ## long robustness runs: kills and resumes, hostile messages, a federation under fire
	$(BIN)/python benchmarks/drill.py
	$(BIN)/python benchmarks/fuzz.py
	$(BIN)/python benchmarks/federation_drill.py

walkthrough: setup  ## run every command of docs/two-hospitals.md and write the page anew
	$(BIN)/python docs/two_hospitals.py

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
