"""The Makefile's targets for GPUs, in the commands that `make -n` prints, and a build without NCCL. Standard library only."""
import os
import re
import subprocess
import tempfile
import unittest

from support.workspace import ROOT


class Targets(unittest.TestCase):
  def make(self, *settings, gpu=None):
    """What make says of one object of the CUDA build, and of what the program is made of. gpu: nvidia-smi's answer."""
    with tempfile.TemporaryDirectory() as folder:
      with open(os.path.join(folder, "nvidia-smi"), "w", encoding="utf-8") as program:
        program.write(f"#!/bin/sh\n{'exit 9' if gpu is None else 'echo ' + gpu}\n")
      os.chmod(program.name, 0o755)
      others = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKEOVERRIDES", "ARCH")}
      return subprocess.run(["make", "-nB", "BACKEND=cuda", "NCCL=0", *settings, "build/cuda/train"], cwd=ROOT,
                            text=True, capture_output=True, timeout=100,
                            env={**others, "PATH": folder + ":" + os.environ["PATH"]})

  def targets(self, *settings, source="kernels/gelu.cu", **arguments):
    done = self.make("V=1", *settings, **arguments)
    self.assertEqual(done.returncode, 0, done.stderr)
    line, = [line for line in done.stdout.split("\n") if f"-c {source} " in line]
    return re.findall(r"-gencode arch=compute_\w+,code=(\w+)", line)

  def test_without_a_gpu(self):
    for gpu in (None, "No devices were found"):
      self.assertEqual(self.targets(gpu=gpu), ["sm_80", "sm_90a", "compute_80"])
      self.assertEqual(self.targets(gpu=gpu, source="attention/instances/hopper_softmax.cu"), ["sm_90a"])

  def test_of_the_gpu_present(self):
    self.assertEqual(self.targets(gpu="9.0"), ["sm_90a"])
    self.assertEqual(self.targets(gpu="12.0"), ["sm_120"])
    self.assertEqual(self.targets("ARCH=80 100", gpu="9.0"), ["sm_80", "sm_100"])

  def test_by_hand(self):
    self.assertEqual(self.targets("ARCH=90"), ["sm_90a"])
    self.assertEqual(self.targets("ARCH=90", source="attention/instances/hopper_softmax.cu"), ["sm_90a"])
    self.assertEqual(self.targets("ARCH=80 90a 110"), ["sm_80", "sm_90a", "sm_110", "compute_110"])
    for arch in ("13", "75"):
      self.assertIn(f"ARCH={arch}: the kernels need sm_80", self.make(f"ARCH={arch}").stderr)


class WithoutNccl(unittest.TestCase):
  def test_has_all_functions(self):
    """A build that finds no NCCL has comm_alone.cu in place of comm.cu, so both must define the same functions."""
    with tempfile.TemporaryDirectory() as build:
      objects = [f"{build}/ranks/{name}.cu.o" for name in ("comm", "comm_alone")]
      subprocess.run(["make", "BACKEND=cpu", f"BUILD={build}", *objects], cwd=ROOT, check=True, capture_output=True, timeout=300)
      symbols = [subprocess.run(["nm", "-C", each], capture_output=True, check=True, text=True).stdout for each in objects]
    functions, others = (set(re.findall(r" T (.*)", text)) for text in symbols)
    self.assertIn("Comm::built()", functions)
    self.assertEqual(functions, others)
