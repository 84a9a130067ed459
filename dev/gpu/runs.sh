#!/usr/bin/env bash
# Trains GPT-2 124M for equal tokens with four kinds of attention, evaluated before the first step and after the last;
# with prepared programs, those of softmax and LSSAR.
. dev/gpu/part.sh
. scripts/lib/common.sh
variants=softmax,lssar picture=()
if [ -z "$prepared" ]; then
  make BUILD="$build" "$build/train" || { note "the build failed"; exit 1; }
  variants=softmax,softmax_qknorm,lssar,lssar_softplus_gated
fi
python=$(find_python 2>/dev/null) && picture=(--picture "$out/runs.png")
if [ -n "$rehearse" ]; then
  config=configs/quickstart.json batch=2048 tokens=4096
  own_shards 256 100000
  size=(--set eval.tokens=2048 --set "eval.lengths=128,256")
else
  config=configs/gpt2_124m_softmax.json batch=131072
  size=(--set batch.micro=32 --set eval.tokens=1048576 --set "eval.lengths=1024,2048,4096,8192,16384")
fi
TRAIN=$build/train "${python:-python3}" scripts/sweep.py configs/sweeps/variants.json --config "$config" \
  --axis "attention.variant=$variants" --seeds 1337 --results "$out/runs.json" "${picture[@]}" \
  --set "data.train=$train_shards" --set "data.val=$val_shards" \
  --set "batch.tokens=$batch" --set "train.steps=$((tokens / batch))" --set optimizer.warmup_steps=40 \
  --set optimizer.final_lr_fraction=0.1 --set eval.every=1000000 --set checkpoint.every=0 \
  --set checkpoint.at_end=false "${size[@]}"
status=$?
for variant in ${variants//,/ }; do
  # shellcheck disable=SC2012  # names of ours
  run=$(ls -td "runs/variants_${variant}_1337_"* 2>/dev/null | head -n 1)
  cp "$run/metrics.jsonl" "$out/$variant.jsonl" 2>/dev/null || note "$variant has not begun"
done
exit "$status"
