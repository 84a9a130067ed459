#!/usr/bin/env python3
"""Prints what ptxas reported for every kernel of the CUDA build, as a Markdown table; exit 1 if a kernel spills registers,
or if ptxas made a kernel's asynchronous products (wgmma) wait for each other.

    python3 scripts/kernel_table.py [FOLDER] [--arch 80] [--sass]        FOLDER: build/cuda

Columns: registers of a thread, bytes that it spills, shared memory that the kernel declares (without what a launch
adds), and how many of the 64 warps of a multiprocessor the 65536 registers allow. --sass counts some instructions of
each kernel, by cuobjdump: products of a warp (HMMA) and of a warpgroup (HGMMA), tiles that the copy engine loads
(UTMALDG) and stores (UTMASTG); exit 1 if a kernel for Hopper lacks one of the last three.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

from common import stop

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
SERIALIZED = re.compile(r"wgmma.mma_async instructions are serialized .*function '(\w+)'")
INSTRUCTIONS = ("HMMA", "HGMMA", "UTMALDG", "UTMASTG")


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


def serialized(folder):
  """Mangled names of the kernels whose wgmma wait for each other. (Some kernels of the tests do wrong on purpose.)"""
  found = set()
  for place, _, names in os.walk(folder):
    for name in names:
      if name.endswith(".ptxas") and os.path.basename(place) != "test":
        with open(os.path.join(place, name), encoding="utf-8", errors="replace") as file:
          found.update(SERIALIZED.findall(file.read()))
  return found


def count_instructions(folder):
  """{mangled name: {instruction: how many}} by disassembling every object below."""
  tool = shutil.which("cuobjdump") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "cuobjdump")
  counts = {}
  for place, _, names in os.walk(folder):
    for name in names:
      if not name.endswith(".cu.o"):
        continue
      try:
        done = subprocess.run([tool, "-sass", os.path.join(place, name)], capture_output=True, text=True)
      except FileNotFoundError:
        stop("--sass needs cuobjdump, of the CUDA toolkit, on the PATH or below CUDA_HOME")
      kernel = None
      for line in done.stdout.splitlines():
        if "Function : " in line:
          kernel = counts.setdefault(line.split("Function : ")[1].strip(), dict.fromkeys(INSTRUCTIONS, 0))
        elif kernel and (found := re.search(r"\b(%s)\b" % "|".join(INSTRUCTIONS), line)):
          kernel[found[1]] += 1
  return counts


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
  parser.add_argument("--sass", action="store_true", help="count instructions too")
  arguments = parser.parse_args()
  kernels = [k for k in read(arguments.folder) if arguments.arch in (None, k[1])]
  if not kernels:
    print(f"no kernels compiled by nvcc in {arguments.folder}: make BACKEND=cuda compiles them")
    return 1
  sass = count_instructions(arguments.folder) if arguments.sass else {}
  columns = INSTRUCTIONS if arguments.sass else ()
  print("\n| " + " | ".join(("kernel", "target", "registers", "spilled", "shared", "warps") + columns) + " |")
  print("|---" * (6 + len(columns)) + "|")
  lacking = []
  for name, (mangled, arch, registers, spilled, shared) in zip(readable([k[0] for k in kernels]), kernels):
    warps = min(64, 65536 // (-(-registers // 8) * 8 * 32))
    counts = [sass.get(mangled, {}).get(column, 0) for column in columns]
    if arguments.sass and "_hopper_kernel" in name and 0 in counts[1:]:
      lacking.append(name)
    print("| " + " | ".join(map(str, [name, f"sm_{arch}", registers, spilled, shared, warps] + counts)) + " |")
  bad, waiting = sum(k[3] > 0 for k in kernels), serialized(arguments.folder)
  print(f"\n{len(kernels)} kernels, {bad} with spilled registers, {len(waiting)} whose wgmma wait for each other")
  for name in lacking:
    print(f"without tensor-core products, loads or stores by the copy engine: {name}")
  return 1 if bad or waiting or lacking else 0


if __name__ == "__main__":
  sys.exit(main())
