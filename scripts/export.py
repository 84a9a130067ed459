#!/usr/bin/env python3
"""Exports runs to TensorBoard or Weights & Biases, from their metrics.jsonl.

    python3 scripts/export.py runs/a runs/b --to tensorboard      then: tensorboard --logdir runs
    python3 scripts/export.py runs/a --to wandb [--project plusgpt]

docs/comparing.md says what becomes a curve. Needs PyTorch with tensorboard, tensorboardX or wandb.
"""
import collections
import glob
import importlib
import os

from lib import metrics
from lib.common import ArgumentParser, run as run_main, stop


def numbers(values):
  return {name: value for name, value in values.items() if metrics.finite(value) is not None}


def losses(row):
  kind = row["type"] + "/suffix" * (row["mode"] == "suffix")
  keys = "loss", "last_loss", "bits_per_byte", "accuracy", "exact"
  return numbers({f"{kind}/{key}/{row['length']}": row.get(key) for key in keys})


def of_series(run):
  """The losses of the series that is evaluated while training, else of the last, in each mode."""
  found = run.of_series("windows") + run.of_series("suffix")
  return sorted(found, key=lambda row: (row["step"], row.get("time") or 0))


def points(run):
  """(axis, place on it, Unix time or None, {name: value}) of every line that is the run's own."""
  found = []
  for row in run.lines:
    values = {f"{row['type']}/{key}": value for key, value in row.items()
              if key not in ("step", "time", "config")}
    found.append(("step", row["step"], row.get("time"), numbers(values)))
  # By step: libraries call the point that comes last the newest.
  found += [("step", row["step"], row.get("time"), losses(row)) for row in of_series(run)]
  for step, time, learned in sorted(run.learned, key=lambda item: item[0]):
    values = {f"learned/{name}/{layer}/{head}": value for name, layers in learned.items()
              for layer, heads in enumerate(layers) for head, value in enumerate(heads)}
    found.append(("step", step, time, numbers(values)))
  for row in run.by_length().values():
    for loss, last in zip(row["by_position"], row["position_edges"][1:]):
      value = numbers({f"eval/by_position/{row['length']}": loss})
      found.append(("position", last, row.get("time"), value))
  return [point for point in found if point[3]]


def last(run):
  """The losses that runs are sorted by: the newest of each length, and the last in training."""
  result = {"last/train/loss": loss for _, loss in run.train()[-1:]}
  for row in [*run.by_length("windows").values(), *run.by_length("suffix").values()]:
    result.update((f"last/{name}", value) for name, value in losses(row).items())
  return result


def open_tensorboard():
  """SummaryWriter, and the function that makes the summaries of a configuration and last losses."""
  for package in ("torch.utils.tensorboard", "tensorboardX"):
    try:
      module = importlib.import_module(package)
      return module.SummaryWriter, importlib.import_module(package + ".summary").hparams
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
    # Not add_hparams(): it opens another writer, whose file tensorboardX may give the same name.
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
    # Its own counter only goes up, but an earlier step may be evaluated, and positions begin again.
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
    foreign = collections.Counter(f"of the weights of {row['weights.run']}" for row in run.foreign)
    left_out = run.left_out + foreign
    evaluations = len(run.losses("windows") + run.losses("suffix"))
    left_out["of another series"] = evaluations - len(of_series(run))
    if what := ", ".join(f"{number} {why}" for why, number in left_out.items() if number):
      print(f"{run.label}: evaluations left out: {what}")
  try:
    if arguments.to == "wandb":
      to_wandb(runs, arguments.project)
    else:
      to_tensorboard(runs)
  except OSError as error:
    stop(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
  run_main(main, "the export is not complete")
