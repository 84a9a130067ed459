#!/usr/bin/env bash
# For `make check-kind`: test/attention/check_kind.sh "FILE.cuh..." PROGRAM..., which build/cpu has. The programs run
# over a build's kinds; then gradients are compared with differences of losses, and bits must be equal over threads,
# ranks, streams and after an interruption; then PyTorch's formulas are compared, if PYTHON=... or python3 has torch and
# transformers. The last lines are the time of a step, beside softmax's, and the verdict; exit 1 if anything failed.
set -eu
kinds=$1
shift
. scripts/lib/common.sh
train=$PWD/build/cpu/check_kind/train  # with these kinds; ./train keeps its own
bash test/support/run.sh build/cpu "$@"
python=${PYTHON:-$(find_python)}
names=$(for file in $kinds; do basename "$file" .cuh; done)
echo "=== finite differences, threads, ranks, streams, interruptions"
(cd test && KIND_NAMES=$names TRAIN=$train "$python" -m unittest -k test_kind program.test_writes_nothing \
  program.test_invariance eval.test_diagnostics)
echo "=== PyTorch"
with_formula=$(grep -l 'pytorch =' $kinds || true)
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  left="; not compared with PyTorch: $python has no torch and transformers, PYTHON=... names one that has"
elif [ -z "$with_formula" ]; then
  left="; not compared with PyTorch: no formula"
else
  left=
  "$python" scripts/compare.py transformers --train "$train" --kinds $with_formula
fi
echo "=== the time of a step, beside softmax's"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" scripts/prepare_text.py docs/*.md --out "$work" --name text > "$work/log"
for name in softmax $names; do
  (cd "$work" && "$train" /dev/stdin --set name="$name" --set attention.variant="$name" >> log) <<'END'
{"data": {"train": "text_train_*.bin", "val": "text_val_*.bin"}, "model": {"vocab": 256, "layers": 2, "heads": 4,
 "channels": 256, "context": 1024}, "batch": {"tokens": 2048, "micro": 1}, "train": {"steps": 12}, "eval": {"every": 0},
 "optimizer": {"warmup_steps": 0}, "checkpoint": {"at_end": false}}
END
done
"$python" - "$work/runs" softmax $names <<'END'
import json, sys
folder, *names = sys.argv[1:]
times = {}
for name in names:
  with open(f"{folder}/{name}/metrics.jsonl", encoding="utf-8") as file:
    times[name] = min(line["ms"] for line in map(json.loads, file) if line["type"] == "train")
print(", ".join(f"{name} {ms:.0f} ms ({ms / times['softmax']:.2f} times)" for name, ms in times.items()),
      "for 2048 tokens, context 1024, heads of 64: the fastest of 12 steps")
END
echo "passed: $(echo $names)$left"
