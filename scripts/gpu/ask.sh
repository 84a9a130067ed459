#!/usr/bin/env bash
# The questions that only a GPU can answer before more is built: each a kernel or a product as it is beside the same
# with one change, measured in turns. One table, question -> answer; bench/hopper_bench.cu and bench_kernels
# --workspaces say what is measured.
. scripts/gpu/part.sh
failed=0
programs=(kernels)
if has_hopper; then programs+=(hopper); else note "no Hopper GPU: its kernels' questions are left out"; fi
make "${quick[@]}" "${programs[@]/#/$quick_build/bench_}" || { note "the build failed"; exit 1; }
for program in "${programs[@]}"; do
  arguments=()
  [ "$program" != kernels ] || arguments=(--workspaces "32,256")
  timeout -k 5 220 "$quick_build/bench_$program" "${arguments[@]}" 2>&1 | tee "$work/log"
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || { note "bench_$program: exit $status"; failed=1; }
  { cat "$work/table" 2>/dev/null; grep '^|' "$work/log"; } | awk '!/^\| question|^\|---/ || heads++ < 2' > "$work/both"
  mv "$work/both" "$work/table"
done
exit "$failed"
