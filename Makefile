# Everything a newcomer needs: `make demo`, `make test`. PYTHON must be 3.10 or newer, with venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 4
DESELECT := not deep and not systemd and not trainers

.PHONY: help demo demo-fsspec demo-cluster test test-deep test-systemd test-trainers check format bench bench-quick bench-memory clean

help:
	@echo "make demo           a checkpoint's life in a minute: save, verify, promote, push, lose the disk, pull"
	@echo "make demo-cluster   four nodes: one dies in the middle of a save, ranks move, all resume from the same step"
	@echo "make test           the test suite"
	@echo "make check          ruff, mypy, import-linter"
	@echo "make test-deep      long randomised tests (500 kills, more examples)"
	@echo "make test-systemd   the hardened unit in a booted Debian tree (root, debootstrap, systemd-nspawn)"
	@echo "make test-trainers  verl's own loader before and after a pull"
	@echo "make bench          measure against s5cmd, rclone, restic, ...: benchmarks/RESULTS.md (an hour, 12 GB of disk)"
	@echo "make bench-quick    the same on small data, once"
	@echo "make bench-memory   resident memory while pushing and pulling a 4 GiB step"

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "ckptsync needs Python 3.10 or newer: make PYTHON=python3.11 ...")'
	@echo "installing ckptsync into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@echo "installing what the tests need into $(VENV) ..."
	@$(PIP) install --quiet --editable '.[test,check]'
	@touch $@

demo: $(VENV)/installed
	@$(BIN)/ckptsync demo

demo-fsspec: $(VENV)/installed-test
	@$(BIN)/ckptsync demo --driver fsspec

demo-cluster: $(VENV)/installed-test
	@$(BIN)/ckptsync demo --cluster

# Hundreds of processes of the tests import ckptsync: each would compile all of it where the environment forbids to keep bytecode.
test test-deep: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "$(DESELECT)"

check: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-deep: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m deep

test-systemd: $(VENV)/installed-test
	$(BIN)/python -m pytest -m systemd

# verl without its dependencies on GPU servers; torch as the tests have it
TRAINERS := .venv-trainers
$(TRAINERS)/installed: tests/trainers/requirements.txt
	@$(PYTHON) -m venv $(TRAINERS)
	@$(TRAINERS)/bin/python -m pip install --quiet --requirement tests/trainers/requirements.txt
	@$(TRAINERS)/bin/python -m pip install --quiet --no-deps verl==0.9.1
	@touch $@

test-trainers: $(VENV)/installed-test $(TRAINERS)/installed
	CKPTSYNC_TRAINERS_PYTHON=$(TRAINERS)/bin/python $(BIN)/python -m pytest -m trainers

# ckptsync, what its tests need (torch, the S3 server), and the peers that it is measured against
BENCH := .venv-bench
$(BENCH)/installed: pyproject.toml benchmarks/requirements.txt
	@echo "installing ckptsync and its peers into $(BENCH) ..."
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[test]' --requirement benchmarks/requirements.txt
	@touch $@

bench: $(BENCH)/installed
	$(BENCH)/bin/python -m benchmarks

bench-quick: $(BENCH)/installed
	$(BENCH)/bin/python -m benchmarks --quick

bench-memory: $(BENCH)/installed
	$(BENCH)/bin/python -m benchmarks memory --check

clean:
	rm -rf $(VENV) $(TRAINERS) $(BENCH) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
