#!/usr/bin/env bash
# Tries HEAD on fresh systems with nothing installed: both commands of the README, and a table of their results.
#
#   bash dev/trial.sh                         every system, quickstart and test
#   bash dev/trial.sh trixie noble test       these systems, this command
#   bash dev/trial.sh --user ...              as a user who is not root, with the packages there
#
# Systems: bookworm and trixie (Debian 12, 13), jammy and noble (Ubuntu 22.04, 24.04). debootstrap makes each in a
# temporary folder, removed at the end; one whose archive is out of reach is skipped. Ubuntu's wants its keyring
# (package ubuntu-keyring), or DEBOOTSTRAP_OPTIONS=--no-check-gpg to take it unchecked. Needs root, debootstrap, 4 GB in
# ${TMPDIR:-/tmp} and about 20 minutes a system on two cores. Logs: build/trial. Exit 1 if a command failed or none ran.
set -euo pipefail

systems=() commands=() user=root
for argument in "$@"; do
  case "$argument" in
    bookworm | trixie | jammy | noble) systems+=("$argument") ;;
    quickstart | test) commands+=("$argument") ;;
    --user) user=trial ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "trial.sh: unknown argument \"$argument\" (--help)" >&2; exit 2 ;;
  esac
done
[ ${#systems[@]} != 0 ] || systems=(bookworm trixie jammy noble)
[ ${#commands[@]} != 0 ] || commands=(quickstart test)
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null ||
  { echo "trial.sh: needs root and debootstrap (apt-get install debootstrap)" >&2; exit 2; }

cd "$(dirname "$0")/.."
work=$(mktemp -d) logs=$PWD/build/trial format='%-9s %-7s %-5s %-11s %4s  %-24s %7s\n'
export work logs format user
mkdir -p "$logs"

# A command inside has its own mounts and processes, which end with it, however it ends.
inside=
finish() {
  [ -z "$inside" ] || { kill -KILL "$inside" && wait "$inside"; } 2>/dev/null || true
  rm -rf --one-file-system "$work" || { sleep 2; rm -rf --one-file-system "$work"; }
}
trap finish EXIT
trap 'exit 1' INT TERM HUP

# The archive that apt of this machine uses for a distribution, or nothing: debootstrap's own choice.
archive() {
  apt-get indextargets --format '$(LABEL) $(REPO_URI)' 2>/dev/null |
    awk -v name="$1" '$1 == name { print $2; exit }'
}

# trial SYSTEM COMMAND...: a row for each command.
trial() {
  local system=$1 root=$work/$1 log=$logs/$1.log command status tests
  shift
  # components, mirror, and the script of debootstrap's that knows all of the distribution's systems
  local source=(main "$(archive Debian)" sid)
  case "$system" in jammy | noble) source=(main,universe "$(archive Ubuntu)" gutsy) ;; esac
  debootstrap ${DEBOOTSTRAP_OPTIONS:-} --variant=minbase --components="${source[0]}" "$system" "$root" \
    "${source[@]:1}" >"$log" 2>&1 ||
    { echo "$system is skipped: $(grep -m1 '^E:' "$log" || tail -n 1 "$log")"; return 0; }
  cp /etc/hosts "$root/etc/hosts"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  in_root() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"; }
  mkdir "$root/plusgpt"
  tar x -C "$root/plusgpt" <"$work/source.tar"
  if [ "$user" != root ]; then
    in_root useradd -m "$user"
    in_root chown -R "$user" /plusgpt
    in_root bash /plusgpt/scripts/install_deps.sh --tests >>"$log" 2>&1
  fi
  for command in "$@"; do
    log=$logs/${system}_${user}_$command.log status=0 SECONDS=0
    in_root runuser "$user" -c "bash /plusgpt/scripts/$command.sh" >"$log" 2>&1 </dev/null || status=$?
    tests=$(tail -n 1 "$log" | grep -Ex '[0-9]+ passed, [0-9]+ failed' || true)
    printf "$format" "$system" "$(in_root g++ -dumpfullversion 2>/dev/null || echo -)" "$user" "$command" \
      $status "$tests" $SECONDS | tee -a "$work/table"
  done
}
export -f trial archive

git archive HEAD >"$work/source.tar"
: >"$work/table"
printf "$format" system g++ user command exit tests seconds
for system in "${systems[@]}"; do
  unshare --mount --pid --fork --kill-child \
    bash -euo pipefail -c 'trial "$@"' trial "$system" "${commands[@]}" </dev/null &
  inside=$!
  wait "$inside" || { echo "$system: the trial itself failed, see $logs/$system.log"; echo - - - - 1 >>"$work/table"; }
  inside=
done
awk '{ failed += $5 != 0 } END { exit !NR || failed }' "$work/table"
