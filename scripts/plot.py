#!/usr/bin/env python3
"""Draws one or several runs over each other, and prints their loss by length as Markdown tables.

    python3 scripts/plot.py runs/a runs/b [--out FILE.png] [--brief] [--unit bits_per_byte] [--baseline runs/b]

Each row of losses is of one step, the newest that was evaluated, and each table of one set of data and one number of
tokens asked for; the script says which evaluations it leaves out. Further tables hold the differences to the first run (or
--baseline), where both were evaluated on the same windows, with standard errors, and the settings in which runs differ.

The picture shows the loss, the loss by length with standard errors, and by position in the longest windows that all runs
have; below them the gradient norm, the learning rate, the tokens per second, the differences, the mean of the tasks, and the loss of the same
targets by context (of eval.mode = suffix). --brief draws only the first two. Reads RUN/metrics.jsonl and skips damaged
lines. Runs that differ in the seed alone are one line and one row: their mean, with the range in pictures and the 95% interval
in tables. Without --out the picture is RUN/loss.png of the first run.
"""
import argparse
import contextlib
import math
import os
import sys
import textwrap

import metrics
import tables
import variants
from common import UserError, check_output, run as run_main, stop


WITHOUT_MATPLOTLIB = (f"{sys.executable} has no matplotlib; {sys.executable} -m pip install matplotlib, or use /usr/bin/python3, "
                      "for which scripts/install_deps.sh installs it")


def load_pyplot():
  try:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
  except ImportError:
    stop(f"no picture: {WITHOUT_MATPLOTLIB}")
  pyplot.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                          "axes.titlelocation": "left", "axes.titleweight": "bold", "grid.color": "#e4e4e4",
                          "axes.axisbelow": True, "legend.frameon": False})
  return pyplot, ticker


UNITS = {"nats": ("validation loss", "loss (nats per token)"), "bits_per_byte": ("bits per byte", "bits per byte"),
         "perplexity": ("perplexity", "perplexity (of a token)")}


def in_text(label):
  """Escaped: matplotlib would read text between two $ as a formula."""
  return label.replace("$", r"\$")


def wrapped(label, columns=36):
  """In lines that a panel's title has room for."""
  return "\n".join(textwrap.wrap(label, columns))


def picture_path(flag, path):
  """The path, with .png if it has no ending. A UserError, before any work, if no picture can be written there."""
  path += "" if os.path.splitext(path)[1] else ".png"
  check_output(flag, path)
  with contextlib.suppress(ImportError):
    from matplotlib.backend_bases import FigureCanvasBase
    ending = os.path.splitext(path)[1][1:].lower()
    if ending not in FigureCanvasBase.filetypes:
      raise UserError(f"{flag} {path}: no picture is called .{ending}; use one of {', '.join(sorted(FigureCanvasBase.filetypes))}")
  return path


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


def title(unit):
  return UNITS[unit][0].replace("validation ", "").capitalize()


def perplexity(loss):
  return math.exp(loss) if loss < 700 else math.inf


def in_unit(unit, evaluation):
  """The function from its losses to the unit; None where its bits per byte are unknown."""
  if unit == "bits_per_byte":
    bits = evaluation.bits_per_byte
    return (lambda loss: loss * bits / evaluation.loss) if bits and evaluation.loss else None
  return perplexity if unit == "perplexity" else float


def table(runs, unit="nats", at="at length", row_of=lambda run: run.row):
  """A row for each variant, with the mean over its seeds."""
  lengths = sorted({length for run in runs for length in row_of(run)})

  def cell(runs, length):
    values = [convert(e.loss) for run in runs if (e := row_of(run).get(length)) and (convert := in_unit(unit, e))]
    return "%.3f" % metrics.mean(values) + metrics.plus_minus(values) if values else "-"
  return tables.markdown([f"{UNITS[unit][0]} {at}", *map(str, lengths)],
                         [[variant.label, *(cell(variant.runs, length) for length in lengths)] for variant in variants.of(runs)])


