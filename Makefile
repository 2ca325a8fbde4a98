# Needs python3 (3.10 to 3.12) with venv, make and a package index; everything else goes into .venv.
#
#   make demo    four ranks under msrun on this CPU, one of them silently damaged; DEMO=--healthy, DEMO=--tensorboard
#   make test    everything that has to hold
#   make quick   the same without the tests that start real msrun workers
#   make lint    ruff, mypy and the import linter
#   make clean   remove .venv, caches and runs

PYTHON ?= python3
BIN := .venv/bin
# Rank processes and test workers share a few cores; one thread each keeps them from standing in each other's way.
export OMP_NUM_THREADS ?= 1

# Their ranks are compared by their times, so nothing else may run beside them.
ALONE := tests/real_faults tests/launch/test_demo.py

.PHONY: help demo test quick lint tools clean

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

demo: .venv/demo.stamp
	$(BIN)/crossrank demo $(DEMO)

test: lint tools
	$(BIN)/pytest -q -m "not real" -n 2
	$(BIN)/pytest -q -m real -n 2 --dist loadfile $(ALONE:%=--ignore=%)
	$(BIN)/pytest -q -m real $(ALONE)

quick: lint
	$(BIN)/pytest -q -m "not real" -n 2

lint: .venv/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests of containers need runc; without it, and without the right to install it, they are skipped.
tools:
	@command -v runc >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qqy runc; } || true

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runs

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13) and "python 3.10 to 3.12 is needed, this is " + sys.version + "; choose one with make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv

# Installed anew whenever pyproject.toml has changed since.
.venv/%.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@
