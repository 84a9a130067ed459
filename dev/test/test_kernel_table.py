"""dev/kernel_table.py --count on objects of the CUDA build, where FULL=1 has compiled all of it (make check-full) and
there is a cuobjdump. Standard library only.
"""
import os
import re
import shutil

from support.scripts import ROOT, ScriptTest

OBJECTS = os.path.join(ROOT, "build/cuda/attention/hopper")
TOOLS = os.environ.get("PATH", "") + os.pathsep + os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")


class KernelTable(ScriptTest):
  def test_the_log_has_what_the_loops_issue(self):
    if not os.environ.get("FULL") or not shutil.which("cuobjdump", path=TOOLS):
      self.skipTest("needs FULL=1 and cuobjdump")
    with open(os.path.join(ROOT, "dev/bench/LOG.md"), encoding="utf-8") as file:
      log = {row[0]: row[1:] for row in (line.strip("| \n").split(" | ") for line in file) if len(row) == 5}
    for number, kernel in enumerate(log["pass"]):
      name = kernel.split()[0].strip(",")
      if not os.path.exists(source := f"{OBJECTS}/{name}.cu.o"):
        self.skipTest(f"{source} is missing: FULL=1 make cuda-subset compiles it")
      only = f"^{kernel},(?!.*(evaluation|window|bias|documents|whole))"
      table = self.run_script(os.path.join(ROOT, "dev/kernel_table.py"), "--count", source, "--only", only)
      for step in ("forward", "dK dV", "dQ"):
        rows = re.findall(rf"^\| {kernel}, {step}(?:, loop \d)? \| (\d+) \| (\d+) \|.* (\d+) \|$", table, re.MULTILINE)
        with self.subTest(kernel=kernel, step=step):
          self.assertEqual(" + ".join(issued + "*" * (scores == "8192") for scores, issued, _ in rows),
                           log[step][number])
          self.assertEqual({spills for *_, spills in rows}, {"0"})
      for way, bound in (("forward", "forward's bound, TFLOP/s"), ("backward", "backward's bound")):
        units, rate = re.search(rf"^\| {kernel}, {way} \| ([\w, ]+) \| (\d+) \|$", table, re.MULTILINE).groups()
        with self.subTest(kernel=kernel, bound=way):
          self.assertEqual(f"{rate}, {' and '.join(dict.fromkeys(units.split(', ')))}", log[bound][number])
