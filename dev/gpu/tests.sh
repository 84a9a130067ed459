#!/usr/bin/env bash
# Builds for this GPU and runs every test program.
. dev/gpu/part.sh
need gtest
make BUILD="$build" tests train || { note "the build failed"; exit 1; }
make BUILD="$build" test 2>&1 | tee "$work/log"
status=${PIPESTATUS[0]}
programs=$(sed -n 's/^=== \([^,]*\).*/\1/p' "$work/log" | sort -u | wc -l)
note "$programs programs, $(awk '/^\[  PASSED  \]/ { n += $4 } END { print n + 0 }' "$work/log") tests passed"
exit "$status"