def context_table(runs, unit):
  """Of runs whose contexts have the same targets."""
  e = runs[0].contexts[min(runs[0].contexts)]
  return "last %d targets in windows of %d of %s:\n\n" % (e.targets[1], e.targets[0], e.data()) + table(
      runs, unit, "with context", lambda run: run.contexts)


def differences(runs, baseline):
  """(variant of the baseline, {variant: {length: (mean, error, text)}}) of the losses less the baseline's, of variants that have any:
  paired by seed with the 95% interval; of one pair on the same windows, with the standard error over these."""
  found = variants.of(runs)
  base = next(variant for variant in found if baseline in variant.runs)
  result = {}
  for variant in found:
    alone = len(variant.runs) == len(base.runs) == 1
    pairs = [(run, other) for run in variant.runs for other in base.runs if alone or run.seed() == other.seed()]
    lengths = {length for run, _ in pairs for length in run.row} if variant is not base else {}
    for length in lengths:
      both = [(run.row[length], other.row[length]) for run, other in pairs if length in run.row and length in other.row
              and run.own.same_data(other.own)]
      gap = None
      if len(both) > 1:
        gaps = [one.loss - other.loss for one, other in both]
        gap = metrics.mean(gaps), metrics.half_width(gaps), "%+.3f" % metrics.mean(gaps) + metrics.plus_minus(gaps)
      elif both and (windows := metrics.difference(*both[0])):
        gap = *windows, "%+.3f ± %.3f" % windows
      if gap:
        result.setdefault(variant, {})[length] = gap
  return base, result


def difference_table(base, gaps):
  lengths = sorted({length for row in gaps.values() for length in row})
  return tables.markdown(["difference in nats at length", *map(str, lengths)],
                         [[f"{variant.label} - {base.label}", *(row[length][2] if length in row else "-" for length in lengths)]
                          for variant, row in gaps.items()])


def settings_table(runs):
  """The keys in which the runs differ, the step and the loss at the trained length; among comparable runs the lowest
  loss first."""
  keys, configs = metrics.differing(runs), {run: metrics.flat(run.config) for run in runs}
  groups = [*metrics.comparable(runs), [run for run in runs if not run.row]]
  at_trained = lambda run: (run.row or run.contexts).get(run.context())
  loss = lambda run: e.loss if (e := at_trained(run)) else math.inf
  cell = lambda e: "-" if not e else "%.3f" % e.loss + (" (last %d targets)" % e.targets[1] if e.targets else "")
  ranked = [run for group in groups for run in sorted(group, key=loss)]
  return tables.markdown(["run", *keys, "step", "loss at trained length (nats)"],
                  [[run.label, *(str(configs[run].get(key, "-")) for key in keys), str(run.step()),
                    cell(at_trained(run))] for run in ranked])


def looks(runs):
  """{variant: how its lines are drawn}: labelled with its data if these are not those of the first."""
  groups = metrics.comparable(runs)
  of = {run: f"\nof {run.of()}".replace(", ", ",\n") for group in groups[1:] for run in group}
  return {variant: {**variant.look, "label": in_text(variant.label + of.get(variant.runs[0], ""))} for variant in variants.of(runs)}


def draw_mean(axes, curves, look, at=lambda x: x, **how):
  """The mean of a variant's curves [(x, y)], and their range over the seeds. Whether there is any."""
  points = [(at(x), *values) for x, *values in variants.over_seeds(curves)]
  if points:
    x, mean, least, most = zip(*points)
    axes.plot(x, mean, **{"markersize": 4, "linewidth": 1.4, **look, **how})
    if len(curves) > 1 and how.get("linestyle") != "":
      axes.fill_between(x, least, most, color=look["color"], alpha=0.18, linewidth=0)
  return bool(points)


DETAILS = (("grad_norm", "Gradient norm", "before clipping"), ("lr", "Learning rate", ""), ("tokens_per_s", "Speed", "tokens per second"))


def details(runs):
  """{(title, label of the axis): {run: [(step, value)]}} of those of DETAILS that some run has."""
  found = {(title, label): {run: points for run in runs if (points := [
      (entry["step"], entry[key]) for entry in run.lines if metrics.finite(entry.get(key)) is not None])} for key, title, label in DETAILS}
  return {name: points for name, points in found.items() if points}


