#!/usr/bin/env bash
# For `make check-kind`: test/attention/check_kind.sh "FILE.cuh..." PROGRAM..., which build/cpu has. The programs run
# over a build's kinds; then bits must be equal over threads, ranks, streams and after an interruption; then PyTorch's
# formulas are compared, if PYTHON=... or python3 has torch and transformers. The last line is the verdict; exit 1 if
# anything failed.
set -eu
kinds=$1
shift
. scripts/common.sh
bash test/support/run.sh build/cpu "$@"
python=${PYTHON:-$(find_python)}
names=$(for file in $kinds; do basename "$file" .cuh; done)
echo "=== threads, ranks, streams, interruptions"
(cd test && KIND_NAMES=$names TRAIN=$OLDPWD/build/cpu/train "$python" -m unittest -k test_kind program.test_invariance \
  eval.test_diagnostics)
echo "=== PyTorch"
with_formula=$(grep -l 'pytorch = ' $kinds || true)
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
  left="; not compared with PyTorch: $python has no torch and transformers, PYTHON=... names one that has"
elif [ -z "$with_formula" ]; then
  left="; not compared with PyTorch: no formula"
else
  left=
  "$python" scripts/compare.py transformers --train build/cpu/train --kinds $with_formula
fi
echo "passed: $(echo $names)$left"
