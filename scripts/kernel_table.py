#!/usr/bin/env python3
"""Prints what ptxas said of every kernel of the CUDA build, as a Markdown table; exit 1 if any spills registers.

    python3 scripts/kernel_table.py [FOLDER] [--arch 80]        FOLDER: build/cuda

Columns: registers of a thread, bytes that it spills, shared memory that the kernel declares (what a launch adds is not
there), and how many of the 64 warps of a multiprocessor the 65536 registers allow.
"""
import argparse
import os
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def read(folder):
  """[(mangled name, arch, registers, spilled bytes, shared bytes)] of all *.ptxas files below."""
  kernels = []
  for place, _, names in sorted(os.walk(folder)):
    for name in sorted(names):
      if not name.endswith(".ptxas") or not os.path.exists(os.path.join(place, name[:-6] + ".o")):
        continue
      kernel = spilled = None
      with open(os.path.join(place, name), encoding="utf-8", errors="replace") as lines:
        for line in lines:
          if found := ENTRY.search(line):
            kernel, spilled = found.groups(), 0
          elif found := SPILLS.search(line):
            spilled = max(map(int, found.groups()))
          elif kernel and (found := USED.search(line)):
            shared = SHARED.search(line)
            kernels.append((*kernel, int(found[1]), spilled, int(shared[1]) if shared else 0))
            kernel = None
  return kernels


def readable(names):
  """Demangled, without namespaces, return types and parameters."""
  done = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True)
  lines = done.stdout.splitlines() if done.returncode == 0 else names
  short = []
  for line in lines:
    line = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|^void ", "", line)
    short.append(re.sub(r"__nv_bfloat16", "bf16", line).replace("(int)", "").replace("(bool)", ""))
  return short


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("folder", nargs="?", default="build/cuda")
  parser.add_argument("--arch", help="only this target, as in 80 or 90a")
  arguments = parser.parse_args()
  kernels = [k for k in read(arguments.folder) if arguments.arch in (None, k[1])]
  if not kernels:
    print(f"No CUDA build in {arguments.folder}, so no table of registers (make BACKEND=cuda compiles one where nvcc is).")
    return 0
  print("\n| kernel | target | registers | spilled | shared | warps |\n|---|---|---|---|---|---|")
  for name, (_, arch, registers, spilled, shared) in zip(readable([k[0] for k in kernels]), kernels):
    warps = min(64, 65536 // (-(-registers // 8) * 8 * 32))
    print(f"| {name} | sm_{arch} | {registers} | {spilled} | {shared} | {warps} |")
  bad = sum(k[3] > 0 for k in kernels)
  print(f"\n{len(kernels)} kernels, {bad} with spilled registers")
  return 1 if bad else 0


if __name__ == "__main__":
  sys.exit(main())
