# Sourced by dev/gpu_session.sh before the first part: looks for what the parts need and writes $out/needs.md, a
# table of what is missing, what installs it and what is left out without it; stops where nothing can be built. Exports
# `missing`, which part.sh's has() reads, torch_python, and CPPFLAGS and LDFLAGS with the folders of DEPS and of
# Python's packages.
# shellcheck shell=bash disable=SC2086  # lists of words

: "${out:?}" "${scratch:?}" "${rehearse?}" "${prepared?}"
missing='' torch_python='' rows=()
CPPFLAGS=${CPPFLAGS:-} LDFLAGS=${LDFLAGS:-}

compiler() { "${CXX:-g++}" -std=c++20 $CPPFLAGS "$@"; }

# absent HEADER...: those that the compiler does not find
absent() {
  local header
  for header in "$@"; do printf '#if !__has_include(<%s>)\nabsent %s\n#endif\n' "$header" "$header"; done |
    compiler ${cuda:+-I"$cuda/include"} -E -P -x c++ - | sed -n 's/^absent //p'
}

# lacks NAME INSTALLED_BY LEFT_OUT
lacks() {
  missing+=" $1"
  rows+=("| $1 | $2 | $3 |")
}

# from_python HEADER LIBRARY: takes both from Python's packages (pip install nvidia-...), whose libraries have no names
# without a version
from_python() {
  local python header library
  for python in ${PYTHON:-} python3; do
    header=$("$python" -c 'import glob, sys
print([path for folder in sys.path for path in glob.glob(f"{folder}/nvidia/*/include/{sys.argv[1]}")][0])' "$1" \
      2>/dev/null) || continue
    library=$(find "${header%/include/*}/lib" -name "lib$2.so*" | sort | head -n 1)
    [ -n "$library" ] || continue
    mkdir -p "$scratch/lib"
    ln -sfn "$library" "$scratch/lib/lib$2.so"
    CPPFLAGS+=" -I${header%/*}" LDFLAGS+=" -L$scratch/lib -Wl,-rpath,${library%/*}"
    return
  done
  return 1
}

if [ -n "${DEPS:-}" ]; then
  [ -d "$DEPS" ] || stop "DEPS: there is no folder $DEPS"
  for folder in "$(realpath "$DEPS")"/{,usr/,usr/local/}{include,lib,lib64,lib/*-linux-gnu}; do
    [ -d "$folder" ] || continue
    case $folder in *include) CPPFLAGS+=" -I$folder" ;; *) LDFLAGS+=" -L$folder -Wl,-rpath,$folder" ;; esac
  done
fi

if [ -z "$prepared" ]; then  # else nothing is built
  for tool in make python3 "${CXX:-g++}"; do
    command -v "$tool" >/dev/null || stop "there is no $tool: bash scripts/install_deps.sh installs it"
  done
  headers=(nlohmann/json.hpp CLI/CLI.hpp gtest/gtest.h)
  [ -n "$rehearse" ] || headers+=(cublasLt.h nccl.h)
  not_there=$(absent "${headers[@]}")
  for header in $not_there; do
    case $header in
      gtest*) ;;
      nccl.h) from_python nccl.h nccl || lacks nccl "libnccl-dev, or pip install nvidia-nccl-cu13" "several GPUs" ;;
      cublasLt.h) from_python cublasLt.h cublasLt ||
        stop "there is no cublasLt.h: install all of the CUDA toolkit, or pip install nvidia-cublas" ;;
      *)
        stop "there is no $header: bash scripts/install_deps.sh installs it; without network name a folder that has \
it in include/ (DEPS=DIR)" ;;
    esac
  done
  if [[ $not_there == *gtest* ]] ||
    ! echo 'int main() {}' | compiler -x c++ - $LDFLAGS -lgtest_main -lgtest -o /dev/null 2>/dev/null; then
    lacks gtest "bash scripts/install_deps.sh --tests, or DEPS=DIR" "tests, far, sanitize, and the tests of first"
  fi
fi
command -v compute-sanitizer >/dev/null || lacks compute-sanitizer "all of the CUDA toolkit" "sanitize"
command -v cuobjdump >/dev/null || lacks cuobjdump "all of the CUDA toolkit" "first: the machine code of what fails"
command -v ncu >/dev/null || lacks ncu "NVIDIA Nsight Compute" "bench: which unit limits each kernel"
for python in ${PYTHON:-} python3; do
  "$python" -c 'import importlib.util as util, sys; sys.exit(not util.find_spec("torch"))' 2>/dev/null || continue
  torch_python=$python
  break
done
if [ -n "$prepared" ]; then  # the libraries of CUDA are among PyTorch's packages
  for library in $("${torch_python:-python3}" -c 'import glob, sys
print(*(path for folder in sys.path for path in glob.glob(f"{folder}/nvidia/*/lib")))'); do
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$library
  done
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
fi
[ -n "$torch_python" ] || lacks torch "pip install torch, or PYTHON=python3 of an environment that has it" "peers"
export CPPFLAGS LDFLAGS missing torch_python
mkdir -p "$out"
{ echo '| missing | what installs it | what is left out |'; echo '|---|---|---|'; } > "$out/needs.md"
printf '%s\n' "${rows[@]:-| nothing | | |}" | tee -a "$out/needs.md"
