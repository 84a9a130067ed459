#!/bin/sh
# Prints how many cores this process may use: nproc's number, or its container's quota (cgroup v1 or v2) if less.
cores=$(nproc)
limit() { # QUOTA PERIOD, in microseconds
  case "$1$2" in '' | *[!0-9]* | 0*) return ;; esac
  [ -n "$2" ] && [ "$2" -gt 0 ] && most=$((($1 + $2 - 1) / $2)) && [ "$most" -lt "$cores" ] && cores=$most
}
for group in "" $(sed -n 's/^[0-9]*:[^:]*://p' /proc/self/cgroup 2>/dev/null | sort -u); do
  while :; do
    limit $(cat "/sys/fs/cgroup$group/cpu.max" 2>/dev/null)
    limit $(cat "/sys/fs/cgroup/cpu$group/cpu.cfs_quota_us" "/sys/fs/cgroup/cpu$group/cpu.cfs_period_us" 2>/dev/null)
    case "$group" in /*) group=${group%/*} ;; *) break ;; esac
  done
done
echo "$cores"
