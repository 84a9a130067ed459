"""Sections of losses: by evaluated length and position, of the same targets by context, and beside the settings."""
from __future__ import annotations
import copy
import functools
import os
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
  """The rows with columns `value` and `error`, in the unit, and `positions`, the value in each bin of positions."""
  import numpy
  get = lambda key: rows[key].astype(float) if key in rows else numpy.nan
  none = [[] for _ in range(len(rows))]
  by_position = list(rows["by_position"]) if "by_position" in rows else none
  loss, stderr = get("loss"), get("stderr")
  if unit in ("accuracy", "exact"):
    value, error = get(unit), get(unit + "_stderr")
    by_position = list(rows["accuracy_by_position"]) if unit == "accuracy" else none
  elif unit == "bits_per_byte":
    value, ratio = get(unit), get(unit) / loss
    error, by_position = stderr * ratio, [[x and x * r for x in means] for means, r in zip(by_position, ratio)]
  elif unit == "perplexity":
    with numpy.errstate(over="ignore"):
      value = numpy.exp(loss)
      error = numpy.exp(loss + stderr) - value
      by_position = [[None if x is None else numpy.exp(x) for x in means] for means in by_position]
  else:
    value, error = loss, stderr
  return rows.assign(value=value, error=error, positions=by_position)


def title(unit: str) -> str:
  return UNITS[unit].name.replace("validation ", "").capitalize()


def of_data(row) -> str:
  """What an evaluation is of: its data, the tokens asked for, and the settings that were given for it."""
  names = [os.path.basename(str(shard["name"])) for shard in row["of.data"]]
  shown = [" ".join(names[:2]) + (f" and {len(names) - 2} more" if names[2:] else "")]
  if row["mode"] == "suffix":
    shown = [f"the last {int(row['suffix'])} targets in windows of {int(row['context_of'])} of {shown[0]}"]
  shown += [f"{int(row['of.tokens_asked'])} tokens asked"]
  for key in ("precision", "rope_scaling", "window", "sink_tokens", "separator", "outputs"):
    value = row.get("of." + key)
    if value == value and value not in (None, "", "none", "fp32"):
      shown.append(f"{key} {value:g}" if isinstance(value, (int, float)) else f"{key} {value}")
  return ", ".join(shown + ["from the starts of documents"] * (row.get("start") == "document"))


def by_length(name, view, rows, at):
  """The Frame of a series: a row for each variant, a column for each length."""
  wide = rows.pivot(index=["run", "variant", "seed"], columns="length", values="value").reset_index()
  columns = [Column(str(n), n, share=UNITS[view.unit].share) for n in sorted(rows["length"].unique())]
  return tables.of_groups(name, wide, ["variant"], columns, [f"{UNITS[view.unit].name} {at}"], view.seeds)


def less_than_trained(name, view, rows):
  """Loss less that at the trained length."""
  wide = rows.pivot(index=["run", "variant", "seed"], columns="length", values="loss")
  trained = [view.runs[run].context() for run, *_ in wide.index]
  base = [wide.loc[at].get(n) for at, n in zip(wide.index, trained)]
  wide = wide.sub(metrics.load_pandas().Series(base, wide.index, float), axis=0).reset_index()
  columns = [Column(str(n), n, "{:+.3f}") for n in sorted(rows["length"].unique())]
  return tables.of_groups(name, wide, ["variant"], columns, ["run"], view.seeds)


