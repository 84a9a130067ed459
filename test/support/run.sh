#!/usr/bin/env bash
# Runs test programs of a build folder: test/support/run.sh build/cpu PROGRAM... Sanitizer builds run the quick tests,
# or all with FULL=1, and then the planted bugs, which must be found. Exit 1 if anything failed.
set -u
build=$1
shift
# Much of a program's time is one thread's work on a reference: on a CPU programs run in parts, as many at once as there
# are cores, whatever program they are of.
shards=1 logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$logs"' EXIT
case "$build" in *cuda*) ;; *) shards=$(sh scripts/lib/cores.sh) ;; esac

# failed NAME STATUS: remembers it and says so.
failed() { echo "FAILED: $1, exit status $2" | tee -a "$logs/failed"; }

# run PROGRAM [FLAG]...: what a part says is printed when it ends.
run() {
  local shard
  if [ "$shards" = 1 ]; then
    echo "=== $1"
    "$@" --gtest_brief=1 || failed "$1" $?
    return
  fi
  for ((shard = 0; shard < shards; shard++)); do
    while (($(jobs -rp | wc -l) >= shards)); do wait -n; done
    (
      log=$(mktemp -p "$logs") part="$1, part $((shard + 1))/$shards"
      {
        echo "=== $part"
        GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "$@" --gtest_brief=1 || failed "$part" $?
      } > "$log" 2>&1
      flock "$logs" cat "$log"
    ) &
  done
}

[ $# != 0 ] || { echo "run.sh: no test programs are named" && exit 1; }
# Frames on a stack of their own, so that a use after the return shows, are g++'s default since version 13. They cost
# time at every call, so without FULL=1 every version does without.
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_stack_use_after_return=${FULL:-0}}
for test in "$@"; do
  filter='*'
  # What asks for numbers alone, through addresses that other tests use, needs no sanitizer.
  case "$build:${FULL:-0}" in *-asan:0 | *-tsan:0)
    filter='-*Long*:AttentionTest*Powers*:AttentionTest*Scores:*SameBitsInAnyOrder'
    filter+=':*EveryKindInBf16:*MasksThatHideNothing:AttentionTest*Sinks' ;;
  esac
  run "$test" --gtest_filter="$filter"
done
# The model and its evaluation again with the work of streams held back (emulation/streams.h): a missing wait fails.
case "$build" in */cpu)
  for order in late random; do
    for test in model eval; do
      [[ " $* " != *"/test_$test "* ]] || PLUSGPT_STREAMS=$order run "$build/test_$test"
    done
  done ;;
esac
wait
for replay in "$build"/replay_*; do
  [ ! -x "$replay" ] || "$replay" "test/fuzz/corpus/${replay##*_}"/* || failed "$replay" $?
done
case "$build" in *-asan | *-tsan) bash test/emulation/planted_bugs.sh "$build" || failed planted_bugs $? ;; esac
! cat "$logs/failed" 2>/dev/null
