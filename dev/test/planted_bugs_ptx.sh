#!/usr/bin/env bash
# Plants bugs in the PTX of kernels and checks that the test programs of the build in $1 (build/ptx-90a) report each
# bug, and report nothing without one. A bug is a regular expression and its replacement (dev/ptx/options.h). Exit 1
# if not.
set -u
build=${1:?usage: dev/test/planted_bugs_ptx.sh BUILD_DIR}
for program in attention hopper_operands; do
  [ -x "$build/test_$program" ] ||
    { echo "planted_bugs_ptx.sh: $build/test_$program is not there; build it with make check-ptx." >&2; exit 1; }
done

declare -A tests=(
  [attention]=AttentionTest/2.EqualKeys:AttentionTest/3.EqualKeys:AttentionTest/3.Causal:AttentionTest/4.Causal
  [hopper_operands]='*Multiplied:*L2')
wrong='error .* is above|nan'
# Kernels of hopper_operands_test.cu are in its program, all others in test_attention.
# bug | kernel | what | becomes | which line (0: each) | must be printed
bugs="
no_proxy_fence         | forward_hopper | fence.proxy.async.shared::cta;            |                    | 1 | without fence.proxy.async
no_proxy_fence_keys    | keys_hopper    | fence.proxy.async.shared::cta;            |                    | 0 | without fence.proxy.async
no_proxy_fence_heads   | heads_hopper   | fence.proxy.async.shared::cta;            |                    | 1 | without fence.proxy.async
no_wgmma_fence         | forward_hopper | wgmma.fence.sync.aligned;                 |                    | 0 | since wgmma.fence|before any wgmma.fence
no_wgmma_wait          | forward_hopper | wgmma.wait_group.sync.aligned 0;          |                    | 1 | that products are adding to
weak_wgmma_wait        | forward_hopper | (wgmma.wait_group.sync.aligned) 0;        | \$1 1;             | 1 | that products are adding to
no_wgmma_commit        | forward_hopper | wgmma.commit_group.sync.aligned;          |                    | 1 | that products are adding to
transposed_tile        | forward_hopper | add, 1, 1, 0, 0;                          | add, 1, 1, 0, 1;   | 1 | $wrong
straight_tile          | forward_hopper | add, 1, 1, 1;                             | add, 1, 1, 0;      | 0 | $wrong|not modelled
no_swizzle             | forward_hopper | 4611686293305360384                       | 274877972480       | 1 | descriptor that is not modelled
shifted_tile           | forward_hopper | 4611686293305360384                       | 4611686293305360386 | 1 | $wrong
more_arrivals          | forward_hopper | (mbarrier.init.*), %r[0-9]+;              | \$1, 9;            | 2 | deadlock
fewer_arrivals         | forward_hopper | (mbarrier.init.*), %r[0-9]+;              | \$1, 4;            | 2 | of what products read|copy under way|deadlock
fewer_bytes            | forward_hopper | (mbarrier.arrive.expect_tx.*), %r[0-9]+;  | \$1, 64;           | 1 | deadlock|bytes that did not come|copy under way
wrong_parity           | forward_hopper | (mbarrier.try_wait.* done, .*), %r[0-9]+; | \$1, 1;            | 0 | copy under way|deadlock
no_barrier_after_init  | forward_hopper | bar.sync 0;                               |                    | 1 | use as an mbarrier|no mbarrier
no_bulk_wait           | forward_hopper | cp.async.bulk.wait_group.read 0;          |                    | 1 | not waited for
weak_copy_wait         | forward_tensor | cp.async.wait_group 1;                    | cp.async.wait_group 2; | 1 | copy under way
no_barrier_after_copy  | forward_tensor | bar.sync 0;                               |                    | 0 | race in shared memory|copy under way
other_register_counts  | forward_hopper | setmaxnreg.inc.sync.aligned.u32 240;      | setmaxnreg.inc.sync.aligned.u32 241; | 1 | multiples of 8
unknown_modifier       | forward_hopper | ex2.approx.ftz.f32                        | ex2.approx.sat.f32 | 1 | ex2.approx.sat.f32 is not known .* in kernel .*forward_hopper
no_fence_after_store   | store_and_multiply | fence.proxy.async.shared::cta;        |                    | 2 | without fence.proxy.async
half_a_stmatrix        | store_and_multiply | (stmatrix.*) | {.reg .pred p; setp.lt.u32 p, %laneid, 16; @p \$1} | 1 | lanes that wait for each other
shifted_stmatrix       | store_and_multiply | (stmatrix.*)\[(%r[0-9]+)\]            | \$1[\$2+8]         | 1 | misaligned address
straight_left          | store_and_multiply | add, 1, 1, 1, 1;                      | add, 1, 1, 0, 1;   | 1 | $wrong
shifted_red            | add_rounds     | (red.*)\[(%rd[0-9]+)\]                    | \$1[\$2+4]         | 1 | misaligned address: red
blocks_add_to_the_same | add_rounds     | mov.u32 (.*), %ctaid.x;                   | mov.u32 \$1, 0;    | 1 | another block (wrote|read) this: red
"

run() { # $1: the program, $2: the bug to plant; prints the program's output
  PTX_ASYNC=late PTX_MUTATE=$2 timeout 120 "$build/test_$1" --gtest_brief=1 --gtest_filter="${tests[$1]}" 2>&1
}
failed=0
for program in "${!tests[@]}"; do
  clean=$(run "$program" '') && ! grep -q '^ptx: ' <<< "$clean" ||
    { echo "planted_bugs_ptx.sh: without a bug: $clean" >&2; failed=1; }
done
planted=0
trim() { sed 's/^ *//; s/ *$//' <<< "$1"; }
while IFS='|' read -r bug kernel what becomes which pattern; do
  [ -n "$bug" ] || continue
  planted=$((planted + 1))
  case $(trim "$kernel") in store_and_* | add_*) program=hopper_operands ;; *) program=attention ;; esac
  found=$(run $program "$(trim "$kernel")/$(trim "$what")/$(trim "$becomes")/$(trim "$which")")
  status=$?
  if [ $status = 0 ] || ! grep -q '^ptx: planted' <<< "$found" || ! grep -Eqi "$(trim "$pattern")" <<< "$found"; then
    echo "planted_bugs_ptx.sh: $(trim "$bug") was not noticed (exit $status, expected \"$(trim "$pattern")\"):" >&2
    cut -c1-300 <<< "$found" | head -20 >&2
    failed=1
  fi
done <<< "$bugs"
[ $failed = 0 ] && echo "planted bugs: $planted of $planted noticed by $build"
exit $failed
