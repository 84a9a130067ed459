#!/usr/bin/env python3
"""Tells whether the losses of runs are what their variants have with other seeds.

    python3 scripts/expected.py docs/results/quickstart_cpu.json runs/quickstart_softmax runs/quickstart_lssar

The file is what `sweep.py --results` wrote: losses by length, a run for each value of one axis and each seed. Prints
their mean and range, and below the losses of the runs. A correct run of another seed lies outside the range of n seeds
with a chance of 2 in n + 1 at each length. So a loss counts as unexpected only outside the mean -+ t s sqrt(1 + 1 / n),
which another seed leaves once in a hundred times (s: standard deviation; t: Student's, n - 1 degrees of freedom).
"""
import math
import statistics
import sys

from lib import metrics, results, section_sweep, tables
from lib.common import UserError, run as run_main

SEEDS = 4  # at least: the intervals of fewer hold nearly everything


def bounds(losses):
  """The interval that holds a further seed's loss 99 times in 100."""
  n = len(losses)
  if n < SEEDS:
    raise UserError(f"{n} seeds: at least {SEEDS} are needed to say what another one gives")
  width = metrics.student(0.99, n - 1) * statistics.stdev(losses) * math.sqrt(1 + 1 / n)
  return statistics.mean(losses) - width, statistics.mean(losses) + width


def spread(losses):
  return "%.3f (%.3f to %.3f)" % (statistics.mean(losses), min(losses), max(losses))


def table(result, runs=()):
  """(the table, the losses outside: texts): a row for each variant, mean and range over the seeds, then one a run."""
  (axis, _), = result["axes"].items()
  section, _, key = axis.rpartition(".")
  own = {label: [] for label in section_sweep.grid(result)}
  for run in runs:
    variant = str(metrics.section(run.config, section).get(key))
    if variant not in own:
      raise UserError(f"{run.label}: {axis} is {variant}; there are losses to compare with for {', '.join(own)}")
    if (steps := str(metrics.section(run.config, "train").get("steps"))) != result["steps"]:
      raise UserError(f"{run.label}: train.steps is {steps}; the losses to compare with are of {result['steps']} steps")
    own[variant].append(run)
  rows, outside = [], []
  for label, row in section_sweep.grid(result).items():
    losses = {length: list(cell.losses.values()) for length, cell in row.items()}
    rows.append([f"{label}, {section_sweep.seeds_text(result)}", *map(spread, losses.values())])
    for run in own[label]:
      cells = []
      for length, expected in losses.items():
        if not (found := run.row.get(int(length))):
          cells.append("-")
          outside.append(f"{run.label} at {length}: no loss")
          continue
        low, high = bounds(expected)
        cells.append("%.3f" % found.loss)
        if not low <= found.loss <= high:
          outside.append("%s at %s: %.3f, expected %.3f to %.3f" % (run.label, length, found.loss, low, high))
      rows.append([run.label, *cells])
  return tables.markdown(["validation loss at length", *losses], rows), outside


def main():
  if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
    print(__doc__)
    sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
  try:
    runs = [metrics.Run(folder) for folder in sys.argv[2:]]
  except OSError as error:
    raise UserError(f"{error.filename}: {error.strerror}")
  result = results.read(sys.argv[1])
  try:
    text, outside = table(result, runs)
  except ValueError:
    raise UserError(f"{sys.argv[1]} does not hold losses by length of several seeds and one axis, "
                    "as sweep.py --results writes them")
  print(f"{text}\n\nMean and range of {section_sweep.note(result)}")
  if outside:
    print("NOT as expected. Each loss of a correct run with another seed is outside its interval "
          "once in a hundred times:")
    print("\n".join("  " + line for line in outside))
  else:
    print("All losses of these runs are as expected: inside what 99% of new seeds are expected to give.")


if __name__ == "__main__":
  run_main(main, "run this again")
