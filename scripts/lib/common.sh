# Sourced by the other shell scripts.

export HOME=${HOME:-/tmp}  # a container may have none, and matplotlib fails without

# The first Python that has numpy, matplotlib, pandas and scipy. The python3 on the PATH may not be apt's.
find_python() {
  local python
  for python in ${PYTHON:-} python3 /usr/bin/python3; do
    "$python" -c 'import numpy, matplotlib, pandas, scipy' 2>/dev/null && echo "$python" && return
  done
  echo "no python3 with numpy, matplotlib, pandas and scipy was found; scripts/install_deps.sh installs one" >&2
  return 2
}

# find_torch PYTHON: the first of PYTHON_TORCH and PYTHON that has all that compares with PyTorch; nothing if none has.
find_torch() {
  local python
  for python in ${PYTHON_TORCH:-} "$@"; do
    "$python" -c 'import torch, transformers, accelerate, tokenizers, numpy' 2>/dev/null && echo "$python" && return
  done
  [ -z "${PYTHON_TORCH:-}" ] || { echo "PYTHON_TORCH=$PYTHON_TORCH has no torch, transformers, accelerate, tokenizers" \
    "and numpy" >&2; return 2; }
}

# phase NAME: times what follows, up to the next phase, under that name. `phases` ends the last and prints the table.
phase_lines=()
phase_name=
phase_start=0
phase() {
  [ -z "$phase_name" ] || phase_lines+=("$(printf '%5d s  %s' $((SECONDS - phase_start)) "$phase_name")")
  phase_name=$1
  phase_start=$SECONDS
  [ -z "$1" ] || printf '\n=== %s\n' "$1"
}
phases() {
  phase ""
  printf '\n'
  printf '%s\n' "${phase_lines[@]}"
  printf '%5d s  in all\n' "$SECONDS"
}
