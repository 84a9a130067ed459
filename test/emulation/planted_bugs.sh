#!/usr/bin/env bash
# Plants bugs in kernels and checks that the build in $1 (build/cpu, build/cpu-asan, build/cpu-tsan) reports those that
# it can find, and reports nothing for the same kernels without the bug. Exit 1 if not.
set -u
build=${1:?usage: test/emulation/planted_bugs.sh BUILD_DIR}
program=$build/planted_bugs
[ -x "$program" ] || { echo "planted_bugs.sh: $program is not there; build it with make." >&2; exit 1; }

overflow='AddressSanitizer: [a-z-]*overflow'
race='ThreadSanitizer: data race'
place='cpu_planted_bugs.cu:[0-9]+'
# bug                        what must be printed
any_build="
diverge                      kernel diverge, block .*divergent barrier.*$place.*$place
exit_early                   kernel exit_early, block .*1 returned
lock_up                      kernel lock_up, block .*(deadlock|diverge).*$place.*$place
miss_expect                  kernel miss_expect, block .*deadlock.*mbarrier_wait.*$place
miss_wgmma_wait              kernel miss_wgmma_wait, block .*wgmma .*$place.*products under way
half_warp_before_wgmma       kernel half_warp_before_wgmma, block .*deadlock.*store_operand.*$place
add_misaligned               kernel add_misaligned, block .*add_in_l2.*$place.*multiple of 16"
asan="
write_global                 $overflow
read_global                  $overflow
write_static                 $overflow
write_dynamic                $overflow
copy_async                   $overflow
load_tile                    $overflow
store_tile                   $overflow"
tsan="
miss_syncthreads             $race
miss_second_syncthreads      $race
miss_syncwarp                $race
shuffle_for_syncwarp         $race
miss_sync_before_ldmatrix    $race
update_unsynchronised        $race
miss_sync_after_init         $race
miss_mbarrier_wait           $race
miss_release                 $race
miss_sync_before_wgmma       $race
miss_sync_of_stored_before_wgmma $race
add_unordered                $race"

expected=$any_build
case "$build" in
  *-asan*) expected+=$asan ;;
  *-tsan*) expected+=$tsan ;;
esac

failed=0
planted=0
while read -r bug pattern; do
  [ -n "$bug" ] || continue
  planted=$((planted + 1))
  # the sanitizers print to stderr; a hang counts as not reported
  clean=$(timeout 60 "$program" "$bug" clean 2>&1)
  status=$?
  if [ $status != 0 ] || [ -n "$clean" ]; then
    echo "planted_bugs.sh: $bug without its bug ended with $status: $clean" >&2
    failed=1
  fi
  found=$(timeout 60 "$program" "$bug" bug 2>&1)
  status=$?
  if [ $status = 0 ] || ! grep -Eq "$pattern" <<< "$found"; then
    echo "planted_bugs.sh: $bug was not reported (exit $status, expected \"$pattern\"):" >&2
    echo "${found:-nothing was printed}" >&2
    failed=1
  fi
done <<< "$expected"
[ $failed = 0 ] && echo "planted bugs: $planted of $planted reported by $build"
exit $failed
