#!/usr/bin/env bash
# make bench, and what has changed since the figures that were there. Then, where there is ncu, which unit limits each
# kernel of a step.
. dev/gpu/part.sh
if [ -n "$rehearse" ]; then
  make BUILD="$build" bench QUICK=1 || exit 1
  note "in a rehearsal with QUICK=1: $(python3 dev/bench_table.py --brief "$build/quick.json")"
else
  before=$out/gpu_before.json
  rm -f "$before"
  cp dev/bench/results/gpu.json "$before" 2>/dev/null
  make BUILD="$build" bench || exit 1
  cp dev/bench/results/gpu.json "$out" || exit 1
  [ ! -f "$before" ] || python3 dev/bench_table.py --compare "$before" "$out/gpu.json"
  note "$(python3 dev/bench_table.py --brief "$out/gpu.json")"
fi

# One layer, one step: ncu runs each kernel several times.
has ncu || exit 0
make "${quick[@]}" "${two_kinds[@]}" "$quick_build/train" || { note "ncu: the build failed"; exit 1; }
small_training
timeout -k 5 100 ncu --target-processes all --clock-control none --section SpeedOfLight --section WarpStateStats \
  --launch-count 80 --csv --log-file "$out/ncu.csv" "${train[@]}" --overwrite --set name=gpu_ncu \
  --set attention.variant=lssar --set model.layers=1 --set train.steps=1 || note "ncu: exit $?"
