PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test lint clean

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
	$(BIN)/pytest

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
