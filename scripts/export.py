#!/usr/bin/env python3
"""Exports runs to TensorBoard or Weights & Biases, from their metrics.jsonl.

    python3 scripts/export.py runs/a runs/b --to tensorboard      then: tensorboard --logdir runs
    python3 scripts/export.py runs/a --to wandb [--project plusgpt]

docs/comparing.md says what becomes a curve. Needs PyTorch with tensorboard, or tensorboardX; or wandb.
"""
import glob
import importlib
import os

from lib import metrics
from lib.common import ArgumentParser, run as run_main, stop


def points(run):
  """(axis, place on it, Unix time or None, {name: value}) of every line that is the run's own."""
  found = [("step", line["step"], line.get("time"),
            {f"{line['type']}/{key}": value for key, value in line.items() if key not in ("step", "time")})
           for line in run.lines]
  # By step: libraries call the point that comes last the newest.
  found += [("step", e.step, e.time, losses(e))
            for e in sorted(run.evaluations + run.suffixes, key=lambda e: (e.step, e.time or 0))]
  found += [("step", step, time, {f"learned/{name}/{layer}/{head}": value for name, layers in learned.items()
                                  for layer, heads in enumerate(layers) for head, value in enumerate(heads)})
            for step, (time, learned) in sorted(run.learned.items())]
  found += [("position", last, e.time, {f"eval/by_position/{length}": loss})
            for length, e in run.row.items() for loss, last in zip(e.by_position, e.edges[1:])]
  numbers = lambda values: {name: value for name, value in values.items() if metrics.finite(value) is not None}
  found = [(axis, place, metrics.finite(time), numbers(values)) for axis, place, time, values in found]
  return [point for point in found if point[3]]


def losses(evaluation):
  kind = evaluation.type + "/suffix" * bool(evaluation.targets)
  numbers = {key: getattr(evaluation, key) for key in ("loss", "last_loss", "bits_per_byte", "accuracy", "exact")}
  return {f"{kind}/{key}/{evaluation.length}": number for key, number in numbers.items() if number is not None}


def last(run):
  """The losses that runs are sorted by: those of the row and of the contexts, and the last in training."""
  result = {"last/train/loss": loss for _, loss in run.train()[-1:]}
  of_row = [e for e in run.evaluations if e.step == run.step()]
  for e in of_row + [*run.contexts.values()]:
    result.update((f"last/{name}", value) for name, value in losses(e).items())
  return result


def open_tensorboard():
  """SummaryWriter, and the function that makes the summaries of a configuration and last losses."""
  for package in ("torch.utils.tensorboard", "tensorboardX"):
    try:
      return importlib.import_module(package).SummaryWriter, importlib.import_module(package + ".summary").hparams
    except ImportError as error:
      missing = error
  stop(f"no library for TensorBoard ({missing}): pip install tensorboardX tensorboard")


def to_tensorboard(runs):
  SummaryWriter, hparams = open_tensorboard()
  for run in runs:
    folder = os.path.join(run.folder, "tensorboard")
    for old in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")):
      os.remove(old)
    writer = SummaryWriter(folder)
    for _, place, time, values in points(run):
      for name, value in values.items():
        writer.add_scalar(name, value, place, walltime=time)
    # Not add_hparams(): it opens another writer, and tensorboardX gives both files the same name within a second.
    for summary in hparams(metrics.flat(run.config), last(run)):
      writer.file_writer.add_summary(summary)
    for name, value in last(run).items():
      writer.add_scalar(name, value)
    writer.close()
    print(f"{run.label}: {folder}")


def to_wandb(runs, project):
  try:
    import wandb
  except ImportError as error:
    stop(f"no library for Weights & Biases ({error}): pip install wandb")
  for run in runs:
    try:
      target = wandb.init(project=project, name=run.label, config=run.config,
                          dir=os.environ.get("WANDB_DIR", run.folder))
    except wandb.Error as error:
      stop(f"wandb: {error}; log in with `wandb login`, or set WANDB_MODE=offline and `wandb sync` later")
    # Its own counter only goes up, but an evaluation may be of an earlier step, and positions begin again.
    target.define_metric("*", step_metric="step")
    target.define_metric("eval/by_position/*", step_metric="position")
    for axis, place, time, values in points(run):
      target.log({axis: place, **({"time": time} if time else {}), **values})
    target.summary.update(last(run))
    target.finish()
    print(f"{run.label}: project {project}")


def main():
  parser = ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--to", required=True, choices=("tensorboard", "wandb"))
  parser.add_argument("--project", default="plusgpt", help="for wandb: the project [plusgpt]")
  arguments = parser.parse_args()
  runs = metrics.read_runs(arguments.runs)
  for run in runs:
    if not points(run):
      stop(f"{run.folder}/metrics.jsonl holds nothing to export yet")
    if run.note():
      print(run.note())
  try:
    if arguments.to == "wandb":
      to_wandb(runs, arguments.project)
    else:
      to_tensorboard(runs)
  except OSError as error:
    stop(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
  run_main(main, "the export is not complete")
