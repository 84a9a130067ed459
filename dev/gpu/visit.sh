#!/usr/bin/env bash
# What a GPU is asked that is there for minutes, with the programs of dev/gpu_prepare.sh: are the kernels right, how
# fast are steps, products and attention, at which clock, what does attention wait for, how fast are others? In the
# order of their worth, each with a limit of its own; VISIT_SECONDS (520) is that of all, VISIT names the questions.
# shellcheck disable=SC2317,SC2086,SC2034  # steps call functions by name; lists of words; steps.sh
. dev/gpu/part.sh
deadline=$((SECONDS + ${VISIT_SECONDS:-520}))
. dev/gpu/steps.sh
asked=${VISIT-tests backward steps ceiling products attention operator counters llm.c choices peers}
if [ -n "$rehearse" ]; then lengths=128 tiny=(--tiny)
else lengths=1024,4096,16384 tiny=(); fi

last_line() { tail -n 1 "$1" | tr '|' ','; }
passed() { grep -E '^\[  PASSED  \]' "$1" | tail -n 1 | sed 's/.*\] //'; }
table() { grep -c '^|' "$1" | sed 's/$/ lines of a table/'; }
# Of llm.c's log: the mean of the steps after the first five.
rate() {
  awk '/tok\/s/ && ++n > 5 { sum += $(NF - 1) }
    END { if (n > 5) printf "%.0f tokens/s, mean of %d steps\n", sum / (n - 5), n - 5 }' "$1"
}

clocks=
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active \
    --format=csv -lms 50 > "$out/clocks.csv" 2> /dev/null &
  clocks=$!
fi

for question in $asked; do
  case $question in
    tests)
      for program in "$build"/test_*; do step "${program##*/}" 60 passed "$program" --gtest_brief=1; done ;;
    backward)  # one kernel beside two
      step "50 runs of test_hopper_heads" 30 passed "$build/test_hopper_heads" --gtest_brief=1 --gtest_repeat=50
      for kernels in hopper hopper_heads; do
        step "attention by $kernels" 30 table "$build/bench_attention" --kernels "$kernels" softmax,lssar 64 \
          "${lengths/#1024/256,512,1024,2048}" --json "$out/$kernels.json"
      done
      kernels=${rehearse:+general}
      for kernels in "${kernels:-hopper}" "${kernels:-hopper_heads}"; do
        step "steps by $kernels" 60 table "$build/bench_step" --variants softmax,lssar \
          --set "attention.family=$kernels" --json "$out/steps_$kernels.json"
      done ;;
    steps) step steps 110 table "$build/bench_step" --variants softmax,lssar --json "$out/steps.json" ;;
    ceiling)
      [ -z "$torch_python" ] || step "ceiling of products" 40 last_line "$torch_python" dev/gpu/ceiling.py ;;
    products)
      step products 80 table "$build/bench_kernels" --json "$out/products.json" qkv "attention projection" mlp logits \
        bias_backward cross_entropy layernorm ;;
    attention)
      step attention 70 table "$build/bench_attention" softmax,lssar 64 "$lengths" --json "$out/attention.json"
      step "attention with a bias" 30 table "$build/bench_attention" --bias fox softmax 64 "$lengths" \
        --json "$out/bias.json"
      step "attention with a pruned bias" 30 table "$build/bench_attention" --bias fox --prune softmax 64 "$lengths" \
        --json "$out/pruned.json"
      step "attention with sums of columns" 20 table "$build/bench_attention" --sums softmax 64 1024 \
        --json "$out/sums.json" ;;
    operator)  # of PyTorch
      [ -z "$prepared" ] || install -D -t build/cuda-pytorch "$build/plusgpt_attention.so"
      [ -z "$torch_python" ] || {
        step "values of the operator" 60 last_line env -C test PLUSGPT_DEVICE="$BACKEND" "$torch_python" -m unittest \
          pytorch.test_values.Values.test_bf16 pytorch.test_operator.Operator.test_a_graph
        step "speed of the operator" 40 last_line "$torch_python" dev/bench_peers.py "${tiny[@]}" \
          --ours "$out/attention.json" --only operator --minutes 0.5 --out "$out/peers_operator.json"
      } ;;
    counters)
      ! has ncu || step counters 80 last_line ncu --clock-control none --target-processes all \
        --section SpeedOfLight --section WarpStateStats --section ComputeWorkloadAnalysis \
        --section MemoryWorkloadAnalysis --section SchedulerStats -k regex:attention_ --launch-skip 4 \
        --launch-count 12 --csv --log-file "$out/ncu.csv" "$build/bench_attention" softmax,lssar 64 1024 ;;
    llm.c)
      if [ -x "$build/train_gpt2cu" ]; then
        own_shards 50257 2200000
        step llm.c 60 rate "$build/train_gpt2cu" -i "$train_shards" -j "$val_shards" -e d12 -b 64 -t 1024 -d 524288 \
          -r 0 -z 0 -v 0 -s 0 -h 0 -x 25
      fi ;;
    choices)  # of cuBLASLt's algorithms: measured, or the heuristic's first with its epilogues or with ours
      for first in measured fused plain; do
        export PLUSGPT_FIRST_PRODUCT=$first
        [ "$first" != measured ] || unset PLUSGPT_FIRST_PRODUCT
        step "steps, choice $first" 60 table "$build/bench_step" --variants softmax --json "$out/steps_$first.json"
      done
      unset PLUSGPT_FIRST_PRODUCT ;;
    peers)
      [ -z "$torch_python" ] || step "PyTorch's LSSAR" 170 last_line "$torch_python" dev/bench_peers.py \
        "${tiny[@]}" --ours "$build" --only LSSAR --minutes 2.6 --out "$out/peers_lssar.json" ;;
    *) note "VISIT: there is no question \"$question\""; failed=1 ;;
  esac
done
[ -z "$clocks" ] || kill "$clocks"
[ ! -s "$out/clocks.csv" ] || note "$(python3 dev/gpu/clocks.py "$out/clocks.csv")"
exit "$failed"
