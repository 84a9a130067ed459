#!/usr/bin/env python3
"""Draws what ./train --diagnostics saw in runs, beside each other, and prints it as a Markdown table.

    python3 scripts/diagnose.py runs/a runs/b [--out FILE.png] [--length 1024]

The table has a row per run: the share of attention that the first token gets, the sink rate, the mean of the largest
activations, the entropy relative to uniform weights, the gate's mean, the zeros, and the spikes of loss and gradient norm
in training: the share of steps that are 7 standard deviations or more from the mean of the 1,000 before them (of runs
shorter than 2,000 steps: 6, of the 128 before them; marked *).

The picture shows by layer the first token's share, the largest activation, entropy and zeros; the gate's scores; how far
attention reaches, at each length, beside uniform weights (dotted); and for each run the first token's share by layer and
head. Runs that differ in the seed alone are one line, their mean, with the range.
The picture is of the last step with diagnostics, at the trained length or the shortest that all runs have (--length: another);
the reach is of all lengths. Without --out it is RUN/diagnostics.png of the first run.
"""
import argparse
import os

import metrics
import plot
import tables
import variants
from common import UserError, run


def chosen_length(runs, wanted):
  common = set.intersection(*(set(run.diagnostics) for run in runs))
  if wanted is None:
    wanted = next((run.context() for run in runs if run.context() in common), min(common, default=None))
  if wanted not in common:
    missing = next((run for run in runs if wanted not in run.diagnostics), runs[0])
    raise UserError("%s: no length in common; run ./train %s --diagnostics --lengths %s" % (
        missing.label, missing.folder, wanted or min(runs[0].diagnostics)))
  return wanted


def spikes(run, key):
  values = [entry[key] for entry in run.lines if entry["type"] == "train" and metrics.finite(entry.get(key)) is not None]
  score = metrics.spike_score(values)
  return "-" if not score else "%.2f%s" % (100 * score[0], "" if score[1] == 1000 else "*")


def table(runs, length):
  number = lambda value, text: "-" if value is None else text % value
  rows = []
  for run in runs:
    d = run.diagnostics[length]
    rows.append([run.label, str(d.step), number(d.first_token, "%.3f"), number(d.sink_rate, "%.1f"), number(d.m_act, "%.4g"),
                 number(d.entropy_norm, "%.3f"), number(d.gate, "%.3f"), number(d.zeros, "%.3f"), spikes(run, "loss"),
                 spikes(run, "grad_norm")])
  return tables.markdown(
      ["run", "step", "first token", "sink rate %", "M-Act", "entropy / uniform", "gate", "zeros", "loss spikes %", "norm spikes %"], rows)


def cumulative(shares):
  """(end of the bin, share of attention within it) of bins of distances 0, 1, 2 to 3, 4 to 7, ..."""
  total, points = 0, []
  for number, share in enumerate(shares):
    total += share or 0
    points.append((2 ** number, total))
  return points


def uniform_reach(length):
  """Of weights 1 / i, as a mean over rows i = 2 .. length."""
  later = [0.0] * (length + 1)  # later[d] = sum of 1 / i over the rows that see distance d: i > d, i >= 2
  for i in range(length, 1, -1):
    later[i - 1] = later[i] + 1 / i
  later[0] = later[1]
  shares = [0.0] * ((length - 1).bit_length() + 1)
  for distance in range(length):
    shares[distance.bit_length()] += later[distance] / max(1, length - 1)
  return shares


