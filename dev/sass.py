"""Machine code (SASS) of objects: what a step of an inner loop issues, and how long each unit of a multiprocessor needs
for it. kernel_table.py prints it. Standard library only.
"""
import collections
import glob
import os
import re
import shutil
import subprocess
import sys

from root import ROOT
from lib.common import stop

CACHE = os.path.join(ROOT, "build/disassembler")
WHEELS = ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm")  # versions newer than nvcc read its objects

Instruction = collections.namedtuple("Instruction", "address guard name operands")  # name: the opcode with its suffixes
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;", re.MULTILINE)
PRODUCTS = ("HGMMA", "HMMA")  # of a warpgroup, of a warp
NEEDED = PRODUCTS + ("LDGSTS",)  # what a step is for: these, and copies into shared memory
# Instructions that hide scores: on the diagonal, in a kernel with a bias; by two more comparisons, where a window ends.
HIDES = lambda one: opcode(one) == "FSEL" and "-INF" in one.operands
MASKS = {"bias": HIDES, "window": lambda one: HIDES(one) or opcode(one) == "ISETP" and one.name.endswith(".OR")}
# Instructions of the unit for integers, comparisons and conversions, which takes a warp every second cycle.
ALU = set("F2F F2FP FCHK FMNMX FSEL FSET FSETP IABS IADD3 IMNMX ISETP LEA LOP3 MOV PLOP3 PRMT SEL SGXT SHF VIADD "
          "VIMNMX".split())


