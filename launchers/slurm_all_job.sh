#!/usr/bin/env bash
# The batch job of launchers/slurm_all.sh, which is all runs of a set: calls ./bench run, with its arguments, on the job's
# first node. Near the time limit it ends the run in progress, whose row says so, and puts the job back into the queue;
# started again, the job goes on with what is missing.
set -uo pipefail
# Slurm starts a job in /tmp where the node cannot enter the folder that submitted it.
cd -- "${SLURM_SUBMIT_DIR:-.}" || { echo "error: start the command from a folder that all nodes share" >&2; exit 1; }
source launchers/cluster.sh
export ALLOCATION=$SLURM_JOB_ID
unset RUN_DIR # of the job's own log

ended() { # runs that came to their end, in the first life none
  tail -n +2 "$RESULTS/runs.csv" 2>/dev/null | grep -Ecv ',(interrupted|warm-up),'
}
before=$(ended)
echo "job $SLURM_JOB_ID runs on $SLURM_JOB_NODELIST, with what $RESULTS lacks"
if [ -n "${CONTAINER:-}" ] && [ ! -e "$RESULTS/environment.json" ]; then
  set_container_command # the versions there; the loop would ask PYTHON
  "${HERE[@]}" -m scripts.runner.environment --results "$RESULTS"
fi

warned=0 child=
trap 'warned=1; kill -TERM "$child"' USR1
trap 'kill -TERM "$child" 2>/dev/null' INT TERM # the job is cancelled or put back: the row first
./bench run --results "$RESULTS" "$@" &
child=$!
code=0
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  code=$?
done
if [ "$warned" = 1 ] && [ "$code" != 0 ]; then
  if [ "$(ended)" -gt "$before" ]; then
    echo "job $SLURM_JOB_ID: the time limit is near; back into the queue, to go on"
    scontrol requeue "$SLURM_JOB_ID" && sleep 60 # until the controller ends this script
  else
    echo "error: job $SLURM_JOB_ID: no run has come to its end within the time limit; raise --time-min" >&2
  fi
fi
exit "$code"
