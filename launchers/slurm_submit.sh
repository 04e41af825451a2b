#!/usr/bin/env bash
# Submits a batch script with the options of sbatch that it is given (`set_job_shape` of cluster.sh makes them), follows the
# job to its end through every requeue, and exits as it did.
#   RUN_DIR=/shared/folder launchers/slurm_submit.sh SBATCH_OPTION ... -- launchers/slurm_run_job.sh srun ...
# SIGINT and SIGTERM cancel the job; its tasks get SIGTERM, and time to write a checkpoint.
set -euo pipefail

options=()
while [ "$1" != -- ]; do
  options+=("$1")
  shift
done
shift
warning_s=${WARNING_S:-60} # before the time limit: enough for a timed window and a checkpoint

stopped=
trap 'stopped=yes' INT TERM # sbatch may have submitted the job, and not said its number yet
job=$(trap '' INT TERM && exec sbatch --parsable --requeue --export=ALL --signal="B:USR1@$warning_s" --open-mode=append \
  --output="${RUN_DIR//%/%%}/run.log" "${options[@]}" "$@")
job=${job%%;*}
trap 'scancel "$job"' INT TERM
[ -z "$stopped" ] || scancel "$job" || true
trap 'scancel --signal=USR2 "$job"' USR2 # the tasks of a job that hangs write their stacks, on whatever node

field() { # NAME: a field of what the controller says of the job
  sed -nE "s/.* $1=([^ ]*).*/\1/p" <<<"$shown"
}
silent=0 waits=
while :; do
  if shown=$(scontrol show job "$job" -o); then
    silent=0
  elif [ $((silent += 1)) -gt 60 ]; then
    scancel "$job" || true
    echo "error: the controller has not answered about job $job for a minute; it was asked to cancel it" >&2
    exit 1
  fi
  case $(field JobState) in
    PENDING | CONFIGURING | REQUEUED | REQUEUE_HOLD)
      : >"$RUN_DIR/queued" # the run's limit counts from its start
      [ -n "$waits" ] || echo "job $job is in the queue ($(field Reason))"
      waits=yes
      ;;
    RUNNING | COMPLETING | SUSPENDED | RESIZING | SIGNALING | STAGE_OUT)
      rm -f "$RUN_DIR/queued"
      waits=
      ;;
    *) break ;;
  esac
  sleep 1 & wait $! || true # a signal ends `wait` at once, where it would wait for a bare sleep
done

state=$(field JobState) exit_code=$(field ExitCode)
[ "$state" = COMPLETED ] && exit 0
echo "slurm job $job: $state, reason $(field Reason), exit code $exit_code" >&2
case $state in
  CANCELLED*) exit 143 ;;
  *) [ "${exit_code%%:*}" -gt 0 ] 2>/dev/null && exit "${exit_code%%:*}" || exit 1 ;;
esac
