#!/usr/bin/env python3
"""Models from 124M to 6.7B on 1 to 1024 GPUs, on paper: parameters, work, memory by ZeRO stage and recompute, hours.

    python3 scripts/scale_plan.py [--memory 80GiB] [--context 1024] [--ranks 1,8,64] [--models 350M,1.5B] [--tokens 1e10]

NOTHING HERE IS MEASURED. Parameters, FLOPs and GiB are what ./train --dry-run plans (plan.memory, plan.ranks), with a
micro batch of about 16K tokens, less where a step has fewer on a GPU. A step has 524288 tokens, or one sequence for each
GPU if that is more. Stages 2 and 3 are not implemented: gradients shared too, then the bf16 parameters as well.

Hours: FLOPs / (--peak x --mfu), with recompute=block 4/3 of them, plus the communication that nothing hides. Each of R
ranks sends and receives (R - 1) / R of the float32 gradients, during the backward pass of the last micro step (2/3 of its
time; what takes longer shows), and of the bf16 parameters after the update (all of it shows). --links: GB/s within a
machine of 8 GPUs and between machines; --latency: us for each layer and doubling of R. --mfu is a guess: bench/floors.py
predicts 0.6 for GPT-2 124M on one H200. Evaluations and checkpoints are not counted.
"""
import argparse
import math
import os
import re
import subprocess

import plot
from common import Failure, UserError, run

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "configs", "gpt2_124m_softmax.json")
MODELS = {"124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280), "1.5B": (48, 25, 1600),
          "2.7B": (32, 32, 2560), "6.7B": (32, 32, 4096)}  # layers, heads, channels: GPT-2's, then GPT-3's
UNITS = {unit: 1024 ** power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}
STEP = 2**19  # tokens, if there are no more GPUs than sequences in it


def size(text):
  number, unit = re.fullmatch(r"([\d.]+) ?(\w+)", text).groups()
  return float(number) * UNITS[unit]


