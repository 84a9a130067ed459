#!/usr/bin/env bash
# Checks a fresh checkout, set-up included: half an hour on two slow cores, no GPU needed.
#
#   bash scripts/test.sh
#
# Builds for the CPU and runs every GoogleTest program and the Python tests. Then it compiles again what a pass has
# found faults in: kernels, the CPU layer and readers under AddressSanitizer, with the bad inputs of test/fuzz/corpus;
# what has threads under ThreadSanitizer; two kinds in files, as their author would check them; and, if nvcc exists, the
# kernels of one kind, which may not spill registers. If a GPU exists, the tests run there as well. What compares with
# PyTorch runs if PYTHON_TORCH names a Python with torch, transformers, accelerate and tokenizers, or the usual one has
# them; else it is named at the end. The last line is "N passed, M failed"; exit 1 on any failure. make check-full adds
# the rest: every kind under the sanitizers and in the kernels for tensor cores, the folders that call kernels and
# readers, the long tests, fuzzing, and all of the CUDA build.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/common.sh

case "${1:-}" in
  "") ;;
  -h | --help) sed -n '2,13s/^# \{0,1\}//p' scripts/test.sh; exit 0 ;;
  *) echo "test.sh: unknown argument \"$1\" (--help)" >&2; exit 2 ;;
esac

passed=0
failed=0
logs=build/test_logs
mkdir -p "$logs"

# Adds up what GoogleTest, planted_bugs.sh, unittest and scripts/compare.py print: "passed failed". Many programs may
# have written into one log. GoogleTest's brief form says how many tests ran, passed and were skipped: the others
# failed.
count() {
  awk '
    /^\[==========\] [0-9]+ tests? from .* ran/ { failed += $2 }
    /^\[  PASSED  \] [0-9]+ test/ { passed += $4; failed -= $4 }
    /^\[  SKIPPED \] [0-9]+ test/ { failed -= $4 }
    /^planted bugs: [0-9]+ of / { passed += $3 }
    /^planted_bugs.sh: / { failed++ }
    /^replay_.* nothing found$/ { passed++ }
    /^\|.*\| equal \|$/ { passed++ }
    /^\|.*\| [A-Z ]+ \|$/ { failed++ }
    /^Ran [0-9]+ tests? in / { ran = $2 }
    /^(OK|FAILED)( \(.*\))?$/ && ran != "" {
      bad = out = 0
      while (match($0, /[a-z ]+=[0-9]+/)) {
        split(substr($0, RSTART, RLENGTH), pair, "=")
        if (pair[1] ~ /skipped/) out += pair[2]; else if (pair[1] !~ /expected/) bad += pair[2]
        $0 = substr($0, RSTART + RLENGTH)
      }
      passed += ran - bad - out; failed += bad; ran = ""
    }
    END { print passed + 0, failed + 0 }' "$1"
}

# suite NAME COMMAND...: runs a command that prints test results and adds them up. A command that fails without a failed
# test, or that runs no test, counts as one failure.
suite() {
  local name=$1 rc=0 good bad
  local log=$logs/${name// /_}.log
  shift
  phase "$name"
  "$@" 2>&1 | tee "$log" || rc=$?
  read -r good bad <<<"$(count "$log")"
  if [ "$bad" -le 0 ] && { [ $rc != 0 ] || [ "$good" = 0 ] || [ "$bad" != 0 ]; }; then bad=1; fi
  passed=$((passed + good))
  failed=$((failed + bad))
  echo "--- $name: $good passed, $bad failed"
  [ $bad = 0 ] || failed_suites+=("$name (exit $rc, $log)")
}
failed_suites=()

# Compiles a part of the CUDA build; a kernel whose registers ptxas had to spill fails. One test for `count`.
cuda_subset() {
  make cuda-subset || return 1
  echo "[==========] 1 test from the CUDA build ran"
  "$python" dev/kernel_table.py build/cuda && echo "[  PASSED  ] 1 test"
}

python_tests() { OMP_NUM_THREADS=1 "$python" -m unittest discover -s test -p 'test_*.py'; }

# With PyTorch: the tests that skip without it, the operator's with few kinds, and what scripts/compare.py compares.
with_torch() {
  local rc=0
  tests_with_torch || rc=1
  compare_torch || rc=1
  "$torch" scripts/compare.py transformers --train "$TRAIN" || rc=1
  return $rc
}
tests_with_torch() {
  local modules
  PLUSGPT_LIBRARY=build/cpu-pytorch/plusgpt_attention.so build/cpu/test_bits --gtest_brief=1 || return 1
  modules=$(cd test && grep -lE '^ *(import|from) .*\b(torch|transformers|tokenizers)\b' */test_*.py | tr / .)
  (cd test && OMP_NUM_THREADS=1 "$torch" -m unittest ${modules//.py/})
}
# Not lssar's gradients: its power of 15 makes errors of rounding so large and rare that PyTorch's own is no bound for
# ours (2 of 12 texts). The C++ tests compare them with float64, and compare.py transformers its losses and logits.
compare_torch() {
  local text=build/test_text
  "$torch" scripts/prepare_text.py docs/*.md --out $text --name text --tokenizer bytes --overwrite &&
    "$torch" scripts/compare.py torch $text/text_train_000000.bin --train "$TRAIN" \
      --variants softmax,fox,softplus_gated --steps 10
}

phase "install what is missing"
bash scripts/install_deps.sh --tests
python=$(find_python)
torch=$(find_torch "$python")

phase "build for the CPU"
make BACKEND=cpu
[ -z "$torch" ] || make BACKEND=cpu pytorch ATTN="softmax lssar threshold" \
  KINDS="$(echo test/attention/kinds/{my_score,mixture}.cuh)"

export TRAIN=$PWD/build/cpu/train
# Python tests wait more than they compute: they run beside what compiles. A second thread of theirs would mostly wait
# for its turn; tests of several threads name their number.
background() {
  local rc=0
  "$@" > "$logs/$1_output" 2>&1 || rc=$?
  echo "$rc $SECONDS" > "$logs/$1_status"
}
{ background python_tests; [ -z "$torch" ] || background with_torch; } &
replay() {
  local rc ended
  cat "$logs/$1_output"
  read -r rc ended < "$logs/$1_status"
  echo "(ran in the background, until $ended s)"
  return "$rc"
}
suite "C++ tests" make BACKEND=cpu test
suite "AddressSanitizer" make check-asan
suite "ThreadSanitizer" make check-tsan
suite "Kinds in files" make check-kind KINDS="$(echo test/attention/kinds/{bump,mixture}.cuh)" \
  PYTHON="${torch:-$python}"
if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
  suite "CUDA subset" cuda_subset
  if nvidia-smi -L >/dev/null 2>&1; then
    suite "C++ tests on the GPU" make BACKEND=cuda test
  fi
fi

phase "wait for the background"
wait
suite "Python tests" replay python_tests
[ -z "$torch" ] || suite "Comparison with PyTorch" replay with_torch

phases
[ -n "$torch" ] || printf 'left out: %s has no torch, transformers, accelerate and tokenizers (PYTHON_TORCH=... %s\n' \
  "$python" "names one): the tests that need them, scripts/compare.py torch and transformers, make check-kind"
[ ${#failed_suites[@]} = 0 ] || printf 'failed: %s\n' "${failed_suites[@]}"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
