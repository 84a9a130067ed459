#!/usr/bin/env bash
# The same model and attention in PyTorch, beside ours.
. scripts/gpu/part.sh
for python in ${PYTHON:-} python3; do
  "$python" -c 'import torch' 2>/dev/null && break
  python=
done
if [ -z "$python" ]; then
  note "no Python with PyTorch was found (PYTHON)"
  [ -n "$rehearse" ]  # there it is no failure
  exit
fi
make BUILD="$build" "$build"/bench_{step,attention} || { note "the build failed"; exit 1; }
ours=$build
[ ! -f "$out/gpu.json" ] || ours=$out/gpu.json  # bench has run
"$python" scripts/bench_peers.py ${rehearse:+--tiny} --ours "$ours" --minutes 6 --out "$out/peers_gpu.json" || exit 1
note "$(grep -c '"missing"' "$out/peers_gpu.json") of the peers' lines have no figure"
