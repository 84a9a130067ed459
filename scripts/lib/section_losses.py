"""Sections of losses: by length and position, of the same targets by context, and by settings."""
from __future__ import annotations
import copy
import os
from functools import partial
from typing import NamedTuple

from lib import drawing, metrics, tables, variants
from lib.sections import Section, Text
from lib.tables import Column


class Unit(NamedTuple):
  name: str
  axis: str
  share: bool = False


UNITS = {"nats": Unit("validation loss", "loss (nats per token)"),
         "bits_per_byte": Unit("bits per byte", "bits per byte"),
         "perplexity": Unit("perplexity", "perplexity (of a token)"),
         "accuracy": Unit("accuracy", "share of the targets that are the likeliest token", True),
         "exact": Unit("exact windows", "share of the windows with all targets right", True)}


def in_unit(rows, unit: str):
  """The rows with `value` and `error` in the unit, and `positions`, the value in each bin."""
  import numpy
  get = lambda key: rows[key].astype(float) if key in rows else numpy.nan
  none = [[] for _ in range(len(rows))]
  bins = rows["by_position"].tolist() if "by_position" in rows else none
  value, error = get("loss"), get("stderr")
  if unit in ("accuracy", "exact"):
    value, error = get(unit), get(unit + "_stderr")
    bins = rows["accuracy_by_position"].tolist() if unit == "accuracy" else none
  elif unit == "bits_per_byte":
    value, ratio = get(unit), get(unit) / value
    error = error * ratio
    bins = [[x and x * r for x in means] for means, r in zip(bins, ratio)]
  elif unit == "perplexity":
    with numpy.errstate(over="ignore"):
      upper, value = numpy.exp(value + error), numpy.exp(value)
      error = upper - value
      bins = [[None if x is None else numpy.exp(x) for x in means] for means in bins]
  return rows.assign(value=value, error=error, positions=bins)


def title(unit: str) -> str:
  return UNITS[unit].name.replace("validation ", "").capitalize()


def of_data(rows) -> str:
  """What a series is of: its data, the tokens asked for, and the settings given for it. Its longest
  window says most: some settings act beyond the trained length alone."""
  row = rows.iloc[rows["length"].argmax()]
  names = [os.path.basename(str(shard["name"])) for shard in row["of.data"]]
  data = " ".join(names[:2]) + (f" and {len(names) - 2} more" if names[2:] else "")
  if row["mode"] == "suffix":
    suffix, context = int(row["suffix"]), int(row["context_of"])
    data = f"the last {suffix} targets in windows of {context} of {data}"
  shown = [data, f"{int(row['of.tokens_asked'])} tokens asked"]
  for key in ("precision", "rope_scaling", "window", "sink_tokens", "separator", "outputs"):
    value = row.get("of." + key)
    if value == value and value not in (None, "", "none", "fp32"):
      shown.append(f"{key} {value:g}" if isinstance(value, (int, float)) else f"{key} {value}")
  if row.get("start") == "document":
    shown.append("from the starts of documents")
  return ", ".join(shown)


def by_length(name, view, rows, at):
  """The Frame of a series: a row for each variant, a column for each length."""
  unit = UNITS[view.unit]
  wide = rows.pivot(index=["run", "variant"], columns="length", values="value")
  columns = [Column(str(length), length, share=unit.share) for length in wide]
  return view.table(name, wide.reset_index(), columns, head=f"{unit.name} {at}")


def less_than_trained(name, view, rows):
  """Loss less that at the trained length."""
  wide = rows.pivot(index=["run", "variant"], columns="length", values="loss")
  columns = [Column(str(length), length, "{:+.3f}") for length in wide]
  for run, losses in wide.iterrows():
    wide.loc[run] -= losses.get(view.runs[run[0]].context(), float("nan"))
  return view.table(name, wide.reset_index(), columns)


def gap_of(view, variant, both):
  """(mean, error, text) of pairs of losses; None of a single pair on other windows."""
  gaps = (both["loss"] - both["loss_base"]).tolist()
  if len(gaps) > 1:
    text = variants.mean_text(gaps, "{:+.3f}", len(view.pairs(variant)))
    return sum(gaps) / len(gaps), metrics.half_width(gaps), text
  one = both.iloc[0]
  other = {key: one[key + "_base"] for key in ("window_losses", "window_labels")}
  windows = metrics.paired(one, {**other, "id": one["id"]})
  few = max(view.seeds[variant], view.seeds[view.base])
  missing = f" (1 of {few} seeds)" if few > 1 else ""
  return windows and (*windows, "%+.3f ± %.3f" % windows + missing)


