# shellcheck shell=bash
# What every launcher shares: strict mode, the interpreter, ranks and threads, and the way to an attempt.
# A launcher is one line after this file: `attempt NAME COMMAND ...`, or `skip NAME "why and what to do"`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || { echo "error: no interpreter at $PYTHON; run: make setup" >&2; exit 2; }

count_gpus() { # as torch sees them: it alone knows what MIG and CUDA_VISIBLE_DEVICES come to
  if command -v nvidia-smi >/dev/null || [ -e /dev/nvidiactl ]; then
    "$PYTHON" -c 'import torch; print(torch.cuda.device_count())'
  else
    echo 0
  fi
}

NUM_GPUS=${NUM_GPUS:-$(count_gpus)}
NPROC=${NPROC:-$((NUM_GPUS > 0 ? NUM_GPUS : 2))}
[[ $NPROC =~ ^[1-9][0-9]*$ ]] || { echo "error: NPROC is '$NPROC', but must be a number of ranks, 1 or more" >&2; exit 2; }
NUM_CORES=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # which would obey them, and a launcher sets them
# On a CPU one rank stands for one device: an equal share of the cores, for every strategy, so that
# `single` is to two ranks what one GPU is to two.
THREADS_PER_RANK=${THREADS_PER_RANK:-$((NUM_CORES > NPROC ? NUM_CORES / NPROC : 1))}
OMP_NUM_THREADS=$THREADS_PER_RANK
export PYTHON NUM_GPUS NPROC NUM_CORES THREADS_PER_RANK OMP_NUM_THREADS
export ARGS=${ARGS:-}

DATA=${DATA:-}
if [ -z "${CONFIG:-}" ]; then
  CONFIG=configs/smoke.yaml
  [ "${GPUS_PER_NODE:-$NUM_GPUS}" = 0 ] || CONFIG=configs/imagenet-bench.yaml
fi
new_results() { # a folder that no other run made, even in the same second
  local base name n=1
  base=results/$(date +%Y%m%d-%H%M%S) && name=$base
  mkdir -p results
  until mkdir "$name" 2>/dev/null; do
    n=$((n + 1)) && name=$base-$n
  done
  echo "$name"
}
RESULTS=${RESULTS:-$(new_results)}
[ ! -L "$RESULTS" ] || RESULTS=$(realpath --relative-to . -- "$RESULTS") # results/latest is about to be linked anew
REPEAT=${REPEAT:-1}
export CONFIG DATA RESULTS

# What every script gets: the file, the data, then the user's own flags, which win.
OPTIONS=(--config "$CONFIG")
[ -z "$DATA" ] || OPTIONS+=(--data "$DATA")
read -ra USER_FLAGS <<<"$ARGS"
OPTIONS+=("${USER_FLAGS[@]}")

over_loopback() { # one machine talks to itself; across nodes the libraries choose the interface
  export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo} NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
}

ATTEMPT=("$PYTHON" -m scripts.suite.attempt --results "$RESULTS" --repeat "$REPEAT" --label "${LABEL:-}")
[ -z "${TIMEOUT:-}" ] || ATTEMPT+=(--timeout-s "$TIMEOUT")

attempt() { # NAME COMMAND ...: run and record it; the launcher becomes the attempt, so that signals reach it
  local name=$1
  shift
  mkdir -p "$RESULTS"
  exec "${ATTEMPT[@]}" --strategy "$name" -- "$@"
}

skip() { # NAME REASON: record that it cannot run here
  mkdir -p "$RESULTS"
  exec "${ATTEMPT[@]}" --strategy "$1" --skip "$2"
}

torchrun() { # the words that start torchrun here, or as one of NNODES nodes; fills TORCHRUN
  TORCHRUN=("$PYTHON" -m torch.distributed.run --nproc-per-node "$NPROC")
  if [ "${NNODES:-1}" -gt 1 ]; then
    : "${RDZV_ENDPOINT:?error: NNODES=$NNODES needs RDZV_ENDPOINT=host:port of the first node}"
    # static: torchrun's c10d deals ranks in the order of arrival, and rank 0, with the results, would be anywhere
    TORCHRUN+=(--nnodes "$NNODES" --node-rank "${NODE_RANK:-0}" --rdzv-backend static
      --rdzv-id "$(basename "$0" .sh)-$REPEAT" --rdzv-endpoint "$RDZV_ENDPOINT")
  else
    over_loopback
    TORCHRUN+=(--standalone) # a port of its own: two torchruns in quick succession do not collide
  fi
}

# The rest is for launchers that run others: all.sh, sweep.sh and scaling.sh.

refuse() { # a mistake found before the first run: leave no empty set behind
  rmdir "$RESULTS" 2>/dev/null || true
  exit 2
}

claim_results() { # one suite at a time in a set; it becomes results/latest and says what its numbers depend on
  exec 9>"$RESULTS/.suite"
  if ! flock -n 9; then
    echo "error: $RESULTS is in use by process $(cat "$RESULTS/.holder" 2>/dev/null); choose another RESULTS=" >&2
    exit 2
  fi
  echo $$ >"$RESULTS/.holder"
  trap 'stop 129' HUP
  trap 'stop 130' INT
  trap 'stop 143' TERM
  [[ $RESULTS != results/* || $RESULTS == results/*/* ]] || ln -sfn "${RESULTS#results/}" results/latest
  [ -e "$RESULTS/environment.json" ] || "$PYTHON" -m scripts.suite.environment --results "$RESULTS" 9>&-
}

stopped=0 failed=0 child=0
stop() { # CODE: tell the attempt, and wait for it to clean up and write its row
  stopped=$1
  # TERM also for INT, to which bash has started the child deaf
  [ "$child" = 0 ] || kill -s TERM "$child" 2>/dev/null || true
}

run_each() { # START TODO: call START with the words of each line of TODO; START ends in exec of a launcher
  local start=$1 number=0 total code words
  total=$(grep -c . <<<"$2" || true)
  while read -ra words; do
    if [ "${#words[@]}" = 0 ] || [ "$stopped" != 0 ]; then continue; fi
    number=$((number + 1))
    LABEL=$number/$total "$start" "${words[@]}" 9>&- &
    child=$!
    [ "$stopped" = 0 ] || stop "$stopped" # it came before the child had a name
    code=0
    wait "$child" || code=$?
    while kill -0 "$child" 2>/dev/null; do # a signal ends `wait`; the attempt is still cleaning up
      wait "$child" || true
    done
    child=0
    [ "$code" = 0 ] || failed=1
  done <<<"$2"
  echo
}

end_suite() { # after the charts: 0 when every run was ok or skipped, 1 otherwise, 129, 130 or 143 when stopped
  [ "$stopped" = 0 ] || exit "$stopped"
  exit "$failed"
}
