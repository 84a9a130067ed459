#!/usr/bin/env bash
# The ten minutes on a GPU that may be the only ones: the most important first, which is that the trainer trains. Each
# program has a log and a time limit of its own, so that what fails or hangs hides nothing else. $out/first.tar.gz has
# the logs, and what it takes to mend the code elsewhere: the reports of ptxas, the disassembly of what failed, the
# machine, the choices of cuBLASLt. FIRST_TESTS names other test programs to run after test_hopper; FIRST_SECONDS (520)
# and TEST_SECONDS (90) are the limits of all and of one test program.
# shellcheck disable=SC2317,SC2086,SC2034  # steps call functions by name; lists of words; steps.sh
. dev/gpu/part.sh
deadline=$((SECONDS + ${FIRST_SECONDS:-520}))
. dev/gpu/steps.sh

# cases LOG: tests that failed, in the order of their failing
cases() { awk '/^\[  FAILED  \] / { sub(/,$/, "", $4); if ($4 ~ /\./ && !seen[$4]++) print $4 }' "$1"; }

# Objects of the kernels that a test program runs; of attention the families whose cases are among those given.
objects_of() {
  case $1 in
    hopper | portability) find "$quick_build" -path "*/test/*$1_test.cu.o" ;;
    attention)
      [[ "$2" != *AttentionTest/[01]* ]] || find "$quick_build" -path '*/attention/*general_*.cu.o'
      [[ "$2" != *AttentionTest/2* ]] || find "$quick_build" -path '*/attention/*tensor_*.cu.o'
      [[ "$2" != *AttentionTest/3* ]] || find "$quick_build" -path '*/attention/*hopper_*.cu.o' ;;
    gate | prepare) find "$quick_build" -path "*/attention/*$1.cu.o" ;;
    matmul) find "$quick_build" -path '*/kernels/matmul.cu.o' ;;
    kernels) find "$quick_build" -path '*/kernels/*.cu.o' ! -name matmul.cu.o ;;
  esac
}
# disassemble PROGRAM CASES: without the encodings, which are two thirds of it
disassemble() {
  local object
  command -v cuobjdump >/dev/null || { echo "there is no cuobjdump" > "$logs/sass.txt"; return; }
  for object in $(objects_of "$1" "$2"); do
    cuobjdump -sass "$object" 2>&1 | sed -E 's: */\* 0x[0-9a-f]{16} \*/::' | grep . | head -c 8000000 \
      > "$logs/sass_$(basename "$object" .cu.o).txt"
  done
}

# test_program NAME: a case that hangs or ends the program is left out in another go, of three at most. The first six
# that fail are run again alone: an error of one kernel makes all later ones of its process fail.
test_program() {
  local program=$quick_build/test_$1 log=$logs/test_$1.log start=$SECONDS skip='' status case ended='' all alone=0 first
  [ -x "$program" ] || { failed=1; row "test_$1" 0 "NOT BUILT" "see the build's log"; return; }
  ! time_is_up || { failed=1; row "test_$1" 0 "NOT RUN" "no time was left"; return; }
  : > "$log"
  for _ in 1 2 3; do
    limited "${TEST_SECONDS:-90}" "$log" "$program" --gtest_filter="*${skip:+-$skip}"
    status=$?
    [ "$status" -ge 124 ] || break
    case=$(awk '/^\[ RUN      \]/ { run = $4 } /^\[  (     OK|FAILED) / { run = "" } END { print run }' "$log")
    if time_is_up; then ended+="; NO TIME LEFT"
    elif [ "$status" = 124 ]; then ended+="; HUNG"
    else ended+="; CRASHED"; fi
    ended+=" in ${case:-no test}"
    [ -n "$case" ] || break
    skip="${skip:+$skip:}$case"
  done
  all=$(cases "$log") first=${all%%$'\n'*}
  for case in $(head -n 6 <<< "$all"); do
    echo "=== alone: $case" >> "$log"
    GTEST_TOTAL_SHARDS=1 CUDA_LAUNCH_BLOCKING=1 limited 20 "$log" "$program" --gtest_filter="$case" ||
      alone=$((alone + 1))
  done
  local passed count=0 result
  passed=$(awk '/^\[       OK \]/ && !seen[$4]++ { n++ } END { print n + 0 }' "$log")
  [ -z "$all" ] || count=$(wc -l <<< "$all")
  result="$passed passed"
  if [ "$status" != 0 ] || [ -n "$ended$all" ]; then
    failed=1
    result+=", $count FAILED$ended"
    [ "$count" = 0 ] || result+="; $alone of the first $((count < 6 ? count : 6)) fail alone too"
    [ -n "$ended$all" ] || result+="; exit $status"
    disassemble "$1" "$all $skip"
  fi
  row "test_$1" $((SECONDS - start)) "$result" "${first:-${skip%%:*}}"
}

