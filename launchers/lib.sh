# shellcheck shell=bash
# What every launcher shares: the interpreter, the run, and the start of its command.
#   launchers/ddp.sh --epochs 5 --global-batch 64     by hand: one run, with these configuration fields
#   launchers/ddp.sh --run RESULTS/logs/ID/run.yaml   by the loop, which has made the run's folder
# A launcher sources this file with its own arguments, and ends with `record COMMAND ...` or `skip "why and what to do"`;
# its name is the strategy's. The loop sets NPROC, NUM_GPUS, NUM_CORES and THREADS_PER_RANK.
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
source launchers/cluster.sh
set_container_command
# shellcheck disable=SC2034 # launchers use it
OPTIONS=(--config "$RUN") # for every script: this file has the run's whole configuration

record() { # COMMAND ...: run and record it; the launcher becomes the recorder, so that signals reach it
  exec "$PYTHON" -m scripts.runner.record --run "$RUN" -- "$@"
}

skip() { # REASON: record that it cannot run here
  exec "$PYTHON" -m scripts.runner.record --run "$RUN" --skip "$1"
}

[ "${3:-}" != --skip ] || skip "$4" # it does not fit in memory

over_loopback() { # one machine talks to itself; across nodes the user or the libraries choose the interface
  export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo
}

in_allocation() { # whether this is the job of ./bench slurm, on several nodes
  [ -n "${ALLOCATION:-}" ] && [ "${NODES:-1}" -gt 1 ]
}

count_all_nodes() { # NPROC and NUM_CORES were those of one node
  export NPROC=$((NPROC * NODES))
  if is_local; then over_loopback; else export NUM_CORES=$((NUM_CORES * NODES)); fi
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

set_torchrun_command() { # fills TORCHRUN: what starts NPROC ranks here, on each node of the allocation, or as one of NNODES
  # --log-dir: without it torchrun leaves a folder in /tmp; what ranks write is in the run's log
  local torchrun=(-m torch.distributed.run --log-dir /dev/null --nproc-per-node "$NPROC") node_command
  if in_allocation; then
    torchrun+=(--nnodes "$NODES" --rdzv-id "$RUN_ID")
    # shellcheck disable=SC2016 # each task expands its own SLURM_NODEID; torchrun takes missing options from PET_*
    if is_local; then # c10d numbers nodes by their addresses; all of 127.0.0.* is this host
      use_file_stores
      torchrun+=("${FILE_STORE[@]}") node_command='PET_LOCAL_ADDR=127.0.0.$((SLURM_NODEID + 1)) exec "$@"'
    else
      torchrun+=(--rdzv-backend static --rdzv-endpoint "$(first_address):$(free_port)")
      node_command='PET_NODE_RANK=$SLURM_NODEID exec "$@"'
    fi
    set_step_command "$NODES" 1 "$((CPUS_PER_TASK * TASKS_PER_NODE))" # a torchrun a node
    TORCHRUN=("${STEP[@]}" bash -c "$node_command" node "${INTERPRETER[@]}" "${torchrun[@]}")
    count_all_nodes
    return 0
  fi
  TORCHRUN=("${HERE[@]}" "${torchrun[@]}")
  if [ "${NNODES:-1}" -gt 1 ]; then
    : "${RDZV_ENDPOINT:?error: NNODES=$NNODES needs RDZV_ENDPOINT=host:port of the first node}"
    # static: c10d numbers ranks as they arrive, so rank 0, which writes the results, could be on any node
    TORCHRUN+=(--nnodes "$NNODES" --node-rank "${NODE_RANK:-0}" --rdzv-backend static
      --rdzv-id "$(basename "$0" .sh)" --rdzv-endpoint "$RDZV_ENDPOINT")
    export NPROC=$((NPROC * NNODES)) NUM_CORES=$((NUM_CORES * NNODES)) # of all nodes, for the record
  else
    use_file_stores
    TORCHRUN+=("${FILE_STORE[@]}" --local-addr 127.0.0.1)
  fi
}
