# shellcheck shell=bash disable=SC2034
# What launchers know of Slurm: whether a cluster answers, the shape of a job, the command of a step over all of its nodes,
# and of a container. Functions only; lib.sh and slurm_all.sh source it.

find_cluster() { # fails, with the reason in WHY, where none answers
  local conf=${SLURM_LOCAL_DIR:-/run/slurm-local}/slurm.conf # of slurm_local.sh
  if [ -z "${SLURM_CONF:-}" ] && [ ! -e /etc/slurm/slurm.conf ] && [ -e "$conf" ]; then
    export SLURM_CONF=$conf
  fi
  WHY="no Slurm cluster here; run it on a cluster, or: tests/slurm_local.sh start"
  command -v sinfo >/dev/null || return 1
  # not by looking for slurm.conf: it may be wherever Slurm was built for, or come from the controller
  WHY="no Slurm cluster answers sinfo; run it on a cluster, or: tests/slurm_local.sh start"
  timeout 20 sinfo >/dev/null 2>&1
}

is_local() { # both nodes are this host, and share its cores
  [[ $(scontrol show config 2>/dev/null || true) =~ ClusterName\ +=\ slurm-local ]]
}

of_nodes() { # $1, a field of sinfo such as %c, of PARTITION's nodes, else of the default partition's; with neither of all nodes
  if [ -n "${PARTITION:-}" ]; then
    sinfo -h -o "$1" --partition "$PARTITION"
  else
    # a star marks the default partition
    sinfo -h -o "%P $1" | awk '
      { all = all $NF "\n" }
      $1 ~ /\*$/ { of_default = of_default $NF "\n" }
      END { printf "%s", of_default ? of_default : all }'
  fi
}

require_gpu_count() { # ends with 2 where the job would train on the CPUs of nodes that have GPUs
  [ -z "${GPUS_PER_NODE:-}" ] && [ "${NUM_GPUS:-0}" = 0 ] || return 0
  local found
  found=$(of_nodes %G | grep -m 1 '^gpu\|,gpu' || true)
  if [ -z "$found" ] && [ -z "${GPU_TYPE:-}" ]; then
    return 0
  fi
  echo "error: the job would have no GPU${found:+, and nodes have $found}; say how many: --gpus-per-node 4, or 0 for the CPU" >&2
  exit 2
}

set_job_shape() { # from NPROC, NUM_GPUS, THREADS_PER_RANK and what the user set: all numbers of a job, and SHAPE for sbatch
  local where=(${PARTITION:+--partition "$PARTITION"}) cores
  if [ -z "${NODES:-}" ] && is_local; then
    NODES=${SLURM_JOB_NUM_NODES:-2}
  else
    NODES=${NODES:-${SLURM_JOB_NUM_NODES:-1}} # more nodes cost more, so the user must ask for them
  fi
  GPUS_PER_NODE=${GPUS_PER_NODE:-$NUM_GPUS} # a login node without GPUs needs it said
  TASKS_PER_NODE=${TASKS_PER_NODE:-$((GPUS_PER_NODE > 0 ? GPUS_PER_NODE : (NPROC + NODES - 1) / NODES))}
  if [ "$GPUS_PER_NODE" -gt 0 ] && [ "$GPUS_PER_NODE" != "$TASKS_PER_NODE" ]; then
    echo "error: TASKS_PER_NODE=$TASKS_PER_NODE does not match $GPUS_PER_NODE GPUs a node; set GPUS_PER_NODE, or one of them" >&2
    exit 2
  fi
  if is_local; then
    CPUS_PER_TASK=${CPUS_PER_TASK:-$THREADS_PER_RANK}
  else # nodes are not like the host that submits: a task has its share of the cores of the smallest
    cores=$(of_nodes %c | awk '{ if (!least || $1 + 0 < least) least = $1 + 0 } END { print least }')
    CPUS_PER_TASK=${CPUS_PER_TASK:-$((${cores:-1} > TASKS_PER_NODE ? ${cores:-1} / TASKS_PER_NODE : 1))}
    export NUM_CORES=$((${cores:-1} * NODES)) THREADS_PER_RANK=$CPUS_PER_TASK OMP_NUM_THREADS=$CPUS_PER_TASK
  fi
  SHAPE=(--nodes "$NODES" --ntasks-per-node "$TASKS_PER_NODE" --cpus-per-task "$CPUS_PER_TASK" "${where[@]}")
  [ -z "${TIME:-}" ] || SHAPE+=(--time "$TIME")
  [ "$GPUS_PER_NODE" = 0 ] || SHAPE+=(--gres "gpu:${GPU_TYPE:+$GPU_TYPE:}$GPUS_PER_NODE")
  [ -z "${ACCOUNT:-}" ] || SHAPE+=("--account=$ACCOUNT")
  [ -z "${QOS:-}" ] || SHAPE+=("--qos=$QOS")
  [ -z "${MEMORY:-}" ] || SHAPE+=("--mem=$MEMORY")
  [ "${EXCLUSIVE:-}" != yes ] || SHAPE+=(--exclusive)
}

