"""A sweep's results as text, LaTeX, CSV and a chart: losses, paired differences, what they are of."""
from __future__ import annotations

from lib import drawing, metrics, results, tables, variants
from lib.results import Grid
from lib.variants import mean_text

NAMES = {"bits_per_byte": "bits per byte", "accuracy": "accuracy of the labels", "exact": "exact windows"}


# ---------------------------------------------------------------------------------------------------------- the tables

def cell_text(values, lost: int, seeds: int, share: bool) -> str:
  if lost and values.empty:
    return "diverged"
  text = mean_text(values, seeds=seeds - lost, share=share)
  return text + f" ({lost} diverged)" * (lost > 0)


def measured(grid: Grid, measure: str) -> str:
  suffix = grid.result.get("mode") == "suffix"
  return NAMES.get(measure) or ("loss of the last targets" if suffix else "validation loss")


def markdown(what: str, cells) -> tables.Table:
  return tables.markdown([what, *cells], cells.reset_index().to_numpy().tolist())


def table(grid: Grid, measure: str = "loss") -> tables.Table:
  """Means, and of the chart lr the best rate and the sensitivity to it."""
  found, share = grid.statistics(measure), measure in results.SHARES
  seeds, values = len(grid.result["seeds"]), grid.by_seed(measure)
  cells = values.apply(lambda of_cell: cell_text(
      of_cell.dropna(), int(found["diverged"][of_cell.name]), seeds, share), axis=1)
  cells = cells.unstack()[grid.columns].loc[grid.rows]
  if grid.result["chart"] == "lr" and not share:
    tops = results.best(found)
    even = grid.sensitivity().dropna() if measure == "loss" else {}
    cells["best"] = [f"{cells[tops[row]][row]} at {tops[row]}" if row in tops else "-"
                     for row in grid.rows]
    cells["sensitivity"] = [f"{even[row]:.3f}" if row in even else "-" for row in grid.rows]
  return markdown(f"{measured(grid, measure)} at {grid.x or 'length'}", cells)


def difference_table(grid: Grid, measure: str = "loss") -> tables.Table | str:
  """Same seed, same order of data: the rows less the first one; "" if there is none to pair."""
  (first, *others), values = grid.rows, grid.by_seed(measure)
  if not others or values.empty:
    return ""
  gaps = values.groupby(level="column").transform(lambda rows: rows - rows.iloc[0]).loc[others]
  text = lambda of_cell: mean_text(of_cell.dropna(), "{:+.3f}")
  cells = gaps.apply(text, axis=1).unstack()[grid.columns]
  if grid.result["chart"] == "lr":
    tops = results.best(grid.statistics(measure))
    best = values.loc[[*tops.items()]].droplevel("column").reindex(grid.rows)
    cells["best less best"] = (best - best.loc[first]).apply(text, axis=1)
  cells = cells.loc[others].rename(lambda row: f"{row} - {first}")
  counts = sorted({*gaps.count(axis=1)} - {0}) or [0]
  several = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
  paired = f", paired by seed, n = {several}" if counts[-1] > 1 else ", one seed"
  name = "in nats" if measure == "loss" else "of accuracy"
  return markdown(f"difference {name}{paired}", cells)


def seeds_text(result: dict) -> str:
  """How many have a result: "3 seeds", or "1 of 3 seeds"."""
  count = len(result["seeds"])
  ended = [run for run in result["runs"] if run["state"] in ("complete", "diverged")]
  found = len({run["seed"] for run in ended})
  return f"{found} of " * (found < count) + f"{count} seed{'s' * (count > 1)}"


def means_text(grid: Grid) -> str:
  """How many seeds its means are of: "1 to 2 seeds", or as seeds_text() if all have as many."""
  counts = {*grid.statistics()["count"]} - {0}
  return f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else seeds_text(grid.result)


def note(result: dict) -> str:
  """What the figures are of, one sentence."""
  states = [run["state"] for run in result["runs"]]
  seeds, means = seeds_text(result), means_text(Grid({**result, "best_of": ""}))
  missing = "".join(f", {states.count(state)} {state}" for state in ("diverged", "failed", "missing")
                    if state in states)
  missing += f", means of {means}" * (means != seeds)
  settings = "".join(f", {key}={value}" for key, value in result["set"].items())
  return ("{}, {steps} steps of {tokens_per_step} tokens ({config}{}, commit {commit}, {device}){}; "
          "losses in nats per token.").format(seeds, settings, missing, **result)


def all_tables(grid: Grid) -> list[tables.Table]:
  """Of losses and what else was measured; differences of accuracies, where labels have them."""
  measures = ["loss", *filter(grid.has, NAMES)]
  differences = difference_table(grid, "accuracy" if "accuracy" in measures else "loss")
  return [table(grid, measure) for measure in measures] + [differences] * bool(differences)


