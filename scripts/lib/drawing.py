"""Pictures: matplotlib set up, lines of variants, an axis of lengths, and panels in a grid."""
from __future__ import annotations
import contextlib
import math
import os
import re
import sys
import textwrap

from lib.common import UserError, check_output, stop

WITHOUT_MATPLOTLIB = (f"{sys.executable} has no matplotlib; {sys.executable} -m pip install "
                      "matplotlib, or use /usr/bin/python3, for which scripts/install_deps.sh installs it")
DPI = 150


def load_pyplot():
  try:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
  except ImportError:
    stop(f"no picture: {WITHOUT_MATPLOTLIB}")
  pyplot.rcParams.update({
      "font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
      "axes.titlelocation": "left", "axes.titleweight": "bold", "grid.color": "#e4e4e4",
      "axes.axisbelow": True, "legend.frameon": False})
  return pyplot


def picture_path(flag: str, path: str) -> str:
  """The path, with .png if it has no ending. A UserError if no picture can be written there."""
  path += "" if os.path.splitext(path)[1] else ".png"
  check_output(flag, path)
  with contextlib.suppress(ImportError):
    from matplotlib.backend_bases import FigureCanvasBase
    ending = os.path.splitext(path)[1][1:].lower()
    known = sorted(FigureCanvasBase.filetypes)
    if ending not in known:
      raise UserError(f"{flag} {path}: no picture is called .{ending}; use one of {', '.join(known)}")
  return path


TITLE = 36  # columns that a panel's title has room for


class Wrapper(textwrap.TextWrapper):
  """Also breaks lines after _ and /, before it breaks a word."""
  wordsep_re = re.compile(r"(\s+|[^\s_/-]*[_/-]+)")


def in_text(label: str, columns: int = 60) -> str:
  """A text that a user chose, as a picture may show it: matplotlib reads what is between two $ as a
  formula, and leaves labels that begin with _ out of its legends. Long lines are wrapped, and of many
  the middle is left out."""
  lines = [part for line in label.split("\n") for part in Wrapper(columns).wrap(line) or [""]]
  if len(lines) > 6:
    lines[3:-2] = ["..."]
  text = "\n".join(lines).replace("$", r"\$")
  return " " * text.startswith("_") + text


def legend(axes, **options):
  """Of labels from in_text()."""
  for text in axes.legend(**options).get_texts():
    if text.get_text().startswith(" _"):
      text.set_text(text.get_text()[1:])


def note(axes, text):
  """In place of lines."""
  axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="#888888")


def over_seeds(rows, x, y):
  """mean, min and max of y at every x that all runs have: a DataFrame by x. rows: with a column `run`."""
  found = rows.dropna(subset=[y]).groupby(x)[y].agg(["mean", "min", "max", "count"])
  return found[found["count"] == rows["run"].nunique()]


def mean_line(axes, rows, x, y, look, at=None, **how) -> bool:
  """The mean and range of a variant's runs by x, drawn at the mean of `at`. Whether there is any."""
  points = over_seeds(rows, x, y)
  if len(points):
    places = rows.groupby(x)[at].mean().loc[points.index] if at and at != x else points.index
    axes.plot(places, points["mean"], **{"markersize": 4, "linewidth": 1.4, **look, **how})
    if rows["run"].nunique() > 1 and how.get("linestyle") != "":
      axes.fill_between(places, points["min"], points["max"], color=look["color"], alpha=0.18, linewidth=0)
  return len(points) > 0


def mean_lines(axes, view, rows, x, y, **how):
  """Of each variant of a view. rows: with a column `variant` too."""
  for variant, look in view.looks.items():
    mean_line(axes, rows[rows["variant"] == variant], x, y, look, **how)


def apart(lengths: list[int], number: int, count: int) -> list[float]:
  """Where the bars of one of several lines are, so that none hides another's."""
  return [length * 1.02 ** (number - (count - 1) / 2) for length in lengths]


def legible(places: list[float], width: float) -> list[float]:
  """Those whose tick labels, of this share of the axis, do not overlap; powers of two first."""
  kept, room = [], width * (max(places) - min(places))
  for place in sorted(places, key=lambda place: place % 1 > 0):
    if all(abs(place - other) >= room for other in kept):
      kept.append(place)
  return sorted(kept)


