#!/usr/bin/env bash
# Not a strategy: ./bench slurm, which is all.sh in one Slurm job, so that all strategies take turns on the same nodes.
# The job goes on where it was when it is put back into the queue; another one does with the same RESULTS.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || { echo "error: no interpreter at $PYTHON; run: ./bench setup" >&2; exit 2; }
source launchers/cluster.sh
[ -z "${SLURM_JOB_ID:-}" ] ||
  { echo "error: this is in Slurm job $SLURM_JOB_ID, and slurm-all submits a job; run it outside, or ./bench run here" >&2; exit 2; }
find_cluster || { echo "error: $WHY" >&2; exit 2; }

unset HOSTS NNODES NODE_RANK # of other ways over several machines
given_gpus=${NUM_GPUS:-}
variables=$(PLAN=yes "$PYTHON" -m scripts.runner.run_plan) || exit 2
while IFS= read -r line; do
  export "${line?}"
done <<<"$variables"
NODES=${NODES:-1} # more nodes cost more, so the user must ask for them
require_gpu_count
set_job_shape
export NODES TASKS_PER_NODE GPUS_PER_NODE CPUS_PER_TASK NPROC=$TASKS_PER_NODE
set_container_command # refuses now what no node could do
unset NUM_CORES OMP_NUM_THREADS
echo "planning; the first time this lists and hashes the images, which takes minutes for ImageNet" >&2
planned=$(PLAN=yes ALLOCATION=planned NUM_GPUS=$GPUS_PER_NODE launchers/all.sh 2>&1) || { echo "$planned" >&2; exit 2; } # before it waits
[ "${PLAN:-}" != yes ] || { printf 'sbatch'; printf ' %q' "${SHAPE[@]}"; printf '\n%s\n' "$planned"; exit 0; }
RESULTS=$("$PYTHON" -m scripts.runner.run_plan | sed -n 's/^RESULTS=//p') || exit 2 # made now
export RESULTS NUM_GPUS=$given_gpus # the node counts its own

[ -d "$RESULTS/job" ] || mkdir "$RESULTS/job"
echo "all runs of $RESULTS are one job, whose output is in $RESULTS/job/run.log:"
tail -n 0 -s 0.2 --pid $$ -F "$RESULTS/job/run.log" 2>/dev/null &
lines=$!
RUN_DIR=$RESULTS/job launchers/slurm_submit.sh "${SHAPE[@]}" --job-name slurm-all -- launchers/slurm_all_job.sh &
follows=$!
trap 'kill -TERM "$follows"' INT TERM # which cancels the job
while kill -0 "$follows" 2>/dev/null; do
  code=0
  wait "$follows" || code=$?
done
sleep 0.5 # for the job's last lines
kill "$lines"
exit "$code"
