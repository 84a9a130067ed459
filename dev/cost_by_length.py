#!/usr/bin/env python3
"""What an evaluation costs beyond the trained length, beside what it loses there: every mechanism of
configs/sweeps/length.json, in a table and a picture of docs/results/length.md.

    python3 dev/cost_by_length.py build/cpu/train FOLDER [--set KEY=VALUE]...

FOLDER gets a run for each mechanism, unless it has it: of 250 steps where the cost depends on what was learned, as
biases prune, else of one; --set names other data than the quick start's. Then each is evaluated at all lengths, in
three rounds. Seconds are medians; losses are those of three seeds in dev/bench/results/length_long_cpu.json.
"""
import json
import os
import statistics
import subprocess
import sys

import root  # first: the path of the next ones
import bench_table
from blocks import replace_block
from lib import tables
from lib.common import read_json, run as run_main, stop

LENGTHS, WARM, ROUNDS, TOKENS = [128, 512, 2048, 8192], 100, 3, 32768
LEARNS = "alibi", "fox", "cable"
SHOWN = "softmax", "softmax + window 128", "alibi", "fox", "cable", "lssar"  # in the table; the picture has all
FILE = os.path.join(bench_table.RESULTS, "cost_cpu.json")
LOSSES = os.path.join(bench_table.RESULTS, "length_long_cpu.json")
PICTURE = os.path.join(root.ROOT, "docs/results/cost.png")


def flags(settings):
  text = lambda value: value if isinstance(value, str) else json.dumps(value)
  return [part for key, value in settings.items() for part in ("--set", f"{key}={text(value)}")]


def lines_of(folder, run):
  with open(os.path.join(folder, "runs", run, "metrics.jsonl"), encoding="utf-8") as file:
    return [json.loads(line) for line in file]


def seconds(train, folder, run, settings):
  """{length: seconds of its evaluation}: those between its line and the line before, of the length before."""
  subprocess.run([train, "--eval", f"runs/{run}", *flags(settings)], cwd=folder, check=True, capture_output=True)
  ends = [line for line in lines_of(folder, run) if line["type"] == "eval"][-len(LENGTHS) - 1:]
  return {after["length"]: after["time"] - before["time"] for before, after in zip(ends, ends[1:])}


def measure(train, folder, more):
  sweep = read_json(os.path.join(root.ROOT, "configs/sweeps/length.json"))
  members, times = {}, {}
  for name, settings in sweep["axes"]["attention"].items():
    trained = {key: value for key, value in settings.items() if not key.startswith("eval.")}
    run = "_".join(str(value) for value in trained.values()).translate({ord(c): "-" for c in " '[],/"})
    members[name] = run, {key: value for key, value in settings.items() if key not in trained}
    if not os.path.isdir(os.path.join(folder, "runs", run)):
      print(f"trains {name}", flush=True)
      steps = sweep["set"]["train.steps"] if name in LEARNS else 1
      settings = {**sweep["set"], **trained, "name": run, "train.steps": steps, "checkpoint.every": steps,
                  "optimizer.warmup_steps": min(steps, 25), "eval.lengths": [WARM]}
      subprocess.run([train, os.path.join(root.ROOT, sweep["config"]), *flags(settings), *more], cwd=folder, check=True,
                     stdout=subprocess.DEVNULL)
  for n in range(ROUNDS):
    for name, (run, settings) in members.items():
      print(f"round {n + 1} of {ROUNDS}: {name}", flush=True)
      found = seconds(train, folder, run, {**settings, "eval.lengths": [WARM, *LENGTHS], "eval.tokens": TOKENS})
      for length, value in found.items():
        times.setdefault(name, {}).setdefault(length, []).append(value)
  start = next(line for line in lines_of(folder, next(iter(members.values()))[0]) if line["type"] == "start")
  return {"commit": start["commit"], "device": bench_table.processor(), "tokens": TOKENS,
          "seconds": times}


def loss(result, name, length):
  return statistics.mean(run["losses"][str(length)] for run in result["runs"] if run["labels"]["attention"] == name)


def draw(cost, losses):
  import matplotlib
  matplotlib.use("Agg")
  from matplotlib import pyplot
  figure, axes = pyplot.subplots(figsize=(9, 6))
  points = sorted((loss(losses, name, 2048), statistics.median(times["2048"]), name)
                  for name, times in cost["seconds"].items())
  for n, (y, x, name) in enumerate(points):  # names in a column of their own: points lie close to each other
    axes.plot(x, y, "o", color="tab:blue")
    axes.annotate(name, (x, y), xytext=(1.03, (n + 0.5) / len(points)), textcoords="axes fraction", fontsize=8,
                  va="center", arrowprops={"arrowstyle": "-", "color": "lightgray"})
  axes.set(xlabel=f"seconds to evaluate {TOKENS:,} tokens in windows of 2048, one CPU",
           ylabel="loss there, nats per token (trained on windows of 128)")
  figure.savefig(PICTURE, dpi=110, bbox_inches="tight")


def table(cost):
  rows = []
  for name in SHOWN:
    times = cost["seconds"][name]
    middles = {length: statistics.median(values) for length, values in times.items()}
    rows.append([name, *(f"{middles[str(length)]:.2f}" for length in LENGTHS)])
  spread = max(max(values) / min(values) for times in cost["seconds"].values() for values in times.values())
  return tables.markdown(["seconds at", *map(str, LENGTHS)], rows) + (
      f"\n\n{TOKENS:,} tokens, one seed; medians of {ROUNDS} rounds, of which the slowest took at most {spread:.2f} "
      f"times the fastest. {cost['device']}, {cost['commit']}.")


def main():
  if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
    print(__doc__)
    sys.exit(0 if sys.argv[1:2] in (["-h"], ["--help"]) else 2)
  train, folder = map(os.path.abspath, sys.argv[1:3])
  if not os.access(train, os.X_OK):
    stop(f"{train} is not a program: make BACKEND=cpu builds it")
  os.makedirs(folder, exist_ok=True)
  with open(FILE, "w", encoding="utf-8") as file:
    json.dump(measure(train, folder, sys.argv[3:]), file, indent=1)
  cost = read_json(FILE)
  replace_block("cost", table(cost))
  draw(cost, read_json(LOSSES))


if __name__ == "__main__":
  run_main(main, "tables and pictures are as they were")