def length_axis(axes, lengths=None):
  """The x axis as lengths: powers of two, or these."""
  from matplotlib import ticker
  axes.set_xscale("log", base=2)
  if lengths:
    shown = legible([math.log2(length) for length in lengths], 0.09)
    axes.xaxis.set_major_locator(ticker.FixedLocator([round(2 ** place) for place in shown]))
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(
      lambda x, _: "%d" % x if x < 4096 else "%gK" % round(x / 1024, 1)))
  axes.xaxis.set_minor_locator(ticker.NullLocator())


def whole_numbers(*sides):
  from matplotlib import ticker
  for side in sides:
    side.set_major_locator(ticker.MaxNLocator(integer=True))


def heat_map(axes, values, most, label=""):
  """values: rows of shares, NaN for none. With a label, a bar tells what the colours are."""
  image = axes.imshow(values, vmin=0, vmax=most, cmap="Blues", aspect="auto")
  axes.grid(False)
  axes.set_facecolor("#c8c8c8")  # cells that were not measured
  if label:
    axes.figure.colorbar(image, ax=axes, label=label, location="bottom", aspect=40)


def legend_below(axes):
  """Below, because "best" does not see error bars; the figure grows with it."""
  figure, labels = axes.figure, axes.get_legend_handles_labels()[1]
  if not labels:
    return
  longest = max(len(line) for label in labels for line in label.split("\n"))
  columns = min(3 if longest < 20 else 2 if longest < 45 else 1, len(labels))
  ticks = axes.xaxis.get_tightbbox(figure.canvas.get_renderer())
  below = axes.bbox.y0 - ticks.y0  # ticks and label, in pixels
  legend(axes, loc="upper center", bbox_to_anchor=(0.5, 0), ncol=columns, borderaxespad=below * 7.2 / figure.dpi + 0.7)
  lines = math.ceil(len(labels) / columns) * max(label.count("\n") + 1 for label in labels)
  width, height = figure.get_size_inches()
  figure.set_size_inches(width, height + 0.2 * max(0, lines - 2))


NAMED = 6  # lines that a legend tells apart


def name_ends(axes):
  """Writes the name of each line at its end, without overlaps."""
  ends = []  # (height on the axes, point, colour, label)
  for handle, label in zip(*axes.get_legend_handles_labels()):
    line = handle[0] if isinstance(handle, tuple) else handle
    for point in line.get_xydata()[-1:]:
      _, y = axes.transAxes.inverted().transform(axes.transData.transform(point))
      ends.append((y, point, line.get_color(), label.strip().replace("\n", " ")))
  ends.sort(key=lambda end: end[0])
  height = 72 * axes.get_position().height * axes.figure.get_figheight()  # in points
  room = min(11 / height, 1.04 / len(ends))
  places = [min(max(y, 0), 1) for y, *_ in ends]
  for number in range(1, len(places)):
    places[number] = max(places[number], places[number - 1] + room)
  above = 1.02
  for number in reversed(range(len(places))):  # back from the top
    places[number] = min(places[number], above)
    above = places[number] - room
  for place, (_, point, colour, label) in zip(places, ends):
    arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)}
    axes.annotate(label if len(label) <= 40 else label[:37] + "...", point, (1.03, place),
                  color=colour, textcoords=axes.transAxes, va="center", fontsize=8,
                  annotation_clip=False, arrowprops=arrow)


def picture(panels, below=None):
  """panels: functions that draw on given axes. Of up to NAMED lines the first panel, or `below`, has
  a legend; more are named at their ends in every panel."""
  pyplot = load_pyplot()
  columns = min(3, len(panels))
  rows = math.ceil(len(panels) / columns)
  size = {1: 7, 2: 11, 3: 15}[columns], 4.2 * rows
  figure, grid = pyplot.subplots(rows, columns, figsize=size, constrained_layout=True, squeeze=False)
  most = 0
  for axes, draw in zip(grid.flat, panels):
    draw(axes)
    labelled = 0 if axes.get_legend() else len(axes.get_legend_handles_labels()[1])
    if labelled > NAMED and not axes.patches:
      name_ends(axes)
      most = max(most, labelled)
    elif draw is (below if below in panels else panels[0]):
      legend_below(axes)
  if most:  # room for the names
    figure.set_size_inches(size[0] * 1.35, max(size[1], rows * (1 + 0.19 * min(most, 40))))
  for axes in grid.flat[len(panels):]:
    axes.axis("off")
  return figure


def mark_contexts(axes, contexts):
  for context in contexts:
    axes.axvline(context, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate("trained length", (context, 1), xycoords=("data", "axes fraction"), xytext=(4, -2),
                  textcoords="offset points", va="top", fontsize=8.5, color="#666666")
