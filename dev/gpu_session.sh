#!/usr/bin/env bash
# Runs everything that needs a GPU, in parts of under nine minutes each (dev/gpu/PART.sh): tests and bench together
# take less than that, each other part about as much. Later parts use what earlier parts have built.
#
#   [OUT=gpu_out] [COMMIT=abc123] bash dev/gpu_session.sh [--train GLOB --val GLOB] [--tokens 26214400] PART...
#   bash dev/gpu_session.sh --rehearse PART...     the same, small, with the CPU build: does everything run? Into
#                                                  gpu_rehearsal, or OUT
#   bash dev/gpu_session.sh --prepared FOLDER visit|runs  with programs that dev/gpu_prepare.sh built on another machine
#
#   first      if there are only ten minutes: the trainer alone, ten steps of GPT-2 124M in bf16; then every kernel's
#              tests, dry runs, make bench QUICK=1; an archive with all that a reader elsewhere needs to mend the code
#   far        the last of 131,072 rows of every kind of attention, against float64
#   tests      builds for the GPU of this machine and runs every test program on it
#   sanitize   small shapes of the kernels' tests under compute-sanitizer: memcheck, racecheck, synccheck
#   bench      make bench, and its differences from the dev/bench/results/gpu.json of before; with ncu, what limits each
#              kernel
#   peers      the same model and attention in PyTorch (dev/bench_peers.py), beside ours
#   visit      if there are only minutes and no time to build: the kernels' tests, steps, products, attention, its
#              counters, the ceiling, PyTorch and llm.c beside them; the clock all the time
#   runs       trains GPT-2 124M for equal tokens with four kinds of attention on the shards of --train, and evaluates
#              at 1K to 16K on those of --val (scripts/sweep.py)
#
# It first lists what the machine lacks, how to install that, and which parts have to do without it. Logs and results
# go to $OUT and its archive $OUT.tar.gz, a short table of all parts is printed last; exit 1 if one failed or was left
# out. Ctrl-C or a signal ends a part with all its programs, and packs the archive. The guide is docs/gpu_session.md.
#   DEPS      a folder with headers and libraries (in include/ and lib/, as in /usr) for a machine without network: of
#             /usr/include nlohmann, CLI and gtest, of its libraries libgtest*.a, 3 MB in all
#   PYTHON    one that has PyTorch; NCCL and cuBLAS are also found among its packages
#   CXX, CPPFLAGS, LDFLAGS reach make; COMMIT names the sources where there is no git; BUILD and SCRATCH are other
#   folders than build/cuda (build/cpu in a rehearsal) and build/gpu_session
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/lib/common.sh

stop() {
  echo "gpu_session.sh: $1" >&2
  exit 2
}

export train_shards='' val_shards='' rehearse='' prepared='' tokens=26214400
parts=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' dev/gpu_session.sh; exit 0 ;;
    --train | --val | --tokens | --prepared)
      [ $# -gt 1 ] || stop "$1 needs a value"
      case "$1" in
        --train) train_shards=$2 ;;
        --val) val_shards=$2 ;;
        --prepared) prepared=$2 ;;
        *) tokens=$2 ;;
      esac
      shift ;;
    --rehearse) rehearse=1 ;;
    first | far | tests | sanitize | bench | peers | runs | visit) parts+=("$1") ;;
    *) stop "unknown argument \"$1\" (--help)" ;;
  esac
  shift