def differences(view, rows):
  """[(variant, length, *gap_of())] of a series' losses less those of the baseline's variant: paired
  by seed with the 95% interval; of one pair on the same windows, with the standard error."""
  base, found = rows[rows["variant"] == view.base], []
  for variant, mine in rows[rows["variant"] != view.base].groupby("variant", sort=False):
    alone = mine["run"].nunique() == base["run"].nunique() == 1
    pairs = mine.merge(base, on=["id"] if alone else ["id", "seed"], suffixes=("", "_base"))
    newest = pairs["current"] & pairs["current_base"]
    pairs = pairs[newest | (pairs["step"] == pairs["step_base"])]
    for length, both in pairs.groupby("length"):
      if gap := gap_of(view, variant, both):
        found.append((variant, length, *gap))
  return found


def difference_frame(name, view, gaps):
  gaps = tables.frame(gaps, ["variant", "length", "mean", "±", "text"])
  head = "difference in nats at length"
  gaps[head] = gaps["variant"] + f" - {view.base}"
  texts = gaps.pivot(index=head, columns="length", values="text").fillna("-")
  texts = texts.loc[gaps[head].unique()].reset_index()
  return tables.Frame(name, texts, gaps[[head, "length", "mean", "±"]])


# ---------------------------------------------------------------------------------------- by length

def draw_lengths(view, rows, axes):
  import numpy
  drawn = rows[numpy.isfinite(rows["value"])]
  for variant, look in view.looks.items():
    mine = drawn[drawn["variant"] == variant]
    points = drawing.over_seeds(mine, "length", "value")
    if len(points):
      errors = [points["mean"] - points["min"], points["max"] - points["mean"]]
      if mine["run"].nunique() == 1:
        errors = mine.sort_values("length")["error"].fillna(0).tolist()
      axes.errorbar(points.index, points["mean"], yerr=errors, linewidth=1.6, markersize=5, capsize=3, **look)
  unit = UNITS[view.unit]
  axes.set(title=f"{unit.name.capitalize()} by length", xlabel="evaluated length (tokens)", ylabel=unit.axis)
  drawing.length_axis(axes, sorted(rows["length"].unique()))
  axes.margins(x=0.06, y=0.12)
  drawing.mark_contexts(axes, view.contexts())


def positions(rows):
  """The rows with a bin of positions each: its middle, as `position`, and its `value`."""
  found = []
  for row in rows.to_dict("records"):
    values, edges = row["positions"], row["position_edges"]
    if len(values) + 1 == len(edges):
      found += [(row["run"], row["variant"], row["length"], value, (first + last + 1) / 2)
                for value, first, last in zip(values, edges, edges[1:]) if value is not None]
  return tables.frame(found, ["run", "variant", "length", "value", "position"])


def draw_positions(view, rows, axes):
  """In the longest windows of which all runs with such losses have some."""
  found = positions(rows)
  by_run = found.groupby("length")["run"].nunique()
  common = by_run.index[by_run == found["run"].nunique()]
  within = f" in windows of {max(common)}" if len(common) else ""
  axes.set(title=f"{title(view.unit)} by position{within}", xlabel="position (token)", ylabel=UNITS[view.unit].axis)
  if len(common):
    found = found[found["length"] == max(common)]
    drawing.mean_lines(axes, view, found, "position", "value", marker="")
  elif len(found):
    drawing.note(axes, "no length in common")
  drawing.length_axis(axes)
  drawing.mark_contexts(axes, view.contexts())


def draw_differences(view, gaps, axes):
  names = [*dict.fromkeys(variant for variant, *_ in gaps)]
  for number, name in enumerate(names):
    _, lengths, means, errors, _ = zip(*(gap for gap in gaps if gap[0] == name))
    axes.errorbar(drawing.apart(lengths, number, len(names)), means, yerr=errors, markersize=4,
                  capsize=3, linewidth=1.2, **view.looks[name])
  axes.axhline(0, color="#888888", linewidth=1)
  axes.set(title=drawing.in_text(f"Difference to {view.titles[view.base]}", 30),
           xlabel="evaluated length (tokens)", ylabel="nats per token")
  drawing.length_axis(axes, sorted({length for _, length, *_ in gaps}))


