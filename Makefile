PYTHON ?= python3
BIN := .venv/bin

# Tests that mostly wait, for other processes or for servers: others can use the time.
WAITING := tests/collectives tests/storage

.PHONY: quickstart test test-faults test-waiting test-computing lint clean

# One stamp stands for a finished installation, so a second run installs nothing.
# torch comes first: with it in place no other package pulls another build.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	touch $@

quickstart: .venv/installed
	$(BIN)/rails-ray quickstart

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(MAKE) --no-print-directory --jobs=2 --output-sync test-waiting test-computing
	$(BIN)/pytest -m "cluster and not faults"

test-faults: .venv/installed
	$(BIN)/pytest -m faults

test-waiting:
	$(BIN)/pytest -m "not cluster" $(WAITING)

test-computing:
	$(BIN)/pytest -m "not cluster" $(addprefix --ignore=,$(WAITING))

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
