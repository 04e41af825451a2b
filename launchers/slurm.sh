#!/usr/bin/env bash
# Slurm: one task a GPU on NODES nodes of whatever cluster sinfo answers for. Inside an allocation srun starts
# them at once; otherwise a batch job does, which is requeued and resumes where its time limit cuts it short.
source "$(dirname "$0")/lib.sh"

# sinfo without a configuration would look for one in the DNS; a local cluster's is where slurm_local.sh put it.
if [ -z "${SLURM_CONF:-}" ] && [ ! -e /etc/slurm/slurm.conf ]; then
  local_conf=${SLURM_LOCAL_DIR:-/run/slurm-local}/slurm.conf
  [ -e "$local_conf" ] || skip "no Slurm cluster here; run it on a cluster, or: scripts/setup/slurm_local.sh start"
  export SLURM_CONF=$local_conf
fi
timeout 20 sinfo >/dev/null 2>&1 ||
  skip "no Slurm cluster answers sinfo; run it on a cluster, or: scripts/setup/slurm_local.sh start"

WHERE=(${PARTITION:+--partition "$PARTITION"})
NODES=${NODES:-${SLURM_JOB_NUM_NODES:-$(sinfo -h -o %D "${WHERE[@]}" | awk '{ n += $1 } END { print n == 1 ? 1 : 2 }')}}
GPUS_PER_NODE=${GPUS_PER_NODE:-$NUM_GPUS} # a login node without GPUs needs it said
TASKS_PER_NODE=${TASKS_PER_NODE:-$((GPUS_PER_NODE > 0 ? GPUS_PER_NODE : (NPROC + NODES - 1) / NODES))}
if [ "$GPUS_PER_NODE" -gt 0 ] && [ "$GPUS_PER_NODE" != "$TASKS_PER_NODE" ]; then
  echo "error: TASKS_PER_NODE=$TASKS_PER_NODE does not match $GPUS_PER_NODE GPUs a node; set GPUS_PER_NODE, or one of them" >&2
  exit 2
fi
export NPROC=$((NODES * TASKS_PER_NODE))
if [[ $(scontrol show config 2>/dev/null || true) =~ ClusterName\ +=\ slurm-local ]]; then
  over_loopback # both nodes are this host, and share its cores
  CPUS_PER_TASK=${CPUS_PER_TASK:-$THREADS_PER_RANK}
else # nodes are not like the host that submits: a task has its share of the cores of the smallest
  cores=$(sinfo -h -o %c "${WHERE[@]}" | awk '{ if (!least || $1 + 0 < least) least = $1 + 0 } END { print least }')
  CPUS_PER_TASK=${CPUS_PER_TASK:-$((${cores:-1} > TASKS_PER_NODE ? ${cores:-1} / TASKS_PER_NODE : 1))}
  export NUM_CORES=$((${cores:-1} * NODES)) THREADS_PER_RANK=$CPUS_PER_TASK OMP_NUM_THREADS=$CPUS_PER_TASK
fi
export SRUN_CPUS_PER_TASK=$CPUS_PER_TASK # since 22.05 srun does not take it from its allocation
SHAPE=(--nodes "$NODES" --ntasks-per-node "$TASKS_PER_NODE" --cpus-per-task "$CPUS_PER_TASK" "${WHERE[@]}")
[ -z "${TIME:-}" ] || SHAPE+=(--time "$TIME")
[ "$GPUS_PER_NODE" = 0 ] || SHAPE+=(--gres "gpu:$GPUS_PER_NODE")

SRUN=(srun --nodes "$NODES" --ntasks-per-node "$TASKS_PER_NODE" --kill-on-bad-exit=1
  "$PYTHON" -m benchmarks.slurm "${OPTIONS[@]}")
if [ -n "${SLURM_JOB_ID:-}" ]; then
  attempt "${SRUN[@]}"
fi
attempt scripts/suite/slurm_submit.sh "${SHAPE[@]}" -- "${SRUN[@]}"