def differences(view, rows):
  """[(variant, length, mean, error, text)] of the losses of a series less those of the baseline's variant: paired by
  seed with the 95% interval; of one pair on the same windows, with the standard error over these."""
  base, found = rows[rows["variant"] == view.base], []
  for variant in rows["variant"].unique():
    mine = rows[rows["variant"] == variant]
    alone = mine["run"].nunique() == base["run"].nunique() == 1
    if variant == view.base or base.empty:
      continue
    pairs = mine.merge(base, on=["id"] if alone else ["id", "seed"], suffixes=("", "_base"))
    for length, both in pairs.groupby("length"):
      gaps = (both["loss"] - both["loss_base"]).tolist()
      if len(gaps) > 1:
        text = variants.mean_text(gaps, "{:+.3f}", len(view.pairs(variant)))
        found.append((variant, length, sum(gaps) / len(gaps), metrics.half_width(gaps), text))
        continue
      one = both.iloc[0]
      other = {key: one[key + "_base"] for key in ("window_losses", "window_labels")}
      if windows := metrics.paired(one, {**other, "id": one["id"]}):
        few = max(view.seeds[variant], view.seeds[view.base])
        found.append((variant, length, *windows, "%+.3f ± %.3f" % windows + f" (1 of {few} seeds)" * (few > 1)))
  return found


def difference_frame(name, view, gaps):
  pandas = metrics.load_pandas()
  gaps = pandas.DataFrame(gaps, columns=["variant", "length", "mean", "±", "text"])
  head = "difference in nats at length"
  gaps[head] = gaps["variant"] + f" - {view.base}"
  order = gaps[head].unique()
  texts = gaps.pivot(index=head, columns="length", values="text").loc[order].fillna("-").reset_index()
  return tables.Frame(name, texts, gaps[[head, "length", "mean", "±"]])


# ----------------------------------------------------------------------------------------------------------- by length

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
  axes.set(title=UNITS[view.unit].name.capitalize() + " by length", xlabel="evaluated length (tokens)",
           ylabel=UNITS[view.unit].axis)
  drawing.length_axis(axes, sorted(rows["length"].unique()))
  axes.margins(x=0.06, y=0.12)
  drawing.mark_contexts(axes, view.contexts())


def positions(rows):
  """The rows with a bin of positions each: its middle, as `position`, and its `value`."""
  found = [{"run": row["run"], "variant": row["variant"], "length": row["length"], "value": value,
            "position": (first + last + 1) / 2}
           for row in rows.to_dict("records")
           for value, first, last in zip(row["positions"], row["position_edges"], row["position_edges"][1:])
           if value is not None and len(row["positions"]) + 1 == len(row["position_edges"])]
  return metrics.load_pandas().DataFrame(found, columns=["run", "variant", "length", "value", "position"])


def draw_positions(view, rows, axes):
  """In the longest windows of which all runs with such losses have some."""
  found = positions(rows)
  by_run = found.groupby("length")["run"].nunique() if len(found) else found["length"]
  common = by_run.index[by_run == found["run"].nunique()]
  within = f" in windows of {max(common)}" if len(common) else ""
  axes.set(title=f"{title(view.unit)} by position{within}", xlabel="position (token)",
           ylabel=UNITS[view.unit].axis)
  if len(common):
    drawing.mean_lines(axes, view, found[found["length"] == max(common)], "position", "value", marker="")
  elif len(found):
    drawing.note(axes, "no length in common")
  drawing.length_axis(axes)
  drawing.mark_contexts(axes, view.contexts())


def draw_differences(view, gaps, axes):
  names, lengths = [*dict.fromkeys(gap[0] for gap in gaps)], sorted({gap[1] for gap in gaps})
  for number, variant in enumerate(names):
    at, means, errors = zip(*((n, mean, error) for name, n, mean, error, _ in gaps if name == variant))
    axes.errorbar(drawing.apart(at, number, len(names)), means, yerr=errors, markersize=4, capsize=3, linewidth=1.2,
                  **view.looks[variant])
  axes.axhline(0, color="#888888", linewidth=1)
  axes.set(title=drawing.in_text(f"Difference to {view.titles[view.base]}", 30), xlabel="evaluated length (tokens)",
           ylabel="nats per token")
  drawing.length_axis(axes, lengths)