def lengths(view):
  """Tables of each series; the picture is of the one that most runs have."""
  blocks, panels = [], []
  for number, rows in enumerate(view.series("windows"), 1):
    rows, end = in_unit(rows, view.unit), f"_{number}" if number > 1 else ""
    blocks += [Text(f"{title(view.unit)} of {of_data(rows)}{view.earlier(rows)}:"),
               by_length("lengths" + end, view, rows, "at length")]
    if rows["length"].nunique() > 1:
      blocks += [Text("Loss less that at the trained length, in nats:"),
                 less_than_trained("less_than_trained" + end, view, rows)]
    gaps = differences(view, rows)
    if gaps:
      blocks += [Text(f"Difference to {view.base}: paired by seed, mean and 95% interval; of single "
                      "runs on the same windows, with the standard error:"),
                 difference_frame("differences" + end, view, gaps)]
    if number == 1:
      panels += [partial(draw_lengths, view, rows), partial(draw_positions, view, rows)]
      panels += [partial(draw_differences, view, gaps)] if gaps else []
  return blocks, panels


# ---------------------------------------------------------------------------- of labels, by context

def accuracies(view):
  """Where the data have labels."""
  blocks, panels = [], []
  for number, rows in enumerate(view.series("windows"), 1):
    if not {"of.label_mean", "accuracy"} <= {*rows} or rows["of.label_mean"].isna().all():
      continue
    for unit in ("accuracy", "exact"):
      other, shown = copy.copy(view), in_unit(rows, unit)
      other.unit = unit
      blocks.append(by_length(f"{unit}_{number}", other, shown, "at length"))
      panels.append(partial(draw_lengths, other, shown))
      if unit == "accuracy":
        panels.append(partial(draw_positions, other, shown))
  return blocks, panels


def draw_contexts(view, rows, axes):
  """No error bars: the losses at all lengths are of the same targets, and vary together."""
  drawing.mean_lines(axes, view, rows, "length", "value")
  axes.set(title=title(view.unit) + " by context", xlabel="context of the same targets",
           ylabel=UNITS[view.unit].axis)
  drawing.length_axis(axes, sorted(rows["length"].unique()))
  drawing.mark_contexts(axes, view.contexts())


def contexts(view):
  blocks, panels = [], []
  for number, rows in enumerate(view.series("suffix"), 1):
    rows = in_unit(rows, view.unit)
    name = f"contexts_{number}" if number > 1 else "contexts"
    said = f"{title(view.unit)} of {of_data(rows)}, by the context that the model sees"
    blocks += [Text(f"{said}{view.earlier(rows)}:"), by_length(name, view, rows, "with context")]
    panels = panels or [partial(draw_contexts, view, rows)]
  return blocks, panels


# ----------------------------------------------------------------------------------------- settings

def settings(view):
  """The keys that differ, the step and the loss at the trained length, by it; what is left out."""
  keys = metrics.differing(view.runs)
  at_trained = {}
  for mode in ("suffix", "windows"):
    rows = view.current(mode)
    found = rows[rows["length"] == view.trained(rows)]
    at_trained.update(zip(found["run"], found["loss"]))
  rows = []
  for number, run in enumerate(view.runs):
    own = {f"of {key}": str(run.settings().get(key, "-")) for key in keys}
    rows.append({**view.marks[run], **own, "step": str(run.step()), "loss": at_trained.get(number)})
  frame = tables.frame(rows)
  frame["mean"] = frame.groupby("variant")["loss"].transform("mean") if at_trained else 0
  columns = [*(Column(key, f"of {key}") for key in keys), Column("step", "step"),
             Column("loss at trained length (nats)", "loss")]
  table = view.table("settings", frame.sort_values("mean", kind="stable"), columns)
  said = [Text("The settings that differ:")] if keys else []
  return [*said, table, *view.notes()], []


LENGTHS = Section("lengths", "Loss by length", ("val", "eval"), "./train RUN --eval", lengths,
                  "Loss by evaluated length, and by position. Bars are standard errors; of several "
                  "seeds, the range.")
ACCURACIES = Section("accuracies", "Accuracy of labels", ("val", "eval"),
                     "./train RUN --eval --set data.val=SHARDS --set data.val_labels=LABELS", accuracies,
                     "Targets that are the likeliest token, and windows of only such targets.")
CONTEXTS = Section("contexts", "The same targets with growing context", ("val", "eval"),
                   "./train RUN --eval --set eval.mode=suffix", contexts,
                   "Loss of the same targets by context.")
SETTINGS = Section("settings", "Settings", (), "", settings)
