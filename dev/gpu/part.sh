# Sourced by the parts of dev/gpu_session.sh, which exports: out, the folder for results; work, an empty one for
# this part's own files; build, that of the full build; rehearse, not empty without a GPU; missing (needs.sh).
# shellcheck shell=bash disable=SC2034  # the parts use these variables
: "${out:?dev/gpu_session.sh sets it}" "${work:?}" "${build:?}" "${rehearse?}" "${prepared?}" "${missing?}"

# A build with one head size, for one GPU. Each part adds the kinds of attention that it needs: with one of them the
# trainer takes 170 s of a core, with PTX, which a GPU that nvcc knows does not need, 220.
quick_build=$(dirname "$build")/quick
quick=(BUILD="$quick_build" HEAD_DIM=64 NCCL=0)
one_kind=(ATTN=softmax) two_kinds=(ATTN="softmax lssar")
capabilities() { nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sort -u; }
if [ -n "$rehearse$prepared" ]; then  # with what is built already
  quick_build=$build
  quick=(BUILD="$build") one_kind=() two_kinds=()
elif ! capabilities | tr -d . | sed 's/^/compute_/' | grep -vqxF "$(nvcc --list-gpu-arch)"; then
  quick+=(WITH_PTX=)
fi

# note TEXT: more about this part in the last table
note() { echo "$1" >> "$work/note"; }

# need THING: ends the part if needs.sh has not found it
has() { [[ " $missing " != *" $1 "* ]]; }
need() {
  has "$1" && return
  note "LEFT OUT: $1 is missing"
  [ -n "$rehearse" ]  # there it is not a failure
  exit
}

# Hopper's kernels are in the build for this GPU.
has_hopper() { [ -n "$rehearse" ] || [ "$(capabilities)" = 9.0 ]; }

# own_shards VOCAB TOKENS: where no shards were given, one of random tokens, low ones more frequent, to train on.
own_shards() {
  [ -z "$train_shards" ] || return 0
  train_shards=$work/random.bin val_shards=$work/random.bin
  PYTHONPATH=scripts python3 - "$train_shards" "$1" "$2" << 'PYTHON'
import random, sys
from lib import shards
path, vocab, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
numbers = random.Random(1)
shards.write(path, "tokens", (int(vocab * numbers.random() ** 3) for _ in range(tokens)))
PYTHON
}

# small_training: sets `train`, the command that trains GPT-2 124M (in a rehearsal the quick start's model) in $work,
# with choices of matrix products of this part alone.
small_training() {
  local config=gpt2_124m_softmax vocab=50257 tokens=1400000 batch=131072 micro=32
  [ -z "$rehearse" ] || config=quickstart vocab=256 tokens=100000 batch=512 micro=4
  own_shards "$vocab" "$tokens"
  train=(env -C "$work" XDG_CACHE_HOME="$work/cache" "$(realpath -m "$quick_build")/train" "$PWD/configs/$config.json"
    --set "data.train=$train_shards" --set "batch.tokens=$batch" --set "batch.micro=$micro" --set eval.every=0
    --set checkpoint.every=0 --set checkpoint.at_end=false)
}
