"""The section of a sweep's results (results.py): losses, paired differences, and the chart that the sweep names."""
from __future__ import annotations
import collections
import functools
import itertools
import statistics

from lib import drawing, metrics, results, tables, variants
from lib.sections import Section, Text

# losses: by seed, of runs that did not diverge; capped: of all, at most that of step 0; diverged: how many
Cell = collections.namedtuple("Cell", "losses capped diverged")


def x_axis(result: dict) -> str | None:
  """The axis whose values are the columns; None if these are lengths."""
  return None if result["chart"] == "lengths" else next(iter(result["axes"]))


def row_of(entry: dict, *columns: str | None) -> str:
  return ", ".join(label for axis, label in entry["labels"].items() if axis not in columns) or "loss"


def grid(result: dict) -> dict[str, dict[str, Cell]]:
  """{row: {column: Cell}}, both as text: a row is a combination of the axes but the one along x, a column a length or a
  value of that axis."""
  by_length, x = result["chart"] == "lengths", x_axis(result)
  others = [values for axis, values in result["axes"].items() if axis != x]
  columns = [str(length) for length in result["lengths"]] if by_length else result["axes"][x]
  rows = {", ".join(labels) or "loss": {column: Cell({}, {}, 0) for column in columns}
          for labels in itertools.product(*others)}
  for entry in result["runs"]:
    row = rows[row_of(entry, x)]
    for column in columns if by_length else [entry["labels"][x]]:
      losses, capped, diverged = row[column]
      loss = entry["losses"].get(column) if by_length else entry["loss"]
      if entry["state"] == "complete" and loss is not None:
        losses[entry["seed"]] = loss
      if entry["state"] in ("complete", "diverged") and entry["initial"] is not None:
        capped[entry["seed"]] = entry["initial"] if loss is None else min(loss, entry["initial"])
      row[column] = Cell(losses, capped, diverged + (entry["state"] == "diverged"))
  return rows


def cell_text(cell: Cell, seeds: int, share: bool = False) -> str:
  if not cell.losses:
    return "diverged" if cell.diverged else "-"
  return (variants.mean_text([*cell.losses.values()], seeds=seeds - cell.diverged, share=share)
          + (f" ({cell.diverged} diverged)" if cell.diverged else ""))


def sensitivity(row: dict[str, Cell]) -> float | None:
  """None unless each rate has a run."""
  means = [statistics.mean(cell.capped.values()) for cell in row.values() if cell.capped]
  return statistics.mean(means) - min(means) if len(means) == len(row) else None


def best(row: dict[str, Cell]) -> tuple[str, Cell] | None:
  """(column, Cell) with the lowest mean loss among those with the most seeds, and none that diverged; or None."""
  found = {column: cell for column, cell in row.items() if cell.losses and not cell.diverged}
  order = lambda item: (-len(item[1].losses), statistics.mean(item[1].losses.values()), item[0])
  return min(found.items(), key=order) if found else None


def at_best(result: dict) -> tuple[dict, dict[str, str]]:
  """(the results without the axis best_of, {row: its best value}): of each row, the runs with the value of the lowest
  mean loss in the first column, or with the first value if all diverged."""
  best_of, x = result.get("best_of"), x_axis(result)
  if not best_of:
    return result, {}

  def along(axes, runs):
    return {**result, "axes": {axis: result["axes"][axis] for axis in axes},
            "runs": [{**entry, "labels": {axis: entry["labels"][axis] for axis in axes}} for entry in runs]}

  rest = [axis for axis in result["axes"] if axis not in (best_of, x)]
  first = [entry for entry in result["runs"] if not x or entry["labels"][x] == result["axes"][x][0]]
  rows = grid({**along([best_of, *rest], first), "chart": "lines"})
  chosen = {row: (best(cells) or result["axes"][best_of])[0] for row, cells in rows.items()}
  kept = [entry for entry in result["runs"] if entry["labels"][best_of] == chosen[row_of(entry, x, best_of)]]
  return along([axis for axis in result["axes"] if axis != best_of], kept), chosen


def loss_name(result: dict) -> str:
  return "loss of the last targets" if result.get("mode") == "suffix" else "validation loss"


def measured_by(key: str, result: dict) -> dict | None:
  """The results with bits per byte, which alone compare tokenizers, or the accuracy of labels, as losses; None unless
  all losses have theirs."""
  if not all(entry["losses"].keys() == entry.get(key, {}).keys() for entry in result["runs"]):
    return None
  if not any(entry["losses"] for entry in result["runs"]):
    return None
  of_loss = lambda entry, found: next((found[n] for n, loss in entry["losses"].items() if loss == entry["loss"]), None)
  return {**result, "runs": [{**entry, "losses": found, "loss": of_loss(entry, found), "initial": None}
                             for entry in result["runs"] for found in [entry.get(key, {})]]}