def texts(result: dict) -> list[str]:
  """The tables, then what the figures are of and what ± is."""
  grid = Grid(result)
  found, said = all_tables(grid), note(result)
  if grid.chosen:
    best = ", ".join(f"{row} {value}" for row, value in grid.chosen.items())
    said += f" Each row has its best {result['best_of']}, by the mean loss in the first column: {best}."
  return [*found, said + f" {metrics.INTERVAL}." * (" ± " in found[0])]


def csv(grid: Grid) -> str:
  """A line for each measure, row and column, with what the tables' cells are made of."""
  found = {measure: grid.statistics(measure) for measure in ("loss", *filter(grid.has, NAMES))}
  return results.pandas.concat(found, names=["measure"]).to_csv()


def latex(grid: Grid) -> str:
  return "\n".join(tables.latex(made.head, made.rows) for made in all_tables(grid))


# ----------------------------------------------------------------------------------------------------------- the chart

def draw_row(kind, axes, number, count, look, places, found):
  """A row's line or bars, with intervals, and crosses where runs diverged."""
  there = (found["count"] > 0).to_numpy()
  at = [place for place, shown in zip(places, there) if shown]
  means, spread = found["mean"][there], found["half"].fillna(0)[there]
  if kind == "bars":
    width = 0.8 / count
    at = [place + (number - (count - 1) / 2) * width for place in at]
    hatch = ["", "//", "..", "xx"][(number + number // 8) % 4]
    axes.bar(at, means, width, yerr=spread, capsize=2, hatch=hatch, edgecolor="white",
             ecolor="black", color=look["color"], label=look["label"])
    return
  at = drawing.apart(at, number, count) if kind == "lengths" else at
  axes.errorbar(at, means, yerr=spread, capsize=3, markersize=4, linewidth=1.6, **look)
  if kind != "lengths":
    lost = [place for place, some in zip(places, found["diverged"]) if some]
    axes.plot(lost, [0.97 - 0.04 * number] * len(lost), "x", color=look["color"], markersize=7,
              markeredgewidth=2, transform=axes.get_xaxis_transform(), clip_on=False)


def of_key(key: str) -> str:
  """A key as words: "learning rate (optimizer.lr)"."""
  words = key.rpartition(".")[2].replace("_", " ")
  return f"{'learning rate' if words == 'lr' else words} ({key})" if "." in key else key


def label_columns(axes, columns, places):
  """The ticks: all columns, or those that have room."""
  wide = max(map(len, columns))
  crowded = wide * len(columns) >= 70
  at = [axes.get_xaxis_transform().transform((place, 0))[0] / axes.bbox.width for place in places]
  kept = drawing.legible(at, 0 if crowded else 0.018 * wide)
  slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
  names = [drawing.in_text(column, 24) * (place in kept) for column, place in zip(columns, at)]
  axes.set_xticks(places, names, **slant)
  axes.minorticks_off()


def draw(result, axes):
  """Accuracies, where labels have them, otherwise losses."""
  grid = Grid(result)
  measure = "accuracy" if grid.has("accuracy") else "loss"
  kind, found, even = result["chart"], grid.statistics(measure), grid.sensitivity()
  try:
    places = [*range(len(grid.columns))] if kind == "bars" else [*map(float, grid.columns)]
  except ValueError:  # names
    places, kind = [*range(len(grid.columns))], "lines"
  for number, row in enumerate(grid.rows):
    known = kind == "lr" and measure == "loss" and bool(even[row] == even[row])
    label = row + f" (sensitivity {even[row]:.3f})" * known
    look = {**variants.look(number), "label": drawing.in_text(label)}
    draw_row(kind, axes, number, len(grid.rows), look, places, found.loc[row].loc[grid.columns])
  x = of_key(next(iter(result["axes"])))
  if kind == "lengths":
    x = "evaluated length (tokens; dashed: the trained one)"
    drawing.length_axis(axes, places)
    for context in result.get("contexts", [result["context"]]):
      axes.axvline(context, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
  elif kind == "lr":
    if all(places):
      axes.set_xscale("log")
    else:  # 0 has a place of its own, half as far from the smallest rate as a decade is wide
      least = min(filter(None, places), default=1)
      axes.set_xscale("symlog", linthresh=least, linscale=0.5)
    x += "; a cross at the top: some run diverged" * bool(found["diverged"].any())
  elif kind == "bars":  # losses differ little: from 0 they would all look alike
    means = found["mean"].dropna().tolist() or [0, 1]
    gap = max(means) - min(means) + 1e-3
    axes.set_ylim(min(means) - 0.5 * gap, max(means) + 0.3 * gap)
  if kind != "lengths":
    label_columns(axes, grid.columns, places)
  many = len(result["seeds"]) > 1
  title = f"Mean and 95% interval of {means_text(grid)}" if many else "One seed"
  unit = " (nats per token)" * (measure == "loss")
  axes.set(xlabel=drawing.in_text(x), ylabel=measured(grid, measure) + unit, title=title)
