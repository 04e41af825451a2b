# make help            every target and variable
# make expands what its command line says: of a folder named $(shell ...) it would run the name. $$ is a $.
$(foreach name,$(.VARIABLES),$(if $(findstring command line,$(origin $(name))),$(if \
  $(findstring $$,$(subst $$$$,,$(value $(name)))),$(error $(name) has a $$ in it, which make takes for a variable; write $$$$))))
# The same for what make itself reads, wherever it is from.
$(foreach name,LOCK MACHINE MEASURE REPLACE TORCH YES,$(if \
  $(findstring $$,$(value $(name))),$(error $(name) has a $$ in it, which make takes for a variable; give the value alone)))
SHELL := /bin/bash
SETUP ?= yes
PYTHON ?= .venv/bin/python
export PYTHON
# With either set, another folder's code would run; launchers/lib.sh says how.
unexport CDPATH PYTHONSAFEPATH
ifneq ($(realpath $(dir $(lastword $(MAKEFILE_LIST)))),$(CURDIR))
$(error this Makefile runs in its own folder only; use make -C FOLDER, not make -f)
endif

STRATEGY_NAMES := $(filter-out __init__,$(basename $(notdir $(wildcard benchmarks/*.py))))
BENCHES := $(addprefix bench-,$(STRATEGY_NAMES))

.PHONY: help setup again data bench-all slurm-all plot report publish gallery readme compare reproduce ab power roof forecast profile gpu-check gpu-check-file verify sweep scaling ablate peers cuts mlperf pack predict predict-check bench-allreduce bench-loaders loader flags test test-slow test-all test-faults fuzz kill-fuzz lint clean $(BENCHES)

help: ## this text
	@echo 'targets:'
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|'
	@echo '  bench-<strategy>  one of: $(STRATEGY_NAMES)'
	@echo 'variables:'
	@sed -nE 's/^#: ([A-Z_]+(, [A-Z_]+)*) +(.*)/  \1|\3/p' $(MAKEFILE_LIST) | column -t -s '|'

#: DATA        folder with train/<class>/*.JPEG and val/<class>/*.JPEG; default: imagenet-mini, made here
#: CONFIG      default: configs/smoke.yaml; with GPUs: configs/imagenet-bench.yaml
#: ARGS        flags for every script, such as ARGS="--global-batch 64"; `make flags` lists them
#: STRATEGIES  what bench-all runs, such as "single ddp"; default: the core; all: every one
#: REPEATS     rounds of bench-all and bench-<strategy>; default 3. Of ab: the most; default 20
#: UNTIL       more rounds, until all ratios to single are known this well, such as UNTIL=5%
#: BUDGET      more rounds, as long as another whole one fits, such as BUDGET=20m; s, m, h
#: SEEDS       rounds take this many seeds in turn, one setting together; default: one seed
#: NPROC       ranks; default: the GPUs, else 2
#: RESULTS     result set; default: results/<date>-<time>; given again, only what is missing is run
#: PLAN        yes: bench, ab, sweep, scaling and ablate print their runs, and start none
#: RETRY       a status, such as failed: run those attempts again
#: TIMEOUT     seconds that one run may take; default: the configuration's limit_s
#: STRATEGY    for ab and ablate (default ddp), sweep and scaling
#: KEY, VALUES      for sweep
#: RANKS       for scaling, such as "1 2 4"
#: A, B        for ab: two of commit:REV, tree:, flags:..., config:FILE, python:PATH; for compare: two sets
#: FAIL_OVER   for ab and compare, such as 5%: fail where B is slower by more
#: NODES, TASKS_PER_NODE, PARTITION, TIME  for slurm-all and bench-slurm; TIME in minutes
#: GPUS_PER_NODE, CPUS_PER_TASK            the same; default: the GPUs here, and a task's share of a node's cores
#: PACK, PACKED                            what make pack keeps (full, 256, jpeg256), and its folder
#: MEASURE     no: make report from what is there
#: NAME, REPLACE   for publish: <hardware>_<torch>_<yyyymm>; yes: in the place of the set of that name
#: YES         yes: make clean removes sets without asking; where there is no terminal to ask on, it needs this
#: SET         for reproduce: a published set; STRATEGIES takes some of it, ARGS="--day-sd 2%" allows a verdict
#: PRICE_PER_HOUR  for gallery: of a machine, such as 2.50 for all sets, or "NAME=2.50 ..." for some
#: WARNING_S   seconds before a job's time limit: bench-slurm asks for a checkpoint, slurm-all ends the run; default 60
#: CONTAINER   an image in which scripts run, by Apptainer, or by srun with pyxis
#: PEERS, MINUTES  for peers: which peers, and the most minutes with each; default: all, 30. MINUTES of fuzz: in all; default 10
#: SEED, KILLS     for fuzz and kill-fuzz: the seed of the random choices; for kill-fuzz: number of signals, default 60
#: MACHINE, LINK   for predict: here, h100x8 or v100x4; links.csv of make bench-allreduce
#: NNODES, NODE_RANK, RDZV_ENDPOINT        torchrun over several machines without Slurm
#: HOSTS       hosts for horovodrun, such as a:4,b:4
#: THREADS_PER_RANK                        default: cores / ranks
#: TESTS       what make test runs, such as tests/benchmarks/test_data.py
#: PYTHON      interpreter; with SETUP=no it is used as it is
#: NUM_GPUS, GPU_MEMORY_GB   how many, and of the smallest, for the memory forecast; default: the GPUs here
#: SETUP       no: install nothing
#: TORCH       setup: this version of torch; default: the newest that runs on the GPUs and driver here
#: LOCK        setup: no: the newest of everything, instead of the lock file's versions
#: PIP_ARGS    setup: words for every pip install, such as "--index-url https://..."
#: APEX_GIT    setup: a clone of github.com/NVIDIA/apex

NEEDED := torch torchvision numpy pandas scipy matplotlib PIL tyro yaml tqdm psutil pynvml jinja2

ifeq ($(SETUP),no)
setup:
	@"$$PYTHON" -c 'import importlib.util as u, sys; \
	  missing = [n for n in "$(NEEDED)".split() if not u.find_spec(n)]; \
	  sys.exit(f"error: {sys.executable} lacks {chr(44).join(missing)}; requirements.txt lists all" if missing else 0)'
else
setup: .venv/.ready .venv/.extras ## install everything into .venv, as the other targets do by themselves
endif

.venv/.ready: requirements.txt requirements.lock requirements-torch2.10.lock $(if $(TORCH)$(LOCK),again)
	@echo 'setting up .venv (a minute or two, some GB)'
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: python3 must be 3.11 or newer")'
	@python3 -m scripts.setup.install .venv
	@touch $@

# Tried once: where one fails, its strategy's row says how to try again.
.venv/.extras: .venv/.ready scripts/setup/install_horovod.sh scripts/setup/install_apex.sh
	@scripts/setup/install_horovod.sh || true
	@scripts/setup/install_apex.sh || true
	@touch $@

again:

data: setup ## make imagenet-mini, unless DATA is given
	@test -n "$$DATA" || "$$PYTHON" -m scripts.setup.make_dataset

bench-all: setup data ## time the core strategies (STRATEGIES=all: every one), REPEATS rounds, then draw the charts
	@launchers/all.sh

slurm-all: setup data ## bench-all as one Slurm job, all strategies by turns on the same nodes: NODES=2 TASKS_PER_NODE=8
	@launchers/slurm_all.sh

$(BENCHES): bench-%: setup data
	@STRATEGIES=$* launchers/all.sh

plot: setup ## draw the charts of RESULTS (one or several sets) again
	@"$$PYTHON" -m scripts.charts.plot --results $${RESULTS:-results/latest}

compare: setup ## is B faster than A? A=results/x B=results/y FAIL_OVER=5%; without B: strategies within A
	@"$$PYTHON" -m scripts.sets.compare --a "$${A:-results/latest}" $${B:+--b "$$B"} \
	  $${FAIL_OVER:+--fail-over "$$FAIL_OVER"} $$ARGS

ab: setup data ## is B faster than A, in one session? A=HEAD~1 B=tree: [FAIL_OVER=5%]; also flags:..., config:FILE, python:PATH
	@STRATEGY="$${STRATEGY:-ddp}" "$$PYTHON" -m scripts.studies.ab.ab

roof: setup ## forecast: what V100, A100, H100 and H200 can reach at most, by FLOPs and bytes of a step; ARGS="--layers"
	@"$$PYTHON" -m scripts.studies.roofline.step_costs $$ARGS

forecast: setup ## memory that each strategy needs: ARGS="--memory-gb 16.9 --num-devices 4 -- --config configs/v100x4.yaml"
	@"$$PYTHON" -m scripts.runner.memory_check $$ARGS

gpu-check: setup ## everything that the suite says of GPUs, tried on this one, in 9 minutes; called again, it goes on; without a GPU a dry run
	@"$$PYTHON" -m scripts.gpu_check.run $$ARGS

gpu-check-file: setup ## gpu-check.pyz: the same as one file, for a machine without a network that has torch
	@"$$PYTHON" -m scripts.gpu_check.carry gpu-check.pyz $$ARGS

profile: setup ## torch.profiler around some steps: the top kernels, and how far each kind of layer is from the roof
	@"$$PYTHON" -m scripts.studies.roofline.profile_step $$ARGS

power: setup ## how many rounds find a difference of 2, 5 or 10 %, with the spread of RESULTS
	@"$$PYTHON" -m scripts.sets.power --results "$${RESULTS:-results/latest}"

report: setup data ## report.html and report.md of RESULTS; measures first what it lacks, unless MEASURE=no
	@STRATEGY="$${STRATEGY:-ddp}" "$$PYTHON" -m scripts.pages.page --results "$${RESULTS:-results/latest}" $(if $(filter no,$(MEASURE)),,--measure)

# NAME counts on the command line only: WSL has a NAME in the environment.
publish: setup ## check RESULTS and put it into results/published/NAME with its report; README's figures follow
	@"$$PYTHON" -m scripts.publish.publish --results "$${RESULTS:-results/latest}" --name "$(if $(findstring command line,$(origin NAME)),$$NAME)" $(if $(filter yes,$(REPLACE)),--replace)

gallery: setup ## all published sets on one page, results/gallery.html: filters, J/image, seconds of an epoch; PRICE_PER_HOUR=2.50 adds costs
	$(if $(findstring $$,$(value PRICE_PER_HOUR)),$(error PRICE_PER_HOUR has a $$ in it, which make takes for a variable; give the number alone, such as 2.50))
	@"$$PYTHON" -m scripts.publish.gallery $${PRICE_PER_HOUR:+--price-per-hour "$$PRICE_PER_HOUR"}

reproduce: setup data ## a published set again, at its commit, and compared: SET=results/published/x
	@"$$PYTHON" -m scripts.publish.reproduce

readme: setup ## the figures in the READMEs again, from the committed results
	@"$$PYTHON" -m scripts.publish.readme

verify: setup data ## prove that the runs of RESULTS (or of CONFIG, ARGS) compute the same update; STRATEGIES for some
	@"$$PYTHON" -m scripts.proof.verify

sweep: setup data ## one option, several values: STRATEGY=ddp KEY=bucket_cap_mb VALUES="1 5 25 100"
	@launchers/all.sh sweep

scaling: setup data ## strong and weak scaling: STRATEGY=ddp RANKS="1 2 4"
	@launchers/all.sh scaling

ablate: setup data ## what each option is worth, by itself and all together: STRATEGY=ddp REPEATS=5
	@STRATEGY="$${STRATEGY:-ddp}" launchers/all.sh ablation

peers: setup data ## ddp beside what one would pick instead, launches by turns: PEERS="fabric bare" MINUTES=30
	@"$$PYTHON" -m scripts.studies.peers.measure $${MINUTES:+--minutes "$$MINUTES"} $${PEERS:+--only $$PEERS}

cuts: setup data ## what a measured cut of a pipeline is worth: ARGS="--image-sizes 48 224 --against estimate 3"
	@"$$PYTHON" -m scripts.studies.cuts.measure $$ARGS

mlperf: setup ## an MLPerf-style log of a run of RESULTS, for the open division
	@"$$PYTHON" -m scripts.publish.mlperf_log --results "$${RESULTS:-results/latest}" $$ARGS

pack: setup data ## write the images as one mapped file a split: DATA=... PACK=full, 256 or jpeg256 PACKED=folder
	@"$$PYTHON" -m scripts.setup.pack --data "$${DATA:-data/imagenet-mini}" --pack "$${PACK:-full}"

bench-loaders: setup data ## the loaders of this suite, bare loops and other projects' loaders, side by side
	@"$$PYTHON" -m scripts.studies.loaders.measure --data "$${DATA:-data/imagenet-mini}" $$ARGS

bench-allreduce: setup ## all-reduces of 1 KB to 256 MB by each strategy's own path; its fit is the link model of predict
	@"$$PYTHON" -m scripts.studies.allreduce.measure $$ARGS

predict: setup ## 2 to 4,096 devices, from RESULTS and LINK, or MACHINE=h100x8, v100x4; ARGS="--between-gbit 100"
ifeq ($(or $(MACHINE),here),here)
	@test -e "$${RESULTS:-results/latest}/gradients.csv" || "$$PYTHON" -m scripts.studies.predict.gradient_times --results "$${RESULTS:-results/latest}"
endif
	@"$$PYTHON" -m scripts.studies.predict.report --machine "$${MACHINE:-here}" --results "$${RESULTS:-results/latest}" $${LINK:+--link "$$LINK"} $$ARGS

predict-check: setup data ## this machine's 2-rank steps, predicted from what exchanges nothing, beside measured ones; ARGS="--gbit 1"
	@"$$PYTHON" -m scripts.studies.predict.measure $${CONFIG:+--config "$$CONFIG"} $$ARGS

loader: setup data ## is the loader the limit? loader alone, training alone, both; and how many cores it needs
	@"$$PYTHON" -m scripts.studies.loaders.verdict_measure --results "$${RESULTS:-results/latest}"
	@"$$PYTHON" -m scripts.studies.loaders.worker_counts --results "$${RESULTS:-results/latest}"

flags: setup ## every configuration field and its flag
	@"$$PYTHON" -m benchmarks.single --help

# All of them in several processes, file by file; TESTS in one, for a process more is seconds of imports.
IN_PARALLEL := -n logical --maxprocesses 4 --dist loadfile

test: setup data ## the tests, but for the slow ones
	@"$$PYTHON" -m pytest -m "not slow" $${TESTS:-$(IN_PARALLEL)}

test-slow: setup data ## the slow tests alone
	@"$$PYTHON" -m pytest -m slow $${TESTS:-$(IN_PARALLEL)}

test-all: setup data ## every test
	@"$$PYTHON" -m pytest $${TESTS:-$(IN_PARALLEL)}

test-faults: setup data ## the fault matrix: every fault that can be made on this machine
	@PRELOADED=no "$$PYTHON" -m pytest tests/faults

fuzz: setup data ## read damaged images, packs, indexes, YAML, tables, checkpoints, manifests: MINUTES=10 SEED=1
	@PYTHONPATH=tests "$$PYTHON" -m fuzz.run $${MINUTES:+--minutes "$$MINUTES"} $${SEED:+--seed "$$SEED"}

kill-fuzz: setup ## kill random processes of a suite, sweep, pack, report or Slurm job at random moments: KILLS=60 SEED=1
	@PYTHONPATH=tests "$$PYTHON" -m faults.kill_fuzz $${KILLS:+--kills "$$KILLS"} $${SEED:+--seed "$$SEED"}

lint: setup ## ruff, mypy and shellcheck
	@"$$PYTHON" -m ruff check . && "$$PYTHON" -m ruff format --check --quiet .
	@"$$PYTHON" -m mypy
	@$$("$$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/shellcheck launchers/*.sh $$(find scripts -name "*.sh") .ci/run

clean: ## remove caches, and results that are neither published nor in use; asks first, unless YES=yes
	@rm -rf .pytest_cache .ruff_cache .hypothesis
	@"$$(command -v "$$PYTHON" || echo python3)" -m scripts.setup.clean $(if $(filter yes,$(YES)),--yes)
