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
.PHONY: help setup data bench-all $(BENCHES) plot report verify gpu-test test test-launches test-faults lint clean

help:
	@sed -n 's/^#: \{0,1\}//p' $(MAKEFILE_LIST)

#: setup      install everything into .venv    data      make imagenet-mini, unless DATA is given
#: bench-all  time the core strategies         bench-NAME  one strategy: ls benchmarks/*.py
#: plot       draw the charts of RESULTS again report    write its report.html and report.md
#: verify     prove equal updates              gpu-test  try this GPU; needs pytest
#: test       also test-launches, -faults      lint      ruff, mypy and shellcheck; clean
#:
#: STRATEGIES  "single ddp", or all            DATA      folder with train/<class>/ and val/<class>/
#: REPEATS     rounds; default 5               CONFIG    YAML file; default: configs/smoke.yaml, on
#: NPROC       ranks; default: GPUs, else 2              GPUs configs/imagenet-bench.yaml
#: RESULTS     result set; default: a new one  ARGS      further options; of a run: "--global-batch 64"
#: SETUP       no: install nothing             PYTHON    interpreter, used as it is with SETUP=no
#: TORCH       version of torch for setup      TESTS     files or options for pytest
#:
#: make ends with 2 after any failure; ./bench has exit codes that say which.
#: Several machines: docs/several-machines.md. Everything else: ./bench --help

VARIABLES := STRATEGIES REPEATS NPROC RESULTS DATA CONFIG ARGS SETUP PYTHON TORCH TORCH_INDEX PIP_ARGS APEX_GIT TESTS YES \
  DEVICE THREADS_PER_RANK GPU_MEMORY_GB PACKED HOSTS NNODES NODE_RANK RDZV_ENDPOINT CONTAINER
typed := $(foreach name,$(.VARIABLES),$(if $(filter command line,$(origin $(name))),$(name)))
unknown := $(filter-out $(VARIABLES) MAKEFLAGS MAKEOVERRIDES GNUMAKEFLAGS MFLAGS SHELL,$(typed))
ifneq ($(unknown),)
$(error there is no variable $(firstword $(unknown)); make help lists all)
endif

# Each variable as the option of ./bench; the shell expands it, so that a path may have blanks.
SET := $${RESULTS:+--results "$$RESULTS"}
RUN := $(SET) $${DATA:+--data "$$DATA"} $${CONFIG:+--config "$$CONFIG"} $${NPROC:+--nproc "$$NPROC"}
FLAGS := $${ARGS:+-- $$ARGS}

setup:
	@./bench setup

data:
	@if [ -n "$$DATA" ]; then ./bench setup; else ./bench data make; fi

bench-all:
	@./bench run $$STRATEGIES $(RUN) $${REPEATS:+--repeats "$$REPEATS"} $(FLAGS)

$(BENCHES): bench-%:
	@./bench run $* $(RUN) $${REPEATS:+--repeats "$$REPEATS"} $(FLAGS)

plot report:
	@./bench $@ $(SET) $$ARGS

verify:
	@./bench verify $$STRATEGIES $(RUN) $(FLAGS)

FAULTS := tests/faults tests/test_slurm_local.py
# All of them in several processes, file by file; TESTS in one, for a process more is seconds of imports.
IN_PARALLEL := -n logical --maxprocesses 4 --dist loadfile $(FAULTS:%=--ignore=%)
# pytest keeps what it has compiled of the tests, whatever the environment says; without that each process does it again.
PYTEST := PYTHONDONTWRITEBYTECODE= "$$PYTHON" -m pytest

test: data
	@$(PYTEST) -m "not launches and not gpu" $${TESTS:-$(IN_PARALLEL)}

test-launches: data
	@$(PYTEST) -m "launches and not gpu" $${TESTS:-$(IN_PARALLEL)}

gpu-test: setup
	@$(PYTEST) -m gpu -rs --junitxml results/gpu-test.xml tests/gpu $(TESTS)

test-faults: data
	@PRELOADED=no $(PYTEST) -m "not slow" $${TESTS:--n 3 --dist loadfile $(FAULTS)}

lint: setup
	@"$$PYTHON" -m ruff check . && "$$PYTHON" -m ruff format --check --quiet .
	@"$$PYTHON" -m mypy
	@$$("$$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/shellcheck launchers/*.sh examples/*.sbatch $$(find scripts tests -name "*.sh") .ci/run

clean:
	@rm -rf .pytest_cache .ruff_cache .hypothesis
	@"$$(command -v "$$PYTHON" || echo python3)" -m scripts.setup.clean $(if $(filter yes,$(YES)),--yes)
