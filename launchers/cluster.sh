# shellcheck shell=bash disable=SC2034
# What launchers know of Slurm: whether a cluster answers, the shape of a job, the command of a step over all of its nodes,
# and of a container. Functions only; lib.sh and slurm_all.sh source it.

find_cluster() { # fails, with the reason in WHY, where none answers
  local folder=${SLURM_LOCAL_DIR:-/run/slurm-local}
  local conf=$folder/slurm.conf
  if [ -z "${SLURM_CONF:-}" ] && [ ! -e /etc/slurm/slurm.conf ] && [ -e "$conf" ]; then
    # Slurm runs programs that its configuration names.
    WHY="$folder belongs to another user; choose another SLURM_LOCAL_DIR"
    local num_others
    num_others=$(stat -c %u -- "$folder" "$conf" | grep -vxcE "0|$EUID") || true
    [ "$num_others" = 0 ] || return 1
    WHY="others may write to $folder or $conf; start the cluster again: scripts/setup/slurm_local.sh stop, then start"
    num_others=$(stat -c %A -- "$folder" "$conf" | grep -cE '^.{5}w|^.{8}w') || true
    [ "$num_others" = 0 ] || return 1
    export SLURM_CONF=$conf # of slurm_local.sh
  fi
  WHY="no Slurm cluster here; run it on a cluster, or: scripts/setup/slurm_local.sh start"
  command -v sinfo >/dev/null || return 1
  # not by looking for slurm.conf: it may be wherever Slurm was built for, or come from the controller
  WHY="no Slurm cluster answers sinfo; run it on a cluster, or: scripts/setup/slurm_local.sh start"
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

step_name() { # of the run's steps, by which processes.py ends those that outlive it; no other folder has that inode
  echo "$RUN_ID.$(stat -c %d-%i -- "$RESULTS/logs/$RUN_ID")"
}

# Of each folder and link by which the system comes to PATH: OWNER/1 where everybody may replace what it holds, else OWNER/0.
# Each such pair once, on one line. With pipefail it fails where the way cannot be followed.
folder_owners() { # PATH
  [[ $1 == /* ]] || return 1
  # place: without links, and empty for /
  local place='' left=./$1/ path found mode is_link num_links=0
  while [ -n "$left" ]; do
    path=$place/${left%%/*} left=${left#*/}
    case ${path##*/} in
      '') continue ;;
      ..) place=${place%/*} && continue ;;
    esac
    found=$(stat -c '%u %f' -- "$path") || return 1
    mode=$((0x${found#* })) is_link=$(((0x${found#* } & 0170000) == 0120000))
    echo "${found% *}/$((!is_link && (mode & 01002) == 2))"
    if [ "$is_link" = 0 ]; then
      [[ $path == */. ]] || place=$path
      continue
    fi
    num_links=$((num_links + 1))
    [ "$num_links" -le 40 ] || return 1 # as many as Linux follows
    found=$(readlink -n -- "$path" && echo /) || return 1
    [[ $found != /* ]] || place=
    left=$found$left
  done | sort -u | paste -sd ' '
}

# Whether the folder is here, with the owner that it has on the host that submitted, and nobody on the way to it whom that host does
# not have there: who owns a link or a folder on the way can put another folder in its place at any time. Changes into it.
is_same_folder() { # PATH OWNER OWNERS
  cd -- "$1" && [ "$(stat -c %u .)" = "$2" ] || return 1
  local each owners
  owners=$(set -o pipefail && folder_owners "$1") || return 1
  for each in $owners; do
    case " 0/0 $UID/0 $3 " in
      *" $each "*) ;;
      *) return 1 ;;
    esac
  done
}
# For bash on a node, whose arguments 0 to 2 are those of is_same_folder.
LOOK_AT_FOLDER="$(declare -f folder_owners is_same_folder)
is_same_folder \"\$0\" \"\$1\" \"\$2\""

set_step_command() { # NODES TASKS_PER_NODE CPUS_PER_TASK: fills STEP
  local name look
  name=$(step_name)
  STEP=(srun --nodes "$1" --ntasks "$(($1 * $2))" --ntasks-per-node "$2" --cpus-per-task "$3" --kill-on-bad-exit=1
    --job-name "$name" "${CONTAINED[@]}")
  # Slurm starts a task in /tmp where the node cannot enter this folder, and `python -m` would run what anybody has put there.
  # A folder that nodes do not share may be another user's on the task's node.
  # shellcheck disable=SC2016 # the task's own words
  local task=' || { echo "error: $0 is not shared by all nodes" >&2; exit 1; }
    shift 2 && exec "$@"'
  look=(bash -c "$LOOK_AT_FOLDER$task" "$PWD" "$(stat -c %u .)" "$(folder_owners "$PWD")")
  if [ "${#CONTAINED[@]}" = 0 ]; then
    STEP+=("${look[@]}")
  else # in a container files have other owners' numbers, and pyxis mounts what it finds: looked at before, outside of it
    srun --nodes "$1" --ntasks "$1" --ntasks-per-node 1 "${look[@]}" true ||
      skip "$PWD is not shared by all nodes, or is another user's folder on one; put the checkout where all nodes see it"
  fi
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

# Whether pyxis mounts the path as it is. It writes `PATH PATH options` between double quotes into a bash file, which enroot
# runs: $(...) in a path would run as the user, and a space would end the path.
pyxis_can_mount() ( # PATH; bytes of \x80 and more are other alphabets' letters in UTF-8
  LC_ALL=C
  [[ $1 != *[!A-Za-z0-9_./+@~=%$'\x80'-$'\xff'-]* ]]
)

# Whether a folder of the host would be mounted over what the image runs from. $PWD, RESULTS, PACKED and STRATEGY_DIR are the
# user's word, and a checkout may lie in /opt or /root. DATA may be a configuration's: it is no folder of a system at all.
hides_the_images_own() { # FOLDER DATA, both without links
  case $1/ in / | // | /bin/* | /sbin/* | /lib/* | /lib32/* | /lib64/* | /libx32/* | /etc/* | /opt/ | /proc/* | /sys/* | /dev/ | \
    /usr/ | /usr/bin/* | /usr/sbin/* | /usr/lib*/* | /usr/local/ | /usr/local/bin/* | /usr/local/lib*/* | /opt/conda/* | \
    /var/ | /root/ | /run/ | /boot/* | /nix/* | /gnu/*) return 0 ;;
  esac
  [ "$1" = "$2" ] || return 1
  case $1/ in "$(pwd -P)"/*) return 1 ;; # the checkout is mounted with all that is in it
    /dev/shm/?* | /var/tmp/?* | /run/media/?*) return 1 ;;
    /usr/* | /opt/* | /var/* | /root/* | /run/* | /dev/*) return 0 ;;
  esac
  return 1
}

# Fill INTERPRETER, which runs scripts on a node; CONTAINED, options for srun; and HERE, which runs them from this shell.
set_container_command() {
  INTERPRETER=("$PYTHON") CONTAINED=() HERE=("$PYTHON")
  [ -n "${CONTAINER:-}" ] || return 0
  local folder program name=suite mounts='' folders=("$PWD") data=''
  [ -z "${DATA:-}" ] || data=$(realpath -m -- "$DATA")
  for folder in "${RESULTS:-}" "${DATA:-}" "${PACKED:-}" "${STRATEGY_DIR:-}"; do
    [ -z "$folder" ] || folders+=("$(realpath -m -- "$folder")")
  done
  for folder in "${folders[@]}"; do # a set's configuration can name the data; a:/usr would be mounted over the image's /usr
    if [[ $folder == *[:,]* ]]; then
      # %q: a configuration's author may have put escape codes of the terminal into the path of the data
      printf "error: with CONTAINER no folder's path may have a colon or a comma, which end a mount; rename %q\n" "$folder" >&2
      exit 2
    fi
    if hides_the_images_own "$folder" "$data"; then
      printf "error: with CONTAINER the host's %q would hide the folder of that name in the image; name another folder\n" "$folder" >&2
      exit 2
    fi
  done
  if [[ $CONTAINER != *.sif && $(srun --help 2>/dev/null || true) == *--container-image* ]]; then
    for folder in "${folders[@]}"; do
      if ! pyxis_can_mount "$folder"; then
        printf "error: with CONTAINER and pyxis a folder's path may have only letters, digits and %s; rename %q, or use a .sif file\n" \
          "_ . / + @ ~ = % -" "$folder" >&2
        exit 2
      fi
      mounts+=${mounts:+,}$folder:$folder
    done
    INTERPRETER=(python3)
    CONTAINED=(--container-image "$CONTAINER" --container-mounts "$mounts" --container-workdir "$PWD")
    [ -z "${RUN_ID:-}" ] || name=$(step_name)
    HERE=(srun --nodes 1 --ntasks 1 --relative 0 --cpus-per-task "$((${CPUS_PER_TASK:-1} * ${TASKS_PER_NODE:-1}))"
      --job-name "$name" "${CONTAINED[@]}" python3)
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
