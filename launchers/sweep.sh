#!/usr/bin/env bash
# One strategy, one option, several values, interleaved, REPEATS rounds; then a chart of throughput over the value:
# STRATEGY=ddp KEY=bucket_cap_mb VALUES="1 5 25 100". Exit codes as all.sh.
source "$(dirname "$0")/lib.sh"

todo=$("$PYTHON" -m scripts.suite.plan sweep --results "$RESULTS" --strategy "${STRATEGY:-}" --repeats "${REPEATS:-3}" \
  --key "${KEY:-}" --values "${VALUES:-}" -- "${OPTIONS[@]}") || refuse
start() { # REPEAT FLAG ...
  local repeat=$1
  shift
  REPEAT=$repeat ARGS="${ARGS:+$ARGS }$*" exec "launchers/$STRATEGY.sh"
}

claim_results
run_each start "$todo"
"$PYTHON" -m scripts.report.sweep --results "$RESULTS" --strategy "$STRATEGY" --key "$KEY" 9>&- || failed=1
end_suite