# ---- inside the job of ./bench slurm --------------------------------------------------------------------------

set_step_command() { # NODES TASKS_PER_NODE CPUS_PER_TASK: fills STEP
  STEP=(srun --nodes "$1" --ntasks "$(($1 * $2))" --ntasks-per-node "$2" --cpus-per-task "$3" --kill-on-bad-exit=1
    --job-name "$RUN_ID" "${CONTAINED[@]}") # processes.py ends steps of this name that outlive the run
  # Slurm starts a task in /tmp where the node cannot enter this folder.
  # shellcheck disable=SC2016 # the task's own words
  STEP+=(bash -c 'cd -- "$0" || { echo "error: $0 is not shared by all nodes" >&2; exit 1; }; exec "$@"' "$PWD")
}

hosts_of_job() { # fills HOST_NAMES, the first node first
  mapfile -t HOST_NAMES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
}

first_address() { # where the other nodes reach the first one
  hosts_of_job
  sed -nE 's/.* NodeAddr=([^ ]+).*/\1/p' <<<"$(scontrol show node "${HOST_NAMES[0]}" -o)"
}

free_port() { # from 20000 to 29999, of this node, which is the first
  local port
  while port=$((20000 + RANDOM % 10000)); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
  done
  echo "$port"
}

# ---- containers ------------------------------------------------------------------------------------------------

# Fill INTERPRETER, which runs scripts on a node; CONTAINED, options for srun; and HERE, which runs them from this shell.
set_container_command() {
  INTERPRETER=("$PYTHON") CONTAINED=() HERE=("$PYTHON")
  [ -n "${CONTAINER:-}" ] || return 0
  local folder program mounts='' folders=("$PWD")
  for folder in "${RESULTS:-}" "${DATA:-}" "${PACKED:-}" "${STRATEGY_DIR:-}"; do
    [ -z "$folder" ] || folders+=("$(realpath -m -- "$folder")")
  done
  for folder in "${folders[@]}"; do
    if [[ $folder == *[:,]* ]]; then
      printf "error: with CONTAINER no folder's path may have a colon or a comma, which end a mount; rename %q\n" "$folder" >&2
      exit 2
    fi
  done
  if [[ $CONTAINER != *.sif && $(srun --help 2>/dev/null || true) == *--container-image* ]]; then
    for folder in "${folders[@]}"; do
      if [[ $folder == *[[:space:]\"\$\`\\]* ]]; then # pyxis writes it into a bash file
        printf 'error: pyxis mounts no folder whose path has a space, quote, $ or \\; rename %q, or use a .sif file\n' "$folder" >&2
        exit 2
      fi
      mounts+=${mounts:+,}$folder:$folder
    done
    INTERPRETER=(python3)
    CONTAINED=(--container-image "$CONTAINER" --container-mounts "$mounts" --container-workdir "$PWD")
    HERE=(srun --nodes 1 --ntasks 1 --relative 0 --cpus-per-task "$((${CPUS_PER_TASK:-1} * ${TASKS_PER_NODE:-1}))"
      --job-name "${RUN_ID:-suite}" "${CONTAINED[@]}" python3)
    return 0
  fi
  program=$(command -v apptainer || command -v singularity) || {
    echo "error: CONTAINER=$CONTAINER needs apptainer or singularity, or an srun with pyxis, and here is none" >&2
    exit 2
  }
  INTERPRETER=("$program" exec --pwd "$PWD")
  [ "${GPUS_PER_NODE:-${NUM_GPUS:-0}}" = 0 ] || INTERPRETER+=(--nv)
  for folder in "${folders[@]}"; do
    INTERPRETER+=(--bind "$folder")
  done
  INTERPRETER+=("$CONTAINER" python3)
  HERE=("${INTERPRETER[@]}")
}
