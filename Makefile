# make help            targets and variables; ./bench --help: all other commands
SHELL := /bin/bash
SETUP ?= yes
PYTHON ?= .venv/bin/python
export PYTHON SETUP
ifneq ($(realpath $(dir $(lastword $(MAKEFILE_LIST)))),$(CURDIR))
$(error this Makefile runs in its own folder only; use make -C FOLDER, not make -f)
endif

STRATEGY_NAMES := $(filter-out __init__,$(basename $(notdir $(wildcard benchmarks/*.py))))
BENCHES := $(addprefix bench-,$(STRATEGY_NAMES))
CALLS := setup data bench-all slurm-all plot report compare verify
.PHONY: help $(CALLS) $(BENCHES) gpu-test test test-medium test-slow test-all test-faults lint clean

help:
	@sed -n 's/^#: \{0,1\}//p' $(MAKEFILE_LIST)

#: setup      install everything into .venv    data        make imagenet-mini, unless DATA is given
#: bench-all  time the core strategies         bench-NAME  one strategy: ls benchmarks/*.py
#: slurm-all  bench-all as one Slurm job       plot        draw the charts of RESULTS again
#: report     report.html; MEASURE=no: quickly compare     is B faster than A? A=results/x B=results/y
#: verify     prove equal updates              gpu-test    try this GPU; needs pytest
#: test       also test-medium, -slow, -all    lint        ruff, mypy and shellcheck
#: test-faults, clean
#:
#: STRATEGIES  "single ddp", or all            DATA      folder with train/<class>/ and val/<class>/
#: REPEATS     rounds; default 5               CONFIG    YAML file; default: configs/smoke.yaml, on
#: UNTIL       5%: rounds until it is known              GPUs configs/imagenet-bench.yaml
#: BUDGET      20m: rounds while time lasts    ARGS      for every script: "--global-batch 64"
#: SEEDS       seeds, in turn; default 1       RESULTS   result set; default: a new one, or latest
#: NPROC       ranks; default: GPUs, else 2    RETRY     failed: run again what ended so
#: PLAN        yes: print the runs only        FAIL_OVER 5%: compare fails where B is slower by more
#: A, B        sets to compare                 TESTS     files or options for pytest
#: SETUP       no: install nothing             PYTHON    interpreter, used as it is with SETUP=no
#: TORCH       version of torch for setup      PIP_ARGS  pip's options   YES  yes: clean does not ask
#: DEVICE      cpu: use no GPU                 TORCH_INDEX  builds of torch for setup, such as CPU
#: HOSTS, NODES, NNODES, ...: several machines, launchers/README.md
#:
#: make ends with 2 after any failure; ./bench has exit codes that say which.
#: more: ./bench --help

# Launchers read these, too, from the environment or the command line (launchers/README.md): TASKS_PER_NODE, GPUS_PER_NODE,
# CPUS_PER_TASK, PARTITION, ACCOUNT, QOS, GPU_TYPE, MEMORY, EXCLUSIVE, TIME, WARNING_S, CONTAINER, NNODES, NODE_RANK,
# RDZV_ENDPOINT, THREADS_PER_RANK, TIMEOUT, PACKED, NUM_GPUS, GPU_MEMORY_GB; and set-up reads APEX_GIT.
$(CALLS):
	@./bench make $@

$(BENCHES): bench-%:
	@STRATEGIES=$* ./bench make bench-all

# All of them in several processes, file by file; TESTS in one, for a process more is seconds of imports.
IN_PARALLEL := -n logical --maxprocesses 4 --dist loadfile
# pytest keeps what it has compiled of the tests, whatever the environment says; without that each process does it again.
PYTEST := PYTHONDONTWRITEBYTECODE= "$$PYTHON" -m pytest

test: data
	@$(PYTEST) -m "not medium and not slow and not gpu" $${TESTS:-$(IN_PARALLEL)}

test-medium: data
	@$(PYTEST) -m "medium and not slow and not gpu" $${TESTS:-$(IN_PARALLEL)}

test-slow: data
	@$(PYTEST) -m "slow and not gpu" $${TESTS:-$(IN_PARALLEL)}

test-all: data
	@$(PYTEST) $${TESTS:-$(IN_PARALLEL)}

gpu-test: setup
	@$(PYTEST) -m gpu -rs --junitxml results/gpu-test.xml tests/gpu $(TESTS)

test-faults: data
	@PRELOADED=no "$$PYTHON" -m pytest tests/faults

lint: setup
	@"$$PYTHON" -m ruff check . && "$$PYTHON" -m ruff format --check --quiet .
	@"$$PYTHON" -m mypy
	@$$("$$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/shellcheck launchers/*.sh examples/*.sbatch $$(find scripts tests -name "*.sh") .ci/run

clean:
	@rm -rf .pytest_cache .ruff_cache .hypothesis
	@"$$(command -v "$$PYTHON" || echo python3)" -m scripts.setup.clean $(if $(filter yes,$(YES)),--yes)