def lengths(view):
  """Tables of each series; the picture is of the one that most runs have."""
  blocks, panels = [], []
  for number, rows in enumerate(view.series("windows"), 1):
    rows, end = in_unit(rows, view.unit), f"_{number}" * (number > 1)
    blocks += [Text(f"{title(view.unit)} of {of_data(rows.iloc[0])}:"),
               by_length("lengths" + end, view, rows, "at length")]
    if rows["length"].nunique() > 1:
      blocks += [Text("Loss less that at the trained length, in nats:"),
                 less_than_trained("less_than_trained" + end, view, rows)]
    gaps = differences(view, rows)
    if gaps:
      blocks += [Text(f"Difference to {view.base}: paired by seed, mean and 95% interval; of single runs on the same "
                      "windows, with the standard error:"), difference_frame("differences" + end, view, gaps)]
    panels = panels or [functools.partial(draw_lengths, view, rows), functools.partial(draw_positions, view, rows),
                        *[functools.partial(draw_differences, view, gaps)] * bool(gaps)]
  return blocks, panels


# ----------------------------------------------------------------------------------------------- of labels, by context

def with_unit(view, unit):
  view = copy.copy(view)
  view.unit = unit
  return view


def accuracies(view):
  """Where the data have labels."""
  blocks, panels = [], []
  for number, rows in enumerate(view.series("windows"), 1):
    if "of.label_mean" not in rows or rows["of.label_mean"].isna().all() or "accuracy" not in rows:
      continue
    for unit in ("accuracy", "exact"):
      other, shown = with_unit(view, unit), in_unit(rows, unit)
      blocks.append(by_length(f"{unit}_{number}", other, shown, "at length"))
      panels.append(functools.partial(draw_lengths, other, shown))
      if unit == "accuracy":
        panels.append(functools.partial(draw_positions, other, shown))
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
    blocks += [Text(f"{title(view.unit)} of {of_data(rows.iloc[0])}, by the context that the model sees:"),
               by_length("contexts" + f"_{number}" * (number > 1), view, rows, "with context")]
    panels = panels or [functools.partial(draw_contexts, view, rows)]
  return blocks, panels


# ------------------------------------------------------------------------------------------------------------ settings

def settings(view):
  """The keys in which the runs differ, the step and the loss at the trained length, the lowest first. Then what is
  left out."""
  keys = metrics.differing(view.runs)
  shown = [*view.series("windows")[:1], *view.series("suffix")[:1]]
  at_trained = {}
  for rows in reversed(shown):
    found = rows[rows["length"] == rows["run"].map(lambda run: view.runs[run].context())]
    at_trained.update(zip(found["run"], found["loss"]))
  rows = [{**view.marks[run], **{key: str(run.settings().get(key, "-")) for key in keys}, "step ": str(run.step()),
           "loss": at_trained.get(number)} for number, run in enumerate(view.runs)]
  frame = metrics.load_pandas().DataFrame(rows)
  frame["mean"] = frame.groupby("variant")["loss"].transform("mean") if at_trained else 0
  columns = [*(Column(key, "of_seed" if key == "seed" else key) for key in keys), Column("step", "step "),
             Column("loss at trained length (nats)", "loss")]
  frame = frame.assign(of_seed=frame["seed"]).sort_values("mean", kind="stable")
  return [*[Text("The settings that differ:")] * bool(keys),
          tables.of_groups("settings", frame, ["variant"], columns, ["run"]), *view.notes()], []


LENGTHS = Section("lengths", "Loss by length", ("val", "eval"), "./train RUN --eval", lengths,
                  "Loss by evaluated length, and by position. Bars are standard errors; of several seeds, the range.")
ACCURACIES = Section("accuracies", "Accuracy of labels", ("val", "eval"),
                     "./train RUN --eval --set data.val=SHARDS --set data.val_labels=LABELS", accuracies,
                     "Targets that are the likeliest token, and windows of only such targets.")
CONTEXTS = Section("contexts", "The same targets with growing context", ("val", "eval"),
                   "./train RUN --eval --set eval.mode=suffix", contexts, "Loss of the same targets by context.")
SETTINGS = Section("settings", "Settings", (), "", settings)
