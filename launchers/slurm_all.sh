#!/usr/bin/env bash
# Not a strategy: ./bench slurm, which is ./bench run in one Slurm job, so that all strategies take turns on the same nodes.
#   launchers/slurm_all.sh --submit|--plan WORD ...      the words of ./bench run
# The job goes on where it was when it is put back into the queue; another one does with the same RESULTS.
set -euo pipefail
cd "$(dirname "$0")/.."
source launchers/cluster.sh
[ -z "${SLURM_JOB_ID:-}" ] ||
  { echo "error: this is in Slurm job $SLURM_JOB_ID, and ./bench slurm submits a job; run it outside, or ./bench run here" >&2; exit 2; }
find_cluster || { echo "error: $WHY" >&2; exit 2; }
mode=$1
shift

unset HOSTS NNODES NODE_RANK # of other ways over several machines
NODES=${NODES:-1} # more nodes cost more, so the user must ask for them
require_gpu_count
set_job_shape
export NODES TASKS_PER_NODE GPUS_PER_NODE CPUS_PER_TASK NPROC=$TASKS_PER_NODE SETUP=no
set_container_command # refuses now what no node could do
unset NUM_CORES OMP_NUM_THREADS
echo "planning; the first time this lists and hashes the images, which takes minutes for ImageNet" >&2
set=(${RESULTS:+--results "$RESULTS"})
planned=$(ALLOCATION=planned NUM_GPUS=$GPUS_PER_NODE ./bench run --plan "${set[@]}" "$@" 2>&1) ||
  { echo "$planned" >&2; exit 2; } # before it waits
[ "$mode" != --plan ] || { printf 'sbatch'; printf ' %q' "${SHAPE[@]}"; printf '\n%s\n' "$planned"; exit 0; }
export RESULTS=${RESULTS:-results/$(date +%Y%m%d-%H%M%S)} NUM_GPUS=${GIVEN_NUM_GPUS:-} # the node counts its own

mkdir -p "$RESULTS/job"
echo "all runs of $RESULTS are one job, whose output is in $RESULTS/job/run.log:"
tail -n 0 -s 0.2 --pid $$ -F "$RESULTS/job/run.log" 2>/dev/null &
lines=$!
RUN_DIR=$RESULTS/job launchers/slurm_submit.sh "${SHAPE[@]}" --job-name slurm-all -- launchers/slurm_all_job.sh "$@" &
follows=$!
trap 'kill -TERM "$follows"' INT TERM # which cancels the job
while kill -0 "$follows" 2>/dev/null; do
  code=0
  wait "$follows" || code=$?
done
sleep 0.5 # for the job's last lines
kill "$lines"
exit "$code"