def table(result: dict, name: str | None = None) -> tables.Table:
  """name: of what is measured instead of losses."""
  rows, seeds, lr = grid(result), len(result["seeds"]), result["chart"] == "lr" and name in (None, "bits per byte")
  what = f"{name or loss_name(result)} at {'length' if result['chart'] == 'lengths' else next(iter(result['axes']))}"
  lines = []
  for label, row in rows.items():
    top, even = best(row), sensitivity(row)
    share = name in map(MEASURES.get, results.SHARES)
    lines.append([label, *(cell_text(cell, seeds, share) for cell in row.values())] + lr * [
        f"{cell_text(top[1], seeds)} at {top[0]}" if top else "-", "-" if even is None else "%.3f" % even])
  return tables.markdown([what, *next(iter(rows.values()))] + lr * ["best", "sensitivity"], lines)


def paired(one: dict[int, float], other: dict[int, float]) -> str:
  """Mean difference of the losses over the seeds that both have, with its interval, as text."""
  return variants.mean_text([one[seed] - other[seed] for seed in one if seed in other], "{:+.3f}")


def difference_table(result: dict, name: str = "in nats") -> tables.Table | str:
  """Same seed, same order of data: the rows less the first one. "" for a single row. name: of what is measured."""
  (first, base), *others = grid(result).items()
  lr = result["chart"] == "lr"
  lines, counts = [], set()  # of seeds that both have
  for label, row in others:
    tops = [best(base), best(row)]
    pairs = [(cell.losses, base[column].losses) for column, cell in row.items()]
    lines.append([f"{label} - {first}", *(paired(*pair) for pair in pairs)]
                 + lr * [paired(tops[1][1].losses, tops[0][1].losses) if all(tops) else "-"])
    counts |= {len(one.keys() & other.keys()) for one, other in pairs} - {0}
  seeds = " to ".join(map(str, sorted({min(counts, default=0), max(counts, default=0)})))
  head = f"difference {name}" + (f", paired by seed, n = {seeds}" if max(counts, default=0) > 1 else ", one seed")
  return tables.markdown([head, *base] + lr * ["best less best"], lines) if lines else ""


def seeds_text(result: dict) -> str:
  """How many have a result: "3 seeds", or "1 of 3 seeds"."""
  count = len(result["seeds"])
  found = len({entry["seed"] for entry in result["runs"] if entry["state"] in ("complete", "diverged")})
  return f"{found} of " * (found < count) + f"{count} seed{'s' * (count > 1)}"


def means_text(result: dict) -> str:
  """How many seeds its means are of: "1 to 2 seeds", or as seeds_text() if all are of the same number."""
  counts = {len(cell.losses) for row in grid(result).values() for cell in row.values()} - {0}
  return f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else seeds_text(result)


def note(result: dict) -> str:
  """What the figures are of, one sentence."""
  states = collections.Counter(entry["state"] for entry in result["runs"])
  missing = "".join(f", {states[state]} {state}" for state in ("diverged", "failed", "missing") if states[state])
  missing += f", means of {means_text(result)}" * (means_text(result) != seeds_text(result))
  settings = "".join(f", {key}={value}" for key, value in result.get("set", {}).items())
  return (f"{seeds_text(result)}, {result['steps']} steps of {result['tokens_per_step']} tokens ({result['config']}"
          f"{settings}, commit {result['commit']}, {result['device']}){missing}; losses in nats per token.")


MEASURES = {"bits_per_byte": "bits per byte", "accuracy": "accuracy of the labels", "exact": "exact windows"}


def texts(result: dict) -> list[str]:
  """The tables, then what the figures are of and what ± is. Differences are of accuracies, where labels have them."""
  said = note(result)
  result, chosen = at_best(result)
  if chosen:
    said += (f" Each row has its best {result['best_of']}, by the mean loss in the first column: "
             f"{', '.join(f'{row} {value}' for row, value in chosen.items())}.")
  interval = f" {metrics.INTERVAL}." * any(" ± " in cell for row in table(result).rows for cell in row)
  others = [(name, measured_by(key, result)) for key, name in MEASURES.items()]
  accuracies = measured_by("accuracy", result)
  differences = difference_table(accuracies, "of accuracy") if accuracies else difference_table(result)
  return list(filter(None, (table(result), *(found and table(found, name) for name, found in others), differences,
                            said + interval)))


