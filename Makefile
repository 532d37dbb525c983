# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint docs bench drill clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,learn]"
	touch $@

demo: setup  ## train on two silos, end with a table and a report
	$(BIN)/anabranch demo

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint  ## lint, types, layers, unit tests, doctests
	$(BIN)/python -m pytest -n 2

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