def draw(runs, length, path):
  pyplot, ticker = plot.load_pyplot()
  columns = 3
  found = variants.of(runs)
  rows = 2 + -(-len(found) // columns)
  figure, panels = pyplot.subplots(rows, columns, figsize=(15, 4.2 * rows), constrained_layout=True, squeeze=False)
  first, largest, sparse, gate, reach, legend = panels[:2].flat
  lengths = sorted({length for run in runs for length in run.diagnostics})
  for variant in found:
    of_runs, look = [run.diagnostics for run in variant.runs], {**variant.look, "label": plot.in_text(variant.label)}
    by_layer = lambda values: [(layer, float("nan") if value is None else value) for layer, value in enumerate(values)]
    draws = lambda axes, values, **more: plot.draw_mean(axes, [by_layer(values(d[length])) for d in of_runs], look, **more)
    draws(first, lambda d: d.by_layer("first"))
    draws(largest, lambda d: d.max)
    draws(sparse, lambda d: d.by_layer("entropy_norm"), linestyle="-")
    draws(sparse, lambda d: d.by_layer("zeros"), linestyle="--", markerfacecolor="white")
    shares = [[metrics.mean(share) for share in zip(*d[length].gate_shares)] for d in of_runs]  # below 0, twenty bins of [0, 1], above 1
    bins = [[((bin - 0.5) / 20, share) for bin, share in enumerate(of_run)] for of_run in shares]
    plot.draw_mean(gate, bins, look, drawstyle="steps-mid", marker="")
    for which, at in enumerate(lengths):
      plot.draw_mean(reach, [cumulative(d[at].reach) for d in of_runs if at in d], look, linewidth=1.2,
                     linestyle=variants.LINES[which % 3])
  for at in lengths:
    reach.plot(*zip(*cumulative(uniform_reach(at))), color="#888888", linewidth=1, linestyle=":")
  first.set(title="First token, length %d" % length, xlabel="layer", ylabel="share of attention", ylim=(0, None))
  largest.set(title="Largest activation", xlabel="layer", ylabel="max |x| of the residual stream", yscale="log")
  sparse.set(title="Entropy (solid) and zeros (dashed)", xlabel="layer", ylabel="relative to uniform; share of pairs", ylim=(0, 1.03))
  gate.set(title="Gate scores", xlabel="score (at the ends: below 0, above 1)", ylabel="share")
  reach.set(title="Reach (dotted: uniform)", xlabel="distance (tokens)", ylabel="attention within it", ylim=(0, 1.03))
  plot.length_axis(reach, ticker)
  if not gate.lines:
    gate.text(0.5, 0.5, "no gate", ha="center", va="center", transform=gate.transAxes, color="#888888")
  legend.axis("off")
  legend.legend(handles=first.lines, loc="upper left", frameon=False, title="mean and range over seeds" if len(found) < len(runs) else "runs")
  styles = [reach.plot([], [], color="#444444", linestyle=variants.LINES[which % 3], label="length %d" % at)[0] for which, at in enumerate(lengths)]
  reach.legend(handles=styles, loc="best", frameon=False)
  by_head = {variant: [[float("nan") if value is None else value for value in map(metrics.mean, zip(*heads))] for heads in zip(
      *(run.diagnostics[length].heads["first"] for run in variant.runs))] for variant in found}
  top = max([v for values in by_head.values() for heads in values for v in heads if v == v] or [1])
  for axes, variant in zip(panels[2:].flat, found):
    image = axes.imshow(by_head[variant], vmin=0, vmax=top, cmap="Blues", aspect="auto")
    axes.grid(False)
    axes.set(title=plot.wrapped("First token: " + plot.in_text(variant.title)), xlabel="head", ylabel="layer")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  figure.colorbar(image, ax=list(panels[2:].flat), label="share of attention")
  for axes in (first, largest, sparse):
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
  for axes in list(panels[2:].flat)[len(found):]:
    axes.axis("off")
  figure.savefig(path, dpi=130)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--out", metavar="FILE.png", help=".png, .pdf or .svg [diagnostics.png in the first run]")
  parser.add_argument("--length", type=int, metavar="T", help="[the trained length, else the shortest that all runs have]")
  args = parser.parse_args()
  runs = metrics.read_runs(args.runs)
  for run in runs:
    if not run.diagnostics:
      raise UserError("%s holds no diagnostics; run ./train %s --diagnostics" % (metrics.metrics_file(run.folder), run.folder))
  length = chosen_length(runs, args.length)
  path = plot.picture_path("--out", args.out or os.path.join(runs[0].folder, "diagnostics.png"))
  print("at length %d:\n" % length, table(runs, length), sep="\n")
  draw(runs, length, path)
  print("\npicture: " + path)


if __name__ == "__main__":
  run(main, "nothing was written")
