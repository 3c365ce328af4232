PYTHON ?= python3
BIN := .venv/bin

# Tests that mostly wait, for other processes or for servers: others can use the time.
WAITING := tests/collectives tests/storage
# Those that start clusters of their own, beside those that share one.
OWN_CLUSTERS := tests/on_ray/submitted tests/on_ray/test_deploying.py tests/on_ray/test_kills.py tests/test_cli_on_ray.py

.PHONY: quickstart test test-own-clusters test-shared-cluster test-waiting test-computing lint clean

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
	$(MAKE) --no-print-directory --jobs=2 --output-sync test-own-clusters test-shared-cluster test-waiting test-computing

test-own-clusters:
	$(BIN)/pytest -m cluster $(OWN_CLUSTERS)

test-shared-cluster:
	$(BIN)/pytest -m cluster $(addprefix --ignore=,$(OWN_CLUSTERS))

test-waiting:
	$(BIN)/pytest -m "not cluster" $(WAITING)

test-computing:
	$(BIN)/pytest -m "not cluster" $(addprefix --ignore=,$(WAITING))

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
