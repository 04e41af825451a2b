#!/usr/bin/env bash
# The batch job of launchers/slurm.sh, which is one run: runs its command, such as srun, and where the time limit nears,
# lets it write a checkpoint and puts the job back into the queue, to resume from it.
set -uo pipefail
# Slurm starts a job in /tmp where the node cannot enter the folder that submitted it.
cd -- "${SLURM_SUBMIT_DIR:-.}" || { echo "error: start the command from a folder that all nodes share" >&2; exit 1; }

command=("$@") began=$EPOCHSECONDS checkpoints=${CHECKPOINT_DIR:-} # from the run's settings, wherever they were said
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
  rm -f -- "$RUN_DIR"/cause-*.json # from before the job was requeued
  [ -z "$checkpoints" ] || command+=(--resume)
fi

warned=0
trap : USR1 # without checkpoints there is nothing to do before the limit
# The tasks, not this script: they stop after a whole step and write last.pt.
[ -z "$checkpoints" ] || trap 'warned=1; scancel --signal=USR1 "$SLURM_JOB_ID"' USR1
"${command[@]}" &
child=$!
code=0
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  code=$?
done
# Only where this start of the job wrote a checkpoint: else the job would be requeued for ever.
if [ "$code" != 0 ] && [ "$warned" = 1 ] && [ -n "$(find "$checkpoints/last.pt" -newermt "@$began" 2>/dev/null)" ]; then
  echo "job $SLURM_JOB_ID: the time limit is near; back into the queue, to resume from the checkpoint"
  scontrol requeue "$SLURM_JOB_ID"
  sleep 60 # until the controller ends this script
fi
exit "$code"
