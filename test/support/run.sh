#!/usr/bin/env bash
# Runs every test program of a build folder: test/support/run.sh build/cpu. Sanitizer builds run the quick tests, or all
# with FULL=1, and then the planted bugs, which must be found. Exit 1 if anything failed.
set -u
build=$1
failed=0 ran=0
# Much of a program's time is one thread's work on a reference: on a CPU it runs as one process a core, each with its
# share of the tests.
shards=1 logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
case "$build" in *cuda*) ;; *) shards=$(nproc) ;; esac

# run PROGRAM [FLAG]...: prints what the processes say, one after the other; fails if one of them does.
run() {
  local pids=() status=0 shard
  for ((shard = 0; shard < shards; shard++)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$@" --gtest_brief=1 > "$logs/$shard" 2>&1 &
    pids+=($!)
  done
  for ((shard = 0; shard < shards; shard++)); do
    wait "${pids[shard]}" || status=1
    cat "$logs/$shard"
  done
  return $status
}

for test in "$build"/test_*; do
  [ -x "$test" ] && [ -f "$test" ] || continue
  case "$test" in *.d | *.o) continue ;; esac
  ran=$((ran + 1))
  filter='*'
  # What asks for numbers alone, through addresses that other tests use, needs no sanitizer.
  case "$build:${FULL:-0}" in *-asan:0 | *-tsan:0)
    filter='-*Long*:Settings.*MatchTheReference:AttentionTest*Powers*:AttentionTest*Scores:*SameBitsInAnyOrder:*EveryKindInBf16'
    filter+=':*MasksThatHideNothing:AttentionTest*Sinks:Model.ReferenceGradients*:Model.SmallOnesOverfit*:Checkpoints.EveryBitCounts' ;;
  esac
  echo "=== $test"
  run "$test" --gtest_filter="$filter" || failed=1
done
[ $ran != 0 ] || { echo "no test programs in $build: make tests" && exit 1; }
# The model and its evaluation again with the work of streams held back (emulation/cpu/streams.h): fails if a wait is missing.
case "$build" in */cpu)
  for order in late random; do
    for test in model eval; do PLUSGPT_STREAMS=$order run "$build/test_$test" || failed=1; done
  done ;;
esac
case "$build" in *-asan | *-tsan) bash test/emulation/planted_bugs.sh "$build" || failed=1 ;; esac
exit $failed
