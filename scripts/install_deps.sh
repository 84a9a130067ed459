#!/usr/bin/env bash
# Installs the missing ones of the Debian or Ubuntu packages that the project needs.
#
#   bash scripts/install_deps.sh           what building, the quick start and the plots need
#   bash scripts/install_deps.sh --tests   the same and what scripts/test.sh needs
#
# Installs as root or through sudo; without either it prints the line to run and exits 2. Without apt it only
# checks that everything is there. It never installs CUDA: it says where to get it.
set -euo pipefail

packages=(g++ make nlohmann-json3-dev libcli11-dev libopenblas-dev libpcre2-dev
  python3 python3-numpy python3-matplotlib python3-pandas python3-scipy curl ca-certificates)
# The quick start's text, without which it downloads another one; oneDNN, without which OpenBLAS multiplies; what
# makes HTML of a report.
optional=(bible-kjv libdnnl-dev python3-markdown)
while [ $# -gt 0 ]; do
  case "$1" in
    --tests) packages+=(libgtest-dev xz-utils) ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "install_deps.sh: unknown argument \"$1\" (--tests, --help)" >&2; exit 2 ;;
  esac
  shift
done

installed() { [[ " $(dpkg-query -W -f '${db:Status-Status} ' "$1" 2>/dev/null)" == *" installed "* ]]; }
not_installed() { for p in "$@"; do installed "$p" || echo "$p"; done; }

# Is a package known to apt, with a version that can be installed?
available() { [[ "$(LC_ALL=C apt-cache policy "$1" 2>/dev/null)" =~ Candidate:\ [^\(] ]]; }

# Without apt: look for the programs and headers themselves.
check_by_hand() {
  local missing=() header
  for program in g++ make python3 curl; do command -v "$program" >/dev/null || missing+=("$program"); done
  local headers=(nlohmann/json.hpp CLI/CLI.hpp)
  [[ " ${packages[*]} " == *" libgtest-dev "* ]] && headers+=(gtest/gtest.h)
  for header in "${headers[@]}"; do
    echo "#include <$header>" | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1 || missing+=("<$header>")
  done
  echo 'int main() {}' | g++ -x c++ - -lopenblas -o /dev/null 2>/dev/null || missing+=("OpenBLAS (-lopenblas)")
  python3 -c 'import numpy, matplotlib, pandas, scipy' 2>/dev/null ||
    missing+=("numpy, matplotlib, pandas and scipy for python3")
  [ ${#missing[@]} -eq 0 ] && return
  echo "install_deps.sh: there is no apt here, so these have to be installed by hand:" >&2
  printf '  %s\n' "${missing[@]}" >&2
  exit 2
}

# install PACKAGES...: all of them or exit.
install() {
  local as_root=(env DEBIAN_FRONTEND=noninteractive) attempt package
  if [ "$(id -u)" != 0 ]; then
    # sudo may ask for a password only at a terminal.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo "${as_root[@]}")
    else
      echo "install_deps.sh: packages are missing, and this user may not install them. Run as root, then try again:" >&2
      echo "  apt-get update && apt-get install -y --no-install-recommends $*" >&2
      exit 2
    fi
  fi
  echo "install_deps.sh: installing $*"
  local stale=0
  for package in "$@"; do available "$package" || stale=1; done
  for attempt in 1 2; do
    if [ $stale = 1 ]; then
      "${as_root[@]}" apt-get update -q
      # An optional package that this system's archive does not carry is left out.
      local known=()
      for package in "$@"; do
        [[ " ${optional[*]} " == *" $package "* ]] && ! available "$package" || known+=("$package")
      done
      set -- "${known[@]}"
      [ $# -gt 0 ] || return 0
    fi
    "${as_root[@]}" apt-get install -y -q --no-install-recommends "$@" && return
    [ $stale = 0 ] || break
    stale=1  # the lists may be older than the archive: refresh them and try once more
  done
  echo "install_deps.sh: apt-get could not install $*; its message is above." >&2
  exit 1
}

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  missing=($(not_installed "${packages[@]}"))
  wished=($(not_installed "${optional[@]}"))
  if [ ${#missing[@]} -gt 0 ]; then
    install "${missing[@]}" "${wished[@]}"
  elif [ ${#wished[@]} -gt 0 ]; then
    (install "${wished[@]}") || echo "install_deps.sh: continuing without ${wished[*]}."
  fi
else
  check_by_hand
fi

version=$(g++ -dumpversion)
if [ "${version%%.*}" -lt 11 ]; then
  echo "install_deps.sh: g++ is version $version, but the code is C++20 and needs 11 or later." >&2
  exit 2
fi
if ! command -v nvcc >/dev/null && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
  echo "No CUDA toolkit here: the trainer is built for the CPU. For an NVIDIA GPU install CUDA 12.4 or later from" \
    "https://developer.nvidia.com/cuda-downloads and run make again."
fi
