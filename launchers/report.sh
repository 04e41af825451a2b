#!/usr/bin/env bash
# Not a strategy: measures what a whole report of RESULTS still lacks (do the strategies compute the same update? is the
# loader the limit? how does ddp scale?), then writes it. MEASURE=no, and a published set: from what is there.
source "$(dirname "$0")/lib.sh"

failed=0
measure() { # COMMAND ...: a part that fails leaves a gap in the report; a signal ends it all
  local code=0
  "$@" || code=$?
  [ "$code" -lt 128 ] || exit "$code"
  [ "$code" = 0 ] || failed=1
}
scaling() {
  local ranks=1 n=1
  while [ $((n *= 2)) -le "$NPROC" ]; do ranks+=" $n"; done
  STRATEGY=ddp RANKS=$ranks RESULTS=$RESULTS/scaling THREADS_PER_RANK='' launchers/scaling.sh
}

if [ "${MEASURE:-yes}" = yes ] && [ -e "$RESULTS/runs.csv" ] && [[ $RESULTS != *published/* ]]; then
  echo "measuring what the report still lacks; some minutes, or MEASURE=no"
  [ -e "$RESULTS/loader.csv" ] || measure "$PYTHON" -m scripts.probe.loader --results "$RESULTS" "${OPTIONS[@]}"
  [ -e "$RESULTS/equivalence.csv" ] || CONFIG='' measure "$PYTHON" -m scripts.proof.verify --results "$RESULTS"
  [ -e "$RESULTS/scaling/scaling.csv" ] || [ "$NPROC" = 1 ] || measure scaling
fi
measure "$PYTHON" -m scripts.report.page --results "$RESULTS"
exit "$failed"
