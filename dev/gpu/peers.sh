#!/usr/bin/env bash
# The same model and attention in PyTorch, beside ours.
. dev/gpu/part.sh
need torch
: "${torch_python:?}"
make BUILD="$build" "$build"/bench_{step,attention} || { note "the build failed"; exit 1; }
ours=$build
[ ! -f "$out/gpu.json" ] || ours=$out/gpu.json  # bench has run
"$torch_python" dev/bench_peers.py ${rehearse:+--tiny} --ours "$ours" --minutes 6 \
  --out "$out/peers_gpu.json" || exit 1
note "$(grep -c '"missing"' "$out/peers_gpu.json") of the peers' lines have no figure"
