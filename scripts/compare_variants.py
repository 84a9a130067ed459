#!/usr/bin/env python3
"""Trains one configuration with several attention variants and seeds, and compares the loss by length.

    python3 scripts/compare_variants.py [--config configs/quickstart.json] [--variants softmax,lssar] [--seeds 1,2,3]
                                        [--set key=value]... [--overwrite] [--results FILE.json] [--picture FILE.png]

Runs ./train ($TRAIN if set) once for each variant and seed, in runs/compare_VARIANT_SEED_HASH, where the hash is that
of the configuration and all --set. --config may also be the folder of a run. All settings are checked before the first
run. A complete run is not repeated, and one that was stopped continues from its newest checkpoint, unless --overwrite
is given. If a run fails the others are still made; Ctrl-C ends the series once the run has saved. Either way the
results are those of the runs that are complete. Prints means and standard deviations over the seeds as a Markdown
table; --results keeps all losses as JSON, with all that is needed to repeat them and what failed; --picture draws the
table.
"""
import argparse
import hashlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import metrics
import plot
from common import die_of_interrupt, run as run_main, settings, stop

VARIANTS = "softmax,softmax_qknorm,lssa,lssar,sigmoid_gated,softplus_gated,lssar_softplus_gated"
OWN = ("name", "seed", "attention.variant", "attention.kind")  # the series sets these, the last by way of the variant

STOPPED = {-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT, 128 + signal.SIGTERM}  # exit codes


def complete(folder):
  """The run, if every length was evaluated at its last step; else None."""
  try:
    run = metrics.Run(folder)
    steps, lengths = run.config["train"]["steps"], run.config["eval"]["lengths"]
  except (OSError, KeyError):
    return None
  return run if run.step() == steps and all(length in run.row for length in lengths) else None


def unevaluated(folder):
  """Whether the run has trained all its steps, so that continuing it would change nothing."""
  try:
    run = metrics.Run(folder)
  except OSError:
    return False
  return bool(run.lines) and run.lines[-1]["step"] == metrics.section(run.config, "train").get("steps")


def duration(seconds):
  return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 1):.0f} s"


def check(program, commands):
  """Ends the script if ./train refuses the settings of a run, would not evaluate it, or if two variants are the same.
  commands: {(variant, seed): arguments of ./train}."""
  kinds = {}
  for (variant, _), command in commands.items():
    found = settings(program, *command)
    if not found["eval"]["every"]:
      stop("eval.every = 0: no run would be evaluated; give --set eval.every=N with N above 0 (the last step always is)")
    if found["eval"]["mode"] != "windows":
      stop(f"eval.mode = {found['eval']['mode']}: only evaluations in mode windows are compared; give --set eval.mode=windows")
    del found["attention"]["variant"]
    same = kinds.setdefault(json.dumps(found["attention"], sort_keys=True), variant)
    if same != variant:
      stop(f"{same} and {variant} are the same attention with these --set; leave out one of the variants or the --set attention.*")


def train(command):
  """Exit code and output. After Ctrl-C it waits until the program has saved; a second one reaches the program too."""
  with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as output:
    program, interrupted = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT), False
    while True:
      try:
        code = program.wait()
        break
      except KeyboardInterrupt:
        interrupted = True
        program.send_signal(signal.SIGINT)
    output.seek(0)
    return -signal.SIGINT if interrupted else code, output.read()


def collect(arguments):
  """Trains what is missing. Returns {variant: [complete runs]}, {name of a run that failed: why}, and whether Ctrl-C, or a
  signal to a run, ended the series."""
  program = arguments.train
  try:
    with open(arguments.config, encoding="utf-8") as file:
      digest = hashlib.sha256("\0".join([file.read(), *arguments.set]).encode()).hexdigest()[:8]
  except (OSError, UnicodeDecodeError) as error:
    stop(f"{arguments.config}: {getattr(error, 'strerror', error)}")
  folders = {(variant, seed): f"compare_{variant}_{seed}_{digest}"
             for variant in arguments.variants for seed in arguments.seeds}
  runs = {key: None if arguments.overwrite else complete(os.path.join("runs", name)) for key, name in folders.items()}
  missing, failed, stopped, start = [key for key, run in runs.items() if not run], {}, False, time.monotonic()
  commands = {}
  for variant, seed in missing:
    commands[variant, seed] = [arguments.config]
    for setting in [f"name={folders[variant, seed]}", f"attention.variant={variant}", f"seed={seed}"] + arguments.set:
      commands[variant, seed] += ["--set", setting]
  check(program, commands)
  for number, (variant, seed) in enumerate(missing):
    left = f", about {duration((time.monotonic() - start) / number * (len(missing) - number))} left" if number else ""
    print(f"{number + 1}/{len(missing)}: {variant}, seed {seed}{left}", file=sys.stderr, flush=True)
    name = folders[variant, seed]
    command = [os.path.abspath(program), *commands[variant, seed], "--overwrite" if arguments.overwrite else "--resume"]
    code, output = train(command)
    if code == 0 or code in STOPPED:
      runs[variant, seed] = complete(os.path.join("runs", name))
    if code == 0 and not runs[variant, seed] and unevaluated(os.path.join("runs", name)):
      failed[name] = "it has trained all steps, but lacks a finite validation loss at some of eval.lengths"
      continue
    if code in STOPPED or (code == 0 and not runs[variant, seed]):  # 0: a program that ends well when it is told to stop
      print(f"compare_variants.py: stopped in {name}; run this again, without --overwrite, to continue", file=sys.stderr)
      stopped = True
      break
    if code:
      failed[name] = f"exit code {code}: {(output.strip().splitlines() or ['no output'])[-1]}"
      print(f"{output}\ncompare_variants.py: {' '.join(command)} failed with exit code {code}", file=sys.stderr, flush=True)
  return {variant: [runs[variant, seed] for seed in arguments.seeds if runs[variant, seed]]
          for variant in arguments.variants}, failed, stopped


