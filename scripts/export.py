#!/usr/bin/env python3
"""Exports runs to TensorBoard or Weights & Biases, from their metrics.jsonl.

    python3 scripts/export.py runs/a runs/b --to tensorboard      then: tensorboard --logdir runs
    python3 scripts/export.py runs/a --to wandb [--project plusgpt]

Training and validation become curves over the step, named train/loss, val/loss/LENGTH and so on; the loss by position
of an evaluation becomes a curve over the position; runs can be sorted by configuration and last losses. Needs PyTorch
with tensorboard, or tensorboardX; or wandb, whose own variables control the login (WANDB_MODE=offline). TensorBoard's
files are in RUN/tensorboard, and the next export replaces them; wandb makes a new run each time.
"""
import argparse
import glob
import os

import plot
from common import stop


def flat(settings, prefix=""):
  """{"model.layers": 12, ...} of a nested configuration; lists as text, as neither program sorts by them."""
  result = {}
  for key, value in settings.items():
    if isinstance(value, dict):
      result.update(flat(value, f"{prefix}{key}."))
    else:
      result[prefix + key] = value if isinstance(value, (bool, int, float, str)) else str(value)
  return result


class Run(plot.Run):
  """points: (axis, place on it, {name: value}) of every line that is the run's own; last: its last losses."""

  def __init__(self, folder):
    self.points, self.last, self.newest = [], {}, {}
    super().__init__(folder)
    for length, losses in self.newest.items():
      width = plot.bin_width(length)
      for number, loss in enumerate(losses, 1):
        if plot.finite(loss) is not None:
          self.points.append(("position", min(number * width, length), {f"eval/by_position/{length}": loss}))

  def add(self, entry):
    super().add(entry)
    kind = entry["type"]
    if kind in ("train", "skip"):
      values = {f"{kind}/{key}": value for key, value in entry.items() if key != "step"}
    elif kind in ("val", "eval") and self.of_this_run():
      length = entry["length"]
      values = {f"{kind}/{key}/{length}": entry[key] for key in ("loss", "last_loss") if key in entry}
      if isinstance(entry.get("by_position"), list):
        self.newest[length] = entry["by_position"]
    else:
      return
    values = {name: value for name, value in values.items() if plot.finite(value) is not None}
    if values:
      self.points.append(("step", entry["step"], values))
    self.last.update((name, value) for name, value in values.items() if "loss" in name)


def open_tensorboard():
  """SummaryWriter, and the name of its add_hparams' argument for the folder to write into."""
  try:
    from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter, "run_name"
  except ImportError:
    pass
  try:
    from tensorboardX import SummaryWriter
    return SummaryWriter, "name"
  except ImportError as error:
    stop(f"no library for TensorBoard ({error}): pip install tensorboardX tensorboard")


def to_tensorboard(runs):
  SummaryWriter, folder_argument = open_tensorboard()
  for run in runs:
    folder = os.path.join(run.folder, "tensorboard")
    for old in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")):
      os.remove(old)
    writer = SummaryWriter(folder)
    for _, place, values in run.points:
      for name, value in values.items():
        writer.add_scalar(name, value, place)
    writer.add_hparams(flat(run.config), {f"last/{name}": value for name, value in run.last.items()},
                       **{folder_argument: "."})
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
    for axis, place, values in run.points:
      target.log({axis: place, **values})
    target.summary.update({f"last/{name}": value for name, value in run.last.items()})
    target.finish()
    print(f"{run.label}: project {project}")


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--to", required=True, choices=("tensorboard", "wandb"))
  parser.add_argument("--project", default="plusgpt", help="for wandb: the project [plusgpt]")
  arguments = parser.parse_args()
  runs = plot.read_runs(arguments.runs, Run)
  for run in runs:
    if not run.points:
      stop(f"{run.folder}/metrics.jsonl holds nothing to export yet")
  try:
    if arguments.to == "wandb":
      to_wandb(runs, arguments.project)
    else:
      to_tensorboard(runs)
  except OSError as error:
    stop(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
  main()
