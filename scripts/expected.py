#!/usr/bin/env python3
"""Tells whether the losses of runs are what their variants have with other seeds.

    python3 scripts/expected.py docs/results/quickstart_cpu.json runs/quickstart_softmax ...

The file is what `sweep.py --results` wrote: losses by length, a run for each value of one axis and
each seed. Prints their mean and range, and below the losses of the runs. A correct run of another
seed lies outside the range of n seeds with a chance of 2 in n + 1 at each length. So a loss is
unexpected only outside the mean -+ t s sqrt(1 + 1 / n), which another seed leaves once in a hundred
times (s: standard deviation; t: Student's, n - 1 degrees of freedom).
"""
import sys

from lib import metrics, results, section_sweep, tables
from lib.common import UserError, run as run_main

SEEDS = 4  # at least: the intervals of fewer hold nearly everything


def bounds(losses):
  """By row of a table, a column for each seed: what holds a further seed's loss 99 times in 100."""
  found = results.statistics(losses, 0.99)
  if (few := found["count"].min()) < SEEDS:
    raise UserError(f"{few} seeds: at least {SEEDS} are needed to say what another one gives")
  width = found["half"] * (found["count"] + 1) ** 0.5  # a mean's comes from 1 / n, this from 1 + 1 / n
  return (found["mean"] - width).tolist(), (found["mean"] + width).tolist()


def check_run(run, axis, result):
  """A UserError unless there are losses to compare the run's with; else its label."""
  section, _, key = axis.rpartition(".")
  label = str(metrics.section(run.config, section).get(key))
  if label not in result["axes"][axis]:
    known = ", ".join(result["axes"][axis])
    raise UserError(f"{run.label}: {axis} is {label}; there are losses to compare with for {known}")
  steps = str(metrics.section(run.config, "train").get("steps"))
  if steps != result["steps"]:
    raise UserError(f"{run.label}: train.steps is {steps}; "
                    f"the losses to compare with are of {result['steps']} steps")
  return label


def table(result, runs=()):
  """(the table, the losses outside): mean and range of each variant, then its runs' losses."""
  (axis, labels), = result["axes"].items()
  owners = [check_run(run, axis, result) for run in runs]
  losses, lengths = results.Grid(result).by_seed(), [*map(str, result["lengths"])]
  rows, outside = [], []
  for label in labels:
    known = losses.loc[label].loc[lengths]
    spread = zip(known.mean(axis=1), known.min(axis=1), known.max(axis=1))
    rows.append([f"{label}, {section_sweep.seeds_text(result)}",
                 *("%.3f (%.3f to %.3f)" % numbers for numbers in spread)])
    for run, owner in zip(runs, owners):
      if owner != label:
        continue
      by_length = run.by_length()
      found = [by_length.get(length, {}).get("loss") for length in result["lengths"]]
      rows.append([run.label, *("-" if loss is None else "%.3f" % loss for loss in found)])
      for length, loss, low, high in zip(lengths, found, *bounds(known)):
        where = f"{run.label} at {length}"
        if loss is None:
          outside.append(f"{where}: no loss")
        elif not low <= loss <= high:
          outside.append(f"{where}: {loss:.3f}, expected {low:.3f} to {high:.3f}")
  return tables.markdown(["validation loss at length", *lengths], rows), outside


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
