#!/usr/bin/env python3
"""Prints ptxas's report on every kernel of the CUDA build, as a Markdown table; exit 1 if a kernel spills registers,
or if ptxas made a kernel's asynchronous products (wgmma) wait for each other.

    python3 dev/kernel_table.py [FOLDER] [--arch 80] [--sass]        FOLDER: build/cuda
    python3 dev/kernel_table.py --count [FOLDER or OBJECT] [--only "softmax, D 64"]

dev/bench/README.md says what the columns are. --sass counts some instructions of each kernel, by cuobjdump, and fails
if a kernel for Hopper lacks one of its own; --count prints another table, of the inner loops of attention, from machine
code alone. Without cuobjdump, pip fetches it into build/.
"""
import collections
import os
import re
import subprocess
import sys

import root  # noqa: F401: the path of the next ones
import sass
from lib import tables
from lib.common import ArgumentParser, run as run_main, stop

ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
SERIALIZED = re.compile(r"wgmma.mma_async instructions are serialized .*function '(\w+)'")
INSTRUCTIONS = ("HMMA", "HGMMA", "UTMALDG", "UTMASTG")
PROCESSORS, CLOCK = 132, 1.755e9  # of an H100 or H200: for the bounds of --count


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
            stack, *spills = map(int, found.groups())
            spilled = max(*spills, stack if "attention" in kernel[0] else 0)
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


def machine_code(path, arch):
  """(mangled name, instructions) of every kernel of an object, or of every object below a folder."""
  environment = sass.tools()
  paths = [os.path.join(place, name) for place, _, names in sorted(os.walk(path)) for name in sorted(names)]
  for object_path in [path] if os.path.isfile(path) else paths:
    if object_path.endswith(".cu.o"):
      yield from sass.kernels_of(object_path, environment, arch).items()


def readable(names):
  """Demangled, without namespaces, return types and parameters."""
  done = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True)
  lines = done.stdout.splitlines() if done.returncode == 0 else names
  short = []
  for line in lines:
    line = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|^void ", "", line)
    short.append(re.sub(r"__nv_bfloat16", "bf16", line).replace("(int)", "").replace("(bool)", ""))
  return short


def title(name):
  """softmax, D 64, forward: what a kernel of attention is called in the tables; others keep their name."""
  found = re.match(r"attention_(forward|backward_(?:keys|queries|heads))_(hopper_)?(?:tensor_)?kernel"
                   r"<(?:bf16, )?(?:\w+Of<score_)?(\w+)[<,].*Tile<(\d+)", name)
  if not found:
    return name
  power = re.search(r"FixedPower<(\d+)>|(AnyPower)", name)
  parts = [found[3].lower() + (" " + (power[1] or "any") if power else ""), "D " + found[4],
           {"forward": "forward", "backward_keys": "dK dV", "backward_queries": "dQ",
            "backward_heads": "backward of whole heads"}[found[1]]]
  policy = name.split("Tile<")[0]
  parts += ["evaluation"] * (", false>" in policy) + ["documents"] * ("OwnDocument" in name)
  parts += ["window"] * (" Window," in name) + ["bias"] * ("Biased" in name)
  return ", ".join(parts + ["mma.sync"] * (not found[2]))


def scores_of(name):
  """(the scores that all warps of a kernel of attention make in a step, a thread's), by the sizes in its name."""
  tile = re.search(r"(Hopper|Tensor)Size\W*\{(\d+), (\d+)\}", name)
  if not tile:
    return 0, 0
  scores = 128 * int(tile[2]) if tile[1] == "Hopper" else 64 * int(tile[2]) * int(tile[3])
  return scores, scores // (256 if tile[1] == "Hopper" else 128)


