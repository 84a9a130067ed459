# Sourced by parts whose programs have a log and a time limit each: after part.sh, with `deadline`, the value of SECONDS
# at which the part must end. Rows of the last table are written as they come, with an archive of the logs.
# shellcheck shell=bash disable=SC2034  # the parts use these variables
: "${out:?}" "${work:?}" "${part:?}" "${deadline:?}"
logs=$work/logs
mkdir -p "$logs"
failed=0

# row PROGRAM SECONDS RESULT CASE: a line of the last table. The archive is packed anew each time: the machine may be
# taken away before the end.
row() {
  [ -s "$work/table" ] ||
    printf '%s\n' '| part | program | seconds | result | first failing case |' '|---|---|---|---|---|' > "$work/table"
  echo "| $part | $1 | $2 | $3 | $4 |" | tee -a "$work/table"
  cp "$work/cache/plusgpt/matmul.txt" "$logs" 2>/dev/null
  tar -czf "$out/$part.tar.gz" -C "$work" logs table
}

time_is_up() { [ $((deadline - SECONDS)) -le 5 ]; }

# limited SECONDS LOG COMMAND...: its status; 124 if the limit, or what is left until the deadline, was too short. Of a
# long log the beginning and the end are kept.
limited() {
  local limit=$1 log=$2 left=$((deadline - SECONDS)) status
  shift 2
  ! time_is_up || { echo "no time was left" >> "$log"; return 124; }
  timeout -k 5 "$((limit < left ? limit : left))" "$@" >> "$log" 2>&1
  status=$?
  if [ "$(wc -c < "$log")" -gt 2000000 ]; then
    { head -c 1000000 "$log"; printf '\n[...]\n'; tail -c 500000 "$log"; } > "$log.short"
    mv "$log.short" "$log"
  fi
  return "$status"
}

# step NAME LIMIT RESULT COMMAND...: RESULT, called with the log, says what came of it
step() {
  local name=$1 limit=$2 result=$3 start=$SECONDS status log why
  log=$logs/${name//[^a-zA-Z0-9]/_}.log
  shift 3
  limited "$limit" "$log" "$@"
  status=$?
  if [ "$status" = 0 ]; then
    row "$name" $((SECONDS - start)) "$($result "$log" | tail -n 1)" ""
    return
  fi
  failed=1
  why=$( { grep -m1 -iE 'error|failed' "$log" || tail -n 1 "$log"; } | tr '|' '/' | cut -c1-300)
  case $status in 124 | 137) result=STOPPED ;; *) result="FAILED, exit $status" ;; esac
  row "$name" $((SECONDS - start)) "$result: $why" ""
  return "$status"
}
