#!/usr/bin/env bash
# A Slurm job in which strategies take turns on the same nodes: ./bench run, on the first node, with the words that follow.
# ./bench slurm submits it. By hand, in the checkout, which all nodes share:
#   sbatch --nodes 2 --ntasks-per-node 8 --cpus-per-task 12 --gres gpu:8 --time 240 launchers/slurm_job.sh all --repeats 5
# Nodes and tasks are those of SLURM_*. RESULTS is the result set, CONTAINER an image. The job goes on where it was when it
# is put back into the queue; another one does with the same RESULTS.
#SBATCH --job-name=bench
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
set -uo pipefail
# Slurm starts a job in /tmp where the node cannot enter the folder that submitted it.
cd -- "${SLURM_SUBMIT_DIR:-.}" && [ -x bench ] ||
  { echo "error: submit the job in the checkout, which all nodes have to share" >&2; exit 1; }
export RESULTS=${RESULTS:-results/slurm-$SLURM_JOB_ID} PYTHON=${PYTHON:-.venv/bin/python} SETUP=no
echo "job $SLURM_JOB_ID runs on $SLURM_JOB_NODELIST; its results are in $RESULTS"

if [ -n "${CONTAINER:-}" ] && [ ! -e "$RESULTS/environment.json" ]; then # of the image; the loop would describe PYTHON
  source launchers/container.sh
  set_container_command
  mkdir -p "$RESULTS" && "${HERE[@]}" -m scripts.runner.environment --results "$RESULTS"
fi

num_done() { # runs that came to their end, or left a checkpoint to resume from
  cat -- "$RESULTS/runs.csv" 2>/dev/null | grep -Ec ',(ok|failed|timeout|skipped|invalid),|a checkpoint of step .* saved'
}
before=$(num_done) warned=0 child=
end_run() { kill -TERM "$child" 2>/dev/null; } # it may have ended already
trap 'warned=1; end_run' USR1 # the time limit is near: the row of the run in progress, then the queue
trap end_run INT TERM # the job is cancelled, or put back by the cluster: the row first, too
./bench run --results "$RESULTS" "$@" &
child=$!
code=0
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  code=$?
done
if [ "$warned" = 1 ] && [ "$code" != 0 ]; then
  if [ "$(num_done)" -gt "$before" ]; then
    echo "job $SLURM_JOB_ID: the time limit is near; back into the queue, to go on"
    scontrol requeue "$SLURM_JOB_ID" && sleep 60 # until the controller ends this script
  else
    echo "error: job $SLURM_JOB_ID: no run came to its end within the time limit; raise --time-min" >&2
  fi
fi
exit "$code"
