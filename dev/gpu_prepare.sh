#!/usr/bin/env bash
# For a GPU that is there for minutes: builds here, without one, the programs that they are spent on, and packs them
# into FOLDER (.visit), 60 MB at most; a quarter of an hour on two cores.
#
#   bash dev/gpu_prepare.sh [FOLDER]
#   bash dev/gpu_session.sh --prepared FOLDER visit     there, in a copy of this tree with FOLDER
#
# ARCH is the GPU's architecture (90: H100, H200); EXTRA names further files to take along: llm.c's train_gpt2cu is
# timed beside ours, and the part runs needs shards. PROGRAMS="train": fewer programs. CPPFLAGS and LDFLAGS reach make.
# shellcheck disable=SC2086  # a list of words
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
  -*) echo "gpu_prepare.sh: unknown argument \"$1\" (--help)" >&2; exit 2 ;;
esac
folder=${1:-.visit} build=build/visit
read -ra programs <<< "${PROGRAMS:-}"
[ ${#programs[@]} -gt 0 ] ||
  programs=(train bench_{step,kernels,attention} test_{hopper{,_operands,_heads},attention,kernels,matmul,gate,prepare})
cuda=(BACKEND=cuda ARCH="${ARCH:-90}" WITH_PTX= ATTN="softmax lssar")
make "${cuda[@]}" HEAD_DIM="64 128" NCCL=0 BUILD=$build "${programs[@]/#/$build/}"
[ -n "${PROGRAMS:-}" ] || {
  make "${cuda[@]}" HEAD_DIM=64 PYTORCH=1 BUILD=$build-pytorch pytorch
  cp $build-pytorch/plusgpt_attention.so $build
  programs+=(plusgpt_attention.so)
}
rm -rf "$folder"
mkdir -p "$folder"
for name in "${programs[@]}"; do strip -o "$folder/$name" "$build/$name"; done
# Most of a program is the same kernels: in one archive 330 MB become 13.
tar -C "$folder" -c "${programs[@]}" | xz --lzma2=preset=3,dict=512MiB > "$folder/programs.tar.xz"
rm "${programs[@]/#/$folder/}"
[ -z "${EXTRA:-}" ] || cp $EXTRA "$folder"
git describe --always --dirty > "$folder/commit"
size=$(du -sm "$folder" | cut -f1)
echo "$folder has $size MB: bash dev/gpu_session.sh --prepared $folder visit, on the machine with the GPU"
[ "$size" -le 60 ] || { echo "gpu_prepare.sh: that is more than 60 MB" >&2; exit 1; }
