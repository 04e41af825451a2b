# shellcheck shell=bash disable=SC2034
# How Python scripts are started, with or without the image CONTAINER; lib.sh and slurm_job.sh source it.

# Fills INTERPRETER, which runs scripts on a node; CONTAINED, options for its srun; and HERE, which runs them from this
# shell. A .sif file is run by Apptainer; any other image by srun with pyxis.
set_container_command() {
  INTERPRETER=("$PYTHON") CONTAINED=() HERE=("$PYTHON")
  [ -n "${CONTAINER:-}" ] || return 0
  local folder mounts=$PWD:$PWD binds=(--bind "$PWD")
  for folder in "${RESULTS:-}" "${DATA:-}" "${PACKED:-}" "${STRATEGY_DIR:-}"; do
    [ -n "$folder" ] || continue
    folder=$(realpath -m -- "$folder")
    mounts+=,$folder:$folder binds+=(--bind "$folder")
  done
  if [[ $CONTAINER == *.sif ]]; then
    [ "${NUM_GPUS:-1}" = 0 ] || binds+=(--nv)
    INTERPRETER=(apptainer exec --pwd "$PWD" "${binds[@]}" "$CONTAINER" python3)
    HERE=("${INTERPRETER[@]}")
  else
    INTERPRETER=(python3)
    CONTAINED=(--container-image "$CONTAINER" --container-mounts "$mounts" --container-workdir "$PWD")
    HERE=(srun --nodes 1 --ntasks 1 --relative 0 --cpus-per-task "${SLURM_JOB_CPUS_PER_NODE%%[(,]*}" --cpu-bind=none
      --job-name "${RUN_ID:-environment}" "${CONTAINED[@]}" python3)
  fi
}
