#!/usr/bin/env python3
"""Draws one or several runs over each other, and prints their loss by length as a Markdown table.

    python3 scripts/plot.py runs/a runs/b [--out FILE.png] [--brief]

The picture shows the loss and the loss by length; if `--eval` was run, also the loss by position in the longest windows;
below them the gradient norm, the learning rate and the tokens per second. --brief draws only the first two. Reads
RUN/metrics.jsonl and skips damaged lines. Without --out the picture is RUN/loss.png of the first run.
"""
import argparse
import json
import os
import sys

from common import stop


def load_pyplot():
  try:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
  except ImportError:
    stop(f"{sys.executable} has no matplotlib; use the Python that scripts/install_deps.sh installed it for (/usr/bin/python3)")
  return pyplot, ticker


COLOURS = ["#2563a8", "#d1603d", "#3a8f5c", "#8a4f9e", "#b08a1e", "#4c9aa8", "#a13d5b", "#5d6470"]


def finite(value):
  """The value if it is a number that can be drawn, else None: a loss that exploded, or something else in its place."""
  return value if type(value) in (int, float) and abs(value) < 1e30 else None


def count(value, least=0):
  if type(value) is not int or not least <= value < 1 << 53:
    raise ValueError("not a number of steps or tokens")
  return value


def bin_width(length):
  """Of the bins of positions that a window of this length is evaluated in (eval/evaluate.cu)."""
  return max(1, min(256, length // 32))


def section(settings, name):
  found = settings.get(name)
  return found if isinstance(found, dict) else {}


class Run:
  """What metrics.jsonl says: config, (step, loss) of training and validation, {length: (step, loss)} of evaluation and,
  by --eval, {length: (step, [loss of each bin of positions])}."""

  def __init__(self, folder):
    path = folder if folder.endswith(".jsonl") else os.path.join(folder, "metrics.jsonl")
    self.folder = os.path.dirname(path) or "."
    self.label = os.path.basename(os.path.abspath(self.folder))
    self.config, self.train, self.curve, self.by_length, self.by_position = {}, [], [], {}, {}
    self.lines = []   # training, whole
    self.latest = {}  # the configuration of the lines that follow
    with open(path, encoding="utf-8", errors="replace") as lines:
      for line in lines:
        try:
          self.add(json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
          continue

  def add(self, entry):
    kind, loss = entry["type"], finite(entry.get("loss"))
    if kind == "start":
      self.latest = {**entry["config"]}  # a TypeError unless it is an object
      self.config = self.config or self.latest
      return
    step = count(entry["step"])
    length = count(entry["length"], 1) if kind in ("val", "eval") else 0
    if kind == "train" and loss is not None:
      self.train.append((step, loss))
      self.lines.append(entry)
    elif kind in ("val", "eval") and loss is not None and self.of_this_run():
      if kind == "val" and length == self.context():
        self.curve.append((step, loss))
      if step >= self.by_length.get(length, (-1,))[0]:
        self.by_length[length] = (step, loss)
      bins = entry.get("by_position")
      if isinstance(bins, list) and bins and None not in map(finite, bins) and step >= self.by_position.get(length, (-1,))[0]:
        self.by_position[length] = (step, bins)

  def of_this_run(self):
    """False for an evaluation with other settings than the run's first, which would replace the run's own."""
    pick = lambda c: [c.get(key) for key in ("model", "attention", "precision", "init")] + [
        section(c, "eval").get("rope_scaling")]
    return pick(self.latest) == pick(self.config)

  def context(self):
    return finite(section(self.config, "model").get("context"))


def read_runs(folders, kind=Run):
  """A kind(folder) of each. Runs whose folders have the same name get as much of the path as tells them apart as labels."""
  try:
    runs = [kind(folder) for folder in folders]
  except OSError as error:
    stop(f"{error.filename}: {error.strerror}")
  parts = [os.path.abspath(run.folder).split(os.sep) for run in runs]
  for number, run in enumerate(runs):
    others = [other for other in parts if other != parts[number]]
    depth = 1
    while any(other[-depth:] == parts[number][-depth:] for other in others):
      depth += 1
    run.label = os.sep.join(parts[number][-depth:])
  return runs


def in_text(label):
  """Escaped: matplotlib would read text between two $ as a formula."""
  return label.replace("$", r"\$")


def smooth(losses):
  """The mean over a window around each step, a fiftieth of the run wide; narrower where the loss falls at the start."""
  sums = [0.0]
  for loss in losses:
    sums.append(sums[-1] + loss)
  result = []
  for i in range(len(losses)):
    before = min(i, max(1, len(losses) // 100))
    after = min(before, len(losses) - 1 - i)
    result.append((sums[i + after + 1] - sums[i - before]) / (before + after + 1))
  return result


def table(runs):
  lengths = sorted({length for run in runs for length in run.by_length})
  rows = ["| validation loss at length | " + " | ".join(str(length) for length in lengths) + " |",
          "|---|" + "---|" * len(lengths)]
  for run in runs:
    cells = ["%.3f" % run.by_length[length][1] if length in run.by_length else "-" for length in lengths]
    rows.append("| " + " | ".join([run.label] + cells) + " |")
  return "\n".join(rows)


DETAILS = (("grad_norm", "Gradient norm", "before clipping"), ("lr", "Learning rate", ""), ("tokens_per_s", "Speed", "tokens per second"))


def draw_details(runs, panels):
  for axes, (key, title, label) in zip(panels, DETAILS):
    for number, run in enumerate(runs):
      points = [(entry["step"], entry[key]) for entry in run.lines if finite(entry.get(key)) is not None]
      if points:
        axes.plot(*zip(*points), color=COLOURS[number % len(COLOURS)], linewidth=1.0, alpha=0.9)
    axes.set(title=title, xlabel="step", ylabel=label, ylim=(0, None))


def draw_positions(runs, axes, ticker):
  """The loss by position in each run's longest windows."""
  longest = set()
  for number, run in enumerate(runs):
    if not run.by_position:
      continue
    length = max(run.by_position)
    longest.add(length)
    bins = run.by_position[length][1]
    width = bin_width(length)
    middles = [(first + min(first + width, length) + 1) / 2 for first in range(0, length, width)]
    axes.plot(middles[:len(bins)], bins[:len(middles)], color=COLOURS[number % len(COLOURS)], linewidth=1.4, label=in_text(run.label))
  of = f"windows of {max(longest)}" if len(longest) == 1 else "the longest windows"
  axes.set(title=f"Loss by position in {of}", xlabel="position (token)", ylabel="loss (nats per token)")
  length_axis(axes, ticker)


def length_axis(axes, ticker, lengths=None):
  """The x axis as lengths: powers of two, or these."""
  axes.set_xscale("log", base=2)
  if lengths:
    axes.xaxis.set_major_locator(ticker.FixedLocator(lengths))
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(
      lambda x, _: "%d" % x if x < 4096 else "%gK" % round(x / 1024, 1)))
  axes.xaxis.set_minor_locator(ticker.NullLocator())


def draw(runs, path, brief=False):
  pyplot, ticker = load_pyplot()
  pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                          "axes.titlelocation": "left", "axes.titleweight": "bold", "grid.color": "#e4e4e4",
                          "axes.axisbelow": True, "legend.frameon": False})
  positions = not brief and any(run.by_position for run in runs)
  if brief:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
  else:
    figure = pyplot.figure(figsize=(15 if positions else 11, 7), constrained_layout=True)
    grid = figure.add_gridspec(2, 6, height_ratios=(3, 2))
    width = 2 if positions else 3
    left, right = figure.add_subplot(grid[0, :width]), figure.add_subplot(grid[0, width:2 * width])
    draw_details(runs, [figure.add_subplot(grid[1, 2 * n:2 * n + 2]) for n in range(3)])
  by_length = [right]
  if positions:
    by_length.append(figure.add_subplot(grid[0, 4:], sharey=right))
    draw_positions(runs, by_length[1], ticker)
  for number, run in enumerate(runs):
    colour = COLOURS[number % len(COLOURS)]
    if run.train:
      steps, losses = zip(*run.train)
      left.plot(steps, losses, color=colour, alpha=0.18, linewidth=0.8)
      left.plot(steps, smooth(losses), color=colour, linewidth=1.6, label=in_text(run.label))
    if run.curve:
      left.plot(*zip(*run.curve), "o", color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.6,
                label=None if run.train else in_text(run.label))
    if run.by_length:
      lengths = sorted(run.by_length)
      right.plot(lengths, [run.by_length[length][1] for length in lengths], "o-", color=colour, linewidth=1.6,
                 markersize=5, label=in_text(run.label))
  left.set(title="Training" + (" (line) and validation (dots)" if any(run.curve for run in runs) else ""),
           xlabel="step", ylabel="loss (nats per token)")
  # The first steps fall from ln(vocabulary); on a linear axis they would squeeze everything after them.
  late = [loss for run in runs for loss in smooth([loss for _, loss in run.train])[len(run.train) // 30:]]
  late += [loss for run in runs for step, loss in run.curve if step > 0]
  if late:
    spread = max(late) - min(late) or 1.0
    left.set_ylim(min(late) - 0.08 * spread, max(late) + 0.12 * spread)
  lengths = sorted({length for run in runs for length in run.by_length})
  right.set(title="Validation loss by length", xlabel="evaluated length (tokens)", ylabel="loss (nats per token)")
  if lengths:
    length_axis(right, ticker, lengths)
    right.margins(x=0.06, y=0.12)
  for context in sorted({run.context() for run in runs if run.context()}):
    for axes in by_length:
      axes.axvline(context, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
    right.annotate("trained length", (context, 1), xycoords=("data", "axes fraction"), xytext=(4, -2),
                   textcoords="offset points", va="top", fontsize=8.5, color="#666666")
  for axes in (left, right):
    if axes.get_legend_handles_labels()[0]:
      axes.legend(loc="best")
  if not lengths:
    right.text(0.5, 0.5, "no evaluation yet", ha="center", va="center", transform=right.transAxes, color="#888888")
  figure.savefig(path, dpi=150)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--out", metavar="FILE.png", help="the picture, or a folder for loss.png [the first run's]")
  parser.add_argument("--brief", action="store_true", help="draw the losses only")
  arguments = parser.parse_args()
  runs = read_runs(arguments.runs)
  for run in runs:
    if not run.train and not run.by_length:
      stop(f"{run.folder}/metrics.jsonl holds no losses yet")
  path = arguments.out or runs[0].folder
  if os.path.isdir(path):
    path = os.path.join(path, "loss.png")
  elif not os.path.splitext(path)[1]:
    path += ".png"
  if any(run.by_length for run in runs):
    print(table(runs))
  try:
    draw(runs, path, arguments.brief)
  except OSError as error:
    stop(f"{path}: {error.strerror}")
  except ValueError as error:  # a name that ends in no kind of picture
    stop(f"{path}: {error}")
  print(f"\npicture: {path}")


if __name__ == "__main__":
  main()
