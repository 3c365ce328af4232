PYTHON ?= python3
BIN := .venv/bin

# Tests start dozens of processes, and each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-all lint clean

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

# Two processes for the tests without a cluster; those with one share a cluster in a third.
test: .venv/installed
	$(BIN)/pytest -n 2 --dist worksteal -m "not (cluster or long)"
	$(BIN)/pytest -m "cluster and not (faults or long)"

# All that `make test` leaves out: more examples of each property, and what waits, kills, or takes long. A failure in
# the first half does not hide those of the second.
test-all: .venv/installed
	RAILS_RAY_EXAMPLES=many $(BIN)/pytest -n 2 --dist worksteal -m "(hypothesis or long) and not cluster"; \
	first=$$?; $(BIN)/pytest -m "cluster and (faults or long)" --durations=40 && exit $$first

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
