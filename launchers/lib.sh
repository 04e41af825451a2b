# shellcheck shell=bash disable=SC2034,SC2153
# What every launcher shares: the interpreter, the run, and the start of its command.
#   launchers/ddp.sh --epochs 5 --global-batch 64     by hand: one run, with these configuration fields
#   launchers/ddp.sh --run RESULTS/logs/ID/run.yaml   by the loop, which has made the run's folder
# A launcher sources this file with its own arguments, and ends with `record COMMAND ...` or `skip "why and what to do"`;
# its name is the strategy's. The loop sets NODES, which the run spans, and of each: NPROC (ranks), NUM_GPUS, NUM_CORES and
# THREADS_PER_RANK.
set -euo pipefail
unset CDPATH PYTHONHOME PYTHONINSPECT PYTHONSAFEPATH PYTHONWARNINGS # the rest is cleared by scripts/runner/variables.py
typed_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || { echo "error: no interpreter at $PYTHON; run: ./bench setup" >&2; exit 2; }
export PYTHON

if [ "${1:-}" != --run ]; then
  exec "$PYTHON" -m scripts.runner.by_hand "$typed_in" "$PWD/launchers/$(basename "$0")" "$@"
fi
RUN=$2
RUN_FOLDER=$(dirname "$RUN")
RESULTS=${RUN_FOLDER%/logs/*}
RUN_ID=$(basename "$RUN_FOLDER")
export OMP_NUM_THREADS=$THREADS_PER_RANK
source launchers/container.sh
set_container_command
OPTIONS=(--config "$RUN") # for every script: this file has the run's whole configuration

record() { # COMMAND ...: run and record it; the launcher becomes the recorder, so that signals reach it
  exec "$PYTHON" -m scripts.runner.record --run "$RUN" -- "$@"
}

skip() { # REASON: record that it cannot run here
  exec "$PYTHON" -m scripts.runner.record --run "$RUN" --skip "$1"
}

over_loopback() { # one machine talks to itself; across nodes the user or the libraries choose the interface
  export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
}

see_only() { # N: one process takes all GPUs that it sees, so it sees the first N
  [ "$NUM_GPUS" -gt 0 ] || return 0
  CUDA_VISIBLE_DEVICES=$(cut -d , -f "1-$1" <<<"${CUDA_VISIBLE_DEVICES-$(seq -s , 0 "$(($1 - 1))")}")
  export CUDA_VISIBLE_DEVICES
}

use_file_stores() { # fills FILE_STORE, torchrun's flags: a store with a port would listen on all interfaces
  over_loopback
  local folder=$RUN_FOLDER/rendezvous # end_processes of processes.py removes it
  if [ -z "${CONTAINER:-}" ]; then # NFS and Lustre often lack the file locks that a store needs
    ln -s "$(mktemp -d "${TMPDIR:-/tmp}/ranks.XXXXXXXX")" "$folder"
  else # which may not see this /tmp
    mkdir "$folder"
  fi
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 RENDEZVOUS_FILE=$folder/ranks
  FILE_STORE=(--rdzv-backend c10d --rdzv-conf store_type=file --rdzv-endpoint "$folder/torchrun")
}

set_torchrun_command() { # fills TORCHRUN: what starts NPROC ranks here, on each node of the Slurm job, or as one of NNODES
  # --log-dir: without it torchrun leaves a folder in /tmp; what ranks write is in the run's log
  local torchrun=(-m torch.distributed.run --log-dir /dev/null --nproc-per-node "$NPROC")
  if [ "$NODES" = 1 ]; then
    use_file_stores
    TORCHRUN=("${HERE[@]}" "${torchrun[@]}" "${FILE_STORE[@]}" --local-addr 127.0.0.1)
    return 0
  fi
  # static: c10d numbers ranks as they arrive, so rank 0, which writes the results, could be on any node
  torchrun+=(--nnodes "$NODES" --rdzv-backend static --rdzv-id "$(basename "$0" .sh)")
  if in_slurm_job; then
    find_first_node
    set_step_command 1
    # shellcheck disable=SC2016 # each task expands its own SLURM_NODEID; torchrun takes a missing option from PET_*
    TORCHRUN=("${STEP[@]}" bash -c 'PET_NODE_RANK=$SLURM_NODEID exec "$@"' node
      "${INTERPRETER[@]}" "${torchrun[@]}" --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT")
  else
    TORCHRUN=("${HERE[@]}" "${torchrun[@]}" --rdzv-endpoint "$RDZV_ENDPOINT" --node-rank "${NODE_RANK:-0}")
  fi
}

# ---- in a Slurm job --------------------------------------------------------------------------------------------

in_slurm_job() { # where NNODES is not said, which is torchrun by hand
  [ -n "${SLURM_JOB_ID:-}" ] && [ -z "${NNODES:-}" ]
}

set_step_command() { # TASKS: fills STEP, which starts so many on each node of the run
  local cores=${SLURM_JOB_CPUS_PER_NODE%%[(,]*} # of a node, such as 16 of 16(x2)
  # Without binding each rank may use all cores that the job has on its node, as the ranks that torchrun starts.
  # processes.py ends steps by their name.
  STEP=(srun --nodes "$NODES" --ntasks "$((NODES * $1))" --ntasks-per-node "$1" --cpu-bind=none
    --cpus-per-task "$((cores > $1 ? cores / $1 : 1))" --kill-on-bad-exit=1 --job-name "$RUN_ID" "${CONTAINED[@]}")
}

hosts_of_job() { # fills HOST_NAMES, the first node first
  mapfile -t HOST_NAMES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
}

find_first_node() { # fills MASTER_ADDR and MASTER_PORT, where ranks meet: of the job, not of where srun is typed
  hosts_of_job
  MASTER_ADDR=$(scontrol show node "${HOST_NAMES[0]}" -o | sed -nE 's/.* NodeAddr=([^ ]+).*/\1/p')
  MASTER_PORT=$((20000 + RANDOM % 10000))
}
