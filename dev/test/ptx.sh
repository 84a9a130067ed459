#!/usr/bin/env bash
# Runs the CUDA build's test programs on the PTX that nvcc made, without a GPU (dev/ptx): dev/test/ptx.sh build/ptx-90a.
# Asynchronous work is done as late as a wait allows and, in a second run, at random moments; then bugs are planted,
# which must be reported. FULL=1 adds the long tests, every program in every mode, and a third run with
# asynchronous work done at once and wrong algorithms among cuBLASLt's. Exit 1 if anything failed.
set -u
build=${1:?usage: dev/test/ptx.sh BUILD_DIR}
full=${FULL:-}
limit=15m  # per program, because one that spins would never end
[ -z "$full" ] || limit=2h

run() { # mode, program, filter
  [ -x "$build/test_$2" ] || return
  local log=$build/test_$2.$1.log
  PTX_ASYNC=$1 timeout "$limit" "$build/test_$2" --gtest_brief=1 --gtest_filter="$3" > "$log" 2>&1 && return
  { echo "=== $2, asynchronous work $1"; cat "$log"; } >> "$build/failed.$1"
}
run_all() { # mode
  local program
  rm -f "$build/failed.$1"
  for program in ptx hopper hopper_operands hopper_turns hopper_heads documents prune; do run "$1" "$program" '*'; done
  # Without FULL, kernels without asynchronous work run once: attention's general ones (0 in float32, 1 in bf16),
  # without the long sequences, and all programs other than attention.
  local attention='-*LongOneKey*:AttentionTest/0.Long*:AttentionTest/1.Long*' others=
  case "$full:$1" in
    :late) attention+=':AttentionTest/1.*'; PTX_WRONG_PRODUCTS=1 run late matmul '*Wrong*' ;;
    :random) attention+=':AttentionTest/0.*' others='maths tensor_core kernels mlp gate output kv_heads prepare' ;;
    *) attention='*' others='maths tensor_core kernels mlp gate output kv_heads prepare matmul model muon'
       [ "$1" != early ] || export PTX_WRONG_PRODUCTS=1 ;;
  esac
  run "$1" attention "$attention"
  for program in $others; do run "$1" "$program" '*'; done
}

failed=0
modes="late random ${full:+early}"
for mode in $modes; do run_all "$mode" & done
wait
for mode in $modes; do
  if [ -e "$build/failed.$mode" ]; then
    cut -c1-1000 "$build/failed.$mode"
    failed=1
  else
    passed=$(cat "$build"/*."$mode".log | awk '/PASSED/ { n += $4 } END { print n }')
    echo "PTX, asynchronous work $mode: $passed tests passed"
  fi
done
[ ! -x "$build/test_hopper" ] || bash dev/test/planted_bugs_ptx.sh "$build" || failed=1
exit $failed
