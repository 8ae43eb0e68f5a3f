# Everything a person or a machine runs here. `make setup` is quick when nothing is to do.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-vm check bench soak clean
# Tests start thousands of interpreters, and each would compile all that it loads anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
# The folders that hold Python today; benchmarks, adapters and examples may be left out of an archive.
CODE := src tests $(patsubst %/,%,$(sort $(dir $(wildcard bench/*.py contrib/*/*.py examples/*.py))))
# Twice as many as there are cores, for most tests wait as long as they work: for a process that
# starts, a disk, an agent. Each worker mounts file systems and starts sandboxes: more than eight
# only wait for the disk.
WORKERS ?= $(shell expr $$(nproc) \* 2)
TESTS ?=
# The tests that try a sample by default, as they ask tests/sampling.py how much to try.
SAMPLED = $(shell grep -rl --include='test_*.py' 'from tests.sampling import' tests)

help:
	@echo "make demo    two agents side by side, with what that needs"
	@echo "make setup   the virtual environment and the programs the tests need"
	@echo "make test    all tests, then the core on the other Pythons (TESTS='tests/trees -k overlay' for some of them)"
	@echo "make test-vm what needs systemd and its control groups, in a virtual machine (root, qemu, minutes)"
	@echo "make check   style, types, import rules"
	@echo "make bench   the benchmarks, side by side with other tools"
	@echo "make soak    ten minutes of twenty clients, five thousand requests, two hundred killed daemons, and"
	@echo "             all of what 'make test' tries a sample of"
	@echo "make clean   removes what these made"

setup:
	@scripts/setup

demo:
	@scripts/setup demo
	@$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m tests.reaping $(BIN)/pytest -n $(WORKERS) --maxprocesses=8 --dist=loadgroup $(TESTS)
	@$(if $(TESTS),,WORKERS=$(WORKERS) scripts/pythons test)

test-vm: setup
	@scripts/setup vm
	CARREL_VM=1 $(BIN)/python -m tests.reaping $(BIN)/pytest tests/vm -x --durations=0

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python tools/unasync.py --check
	$(BIN)/python tools/pages.py --check

bench: setup
	$(BIN)/python bench/trees.py
	$(BIN)/python bench/sandbox.py
	$(BIN)/python bench/spaces.py
	$(BIN)/python bench/hub.py
	$(BIN)/python bench/agents.py
	$(BIN)/python bench/instances.py
	$(BIN)/python bench/requests.py
	$(BIN)/python bench/review.py
	$(BIN)/python bench/checkpoints.py
	$(BIN)/python bench/environments.py
	$(BIN)/python bench/ssh.py

soak: setup
	$(BIN)/python -m tests.soak
	$(BIN)/python -m tests.soak.requests
	$(BIN)/python -m tests.faults.kills
	$(BIN)/python -m tests.faults.hub_kills
	CARREL_EXHAUSTIVE=1 $(BIN)/python -m tests.reaping $(BIN)/pytest -n $(WORKERS) --maxprocesses=8 --dist=loadgroup --timeout=900 $(SAMPLED)

clean:
	rm -rf .venv tools/*/node_modules tools/servers/serena tools/contrib/suites tools/projects/sdists build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests bench examples contrib -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
