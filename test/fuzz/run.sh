#!/usr/bin/env bash
# Runs the fuzz targets of build/fuzz side by side for SECONDS each, starting from test/fuzz/corpus and the interesting
# inputs of earlier runs: test/fuzz/run.sh SECONDS NAME... Exit 1 if one finds a bug; its input is then in build/fuzz.
set -u
seconds=$1
shift
declare -A job
for name in "$@"; do
  mkdir -p "build/fuzz/${name}_corpus"
  "build/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/${name}_" \
    "build/fuzz/${name}_corpus" "test/fuzz/corpus/$name" 2>"build/fuzz/$name.log" &
  job[$name]=$!
done
failed=0
for name in "$@"; do
  if wait "${job[$name]}"; then
    echo "fuzz: $name: $(sed -n 's/.*number_of_executed_units: *//p' "build/fuzz/$name.log") inputs, nothing found"
  else
    failed=1
    tail -n 40 "build/fuzz/$name.log"
    echo "fuzz: $name: FOUND something, see above and build/fuzz/$name.log"
  fi
done
exit $failed
