#!/usr/bin/env bash
# Slurm: srun starts one task a rank, on the nodes of the allocation in which this is typed.
source "$(dirname "$0")/lib.sh"
[ -n "${SLURM_JOB_ID:-}" ] || skip "srun needs a Slurm job, and this is none; submit one: ./bench slurm slurm"
set_step_command "$NPROC"
if [ "$NODES" = 1 ]; then # a file in /tmp of that node
  over_loopback
  export RENDEZVOUS_FILE=/tmp/ranks-$SLURM_JOB_ID-$RUN_ID
else
  find_first_node
  export MASTER_ADDR MASTER_PORT
fi
record "${STEP[@]}" "${INTERPRETER[@]}" -m benchmarks.slurm "${OPTIONS[@]}"
