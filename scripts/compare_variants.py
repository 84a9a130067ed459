#!/usr/bin/env python3
"""Trains one configuration with several attention variants and seeds, and compares the loss by length.

    python3 scripts/compare_variants.py [--config configs/quickstart.json] [--variants softmax,lssar] [--seeds 1,2,3]
                                        [--set key=value]... [--results FILE.json] [--picture FILE.png]

Runs ./train ($TRAIN if set) once for each variant and seed, in runs/compare_VARIANT_SEED_HASH, where the hash is that of
the configuration and all --set. A complete run is not repeated: the script continues where it was stopped. Prints means
and standard deviations over the seeds as a Markdown table; --results keeps all losses as JSON, with all that is needed
to repeat them; --picture draws the table.
"""
import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

import metrics
import plot
from common import stop

VARIANTS = "softmax,softmax_qknorm,lssa,lssar,sigmoid_gated,softplus_gated,lssar_softplus_gated"


def complete(folder):
  """The run, if its metrics reach the last step and every length was evaluated there; else None."""
  try:
    run = metrics.Run(folder)
    steps, lengths = run.config["train"]["steps"], run.config["eval"]["lengths"]
  except (OSError, KeyError):
    return None
  return run if all(run.step() == steps and length in run.row for length in lengths) else None


def duration(seconds):
  return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"


def collect(arguments):
  """{variant: [run of each seed]}; trains what is missing."""
  program = os.environ.get("TRAIN", "./train")
  try:
    with open(arguments.config, encoding="utf-8") as file:
      settings = hashlib.sha256("\0".join([file.read(), *arguments.set]).encode()).hexdigest()[:8]
  except (OSError, UnicodeDecodeError) as error:
    stop(f"{arguments.config}: {error}")
  folders = {(variant, seed): f"compare_{variant}_{seed}_{settings}" for variant in arguments.variants for seed in arguments.seeds}
  missing = [key for key, name in folders.items() if not complete(os.path.join("runs", name))]
  start = time.monotonic()
  for number, (variant, seed) in enumerate(missing):
    left = f", about {duration((time.monotonic() - start) / number * (len(missing) - number))} left" if number else ""
    print(f"{number + 1}/{len(missing)}: {variant}, seed {seed}{left}", file=sys.stderr, flush=True)
    name = folders[variant, seed]
    command = [program, arguments.config, "--overwrite"]
    for setting in [f"name={name}", f"attention.variant={variant}", f"seed={seed}"] + arguments.set:
      command += ["--set", setting]
    try:
      done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
      stop(f"{program}: {error.strerror}; build it with make, or name it in $TRAIN")
    if done.returncode or not complete(os.path.join("runs", name)):
      sys.exit(f"{done.stdout}\ncompare_variants.py: {' '.join(command)} failed with exit code {done.returncode}")
  return {variant: [complete(os.path.join("runs", folders[variant, seed])) for seed in arguments.seeds]
          for variant in arguments.variants}


def spread(values):
  return statistics.stdev(values) if len(values) > 1 else 0.0


def summary(runs, arguments):
  first = next(iter(runs.values()))[0]
  with open(os.path.join(first.folder, "metrics.jsonl"), encoding="utf-8") as lines:
    start = json.loads(next(lines))
  lengths = sorted(first.row)
  losses = {variant: {length: [run.row[length].loss for run in seeds] for length in lengths} for variant, seeds in runs.items()}
  return {"config": arguments.config, "set": arguments.set, "seeds": arguments.seeds, "commit": start.get("commit"),
          "device": start.get("device"), "context": first.context(), "steps": first.config["train"]["steps"],
          "tokens_per_step": first.config["batch"]["tokens"], "lengths": lengths, "losses": losses}


def table(result):
  rows = ["| validation loss at length | " + " | ".join(map(str, result["lengths"])) + " |",
          "|---|" + "---|" * len(result["lengths"])]
  for variant, losses in result["losses"].items():
    cells = []
    for values in losses.values():
      cells.append(f"{statistics.mean(values):.3f} ± {spread(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}")
    rows.append(f"| {variant} | " + " | ".join(cells) + " |")
  return "\n".join(rows)


def draw(result, path):
  pyplot, ticker = plot.load_pyplot()
  figure, axes = pyplot.subplots(figsize=(7.5, 4.6), constrained_layout=True)
  lengths = result["lengths"]
  for number, (variant, losses) in enumerate(result["losses"].items()):
    means, errors = [statistics.mean(v) for v in losses.values()], [spread(v) for v in losses.values()]
    axes.errorbar(lengths, means, yerr=errors, fmt="o-", capsize=3, markersize=4, linewidth=1.6, label=variant,
                  color=plot.COLOURS[number % len(plot.COLOURS)])
  plot.length_axis(axes, ticker, lengths)
  axes.axvline(result["context"], color="#888888", linewidth=1, linestyle=(0, (4, 3)))
  axes.set(xlabel="evaluated length (tokens); the dashed line is the trained one", ylabel="validation loss (nats per token)",
           title=f"mean and standard deviation of {len(result['seeds'])} seeds")
  axes.grid(color="#e4e4e4")
  axes.set_axisbelow(True)
  axes.spines[["top", "right"]].set_visible(False)
  axes.legend(frameon=False)
  figure.savefig(path, dpi=150)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--config", default="configs/quickstart.json")
  parser.add_argument("--variants", default=VARIANTS, type=lambda text: text.split(","), metavar="A,B,...")
  parser.add_argument("--seeds", default="1337,1338,1339", type=lambda text: [int(seed) for seed in text.split(",")], metavar="N,M,...")
  parser.add_argument("--set", action="append", default=[], metavar="key=value", help="passed on to every run")
  parser.add_argument("--results", metavar="FILE.json")
  parser.add_argument("--picture", metavar="FILE.png")
  arguments = parser.parse_args()
  for path in (arguments.results, arguments.picture):  # not after hours of training
    if path and not os.path.isdir(os.path.dirname(path) or "."):
      parser.error(f"{path}: there is no folder {os.path.dirname(path)}")
  result = summary(collect(arguments), arguments)
  if arguments.results:
    with open(arguments.results, "w", encoding="utf-8") as file:
      json.dump(result, file, indent=1)
      file.write("\n")
  if arguments.picture:
    draw(result, arguments.picture)
  print(table(result))


if __name__ == "__main__":
  main()
