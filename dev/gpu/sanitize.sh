#!/usr/bin/env bash
# Small shapes of the kernels' tests under compute-sanitizer. A tool that the device or the driver refuses has found
# nothing: its log has no SUMMARY line.
. dev/gpu/part.sh
need compute-sanitizer
need gtest
make BUILD="$build" "$build"/test_{portability,kernels,attention,hopper,prepare,gate} ||
  { note "the build failed"; exit 1; }
failed=0 clean=0 total=0 log=$work/log
for tool in memcheck racecheck synccheck; do
  while read -r name filter; do
    total=$((total + 1))
    timeout --foreground 100 compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 99 \
      "$build/test_$name" --gtest_brief=1 --gtest_filter="$filter" > "$log" 2>&1
    status=$?
    echo "=== $tool, test_$name $filter"
    tail -n 25 "$log"
    doubt=
    [ "$name" != hopper ] || doubt=" (proves nothing by itself: the tool has reported correct wgmma and copies before)"
    if [ "$status" = 124 ]; then note "$tool test_$name: not finished in 100 s"; failed=1
    elif ! grep -q "SUMMARY" "$log"; then
      note "$tool was refused: $(grep -m1 -i 'error\|not supported' "$log" || echo 'no summary')"
      failed=1
      break
    elif [ "$status" = 99 ]; then note "$tool test_$name: FOUND $(grep -m1 SUMMARY "$log")$doubt"; failed=1
    elif [ "$status" != 0 ]; then note "$tool test_$name: the tests failed"; failed=1
    else clean=$((clean + 1)); fi
  done << 'FILTERS'
hopper -*Mistakes*:*WhatIsNotWaitedFor*
attention AttentionTest/*.RowsFurtherApart:AttentionTest/*.Sinks:AttentionTest/*.ManyHeads
prepare PrepareTest/*.NormsAndScales
kernels *Embedding*:*Layernorm*:*BiasBackward*:*CrossEntropy*:*SumTo*:*SquareSums*:*ClipScale*:-*Reproducible*
gate Gate.ExtremeLogits
portability Launch.*:Packs.*:Warp.*:Fragments.*:CpAsync.*:-*Impossible*
FILTERS
done
note "$clean of $total runs without a finding"
exit "$failed"
