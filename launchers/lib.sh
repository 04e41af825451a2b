# shellcheck shell=bash
# What every launcher shares: the interpreter, the variables of the run, and the start of its command.
# A launcher sources this file, and ends with `supervise COMMAND ...` or `skip "why and what to do"`; its name is the strategy's.
#
# The loop (scripts/runner/schedule.py) sets, and any other that starts a launcher has to set:
#   RUN_ID CONFIG RESULTS PYTHON     the run's folder is RESULTS/logs/RUN_ID, and holds CONFIG and settings.json
#   NPROC NUM_GPUS NUM_CORES THREADS_PER_RANK REPEAT LABEL
# and may set RUN_NAME, the name of the run in its lines.
# Without RUN_ID a person has started it: then run_plan.py makes the folder and prints the rest, from Make's variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || { echo "error: no interpreter at $PYTHON; run: ./bench setup" >&2; exit 2; }
export PYTHON
STRATEGY_NAME=$(basename "$0" .sh)
[ "$STRATEGY_NAME" != external ] || STRATEGY_NAME=${EXTERNAL_STRATEGY:?error: name a strategy in the folder STRATEGY_DIR}
unset RENDEZVOUS_FILE RUN_DIR # of a run around this one, or of another program; the supervisor sets RUN_DIR
# torchrun reads these: PET_STANDALONE overrides the store's address, and PYTHON_EXEC starts ranks by another program.
unset PYTHON_EXEC "${!PET_@}"

if [ -z "${RUN_ID:-}" ]; then
  variables=$("$PYTHON" -m scripts.runner.run_plan "$STRATEGY_NAME") || exit 2
  while IFS= read -r line; do
    export "${line?}"
  done <<<"$variables"
fi
export OMP_NUM_THREADS=$THREADS_PER_RANK
source launchers/cluster.sh
set_container_command
# shellcheck disable=SC2034 # launchers use it
OPTIONS=(--config "$CONFIG") # for every script: this file has the run's whole configuration

over_loopback() { # one machine talks to itself; across nodes the libraries choose the interface
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
}

on_one_node() { # for strategies that cannot span nodes; the plan reads this from FACTS of their scripts (strategy_list.py)
  over_loopback
}

in_allocation() { # whether this is the job of ./bench slurm, on several nodes
  [ -n "${ALLOCATION:-}" ] && [ "${NODES:-1}" -gt 1 ]
}

count_all_nodes() { # NPROC and NUM_CORES were those of one node
  export NPROC=$((NPROC * NODES))
  if is_local; then over_loopback; else export NUM_CORES=$((NUM_CORES * NODES)); fi
}

SUPERVISOR=("$PYTHON" -m scripts.runner.supervisor --strategy "$STRATEGY_NAME" --results "$RESULTS" --run-id "$RUN_ID"
  --round "${REPEAT:-1}" --run-number "${LABEL:-}" --name "${RUN_NAME:-}")

supervise() { # COMMAND ...: run and record it; the launcher becomes the supervisor, so that signals reach it
  exec "${SUPERVISOR[@]}" -- "$@"
}

skip() { # REASON: record that it cannot run here
  exec "${SUPERVISOR[@]}" --skip "$1"
}

[ -z "${SKIP:-}" ] || skip "$SKIP" # the plan says why it cannot run, or why nobody should wait for it

see_only() { # N: one process takes all GPUs that it sees, so it sees the first N
  [ "$NUM_GPUS" -gt 0 ] || return 0
  CUDA_VISIBLE_DEVICES=$(cut -d , -f "1-$1" <<<"${CUDA_VISIBLE_DEVICES-$(seq -s , 0 "$(($1 - 1))")}")
  export CUDA_VISIBLE_DEVICES
}

use_file_stores() { # fills FILE_STORE, torchrun's flags: a store with a port would listen on all interfaces
  over_loopback
  local folder=$RESULTS/logs/$RUN_ID/rendezvous # end_processes of processes.py removes it
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
      --rdzv-id "$STRATEGY_NAME-${REPEAT:-1}" --rdzv-endpoint "$RDZV_ENDPOINT")
  else
    use_file_stores
    TORCHRUN+=("${FILE_STORE[@]}" --local-addr 127.0.0.1)
  fi
}
