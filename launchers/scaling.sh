#!/usr/bin/env bash
# One strategy on several numbers of ranks, interleaved, REPEATS rounds: STRATEGY=ddp RANKS="1 2 4".
# Strong scaling keeps the configured global batch; weak scaling keeps the images a rank that the most ranks get.
# Every rank has the same threads, at every number of ranks. Exit codes as all.sh.
threads=${THREADS_PER_RANK:-0}
source "$(dirname "$0")/lib.sh"

todo=$("$PYTHON" -m scripts.suite.plan scaling --results "$RESULTS" --strategy "${STRATEGY:-}" --repeats "${REPEATS:-3}" \
  --ranks "${RANKS:-}" --threads-per-rank "$threads" -- "${OPTIONS[@]}") || refuse
start() { # REPEAT RANKS THREADS FLAG ...
  local repeat=$1 ranks=$2 threads=$3
  shift 3
  REPEAT=$repeat NPROC=$ranks THREADS_PER_RANK=$threads ARGS="${ARGS:+$ARGS }$*" exec "launchers/$STRATEGY.sh"
}

claim_results
run_each start "$todo"
"$PYTHON" -m scripts.report.scaling --results "$RESULTS" --strategy "$STRATEGY" 9>&- || failed=1
end_suite
