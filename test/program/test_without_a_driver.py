"""A CUDA build on a machine without a driver, such as a cluster's login node: what needs no GPU answers as the CPU
build does, in each command of the documents that does not, and the rest says what to do. make check-full links such a
build. Standard library only."""
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest

from support.workspace import ROOT, TRAIN, Workspace
from test_docs import PAGES, commands, text_of

CUDA = os.path.join(ROOT, "build/cuda/train")
NEEDS_NO_GPU = re.compile(r"\./train .*(plan\.memory|--print-config|--help|--version)")


def reason():
  """Why this cannot be tested here, or ""."""
  if shutil.which("nvidia-smi"):
    return "there is a driver"
  if not os.access(CUDA, os.X_OK):
    return "no build/cuda/train: make BACKEND=cuda, where nvcc is"
  cpu, cuda = (subprocess.run([program, "--version"], capture_output=True).stdout for program in (TRAIN, CUDA))
  return "" if cpu == cuda else "build/cuda/train is of another commit"


@unittest.skipIf(reason(), reason())
class WithoutADriver(Workspace):
  def said(self, train, *command, **options):
    done = subprocess.run([train if word == "./train" else word for word in command], capture_output=True, timeout=100,
                          env={**os.environ, "TRAIN": train}, **options)
    return done.returncode, done.stdout, done.stderr

  def test_what_needs_no_gpu(self):
    shown = {command for page in PAGES for command, _ in commands(text_of(page)) if NEEDS_NO_GPU.match(command)}
    self.assertGreater(len(shown), 3)
    config = "configs/gpt2_124m_softmax.json"
    plans = [f"./train {config} --dry-run --set plan.memory={rest}" for rest in (
        "80GiB", "1GiB", "80GiB --gpus 4", "80GiB --gpus all", "80GiB --set attention.window=64",
        "80GiB --set attention.window=64 --set precision=fp32", "80GiB --set init=gone")]
    plans.append("python3 scripts/sweep.py configs/sweeps/variants.json --plan")
    for command in [*sorted(shown), *plans, "./train --version", f"./train {config} --print-config --gpus 4"]:
      words = shlex.split(command.replace("CONFIG.json", config).replace("python3", sys.executable))
      with self.subTest(command=command):
        expected, found = (self.said(train, *words, cwd=ROOT) for train in (TRAIN, CUDA))
        self.assertEqual(found, expected)
    self.write_vocabulary("gpt2")
    encode = ["./train", "--encode", self.path("gpt2")]
    self.assertEqual(*(self.said(train, *encode, input=b"hello world") for train in (TRAIN, CUDA)))

  def test_what_needs_one(self):
    for flags in [], ["--dry-run"], ["--eval"], ["--generate", "It"], ["--gpus", "4"], ["--gpus", "all", "--dry-run"]:
      self.write_config("config.json")
      code, _, errors = self.said(CUDA, "./train", "config.json", *flags, cwd=self.folder)
      self.assertEqual(code, 2, errors)
      self.assertRegex(errors, rb"^there is no NVIDIA driver here .* in a job that has a GPU.*BACKEND=cpu\)\n$")