def spread(values):
  return statistics.stdev(values) if len(values) > 1 else 0.0


def summary(runs, failed, arguments):
  first = next(run for seeds in runs.values() for run in seeds)
  lengths = sorted(first.config["eval"]["lengths"])
  losses = {variant: {length: [run.row[length].loss for run in seeds] for length in lengths}
            for variant, seeds in runs.items() if seeds}
  return {"config": arguments.config, "set": arguments.set, "seeds": arguments.seeds, "commit": first.start.get("commit"),
          "device": first.start.get("device"), "context": first.context(), "steps": first.config["train"]["steps"],
          "tokens_per_step": first.config["batch"]["tokens"], "lengths": lengths, "losses": losses, "failed": failed}


def table(result):
  """Rows with fewer seeds than the others say so."""
  rows = ["| validation loss at length | " + " | ".join(map(str, result["lengths"])) + " |",
          "|---|" + "---|" * len(result["lengths"])]
  for variant, losses in result["losses"].items():
    cells, seeds, of = [], len(next(iter(losses.values()))), len(result["seeds"])
    for values in losses.values():
      cells.append(f"{statistics.mean(values):.3f} ± {spread(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}")
    rows.append(f"| {variant}{f' ({seeds} of {of} seeds)' if seeds < of else ''} | " + " | ".join(cells) + " |")
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


def distinct(kind, example):
  """The type of an option with values of a kind, separated by commas."""
  def parse(text):
    try:
      values = [kind(value) for value in text.split(",")]
    except ValueError:
      raise argparse.ArgumentTypeError(f"{text!r} is not a list such as {example}")
    if len(set(values)) < len(values):
      raise argparse.ArgumentTypeError(f"{text!r} has a value twice, which would train and count one run twice")
    return values
  return parse


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--config", default="configs/quickstart.json")
  parser.add_argument("--variants", default=VARIANTS, type=distinct(str, "softmax,lssar"), metavar="A,B,...")
  parser.add_argument("--seeds", default="1337,1338,1339", type=distinct(int, "1,2,3"), metavar="N,M,...")
  parser.add_argument("--train", default=os.environ.get("TRAIN", "./train"), help="the program [$TRAIN, else ./train]")
  parser.add_argument("--set", action="append", default=[], metavar="key=value", help="passed on to every run")
  parser.add_argument("--overwrite", action="store_true", help="train every run anew, complete ones too")
  parser.add_argument("--results", metavar="FILE.json")
  parser.add_argument("--picture", metavar="FILE.png")
  arguments = parser.parse_args()
  for path in (arguments.results, arguments.picture):  # not after hours of training
    if path and not os.path.isdir(os.path.dirname(path) or "."):
      parser.error(f"{path}: there is no folder {os.path.dirname(path)}")
  for setting in arguments.set:
    if setting.partition("=")[0] in OWN:
      parser.error(f"--set {setting}: the series sets {', '.join(OWN)} itself; use --variants and --seeds")
  if os.path.isdir(arguments.config):
    arguments.config = os.path.join(arguments.config, "config.json")
  drawable = not arguments.picture or importlib.util.find_spec("matplotlib")
  if not drawable:
    print("compare_variants.py: no picture will be drawn: install matplotlib (pip install matplotlib); then run this again",
          file=sys.stderr, flush=True)
  signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, or ./train would go on alone
  runs, failed, stopped = collect(arguments)
  if any(runs.values()):
    result = summary(runs, failed, arguments)
    print(table(result), flush=True)
    if arguments.results:
      with open(arguments.results, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    if arguments.picture and drawable:
      draw(result, arguments.picture)
  for name, reason in failed.items():
    print(f"compare_variants.py: runs/{name} failed: {reason}", file=sys.stderr)
  if stopped:
    die_of_interrupt()
  sys.exit(1 if failed else 0 if drawable else 2)


if __name__ == "__main__":
  run_main(main, "run this again, without --overwrite, to continue")