def count_table(path, arch, only):
  """Prints the tables of --count."""
  kernels = dict(machine_code(path, arch))
  if not kernels:
    stop(f"no objects compiled by nvcc in {path}: make BACKEND=cuda makes them", 1)
  rows = sorted((title(name), scores_of(name), mangled) for name, mangled in zip(readable(kernels), kernels))
  units = ("tensor", "MUFU", "ALU", "issue", "shared")
  columns = ("loop", "scores", "issued", "per score", "MUFU of them", "products", *units, "registers", "LDL, STL")
  passes = collections.defaultdict(list)
  lines = []
  for kernel, (scores, each), mangled in rows:
    masked = {kernel.replace(name, name + ", masked"): mask for name, mask in sass.MASKS.items() if name in kernel}
    for name, mask in {kernel: None, **masked}.items():
      loops = sass.inner_loops(kernels[mangled], mask) if only.search(name) else []
      spills = sum(sass.opcode(one) in ("LDL", "STL") for one in kernels[mangled])
      for number, loop in enumerate(loops, 1):
        per_score = f"{loop['issued'] / each:.1f}" if each else "-"
        lines.append([name + (f", loop {number}" if loops[1:] else ""), scores, loop["issued"], per_score,
                      loop["mufu"], loop["products"], *(loop["cycles"][unit] for unit in units),
                      sass.registers(kernels[mangled]), spills])
        if each and not mask and "mma.sync" not in name:
          passes[re.sub("dK dV|dQ", "backward", name)].append((scores, loop))
  bounds = []
  for name, loops in passes.items():
    if "backward" in name and "of whole heads" not in name and not loops[1:]:
      continue
    cycles = sum(max(loop["cycles"].values()) / scores for scores, loop in loops)
    flops = (10 if "backward" in name else 4) * int(re.search(r", D (\d+)", name)[1])
    slowest = [max(loop["cycles"], key=loop["cycles"].get) for _, loop in loops]
    bounds.append([name, ", ".join(slowest), f"{flops / cycles * PROCESSORS * CLOCK / 1e12:.0f}"])
  head = [f"pass, at {PROCESSORS} x {CLOCK / 1e9} GHz", "slowest unit of each loop", "bound, TFLOP/s"]
  print(tables.markdown(columns, lines), tables.markdown(head, bounds), sep="\n\n")


def main():
  parser = ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("folder", nargs="?", default="build/cuda")
  parser.add_argument("--arch", help="only this target, as in 80 or 90a")
  parser.add_argument("--sass", action="store_true", help="count instructions too")
  parser.add_argument("--count", action="store_true", help="count what a step of each inner loop issues")
  parser.add_argument("--only", type=str, default="", metavar="REGEX", help="with --count: only loops of this name")
  arguments = parser.parse_args()
  if arguments.count:
    try:
      only = re.compile(arguments.only)
    except re.error as error:
      stop(f'--only "{arguments.only}" is not a regular expression: {error}')
    count_table(arguments.folder, arguments.arch, only)
    return 0
  kernels = [k for k in read(arguments.folder) if arguments.arch in (None, k[1])]
  if not kernels:
    print(f"no kernels compiled by nvcc in {arguments.folder}: make BACKEND=cuda compiles them")
    return 1
  code_of = machine_code(arguments.folder, arguments.arch) if arguments.sass else ()
  counts_of = {name: collections.Counter(map(sass.opcode, code)) for name, code in code_of}
  columns = INSTRUCTIONS if arguments.sass else ()
  rows = []
  lacking = []
  for name, (mangled, arch, registers, spilled, shared) in zip(readable([k[0] for k in kernels]), kernels):
    warps = min(64, 65536 // (-(-registers // 8) * 8 * 32))
    counts = [counts_of.get(mangled, {}).get(column, 0) for column in columns]
    if arguments.sass and "_hopper_kernel" in name and 0 in counts[1:]:
      lacking.append(name)
    rows.append([name, f"sm_{arch}", registers, spilled, shared, warps, *counts])
  print("\n" + tables.markdown(["kernel", "target", "registers", "spilled", "shared", "warps", *columns], rows))
  bad, waiting = sum(k[3] > 0 for k in kernels), serialized(arguments.folder)
  print(f"\n{len(kernels)} kernels, {bad} with spilled registers, {len(waiting)} whose wgmma wait for each other")
  for name in lacking:
    print(f"without tensor-core products, loads or stores by the copy engine: {name}")
  return 1 if bad or waiting or lacking else 0


if __name__ == "__main__":
  run_main(lambda: sys.exit(main()), "the table is not complete")
