# The doors of the project. `make check` is the one that CI goes through; `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo chaos check check-mypy check-pyright check-tests prove prove-figures prove-waits prove-clusters prove-simulation prove-handover prove-settling prove-membership explore-settling explore-handover explore-membership format format-check lint mypy pyright imports protos protos-check test test-redis simulation bench bench-check coverage clean

VENV ?= .venv
BIN := $(VENV)/bin
# Any Python from 3.11 on, the first that runs; `make PYTHON=python3.13 …` names one.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$candidate && break; done)
# The environment is as new as what pyproject.toml says, not as its time of change: a checkout installs nothing again.
SETUP := $(VENV)/.ready-$(shell cksum < pyproject.toml | tr ' ' '-')
PIP_VERSION := 26.3
EXTRAS := cloudpickle,embedded,numpy,otel,plots

# The tests start many processes: none is to compile anew what the one before has.
unexport PYTHONDONTWRITEBYTECODE

PROTOS = $(shell find protos -name '*.proto' | sort)
# More than cores: they wait in turn.
TEST_WORKERS ?= 3
TEST_ARGS ?=
SEEDS ?= 200
MINUTES ?= 2
CHAOS_ARGS ?=
PROVE_SEEDS ?= 10000
PROVE_MINUTES ?= 10
# Tests that have a long form: those that measure under load, and those that mostly wait.
BUSY_TESTS := $(addprefix tests/process/,test_migrations.py test_pauses.py test_crash.py test_crash_in_a_move.py \
	test_payloads.py test_figures_takeover.py)
WAITING_TESTS := $(addprefix tests/process/,test_restart.py test_redis_outage.py test_figures_outage.py \
	test_figures_loop.py) tests/cluster/test_lost_directory.py
NICE ?=

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do printf '  make %-13s %s\n' "$$name" "$$what"; done

setup: $(SETUP) ## the virtual environment in .venv, with the package, its extras and the pinned tools

$(SETUP): | pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed, and none was found; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@rm -f $(VENV)/.ready-*
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==$(PIP_VERSION)
	@# The warning of setuptools about folders named like the package is for other layouts: pytest and the links hold ours.
	@PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev --editable '.[$(EXTRAS)]'
	@touch $@

demo: setup ## a cluster of three silos under load: moved, restarted and killed before your eyes (about 30 s)
	@$(BIN)/python -m samples.demo $(DEMO_ARGS)

bench: setup ## calls/s, latencies, moves beside bare echoes of the same run; BENCH_ARGS='--full --save' for all of it
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-check: setup ## a short run that fails on bars that are a factor of two off
	@$(BIN)/python -m benchmarks --quick --check --slack 2

# One step of the check, with the time it took: $(call step,NAME,TARGET).
define step
+@echo "── $(1)"; begun=$$(date +%s); if $(MAKE) --no-print-directory $(2); \
	then echo "   $(1): ok, $$(($$(date +%s) - begun)) s"; \
	else echo "── $(1): FAILED after $$(($$(date +%s) - begun)) s; to repeat it: make $(2)" >&2; exit 1; fi
endef

check: CHECK_BEGUN := $(shell date +%s)
check: setup ## format, lint, types, import contracts, generated code, all tests: what CI runs
	$(call step,format,format-check)
	$(call step,lint,lint)
	$(call step,generated code,protos-check)
	$(call step,import contracts,imports)
	@$(MAKE) --no-print-directory --jobs 3 check-mypy check-pyright check-tests
	$(call step,simulation,simulation)
	@echo "── check: ok, $$(($$(date +%s) - $(CHECK_BEGUN))) s"

# Side by side: tests wait often enough for the types to be checked meanwhile, with what they leave.
check-mypy: setup
	$(call step,mypy,mypy)

check-pyright: setup
	$(call step,pyright,pyright)

check-tests: setup
	$(call step,tests,test)

