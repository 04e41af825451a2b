#!/usr/bin/env bash
# Runs STRATEGIES, interleaved: round 1 of all, round 2 of all, ... REPEATS times. Goes on after a failure.
# Exit code: 0 when every run is ok or skipped, 1 otherwise, 2 for a mistake found before the first run.
source "$(dirname "$0")/lib.sh"
REPEATS=${REPEATS:-3}

# Checks everything that can be checked without a run, and prints what is left to run: "repeat strategy" lines.
todo=$("$PYTHON" -m scripts.preflight --results "$RESULTS" --strategies "${STRATEGIES:-}" --repeats "$REPEATS" \
  --retry "${RETRY:-}" -- "${OPTIONS[@]}") || {
  rmdir "$RESULTS" 2>/dev/null || true # made for this suite, and nothing was measured
  exit 2
}

exec 9>"$RESULTS/.suite"
if ! flock -n 9; then
  echo "error: $RESULTS is in use by process $(cat "$RESULTS/.holder" 2>/dev/null); choose another RESULTS=" >&2
  exit 2
fi
echo $$ >"$RESULTS/.holder"
mkdir -p results
case $RESULTS in
  results/*) ln -sfn "${RESULTS#results/}" results/latest ;;
  *) ln -sfn "$(realpath "$RESULTS")" results/latest ;;
esac
[ -e "$RESULTS/environment.json" ] || "$PYTHON" -m scripts.environment --results "$RESULTS" 9>&-

stopped=0 child=0
stop() { # SIGNAL CODE: pass it on, and wait for the attempt to clean up and write its row
  stopped=$2
  [ "$child" = 0 ] || kill -s "$1" "$child" 2>/dev/null || true
}
trap 'stop INT 130' INT
trap 'stop TERM 143' TERM

failed=0 number=0
total=$(grep -c . <<<"$todo" || true)
while read -r repeat strategy; do
  [ -n "$strategy" ] && [ "$stopped" = 0 ] || continue
  number=$((number + 1))
  REPEAT=$repeat LABEL=$number/$total "launchers/$strategy.sh" 9>&- &
  child=$!
  code=0
  wait "$child" || code=$?
  while kill -0 "$child" 2>/dev/null; do # a signal ends `wait`; the attempt is still cleaning up
    wait "$child" || true
  done
  child=0
  [ "$code" = 0 ] || failed=1
done <<<"$todo"

echo
"$PYTHON" -m scripts.plot_results --results "$RESULTS" 9>&- || failed=1
[ "$stopped" = 0 ] || exit "$stopped"
exit "$failed"
