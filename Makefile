# `make demo` and `make test` need nothing but Python 3.11+ and a way to PyPI.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench federation train clean

demo: $(VENV)/.base
	$(BIN)/privcal demo

test: lint
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist loadgroup

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

federation: $(VENV)/.federation  # what `privcal federation` needs; `make test` then tests it too

train: $(VENV)/.train  # what `privcal data train` needs (torch); `make test` then tests it too

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) privcal-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "privcal needs Python 3.11 or newer; say which one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.test $(VENV)/.bench $(VENV)/.federation $(VENV)/.train: $(VENV)/.%: $(VENV)/.base
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@
