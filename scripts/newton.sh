#!/usr/bin/env bash
# Does a model that reads orbits learn the force behind them, and does the kind of attention matter?
#
#   bash scripts/newton.sh mini     two bodies, small models, three seeds: planned for 15 minutes on two free cores
#   bash scripts/newton.sh full     a million systems of up to ten planets, GPT-2 124M, two seeds: hours on a GPU
#
# For each variant and seed: trains on orbits (configs/newton_SIZE.json), tunes that model to predict the force
# (newton_SIZE_probe.json), does the same from random weights (control), and writes the predictions for other systems.
# Then scripts/newton.py judges all of them. Needs ./train and numpy, and matplotlib for the picture. Started again, it
# continues: finished runs are passed by.
set -euo pipefail

variants=(softmax softmax_qknorm lssar)
case "${1:-}" in
  mini) seeds=(1 2 3) ;;
  full) seeds=(1 2) ;;
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "newton.sh: name a size: mini or full (--help)" >&2; exit 2 ;;
esac
size=$1

cd "$(dirname "$0")/.."
. scripts/lib/common.sh
python=$(find_python)
data=data/shards/newton
[ -x train ] || { echo "newton.sh: there is no ./train; build it with make" >&2; exit 2; }

phase "make orbits and forces"
[ -e "$data/${size}_val_000000.bin" ] || "$python" scripts/newton.py make --size "$size" --out "$data" --name "$size"
[ -e "$data/${size}_probe_truth.json" ] ||
  "$python" scripts/newton.py probe-data --size "$size" --out "$data" --name "${size}_probe"

predictions=()
for seed in "${seeds[@]}"; do
  for variant in "${variants[@]}"; do
    phase "$variant, seed $seed"
    settings=(--set seed="$seed" --set attention.variant="$variant" --resume)
    orbits=newton_${size}_${variant}_$seed
    ./train "configs/newton_$size.json" --set name="$orbits" "${settings[@]}"
    init=$(printf '%s\n' runs/"$orbits"/step_* | sort | tail -n 1)
    for kind in probe control; do
      run=newton_${size}_${kind}_${variant}_$seed
      ./train "configs/newton_${size}_probe.json" --set name="$run" "${settings[@]}" --set init="$init"
      ./train "runs/$run" --predict "runs/$run.npy"
      predictions+=("runs/$run.npy")
      init=
    done
  done
done

phase "judge"
given=(--truth "$data/${size}_probe_truth.json" --predictions "${predictions[@]}")
"$python" scripts/newton.py judge "${given[@]}" --json "runs/newton_$size.json"
"$python" scripts/newton.py picture "${given[@]}" --out "runs/newton_$size.png"
phases
