#!/usr/bin/env bash
# The last rows of 131,072 keys, of every kind and family, against float64 (test/attention/far_test.cu).
. dev/gpu/part.sh
need gtest
make "${quick[@]}" "$quick_build/test_far" || { note "the build failed"; exit 1; }
[ -n "$rehearse" ] || export FULL=1
GTEST_TOTAL_SHARDS=1 GTEST_SHARD_INDEX=0 timeout -k 5 400 "$quick_build/test_far" | tee "$work/log"
status=${PIPESTATUS[0]}
{ echo '| variant | precision, kernels | kernel | whole |'; echo '|---|---|---|---|'; } > "$work/table"
grep '^| ' "$work/log" >> "$work/table"
note "$(grep -c '^| ' "$work/log") rows, exit $status, $(grep -c 'Failure$' "$work/log") beyond the bound"
exit "$status"