done
case $train_shards in '' | /*) ;; *) train_shards=$PWD/$train_shards ;; esac
[ ${#parts[@]} -gt 0 ] || stop "name the parts to run: first far tests sanitize bench peers runs visit (--help)"
case "${rehearse:+rehearsed }${parts[*]}" in
  rehearsed*) ;;
  *runs*) [ "${train_shards:+1}${val_shards:+1}" = 11 ] || stop "runs needs --train GLOB and --val GLOB" ;;
esac
case "$rehearse:$prepared:${parts[*]}" in
  1:*) ;;
  ::*visit*) stop "visit needs --prepared FOLDER: bash dev/gpu_prepare.sh, without a GPU, makes it" ;;
  ::* | :*:visit | :*:runs) ;;
  *) stop "--prepared goes with visit or runs alone: the other parts build" ;;
esac
[ ! -f "$prepared/programs.tar.xz" ] || tar -xJf "$prepared/programs.tar.xz" -C "$prepared" ||
  stop "--prepared: $prepared/programs.tar.xz cannot be unpacked there"
[ -z "$prepared" ] || [ -x "$prepared/train" ] ||
  stop "--prepared: $prepared has no train: bash dev/gpu_prepare.sh $prepared, elsewhere, makes it"
folder=gpu_out
[ -z "$rehearse" ] || folder=gpu_rehearsal
out=$(realpath -m "${OUT:-$folder}") scratch=$(realpath -m "${SCRATCH:-build/gpu_session}")
export out PATH
if [ -n "$rehearse" ]; then
  export BACKEND=cpu build=${BUILD:-build/cpu} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
  export GTEST_TOTAL_SHARDS=${GTEST_TOTAL_SHARDS:-20} GTEST_SHARD_INDEX=0  # a twentieth of the tests
  tools=$scratch/tools
  mkdir -p "$tools"
  cat > "$tools/compute-sanitizer" << 'SCRIPT'
#!/bin/sh
while [ $# -gt 0 ] && [ ! -x "$1" ]; do shift; done
"$@"
status=$?
echo "SUMMARY: a stand-in that finds nothing"
exit $status
SCRIPT
  chmod +x "$tools/compute-sanitizer"
  PATH=$PATH:$tools
else
  nvidia-smi -L 2>/dev/null | grep -q ^GPU || stop "there is no GPU here: nvidia-smi -L lists none (--rehearse)"
  cuda=${CUDA_HOME:-/usr/local/cuda}
  [ -n "$prepared" ] || command -v nvcc >/dev/null || [ -x "$cuda/bin/nvcc" ] ||
    stop "there is no nvcc on the PATH or in $cuda/bin (CUDA_HOME)"
  export PATH=$PATH:$cuda/bin BACKEND=cuda build=${prepared:-${BUILD:-build/cuda}}
fi
mkdir -p "$out" "$scratch"
if [ -f "$out/summary.md" ]; then
  [ "${rehearse:+A REHEARSAL}" = "$(grep -o '^A REHEARSAL' "$out/summary.md")" ] ||
    stop "rehearsals and results of a GPU must not mix, and $out has the other: remove it, or give another OUT"
fi
exec 9> "$scratch/lock"
flock -n 9 || stop "another session works in $scratch: wait until it ends, or give another SCRATCH"
. dev/gpu/needs.sh

# end_programs SIGNAL: those of the part that runs. They share a session of the system, whatever group they are in.
session='' ended=''
end_programs() {
  local stat
  for stat in /proc/[0-9]*/stat; do
    [ "$(sed 's/.*) //' "$stat" | cut -d' ' -f4)" != "$session" ] || kill "-$1" "$(basename "${stat%/stat}")"
  done 2>/dev/null
}
trap 'ended=130; end_programs TERM; sleep 1; end_programs KILL' INT TERM HUP

tables=("$out/needs.md")
failed=0
for part in "${parts[@]}"; do
  phase "$part"
  export part work=$scratch/$part
  rm -rf "$work"
  mkdir -p "$work"
  start=$SECONDS
  setsid timeout -k 10 535 bash -uo pipefail "dev/gpu/$part.sh" > >(tee "$out/$part.log") 2>&1 9>&- &
  session=$!
  wait "$session"
  status=$?
  end_programs KILL  # what the part left running would be timed with the next
  case $status in 0) result="done" ;; 124) result="STOPPED after 535 s" ;; *) result="FAILED" ;; esac
  [ -z "$ended" ] || result="STOPPED by a signal"
  [ "$status" = 0 ] || failed=1
  # with the rows of earlier calls
  before=$(grep -E '^\| [a-z]+ \| [0-9]+ s \|' "$out/summary.md" 2>/dev/null | grep -v "^| $part |")
  row="| $part | $((SECONDS - start)) s | $result | $(paste -sd ';' "$work/note" 2>/dev/null | sed 's/;/; /g') |"
  if [ -f "$work/table" ]; then cp "$work/table" "$out/$part.md" && tables+=("$out/$part.md"); fi
  # packed after each part: the machine may be taken away
  {
    if [ -n "$rehearse" ]; then
      echo "A REHEARSAL with the programs of $build: nothing here says anything about a GPU."
    else nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; fi
    printf '%s\n' '' '| part | time | result | |' '|---|---|---|---|' ${before:+"$before"} "$row"
  } > "$out/summary.md"
  tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
  [ -z "$ended" ] || exit "$ended"
done
tail -n +1 "${tables[@]}"
echo
cat "$out/summary.md"
exit $failed