# ------------------------------------------------------------------------------------------------------------ the chart

def draw_row(kind, axes, number, rows, look, places, cells):
  shown = [(place, [*cell.losses.values()]) for place, cell in zip(places, cells) if cell.losses]
  at, values = [place for place, _ in shown], [values for _, values in shown]
  means, spread = [*map(statistics.mean, values)], [*map(metrics.half_width, values)]
  if kind == "bars":
    width = 0.8 / rows
    axes.bar([place + (number - (rows - 1) / 2) * width for place in at], means, width, yerr=spread, capsize=2,
             hatch=["", "//", "..", "xx"][(number + number // 8) % 4], edgecolor="white", ecolor="black",
             color=look["color"], label=look["label"])
  elif kind == "lengths":
    axes.errorbar(drawing.apart(at, number, rows), means, yerr=spread, capsize=3, markersize=4, linewidth=1.6, **look)
  else:
    axes.plot(at, means, markersize=4, linewidth=1.6, **look)
    axes.fill_between(at, [*map(min, values)], [*map(max, values)], color=look["color"], alpha=0.15, linewidth=0)
    lost = [place for place, cell in zip(places, cells) if cell.diverged]
    axes.plot(lost, [0.97 - 0.04 * number] * len(lost), "x", color=look["color"], markersize=7, markeredgewidth=2,
              transform=axes.get_xaxis_transform(), clip_on=False)


def of_key(key: str) -> str:
  """A key as words: "learning rate (optimizer.lr)"."""
  words = key.rpartition(".")[2].replace("_", " ")
  return f"{'learning rate' if words == 'lr' else words} ({key})" if "." in key else key


def draw(result, axes):
  """Accuracies, where labels have them, otherwise losses."""
  what = f"{loss_name(result)} (nats per token)"
  result, _ = at_best(result)
  if accuracies := measured_by("accuracy", result):
    result, what = accuracies, MEASURES["accuracy"]
  rows, kind = grid(result), result["chart"]
  columns, cells = list(next(iter(rows.values()))), [cell for row in rows.values() for cell in row.values()]
  try:
    places = list(range(len(columns))) if kind == "bars" else [float(column) for column in columns]
  except ValueError:  # names
    places, kind = list(range(len(columns))), "lines"
  for number, (label, row) in enumerate(rows.items()):
    if kind == "lr" and (even := sensitivity(row)) is not None:
      label += " (sensitivity %.3f)" % even
    look = {**variants.look(number), "label": drawing.in_text(label)}
    draw_row(kind, axes, number, len(rows), look, places, row.values())
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
      axes.set_xscale("symlog", linthresh=min(filter(None, places), default=1), linscale=0.5)
    x += "; a cross at the top: some run diverged" if any(cell.diverged for cell in cells) else ""
  elif kind == "bars":  # losses differ little: from 0 they would all look alike
    means = [statistics.mean(cell.losses.values()) for cell in cells if cell.losses] or [0, 1]
    gap = max(means) - min(means) + 1e-3
    axes.set_ylim(min(means) - 0.5 * gap, max(means) + 0.3 * gap)
  if kind != "lengths":
    crowded = max(map(len, columns)) * len(columns) >= 70
    at = axes.get_xaxis_transform().transform
    along = [at((place, 0))[0] for place in places]
    kept = drawing.legible([x / axes.bbox.width for x in along], 0 if crowded else 0.018 * max(map(len, columns)))
    slant = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(places, [drawing.in_text(column, 24) * (x / axes.bbox.width in kept)
                             for column, x in zip(columns, along)], **slant)
    axes.minorticks_off()
  spread = "95% interval" if kind in ("lengths", "bars") else "range"
  axes.set(xlabel=drawing.in_text(x), ylabel=what,
           title=f"Mean and {spread} of {means_text(result)}" if len(result["seeds"]) > 1 else "One seed")


def section(result: dict, number: int) -> Section:
  """As report.py shows the results."""
  *found, said = texts(result)
  lost = "\n".join(f"{entry['name']} {entry['state']}: {entry['why']}" for entry in result["runs"] if entry["why"])
  said = [Text(said), *[Text(lost, "code")] * bool(lost), Text(f"Made by {result['command']}")]
  title = f"Sweep {result['name']}" + f", size {result['size']}" * bool(result["size"])
  return Section(f"sweep_{number}", title, None, "", lambda view: [*found, *said],
                 lambda view: [functools.partial(draw, result)], title + ".")
