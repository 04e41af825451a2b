#!/usr/bin/env bash
# Slurm: one task a GPU on NODES nodes of whatever cluster sinfo answers for. Inside an allocation srun starts
# them at once; otherwise a batch job does, which is requeued and resumes where its time limit cuts it short.
source "$(dirname "$0")/lib.sh"
find_cluster || skip "$WHY"

set_job_shape
export NPROC=$((NODES * TASKS_PER_NODE))
if is_local || [ "$NODES" = 1 ]; then over_loopback; fi
export SRUN_CPUS_PER_TASK=$CPUS_PER_TASK # since 22.05 srun does not take it from its allocation
set_step_command "$NODES" "$TASKS_PER_NODE" "$CPUS_PER_TASK"
SRUN=("${STEP[@]}" "${INTERPRETER[@]}" -m benchmarks.slurm "${OPTIONS[@]}")
if [ -n "${SLURM_JOB_ID:-}" ]; then
  record "${SRUN[@]}"
fi
record launchers/slurm_submit.sh "${SHAPE[@]}" -- launchers/slurm_run_job.sh "${SRUN[@]}"