# The results of the steps.
last_line() { tail -n 1 "$1" | tr '|' ','; }
built() {
  (cd "$quick_build" && find . -name '*.ptxas' -print0 | xargs -0r tar -czf "$logs/ptxas.tar.gz")
  echo "built"
}
brief() {
  cp "$quick_build/quick.json" "$out"
  python3 dev/bench_table.py --brief "$out/quick.json"
}
losses_and_speed() {
  cp "$metrics" "$logs/metrics_$variant.jsonl"
  python3 - "$metrics" << 'PYTHON'
import json, statistics, sys
steps = [entry for entry in map(json.loads, open(sys.argv[1])) if entry["type"] == "train"]
speed = statistics.median(step["tokens_per_s"] for step in steps[3:])
loss = [f"{steps[at]['loss']:.3f}" for at in (0, -1)]
print(f"{speed:,.0f} tokens/s (median of steps 4 to {len(steps)}), loss {loss[0]} to {loss[1]}")
PYTHON
}
ten_steps() {
  variant=$1 metrics=$work/runs/gpu_first_$1/metrics.jsonl
  step "ten steps, $1" 90 losses_and_speed "${train[@]}" --overwrite --set "attention.variant=$1" \
    --set "name=gpu_first_$1" --set train.steps=10 --set optimizer.warmup_steps=2 --set log.every=1
}

# ---- in the order of what must be known

smi() { timeout 20 nvidia-smi "$@"; }
{ uname -a; nproc; free -g; nvcc --version; "${CXX:-g++}" --version; smi -q; smi topo -m; } > "$logs/machine.txt" 2>&1
row machine "$SECONDS" "$(nproc) cores, $(smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit \
  --format=csv,noheader 2>/dev/null | head -n 1 || echo 'no GPU')" ""

small_training
step "build the trainer" 300 built make "${quick[@]}" "${one_kind[@]}" "$quick_build/train"
ten_steps softmax

tests=${FIRST_TESTS-matmul portability kernels attention prepare gate model}
if has_hopper; then tests="hopper $tests"; fi
if ! has gtest; then
  failed=1 tests=''
  row tests 0 "LEFT OUT: gtest is missing" ""
fi
first_tests='' other_tests=''
for name in $tests; do
  case $name in hopper | matmul) first_tests+=" $name" ;; *) other_tests+=" $name" ;; esac
done

programs() { [ $# = 0 ] || printf "$quick_build/test_%s\n" "$@"; }
mapfile -t targets < <(programs $first_tests)
step "build lssar's trainer$first_tests" 200 built make "${quick[@]}" "${two_kinds[@]}" -k "$quick_build/train" \
  "${targets[@]}"
for name in $first_tests; do CUBLASLT_LOG_LEVEL=1 test_program "$name"; done
ten_steps lssar
for precision in bf16 fp32; do
  step "dry run, $precision" 90 last_line "${train[@]}" --dry-run --set "precision=$precision"
done

mapfile -t targets < <(programs $other_tests)
step "build the rest" 200 built make "${quick[@]}" "${two_kinds[@]}" -k "${targets[@]}" \
  "$quick_build"/bench_{kernels,attention,step}
for name in $other_tests; do test_program "$name"; done
step "make bench QUICK=1" 150 brief make "${quick[@]}" "${two_kinds[@]}" bench QUICK=1
exit "$failed"