def draw_details(found, style, panels):
  for axes, ((title, label), by_run) in zip(panels, found.items()):
    for variant, look in style.items():
      draw_mean(axes, [by_run[run] for run in variant.runs if run in by_run], look, linewidth=1.0, marker="")
    axes.set(title=title, xlabel="step", ylabel=label, ylim=(0, None))


def positions(evaluation, unit):
  """(middle of the bin, loss) of the bins that have a loss; [] if its loss by position is unknown in the unit."""
  e, convert = evaluation, in_unit(unit, evaluation)
  return [((first + last + 1) / 2, convert(loss)) for loss, first, last in zip(e.by_position, e.edges, e.edges[1:])
          if loss is not None] if convert else []


def draw_positions(runs, style, axes, ticker, unit):
  """The loss by position in the longest windows that all runs with such losses have; names the runs without."""
  found = {run: {length: points for length, e in run.row.items() if (points := positions(e, unit))} for run in runs}
  some = [run for run in runs if found[run]]
  length = max(set.intersection(*(set(found[run]) for run in some)), default=None) if some else None
  for variant, look in style.items() if length else ():
    draw_mean(axes, [found[run][length] for run in variant.runs if run in some], look, marker="")
  axes.set(title=f"{title(unit)} by position" + (f" in windows of {length}" if length else ""),
           xlabel="position (token)", ylabel=UNITS[unit][1])
  length_axis(axes, ticker)
  if some and not length:
    axes.text(0.5, 0.5, "no length in common", ha="center", va="center", transform=axes.transAxes, color="#888888")
  without = [variant.label for variant in style if not all(found[run] for run in variant.runs)]
  if without:
    text = in_text("no loss by position: " + ", ".join(without)) + "\n(--eval --resume adds it)"
    axes.text(0.5, 0.02, text, ha="center", va="bottom", transform=axes.transAxes, color="#888888", fontsize=8.5)


def draw_contexts(style, groups, axes, ticker, unit):
  """No error bars: the losses at all lengths are of the same targets, and vary together."""
  for variant, look in style.items():
    draw_mean(axes, [[(length, convert(e.loss)) for length, e in run.contexts.items() if (convert := in_unit(unit, e))]
                     for run in variant.runs], look)
  axes.set(title=title(unit) + " by context", xlabel="context of the same targets", ylabel=UNITS[unit][1])
  length_axis(axes, ticker, sorted({length for group in groups for run in group for length in run.contexts}))


def draw_differences(base, gaps, style, axes, ticker):
  for variant, row in gaps.items():
    lengths = sorted(row)
    look = next(look for known, look in style.items() if known.runs == variant.runs)
    axes.errorbar(lengths, [row[length][0] for length in lengths], yerr=[row[length][1] for length in lengths],
                  markersize=4, capsize=3, linewidth=1.2, **look)
  axes.axhline(0, color="#888888", linewidth=1)
  axes.set(title=wrapped(in_text(f"Difference to {base.title}"), 30), xlabel="evaluated length (tokens)", ylabel="nats per token")
  length_axis(axes, ticker, sorted({length for row in gaps.values() for length in row}))


def task_scores(runs):
  """({run: [(step, mean score in %)]}, names): the mean over the questions that all runs with any were asked, at the steps at
  which a run was asked all of them; by length, or without lengths by likelihood alone."""
  found = {}  # run: question: step: score
  for run in runs:
    for line in run.others.get("task", []):
      score = next((share for key in ("acc_norm", "acc") if (share := metrics.finite(line.get(key))) is not None), None)
      if score is not None:
        asked = tuple(str(line.get(key)) for key in ("task", "n", "max_length", "xxh64"))
        found.setdefault(run, {}).setdefault(asked, {})[line["step"]] = 100 * score
  common = sorted(set.intersection(*map(set, found.values()))) if found else []
  means = {}
  for run in found if common else ():
    steps = sorted(set.intersection(*(set(found[run][asked]) for asked in common)))
    means[run] = [(step, metrics.mean([found[run][asked][step] for asked in common])) for step in steps]
  return means, [asked[0] for asked in common]


