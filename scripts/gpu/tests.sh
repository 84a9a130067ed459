#!/usr/bin/env bash
# Builds for this GPU and runs every test program.
. scripts/gpu/part.sh
make BUILD="$build" tests train || { note "the build failed"; exit 1; }
bash test/support/run.sh "$build" 2>&1 | tee "$work/log"
status=${PIPESTATUS[0]}
note "$(grep -c '^=== ' "$work/log") programs, $(awk '/^\[  PASSED  \]/ { n += $4 } END { print n + 0 }' \
  "$work/log") tests passed"
exit "$status"
