# `make` prints what there is. Each target sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint format bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/  -/'

$(VENV)/ready: pyproject.toml
	@echo "setting up $(VENV) (a minute, once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

demo: $(VENV)/ready ## emulated engine, sidecar and load, with a live table
	@$(BIN)/sidecar demo

test: $(VENV)/ready lint ## lint, types, import contracts and all tests
	$(BIN)/pytest -q

lint: $(VENV)/ready ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready ## ruff, writing
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

bench: $(VENV)/ready ## the sidecar against Envoy, nginx, HAProxy and a Starlette router (an hour, quiet machine)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(MAKE) -C bench
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python bench/run.py
