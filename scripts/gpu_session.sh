#!/usr/bin/env bash
# Runs everything that needs a GPU, in parts of under nine minutes each: tests and bench together take less than that,
# each other part about as much. Later parts use what earlier parts have built.
#
#   [OUT=gpu_out] [COMMIT=abc123] bash scripts/gpu_session.sh [--train GLOB --val GLOB] [--tokens 26214400] PART...
#
#   tests      builds for the GPU of this machine and runs every test program on it
#   sanitize   small shapes of the kernels' tests under compute-sanitizer: memcheck, racecheck, synccheck
#   bench      make bench, and its differences from the bench/results/gpu.json of before
#   peers      the same model and attention in PyTorch (scripts/bench_peers.py), beside ours
#   runs       trains GPT-2 124M for equal tokens with four kinds of attention on the shards of --train, and evaluates
#              at 1K to 16K on those of --val (scripts/compare_variants.py)
#
# Logs and results go to $OUT; a short table comes last; exit 1 if a part failed. CPPFLAGS and LDFLAGS are passed to make,
# for headers and libraries in other places: a machine without network needs nlohmann, CLI and gtest of /usr/include,
# and libgtest*.a, 3 MB together. COMMIT names the sources where there is no git; PYTHON names a Python that has
# PyTorch.
# shellcheck disable=SC2317  # parts are called by name
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/common.sh

stop() {
  echo "gpu_session.sh: $1" >&2
  exit 2
}

train_shards=
val_shards=
tokens=26214400
parts=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' scripts/gpu_session.sh; exit 0 ;;
    --train | --val | --tokens)
      [ $# -gt 1 ] || stop "$1 needs a value"
      case "$1" in --train) train_shards=$2 ;; --val) val_shards=$2 ;; *) tokens=$2 ;; esac
      shift ;;
    tests | sanitize | bench | peers | runs) parts+=("$1") ;;
    *) stop "unknown argument \"$1\" (--help)" ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || stop "name the parts to run: tests sanitize bench peers runs (--help)"
case " ${parts[*]} " in
  *" runs "*) [ "${train_shards:+1}${val_shards:+1}" = 11 ] || stop "runs needs --train GLOB and --val GLOB" ;;
esac
nvidia-smi -L 2>/dev/null | grep -q ^GPU || stop "there is no GPU here: nvidia-smi -L lists none"
cuda=${CUDA_HOME:-/usr/local/cuda}
command -v nvcc >/dev/null || [ -x "$cuda/bin/nvcc" ] || stop "there is no nvcc on the PATH or in $cuda/bin (CUDA_HOME)"
export PATH=$PATH:$cuda/bin BACKEND=cuda
out=$(realpath -m "${OUT:-gpu_out}")
mkdir -p "$out"

# A part prints its progress and ends with a status; `note TEXT` adds to its line of the last table.
note() { echo "$1" >> "$out/note"; }

tests() {
  make tests train || { note "the build failed"; return 1; }
  bash test/support/run.sh build/cuda
  local status=$?
  note "$(grep -c '^=== ' "$out/tests.log") programs, $(awk '/^\[  PASSED  \]/ { n += $4 } END { print n + 0 }' \
    "$out/tests.log") tests passed"
  return "$status"
}

# A tool refused by the driver is not a finding; its log has no SUMMARY line.
sanitize() {
  command -v compute-sanitizer >/dev/null || { note "there is no compute-sanitizer"; return 1; }
  make build/cuda/test_{portability,kernels,attention,hopper,prepare,gate} || { note "the build failed"; return 1; }
  local failed=0 tool name filter log status clean=0 total=0
  for tool in memcheck racecheck synccheck; do
    while read -r name filter; do
      log=$out/sanitize_log
      total=$((total + 1))
      timeout --foreground 100 compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 99 \
        "build/cuda/test_$name" --gtest_brief=1 --gtest_filter="$filter" > "$log" 2>&1
      status=$?
      echo "=== $tool, test_$name $filter"
      tail -n 25 "$log"
      if [ "$status" = 124 ]; then note "$tool test_$name: not finished in 100 s"; failed=1
      elif ! grep -q "SUMMARY" "$log"; then
        note "$tool was refused: $(grep -m1 -i 'error\|not supported' "$log" || echo 'no summary')"
        failed=1
        break
      elif [ "$status" = 99 ]; then note "$tool test_$name: FOUND $(grep -m1 SUMMARY "$log")"; failed=1
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
  rm -f "$out/sanitize_log"
  note "$clean of $total runs without a finding"
  return "$failed"
}