class Plan:
  """What ./train plans: parameters, flops (of a token), lines {category: bytes} and total (bytes) of a rank."""

  def __init__(self, arguments, model, ranks, stage, recompute):
    layers, heads, channels = MODELS[model]
    context = arguments.context
    self.layers, self.ranks, self.recompute = layers, ranks, recompute
    self.tokens = max(STEP, ranks * context)
    self.micro = max(1, min(16384 // context, self.tokens // (ranks * context)))
    settings = {"model.layers": layers, "model.heads": heads, "model.channels": channels, "model.context": context,
                "plan.memory": "1024TiB", "plan.ranks": ranks, "precision": "bf16", "train.zero_stage": min(stage, 1),
                "train.recompute": recompute, "batch.micro": self.micro, "batch.tokens": self.tokens, "eval.every": 0}
    command = [os.path.abspath(arguments.train), CONFIG, "--dry-run"]
    for key, value in [*settings.items(), *(text.split("=", 1) for text in arguments.set)]:
      command += ["--set", f"{key}={value}"]
    try:
      done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
      raise UserError(f"--train {command[0]} cannot be run: {error.strerror}; build it with make")
    if done.returncode:
      kind = UserError if done.returncode == 2 else Failure
      raise kind(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    lines = re.findall(r"^  (\S.*?)  +([\d.]+ \w+)\b", done.stdout, re.MULTILINE)
    self.lines = {name: size(text) for name, text in lines}
    self.total = self.lines.pop("in all")
    self.parameters = int(re.search(r"(\d+) parameters", done.stdout)[1])
    self.flops = float(re.search(r"([\d.e+]+) GFLOP a token", done.stdout)[1]) * 1e9
    for category in {2: ["gradients"], 3: ["gradients", "parameters"]}.get(stage, []):
      self.total -= self.lines[category] * (1 - 1 / ranks)

  def seconds(self, arguments):
    """Of a step: of computing, and of the communication that shows. With ZeRO stage 1."""
    extra = 4 / 3 if self.recompute == "block" else 1
    computing = self.tokens / self.ranks * self.flops * extra / (arguments.peak * arguments.mfu)
    if self.ranks == 1:
      return computing, 0.0
    speed = arguments.links[self.ranks > 8] * 1e9
    waits = (self.layers + 1) * math.log2(self.ranks) * arguments.latency * 1e-6
    part = (self.ranks - 1) / self.ranks * self.parameters / speed
    micro_steps = self.tokens / (self.ranks * self.micro * arguments.context)
    hidden = computing / micro_steps * 2 / 3
    return computing, max(0.0, 4 * part + waits - hidden) + 2 * part + waits


def gib(plan, limit):
  return f"{plan.total / 2**30:.1f}" + ("" if plan.total <= 0.92 * limit else " (too much)")


def tables(arguments):
  limit = size(arguments.memory)
  first = {model: Plan(arguments, model, 1, 1, "none") for model in arguments.models}
  yield plot.markdown(["model", "layers x channels", "parameters", "GFLOP a token"],
                      [[model, "%d x %d" % (MODELS[model][0], MODELS[model][2]), f"{plan.parameters:,}",
                        "%.2f" % (plan.flops / 1e9)] for model, plan in first.items()])
  rows, hours = [], []
  for model in arguments.models:
    line = []
    for ranks in arguments.ranks:
      fitting = []
      for recompute in ("none", "gelu", "block"):
        plans = [Plan(arguments, model, ranks, stage, recompute) for stage in (range(4) if ranks > 1 else (0,))]
        rows.append([model, str(ranks), str(plans[0].micro), recompute, *(gib(plan, limit) for plan in plans)])
        rows[-1] += ["-"] * (4 - len(plans))
        fitting += [plan for plan in plans[:2][-1:] if plan.total <= 0.92 * limit]  # stage 1, if there is any
      if fitting:
        computing, waiting = fitting[0].seconds(arguments)
        step = computing + waiting
        line.append("%.3g (%s, %.0f%%)" % (arguments.tokens / fitting[0].tokens * step / 3600, fitting[0].recompute,
                                           100 * waiting / step))
      else:
        line.append("does not fit")
    hours.append([model, *line])
  yield f"GiB on each GPU; too much: beyond 92% of {arguments.memory}. Stages 2 and 3 are not implemented."
  yield plot.markdown(["model", "GPUs", "micro batch", "recompute", "stage 0", "stage 1", "stage 2", "stage 3"], rows)
  yield (f"Hours for {arguments.tokens:.3g} tokens with stage 1 (the first recompute that fits, the share of "
         f"communication), if a GPU reaches {arguments.mfu:.0%} of {arguments.peak / 1e12:.0f} TFLOP/s:")
  yield plot.markdown(["model", *(f"{ranks} GPU{'s' * (ranks > 1)}" for ranks in arguments.ranks)], hours)


def numbers(kind):
  return lambda text: [kind(value) for value in text.split(",")]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--memory", default="80GiB", help="of a GPU, free [80GiB]")
  parser.add_argument("--context", type=int, default=1024)
  parser.add_argument("--ranks", type=numbers(int), default=[1, 8, 64, 256, 1024], metavar="1,8,...")
  parser.add_argument("--models", type=numbers(str), default=list(MODELS), metavar=",".join(MODELS))
  parser.add_argument("--tokens", type=float, default=1e10, help="to train on [1e10]")
  parser.add_argument("--peak", type=float, default=989e12, help="FLOP/s of a GPU by its data sheet [989e12]")
  parser.add_argument("--mfu", type=float, default=0.5, help="share of the peak that a GPU reaches: a guess [0.5]")
  parser.add_argument("--links", type=numbers(float), default=[350.0, 40.0], metavar="GB/S,GB/S",
                      help="of each GPU, within a machine and between machines [350,40]")
  parser.add_argument("--latency", type=float, default=10, help="microseconds [10]")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                      help="as ./train's, such as attention.variant=lssar")
  parser.add_argument("--train", default=os.environ.get("TRAIN", "./train"), help="the program [$TRAIN, else ./train]")
  arguments = parser.parse_args()
  if not re.fullmatch(r"[\d.]+ ?[KMGTP]iB", arguments.memory):
    parser.error(f"--memory {arguments.memory}: must be a size such as 80GiB")
  if unknown := [model for model in arguments.models if model not in MODELS]:
    parser.error(f"--models {unknown[0]}: must be some of {', '.join(MODELS)}")
  print("On paper, not measured:\n")
  print("\n\n".join(tables(arguments)))


if __name__ == "__main__":
  run(main, "nothing was written")
