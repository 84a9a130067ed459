#!/usr/bin/env python3
"""What checkpoints cost: the quick start's model with a checkpoint every 10 steps and without, several times in turn.

    python3 bench/checkpoint_cost.py [--steps 100] [--repeats 3] [CONFIG.json] [--set key=value]...

Prints a Markdown table: milliseconds from step to step (the whole run but for its start, divided by the steps; median and
spread of the repeats) and the largest memory of the process. The runs are runs/checkpoint_cost and are removed at the end.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

RUN = "runs/checkpoint_cost"


def run(arguments, every):
  """(seconds from the first step's line to the end, bytes at most) of one training."""
  command = [os.environ.get("TRAIN", "./train"), arguments.config, "--overwrite"]
  for setting in arguments.set + [f"name={os.path.basename(RUN)}", f"train.steps={arguments.steps}", "eval.every=0", "log.every=1",
                                  f"checkpoint.every={every}", "checkpoint.at_end=false"]:
    command += ["--set", setting]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
  begin = None
  for line in process.stdout:
    if begin is None and line.startswith("step "):
      begin = time.monotonic()
  _, status, usage = os.wait4(process.pid, 0)
  end = time.monotonic()
  process.returncode = os.waitstatus_to_exitcode(status)
  if process.returncode or begin is None:
    sys.exit(f"checkpoint_cost.py: {' '.join(command)} failed with exit code {process.returncode}.")
  return end - begin, usage.ru_maxrss * 1024


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("config", nargs="?", default="configs/quickstart.json")
  parser.add_argument("--steps", type=int, default=100)
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--set", action="append", default=[], metavar="key=value")
  arguments = parser.parse_args()
  results = {0: [], 10: []}
  for _ in range(arguments.repeats):
    for every, list_ in results.items():
      list_.append(run(arguments, every))
  shutil.rmtree(RUN, ignore_errors=True)
  print("| checkpoint | ms a step, median (spread) | memory at most |\n|---|---|---|")
  for every, list_ in results.items():
    times = [seconds * 1e3 / (arguments.steps - 1) for seconds, _ in list_]
    print(f"| {'every 10 steps' if every else 'none'} | {statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f}) | "
          f"{max(memory for _, memory in list_) / 2**20:.0f} MiB |")


if __name__ == "__main__":
  main()
