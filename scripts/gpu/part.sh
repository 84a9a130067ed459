# Sourced by the parts of scripts/gpu_session.sh, which exports: out, the folder for results; work, an empty one for
# this part's own files; build, that of the full build; rehearse, not empty without a GPU.
# shellcheck shell=bash disable=SC2034  # the parts use these variables
: "${out:?scripts/gpu_session.sh sets it}" "${work:?}" "${build:?}" "${rehearse?}"

quick_build=build/quick
quick=(BUILD="$quick_build" ATTN="softmax lssar" HEAD_DIM=64)
if [ -n "$rehearse" ]; then  # with what is built already
  quick_build=$build
  quick=(BUILD="$build")
fi

# note TEXT: more about this part in the last table
note() { echo "$1" >> "$work/note"; }

# Hopper's kernels are in the build for this GPU.
has_hopper() {
  [ -n "$rehearse" ] || [ "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sort -u)" = 9.0 ]
}

# own_shards VOCAB TOKENS: where no shards were given, one of random tokens, low ones more frequent, to train on.
own_shards() {
  [ -z "$train_shards" ] || return 0
  train_shards=$work/random.bin val_shards=$work/random.bin
  python3 - "$train_shards" "$1" "$2" << 'PYTHON'
import array, random, sys
path, vocab, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
numbers = random.Random(1)
with open(path, "wb") as file:
  file.write(array.array("i", [20240520, 1, tokens] + [0] * 253).tobytes())
  file.write(array.array("H", (int(vocab * numbers.random() ** 3) for _ in range(tokens))).tobytes())
PYTHON
}