bench() {
  local before=$out/gpu_before.json
  rm -f "$before"
  cp bench/results/gpu.json "$before" 2>/dev/null
  make bench || return 1
  cp bench/results/gpu.json "$out" || return 1
  [ ! -f "$before" ] || python3 scripts/bench_table.py --compare "$before" "$out/gpu.json"
  note "$(python3 scripts/bench_table.py --brief "$out/gpu.json")"
}

peers() {
  local python
  for python in ${PYTHON:-} python3; do
    "$python" -c 'import torch' 2>/dev/null && break
    python=
  done
  [ -n "$python" ] || { note "no Python with PyTorch was found (PYTHON)"; return 1; }
  make build/cuda/bench_step build/cuda/bench_attention || { note "the build failed"; return 1; }
  local ours=build/cuda
  [ ! -f "$out/gpu.json" ] || ours=$out/gpu.json  # bench has run
  "$python" scripts/bench_peers.py --ours "$ours" --minutes 6 --out "$out/peers_gpu.json" || return 1
  note "$(grep -c '"missing"' "$out/peers_gpu.json") of the peers' lines lack a figure"
}

runs() {
  make train build/cuda/train || { note "the build failed"; return 1; }
  local variants=softmax,softmax_qknorm,lssar,lssar_softplus_gated batch=131072 picture=() status python run
  python=$(find_python 2>/dev/null) && picture=(--picture "$out/runs.png")
  # Each is evaluated before its first step and after its last.
  TRAIN=build/cuda/train "${python:-python3}" scripts/compare_variants.py --config configs/gpt2_124m_softmax.json \
    --variants "$variants" --seeds 1337 --results "$out/runs.json" "${picture[@]}" \
    --set "data.train=$train_shards" --set "data.val=$val_shards" --set "batch.tokens=$batch" --set batch.micro=32 \
    --set "train.steps=$((tokens / batch))" --set optimizer.warmup_steps=40 --set optimizer.final_lr_fraction=0.1 \
    --set eval.every=1000000 --set eval.tokens=1048576 --set eval.lengths=1024,2048,4096,8192,16384 \
    --set checkpoint.every=0 --set checkpoint.at_end=false
  status=$?
  for variant in ${variants//,/ }; do
    run=$(ls -td "runs/compare_${variant}_1337_"* 2>/dev/null | head -n 1)
    cp "$run/metrics.jsonl" "$out/$variant.jsonl" 2>/dev/null ||
      note "$variant has not begun"
  done
  return "$status"
}

export -f note find_python tests sanitize bench peers runs  # for the shell that timeout starts
export out train_shards val_shards tokens
table=()
failed=0
for part in "${parts[@]}"; do
  phase "$part"
  rm -f "$out/note"
  start=$SECONDS
  timeout 535 bash -uo pipefail -c "$part" 2>&1 | tee "$out/$part.log"
  status=${PIPESTATUS[0]}
  case $status in 0) result="done" ;; 124) result="STOPPED after 535 s" ;; *) result="FAILED" ;; esac
  [ "$status" = 0 ] || failed=1
  table+=("| $part | $((SECONDS - start)) s | $result | $(paste -sd ';' "$out/note" 2>/dev/null | sed 's/;/; /g') |")
done
rm -f "$out/note"
printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
printf '%s\n' '| part | time | result | |' '|---|---|---|---|' "${table[@]}"
exit $failed
