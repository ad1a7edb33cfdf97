# `make demo` and `make test` need nothing but Python 3.11+ and a way to PyPI.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest -n auto --dist loadgroup

.PHONY: help demo quick test carriers prove lint types bench flare mailbox train docs clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## */\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

demo: $(VENV)/.base  ## every method on bundled real data
	$(BIN)/privcal demo

quick: $(VENV)/.test  ## the core tests, in a minute or two
	$(PYTEST) -m "not slow"

test: lint types  ## lint, types and all tests
	$(PYTEST)

carriers: $(VENV)/.test $(VENV)/.mailbox  ## the attacks on a mailbox over real SFTP and S3 servers too, which takes half an hour
	PRIVCAL_EVERY_CARRIER=1 $(PYTEST) tests/transport -k adversary

prove: $(VENV)/.test $(VENV)/.flare  ## break every promise in a copy, and see its test notice (ONLY=TOPIC for some)
	$(BIN)/python -m tests.mutants $(if $(ONLY),--only "$(ONLY)")

lint: $(VENV)/.test  ## ruff and codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(VENV)/.test  ## mypy
	$(BIN)/mypy

flare: $(VENV)/.flare  ## install NVIDIA FLARE, which can carry letters; `make test` then tests it too

mailbox: $(VENV)/.mailbox  ## install what mailboxes over SFTP and S3 need; `make test` then tests them too

train: $(VENV)/.train  ## install what `privcal data train` needs (torch); `make test` then tests it too

docs: $(VENV)/.docs $(VENV)/.test  ## the documentation, as pages in docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: $(VENV)/.bench  ## speed and memory beside other libraries
	$(BIN)/python -m benchmarks

clean:  ## remove all that was made here
	rm -rf $(VENV) privcal-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis src/privcal/calibration/libcompiled.so docs/_build docs/made

$(VENV)/.base: pyproject.toml hatch_build.py src/privcal/calibration/compiled.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "privcal needs Python 3.11 or newer; say which one with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.mailbox: EXTRAS = mailbox,servers
$(VENV)/.test $(VENV)/.bench $(VENV)/.flare $(VENV)/.mailbox $(VENV)/.train $(VENV)/.docs: $(VENV)/.%: $(VENV)/.base
	$(PIP) --editable ".[$(or $(EXTRAS),$*)]"
	@touch $@