def tools():
  """The environment with cuobjdump and nvdisasm on its PATH: the toolkit's, or wheels that pip fetches once."""
  path = os.environ.get("PATH", "") + os.pathsep + os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
  if not shutil.which("cuobjdump", path=path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", CACHE, *WHEELS]
    if not glob.glob(CACHE + "/nvidia/*/bin/cuobjdump"):
      done = subprocess.run(pip, capture_output=True, text=True)
      if done.returncode:
        stop("cuobjdump is neither on the PATH nor below CUDA_HOME, and pip cannot fetch it (is this machine "
             f"offline?): install it with the CUDA toolkit, or run {' '.join(pip)}\n{done.stderr.strip()}")
    path = os.pathsep.join(glob.glob(CACHE + "/nvidia/*/bin") + [path])
  return {**os.environ, "PATH": path}


def kernels_of(path, environment, arch=None):
  """{mangled name: its instructions} of an object, for one target if it has several; {} of one without kernels."""
  target = ["-arch", "sm_" + arch] if arch else []
  done = subprocess.run(["cuobjdump", "-sass", path, *target], capture_output=True, text=True, env=environment)
  if "does not contain device code" in done.stderr:
    return {}
  if done.returncode:
    stop(f"cuobjdump -sass {path}: exit {done.returncode}\n{done.stderr.strip()}", 1)
  return {part.split("\n")[0].strip(): [Instruction(int(line[1], 16), *line.groups()[1:])
                                        for line in LINE.finditer(part)]
          for part in done.stdout.split("Function : ")[1:]}


def opcode(instruction):
  return instruction.name.split(".")[0]


def successors(code):
  """For each instruction the indices of those that may follow it."""
  index, result = {one.address: n for n, one in enumerate(code)}, []
  for n, one in enumerate(code):
    jumps = opcode(one) == "BRA"
    target = re.search(r"0x([0-9a-f]+)$", one.operands) if jumps else None
    to = [index[int(target[1], 16)]] if target and int(target[1], 16) in index else []
    always = not one.guard and not re.match(r"!?U?P\d|UR\d", one.operands)  # BRA may name a predicate as an operand
    if n + 1 < len(code) and not (always and (jumps or opcode(one) in ("EXIT", "RET"))):
      to.append(n + 1)
    result.append(to)
  return result


def reachable(start, edges, without=None):
  seen, todo = {start}, [start]
  while todo:
    new = [n for n in edges[todo.pop()] if n != without and n not in seen]
    seen.update(new)
    todo += new
  return seen


def loops(edges):
  """{first instruction: all} of the natural loops: a branch back to an instruction that lies on every way to it."""
  back = [[] for _ in edges]
  for n, to in enumerate(edges):
    for t in to:
      back[t].append(n)
  found = collections.defaultdict(set)
  for n in reachable(0, edges):
    for head in (t for t in edges[n] if t <= n and (t == 0 or n not in reachable(0, edges, t))):
      found[head] |= {head} | (reachable(n, back, head) if n != head else set())
  return found


def shortest_step(code, edges, head, body, mask):
  """The way round a loop that passes the most of NEEDED and of `mask` (a function of MASKS), and else the fewest
  instructions: without a second try of a wait, and without masks, which are skipped off the diagonal, if it is None."""
  order, seen, stack = [], {head}, [(head, iter(edges[head]))]
  while stack:  # depth first: an instruction is finished after all that follow it
    n, rest = stack[-1]
    following = next((t for t in rest if t in body and t not in seen), None)
    if following is None:
      order.append(stack.pop()[0])
    else:
      seen.add(following)
      stack.append((following, iter(edges[following])))
  best = {}  # instruction: (- needed, instructions, next) from it to the end of the step
  for n in order:
    ways = [(0, 0, None)] if head in edges[n] else []
    ways += [(*best[t][:2], t) for t in edges[n] if t in best and t != head]
    if ways:
      needed, length, following = min(ways, key=lambda way: way[:2])
      wanted = opcode(code[n]) in NEEDED or bool(mask and mask(code[n]))
      best[n] = (needed - wanted, length + 1, following)
  step, n = [], head
  while n is not None:
    step.append(code[n])
    n = best[n][2]
  return step


def costs(step):
  """The costs of a step: dict of `issued` (by a warp), `products` and `mufu` (of them) and `cycles` of each unit of a
  multiprocessor with 2 warpgroups (HGMMA) or 4 warps (HMMA)."""
  count = collections.Counter(map(opcode, step))
  wide = count["HGMMA"] > 0
  tensor = shared = 0
  for one in step:
    operands = one.operands.split(", ")
    if opcode(one) == "HGMMA":  # 64 x N x 16: 4096 FLOPs a cycle; operands from shared memory at 128 bytes a cycle
      N = int(re.search(r"64x(\d+)x16", one.name)[1])
      tensor += N / 2
      shared += (N * 32 + operands[1].startswith("gdesc") * 64 * 32) / 128
    elif opcode(one) == "HMMA":  # 16 x 8 x 16: an A100's rate
      tensor += 8
    elif opcode(one) in ("LDS", "STS", "LDSM", "LDGSTS"):
      shared += 4 * (4 if one.name.endswith((".4", ".128")) and opcode(one) in ("LDSM", "LDGSTS") else 1)
  groups = 2 if wide else 1
  cycles = {"tensor": tensor, "MUFU": 8 * count["MUFU"], "ALU": 2 * sum(count[name] for name in ALU),
            "issue": len(step), "shared": shared}
  return {"issued": len(step), "products": count["HGMMA"] + count["HMMA"], "mufu": count["MUFU"],
          "cycles": {unit: round(groups * n) for unit, n in cycles.items()}}


def inner_loops(code, mask=None):
  """costs() of each innermost loop with products, in order, for a step that hides scores as `mask` says, or none."""
  edges = successors(code)
  found = {head: body for head, body in loops(edges).items() if any(opcode(code[n]) in PRODUCTS for n in body)}
  return [costs(shortest_step(code, edges, head, body, mask)) for head, body in sorted(found.items())
          if not any(other < body for other in found.values())]


def registers(code):
  """How many registers the code names; the sums of a warpgroup's product are N / 2 from the first."""
  highest = -1
  for one in code:
    highest = max([highest] + [int(n) for n in re.findall(r"\bR(\d+)", one.operands)])
    if opcode(one) == "HGMMA":
      sums = int(re.search(r"64x(\d+)x", one.name)[1]) // 2
      highest = max(highest, int(re.match(r"R(\d+)", one.operands)[1]) + sums - 1)
  return highest + 1