def draw_tasks(scores, names, style, axes):
  for variant, look in style.items():
    draw_mean(axes, [scores[run] for run in variant.runs if run in scores], look)
  axes.set(title=in_text("Tasks: " + ", ".join(names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else ""), xlabel="step",
           ylabel="mean of correct answers (%)")


def length_axis(axes, ticker, lengths=None):
  """The x axis as lengths: powers of two, or these."""
  axes.set_xscale("log", base=2)
  if lengths:
    axes.xaxis.set_major_locator(ticker.FixedLocator(lengths))
  axes.xaxis.set_major_formatter(ticker.FuncFormatter(
      lambda x, _: "%d" % x if x < 4096 else "%gK" % round(x / 1024, 1)))
  axes.xaxis.set_minor_locator(ticker.NullLocator())


def draw_losses(runs, style, axes, over="step"):
  """Training and validation losses. over: "step", or what metrics.Run.axis() has."""
  for variant, look in style.items():
    places = [run.axis(over) for run in variant.runs]
    at = lambda step: metrics.mean([place(step) for place in places])
    train = [run.train() for run in variant.runs]
    if len(train) == 1 and train[0]:
      axes.plot([at(step) for step, _ in train[0]], [loss for _, loss in train[0]], color=look["color"], alpha=0.18, linewidth=0.8)
    smoothed = [[(step, mean) for (step, _), mean in zip(points, smooth([loss for _, loss in points]))] for points in train]
    drawn = draw_mean(axes, smoothed, look, at, marker="", linewidth=1.6, label=in_text(variant.label))
    own = look["label"] == in_text(variant.label)  # hollow: of other data than the first
    draw_mean(axes, [run.curve() for run in variant.runs], look, at, linestyle="", label=None if drawn else look["label"],
              markerfacecolor=look["color"] if own else "white", markeredgecolor="white" if own else look["color"], markeredgewidth=0.6)
  axes.set(title="Training" + (" (line) and validation (dots)" if any(run.curve() for run in runs) else ""),
           xlabel=over, ylabel="loss (nats per token)")
  # The first steps fall from ln(vocabulary); on a linear axis they would squeeze everything after them.
  late = [loss for run in runs for loss in smooth([loss for _, loss in run.train()])[len(run.train()) // 30:]]
  late += [loss for run in runs for step, loss in run.curve() if step > 0]
  if late:
    spread = max(late) - min(late) or 1.0
    axes.set_ylim(min(late) - 0.08 * spread, max(late) + 0.12 * spread)


def draw_lengths(runs, style, axes, ticker, unit):
  """Returns the lengths that were evaluated."""
  for variant, look in style.items():
    curves = [[(e.length, convert(e.loss), convert(e.loss + (e.stderr or 0)) - convert(e.loss))
               for e in run.row.values() if (convert := in_unit(unit, e)) and convert(e.loss) < math.inf] for run in variant.runs]
    points = variants.over_seeds([[point[:2] for point in curve] for curve in curves])
    if points:
      lengths, means, least, most = zip(*points)
      errors = [error for *_, error in sorted(curves[0])] if len(curves) == 1 else [
          [mean - low for mean, low in zip(means, least)], [high - mean for mean, high in zip(means, most)]]
      axes.errorbar(lengths, means, yerr=errors, linewidth=1.6, markersize=5, capsize=3, **look)
    elif any(run.contexts for run in variant.runs):
      axes.plot([], [], **look)  # for the legend: it is in another panel
  lengths = sorted({length for run in runs for length in run.row})
  axes.set(title=UNITS[unit][0].capitalize() + " by length", xlabel="evaluated length (tokens)", ylabel=UNITS[unit][1])
  if lengths:
    length_axis(axes, ticker, lengths)
    axes.margins(x=0.06, y=0.12)
  return lengths


def mark_contexts(runs, panels):
  for context in sorted({run.context() for run in runs if run.context()}):
    for axes in panels:
      axes.axvline(context, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
    panels[0].annotate("trained length", (context, 1), xycoords=("data", "axes fraction"), xytext=(4, -2),
                       textcoords="offset points", va="top", fontsize=8.5, color="#666666")


def draw(runs, path, brief=False, unit="nats", baseline=None):
  pyplot, ticker = load_pyplot()
  style = looks(runs)
  base, gaps = differences(runs, baseline or runs[0])
  trained = any(run.train() or run.curve() for run in runs)  # panels without lines are left out
  if brief:
    figure, panels = pyplot.subplots(1, 1 + trained, figsize=(5.5 * (1 + trained), 4.2), constrained_layout=True, squeeze=False)
    *left, right = panels[0]
    by_length = [right]
  else:
    found, contexts, (scores, names) = details(runs), metrics.same_targets(runs), task_scores(runs)
    scores = {run: points for run, points in scores.items() if points}
    count = len(found) + bool(gaps) + bool(scores) + bool(contexts)
    figure = pyplot.figure(figsize=(15 if trained else 10, 7 if count else 4.2), constrained_layout=True)
    grid = figure.add_gridspec(1 + bool(count), 1, height_ratios=(3, 2)[:1 + bool(count)])
    *left, right, by_position = grid[0].subgridspec(1, 2 + trained).subplots()
    by_length, below = [right, by_position], list(grid[1].subgridspec(1, count).subplots(squeeze=False)[0]) if count else []
    draw_details(found, style, below)
    if contexts:
      draw_contexts(style, contexts, below[-1], ticker, unit)
      by_length.append(below[-1])
    draw_positions(runs, style, by_position, ticker, unit)
    if gaps:
      draw_differences(base, gaps, style, below[len(found)], ticker)
    if scores:
      draw_tasks(scores, names, style, below[len(found) + bool(gaps)])
  for axes in left:
    draw_losses(runs, style, axes)
  lengths = draw_lengths(runs, style, right, ticker, unit)
  mark_contexts(runs, by_length)
  labels = right.get_legend_handles_labels()[1]
  for axes in left:
    if axes.get_legend_handles_labels()[0] and (len(style) <= len(variants.COLOURS) or len(labels) < len(style)):
      axes.legend(loc="best")
  if labels:  # below: "best" does not see error bars
    right.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=3.7, ncol=min(3 if max(map(len, labels)) < 20 else 2, len(labels)))
  if count := max(len(variant.runs) for variant in style) - 1:
    figure.supxlabel(f"Mean and range over up to {count + 1} seeds", fontsize=9, color="#666666", x=0.01, ha="left")
  if not lengths:
    right.text(0.5, 0.5, "no evaluation yet", ha="center", va="center", transform=right.transAxes, color="#888888")
  figure.savefig(path, dpi=150)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--out", metavar="FILE.png", help="the picture (.png, .pdf or .svg), or a folder for loss.png [the first run's]")
  parser.add_argument("--brief", action="store_true", help="draw the losses only")
  parser.add_argument("--unit", choices=UNITS, default="nats", help="of losses by length and position [nats]")
  parser.add_argument("--baseline", metavar="RUN", help="the one of these runs that differences are to [the first; of a sweep, its first]")
  arguments = parser.parse_args()
  runs = metrics.read_runs(arguments.runs)
  for run in runs:
    if not run.train() and not run.row and not run.contexts:
      stop(f"{run.folder}/metrics.jsonl holds no losses yet")
  baseline = variants.baseline(runs, arguments.baseline)
  path = arguments.out or runs[0].folder
  path = picture_path("--out", os.path.join(path, "loss.png") if os.path.isdir(path) else path)
  tables = [f"{group[0].of()}:\n\n" + table(group, arguments.unit) for group in metrics.comparable(runs)]
  base, gaps = differences(runs, baseline)
  tables += [context_table(group, arguments.unit) for group in metrics.same_targets(runs)]
  tables += [difference_table(base, gaps)] * bool(gaps) + [settings_table(runs)]
  tables += ["\n".join(filter(None, (run.note() for run in runs)))]
  print("\n\n".join(filter(None, tables)))
  draw(runs, path, arguments.brief, arguments.unit, baseline)
  print(f"\npicture: {path}")


if __name__ == "__main__":
  run_main(main, "no picture was drawn")
