#!/usr/bin/env bash
# make bench, and what has changed since the figures that were there.
. dev/gpu/part.sh
if [ -n "$rehearse" ]; then
  make BUILD="$build" bench QUICK=1 || exit 1
  note "in a rehearsal with QUICK=1: $(python3 dev/bench_table.py --brief "$build/quick.json")"
  exit
fi
before=$out/gpu_before.json
rm -f "$before"
cp dev/bench/results/gpu.json "$before" 2>/dev/null
make BUILD="$build" bench || exit 1
cp dev/bench/results/gpu.json "$out" || exit 1
[ ! -f "$before" ] || python3 dev/bench_table.py --compare "$before" "$out/gpu.json"
note "$(python3 dev/bench_table.py --brief "$out/gpu.json")"