prove: PROVE_BEGUN := $(shell date +%s)
prove: setup ## the long forms: processes, chaos, exploration, simulation; meant to take under 40 minutes
	$(call step,figures,prove-figures)
	@$(MAKE) --no-print-directory --jobs 5 --output-sync=line prove-clusters prove-simulation prove-handover prove-settling \
		prove-membership
	@echo "── prove: ok, $$(($$(date +%s) - $(PROVE_BEGUN))) s"

# One after the other: pauses and recoveries are measured on a machine that does nothing else.
prove-figures: setup ## the long forms of the process tests that keep the machine busy, with the figures that they print
	@SILO_TEST_LONG=1 $(BIN)/python -m pytest -s -q $(BUSY_TESTS) $(TEST_ARGS)

prove-waits: setup ## the long forms of the tests that mostly wait: for outages to end, and for what comes back
	@SILO_TEST_LONG=1 $(BIN)/python -m pytest -s -q $(WAITING_TESTS) $(TEST_ARGS)

# Real processes first; beside them, with what they leave of the machine, what no waiting could spoil.
prove-clusters: setup
	$(call step,outages and restarts,prove-waits)
	$(call step,chaos,chaos MINUTES=$(PROVE_MINUTES))

prove-simulation: setup
	$(call step,simulation,simulation SEEDS=$(PROVE_SEEDS) NICE=nice)

prove-handover: setup
	$(call step,handover explored,explore-handover)

prove-settling: setup
	$(call step,settling explored,explore-settling MINUTES=5)

prove-membership: setup
	$(call step,membership explored,explore-membership MINUTES=$(PROVE_MINUTES))

explore-handover: setup ## every state of the handover
	@nice $(BIN)/python -m tests.exploration.handover

explore-settling: setup ## what a lost directory may do to one grain, for MINUTES at most
	@nice $(BIN)/python -m tests.exploration.settling --minutes $(MINUTES)

explore-membership: setup ## every state of the lease that can be reached in MINUTES
	@nice $(BIN)/python -m tests.exploration.membership --minutes $(MINUTES)

format: setup ## write the format, and what lint can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

format-check: setup
	@$(BIN)/ruff format --check .

lint: setup ## ruff
	@$(BIN)/ruff check .

mypy: setup ## mypy, strict
	@nice $(BIN)/mypy

pyright: setup ## basedpyright, strict
	@nice $(BIN)/basedpyright --pythonpath $(BIN)/python

imports: setup ## the import contracts: what may know what
	@$(BIN)/lint-imports --no-logo

protos: setup ## generate silo/wire/… from protos/
	@$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. $(PROTOS)

# Into build/ and compared both ways, so that a file too many is found like one that differs.
protos-check: setup
	@rm -rf build/protos && mkdir -p build/protos/fresh build/protos/committed
	@$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=build/protos/fresh --pyi_out=build/protos/fresh $(PROTOS)
	@tar -cf - $$(find silo/wire -name '*_pb2.py*' -not -path '*/__pycache__/*') | tar -xf - -C build/protos/committed
	@diff -ru build/protos/committed build/protos/fresh || { echo "generated code is not what protos/ says: run make protos" >&2; exit 1; }

test: setup ## all tests; TEST_ARGS='-k name' chooses
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal $(TEST_ARGS)

test-redis: setup ## the Redis-facing tests alone; SILO_TEST_REDIS_SERVER names the server's binary
	@$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal -m redis $(TEST_ARGS)

simulation: setup ## whole clusters in virtual time under seeded faults; SEEDS=10000 plays more
	@$(NICE) $(BIN)/python -m tests.simulation --seeds $(SEEDS)

chaos: setup ## real silos and a real Redis under a seeded nemesis; MINUTES=10 lasts longer, CHAOS_ARGS='--seed 7'
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(CHAOS_ARGS)

coverage: setup ## tests in one process, with a report of what they left out
	@$(BIN)/python -m coverage run -m pytest $(TEST_ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

clean: ## remove what was built, the environment included
	@rm -rf $(VENV) build dist *.egg-info .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
