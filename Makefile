PYTHON ?= python3
BIN := .venv/bin

# Half of the tests without a cluster by the time that they take, with those that wait for processes and servers: the
# other half runs beside it.
HALF := tests/contracts tests/data tests/storage tests/training

.PHONY: quickstart test test-all test-half test-other-half lint clean

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
	$(MAKE) --no-print-directory --jobs=2 --output-sync test-half test-other-half
	$(BIN)/pytest -m "cluster and not (faults or long)"

# All that `make test` leaves out.
test-all: .venv/installed
	$(BIN)/pytest -m "faults or long"

test-half:
	$(BIN)/pytest -m "not (cluster or long)" $(HALF)

test-other-half:
	$(BIN)/pytest -m "not (cluster or long)" $(addprefix --ignore=,$(HALF))

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
