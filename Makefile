# busbar: `make up` and `make test` do all the set-up they need.
SHELL      := /bin/bash
PYTHON     ?= python3
VENV       := .venv
BIN        := $(VENV)/bin
PYTEST     := $(BIN)/python -m pytest
QUICK      := $(PYTEST) -q -n auto --dist worksteal -m "not slow"
UNIT       := tests/unit $(wildcard stacks/*/tests/unit)
PROGRAM    := tests/program $(wildcard stacks/*/tests/program)
SOURCES    := busbar components lab tests examples machines stacks bench __main__.py conftest.py

# Without the bytecode that Python keeps, each run would compile every test anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv dev up down status test check lint types charts unit program slow lab-unit lab engine drills bench mutants schema docs release size lock format

help:  ## list what can be done
	@awk -F':.*## ' '/^[a-z%-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.user  ## the `busbar` command and its packages, in .venv: what bringing up a cluster needs

dev: $(VENV)/.ready  ## the same, and the tools of tests, lint and the lab; all other targets do this themselves

up: $(VENV)/.ready  ## boot the lab's hosts, run `busbar up dev`, end with a measured busbw
	@$(BIN)/python -m lab bringup

up-%: $(VENV)/.ready  ## after `make up`: bring up a capability of stacks/ on the lab's cluster (STACK=, a stack of its)
	@$(BIN)/python -m lab bringup $* $(STACK)

down: $(VENV)/.ready  ## remove every trace of the lab: hosts, mounts, bridge, processes, stack state
	@$(BIN)/python -m lab down

status: $(VENV)/.ready  ## what of the lab runs
	@$(BIN)/python -m lab status

test: check slow lab-unit lab engine  ## everything: lint, types, unit, program (mocks), slow, lab (real engine, real hosts; needs root), engine

# One pytest for unit and program tests: each process imports and collects for seconds before its first test.
check: lint types charts  ## the quick part of `make test`, without the tests marked slow; needs no root
	@$(QUICK) $(UNIT) $(PROGRAM)

lint: $(VENV)/.ready
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES)
	@$(BIN)/lint-imports
	@for file in $(wildcard stacks/*/.importlinter); do $(BIN)/lint-imports --config $$file || exit 1; done
	@./tests/shellcheck.sh

types: $(VENV)/.ready
	@$(BIN)/mypy

charts: $(VENV)/.ready
	@$(BIN)/python -m lab build --charts

unit: charts
	@$(QUICK) $(UNIT)

program: $(VENV)/.ready
	@$(QUICK) $(PROGRAM)

# Unit and program tests that start many shells or programs, or build wheels.
slow: charts
	@$(PYTEST) -q -n auto --dist loadfile -m slow $(UNIT) $(PROGRAM)

lab-unit: charts
	@$(PYTEST) -q lab/tests/unit lab/offline/tests

lab: $(VENV)/.ready
	@$(PYTEST) -v --durations=25 -m "not drill" lab/tests/programs tests/lab $(wildcard stacks/*/tests/lab)

# After the lab, which builds an engine where there is none.
engine: $(VENV)/.ready
	@$(PYTEST) -q -n auto --dist loadfile --durations=10 -m "not drill" tests/engine

DRILLS = -m drill tests/engine tests/lab $(wildcard stacks/*/tests/lab)

ifdef LIST
drills: $(VENV)/.ready
	@$(PYTEST) -q --list-drills $(DRILLS)
else
drills: $(VENV)/.ready  ## day-2 changes on running hosts (about three hours, needs root); LIST=1 lists them and their last passes
	@$(BIN)/python -m lab build --drills
	@$(PYTEST) -v $(DRILLS)
endif

bench: $(VENV)/.ready  ## print the figures of bench/ (ratios within one run)
	@for f in nccl_stream.py nccl_hostile.py "scale.py --workers 440 --bare"; do \
	  echo "== $$f"; $(BIN)/python bench/$$f || exit 1; done

mutants: $(VENV)/.ready  ## seed faults into MODULE, print those that TESTS miss (BASE=main: only lines that differ from it)
	@tests/mutants.sh "$(MODULE)" "$(TESTS)" "$(BASE)"

SCHEMA_OF = $(BIN)/python -c 'import json, pkgutil, sys; print(json.dumps(pkgutil.resolve_name(sys.argv[1])(), indent=2))'

schema: $(VENV)/.ready  ## write the JSON Schemas of the configuration and of the outputs anew
	@$(BIN)/python -m busbar schema > schema/cluster.schema.json
	@$(SCHEMA_OF) busbar.outputs.contract:details_schema > schema/details.schema.json
	@$(SCHEMA_OF) busbar.config.stackfile:hosts_schema > schema/hosts.schema.json
	@for name in $(notdir $(patsubst %/,%,$(dir $(wildcard stacks/*/schema.json)))); do \
	  $(BIN)/python -m busbar schema -C stacks/$$name > stacks/$$name/schema.json || exit 1; done

docs: $(VENV)/.ready  ## write the tables of docs/{diagnosis,evidence,hosts}.md and the pages of capabilities anew, from their rules
	@for page in tests.diagnosis_page tests.unchangeable_page tests.evidence_page $(subst /,.,$(basename $(wildcard stacks/*/tests/page.py))); do \
	  $(BIN)/python -m $$page || exit 1; done

release: $(VENV)/.ready  ## make the files of a release in dist/, built twice (KEY=FILE signs the checksums)
	@KEY=$(KEY) $(BIN)/python .ci/release.py

size:  ## count the lines of each part of the tree beside its budget
	@$(PYTHON) tests/size.py

format: $(VENV)/.ready  ## format and sort the Python code
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

lock:  ## pin every dependency anew (needs uv)
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile -q --universal --python-version 3.11 \
	  --generate-hashes pyproject.toml --extra stack --group build -o requirements.txt
	UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile -q --universal --python-version 3.11 \
	  --generate-hashes --group dev -c requirements.txt -o requirements-dev.txt

# Without --no-compile pip compiles all of these packages, most of which are never imported.
$(VENV)/.ready: requirements.txt requirements-dev.txt pyproject.toml tests/bootstrap.sh
	@PYTHON=$(PYTHON) ./tests/bootstrap.sh $(VENV) requirements.txt --no-compile -r requirements-dev.txt
	@touch $(VENV)/.user $@

$(VENV)/.user: requirements.txt pyproject.toml tests/bootstrap.sh
	@PYTHON=$(PYTHON) ./tests/bootstrap.sh $(VENV) requirements.txt
	@touch $@
