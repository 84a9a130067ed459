#!/usr/bin/env bash
# The questions that only a GPU can answer before more is built: each a kernel or a product as it is beside the same
# with one change, measured in turns. One table, question -> prediction -> answer; dev/bench/hopper_bench.cu and
# bench_kernels --workspaces say what is measured. Then, where there is ncu, which unit limits each kernel of a step.
. dev/gpu/part.sh
failed=0
programs=(kernels)
if has_hopper; then programs+=(hopper); else note "no Hopper GPU: its kernels' questions are left out"; fi
make -k "${quick[@]}" "${two_kinds[@]}" "${programs[@]/#/$quick_build/bench_}" "$quick_build/train" ||
  { note "the build failed"; failed=1; }
for program in "${programs[@]}"; do
  arguments=()
  [ "$program" != kernels ] || arguments=(--workspaces "32,256")
  timeout -k 5 200 "$quick_build/bench_$program" "${arguments[@]}" 2>&1 | tee "$work/log"
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || { note "bench_$program: exit $status"; failed=1; }
  { cat "$work/table" 2>/dev/null; grep '^|' "$work/log"; } | awk '!/^\| question|^\|---/ || heads++ < 2' > "$work/both"
  mv "$work/both" "$work/table"
done

# One layer, one step: ncu runs each kernel several times.
if has ncu; then
  small_training
  timeout -k 5 100 ncu --target-processes all --clock-control none --section SpeedOfLight --section WarpStateStats \
    --launch-count 80 --csv --log-file "$out/ncu.csv" "${train[@]}" --overwrite --set name=gpu_ask \
    --set attention.variant=lssar --set model.layers=1 --set train.steps=1 || note "ncu: exit $?"
fi
exit "$failed"
