#!/usr/bin/env bash
# srun starts one task a GPU on NODES nodes of whatever cluster sinfo answers for.
source "$(dirname "$0")/lib.sh"

# sinfo without a configuration would look for one in the DNS; a local cluster's is where slurm_local.sh put it.
if [ -z "${SLURM_CONF:-}" ] && [ ! -e /etc/slurm/slurm.conf ]; then
  local_conf=${SLURM_LOCAL_DIR:-/run/slurm-local}/slurm.conf
  [ -e "$local_conf" ] || skip slurm "no Slurm cluster here; run it on a cluster, or: scripts/slurm_local.sh start"
  export SLURM_CONF=$local_conf
fi
timeout 20 sinfo >/dev/null 2>&1 ||
  skip slurm "no Slurm cluster answers sinfo; run it on a cluster, or: scripts/slurm_local.sh start"

NODES=${NODES:-2}
TASKS_PER_NODE=${TASKS_PER_NODE:-$((NUM_GPUS > 0 ? NUM_GPUS : (NPROC + NODES - 1) / NODES))}
export NPROC=$((NODES * TASKS_PER_NODE))
SRUN=(srun --nodes "$NODES" --ntasks-per-node "$TASKS_PER_NODE" --kill-on-bad-exit=1)
[ -z "${PARTITION:-}" ] || SRUN+=(--partition "$PARTITION")
[ -z "${TIME:-}" ] || SRUN+=(--time "$TIME")
[ "$NUM_GPUS" = 0 ] || SRUN+=(--gres "gpu:$TASKS_PER_NODE")
attempt slurm "${SRUN[@]}" "$PYTHON" -m benchmarks.slurm "${OPTIONS[@]}"
