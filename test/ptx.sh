#!/usr/bin/env bash
# Runs the CUDA build's test programs on the PTX that nvcc made of it, without a GPU (ptx/): test/ptx.sh build/ptx. With
# asynchronous work as late as a wait allows and, beside it, at random moments; then bugs are planted, which must be noticed.
# FULL=1 runs the long tests too, all programs, and asynchronous work done at once. Exit 1 when anything failed.
set -u
build=${1:?usage: test/ptx.sh BUILD_DIR}
full=${FULL:-}

# The ring lets one thread release a slot after its own wgmma.wait_group, for its whole warpgroup; the kernels do not, and
# are held to what a warp's own wait gives (ptx/options.h).
joint='Hopper.ARingOfTilesInAnyOrder'
# Kernels for anything take minutes for long sequences, and one key among thousands takes one in each family.
quick='-AttentionTest/*.LongOneKey*:AttentionTest/0.Long*:AttentionTest/1.Long*:AttentionTest/1.ManyHeads'

run() { # mode, program, filter, environment: the log alone if all is well
  local log=$build/test_$2.$1.log
  env PTX_ASYNC="$1" $4 "$build/test_$2" --gtest_brief=1 --gtest_filter="$3" > "$log" 2>&1 && return
  { echo "=== $2, asynchronous work $1"; cat "$log"; } >> "$build/failed.$1"
}
run_all() { # mode
  rm -f "$build/failed.$1"
  run "$1" hopper "-$joint" ""
  run "$1" hopper "$joint" PTX_PRODUCTS=joint
  for program in kernels gate prepare ${full:+matmul model}; do run "$1" "$program" '*' ""; done
  run "$1" attention "$([ "$full" ] && echo '*' || echo "$quick")" ""
}

failed=0
modes="late random ${full:+early}"
for mode in $modes; do run_all "$mode" & done
wait
for mode in $modes; do
  if [ -e "$build/failed.$mode" ]; then
    cut -c1-1000 "$build/failed.$mode" && failed=1
  else
    echo "PTX, asynchronous work $mode: all passed"
  fi
done
bash test/planted_bugs_ptx.sh "$build" || failed=1
exit $failed
