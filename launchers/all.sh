#!/usr/bin/env bash
# Runs STRATEGIES, interleaved: round 1 of all, round 2 of all, ... REPEATS times. Goes on after a failure.
# Exit code: 0 when every run is ok or skipped, 1 otherwise, 2 for a mistake found before the first run.
source "$(dirname "$0")/lib.sh"

# Checks everything that can be checked without a run, and prints what is left to run: "repeat strategy" lines.
todo=$("$PYTHON" -m scripts.suite.preflight --results "$RESULTS" --strategies "${STRATEGIES:-}" --repeats "${REPEATS:-3}" \
  --retry "${RETRY:-}" -- "${OPTIONS[@]}") || refuse
start() { REPEAT=$1 exec "launchers/$2.sh"; }

claim_results
run_each start "$todo"
# With nothing but skipped runs there is nothing to draw, and that is no failure.
"$PYTHON" -m scripts.report.plot --results "$RESULTS" 9>&- ||
  ! grep -q '^[^,]*,[^,]*,[^,]*,ok,' "$RESULTS/runs.csv" || failed=1
end_suite
