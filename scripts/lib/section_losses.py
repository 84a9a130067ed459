"""Sections of losses: by evaluated length and position, of the same targets by context, and beside the settings."""
from __future__ import annotations
import copy
import functools
import math
from typing import Callable, NamedTuple

from lib import drawing, metrics, tables, variants
from lib.sections import Column, Section, Text, View, table

class Unit(NamedTuple):
  """What is shown of an evaluation e: numbers, None where they are unknown."""
  name: str
  axis: str
  value: Callable  # (e)
  error: Callable  # (e): upwards, of a value that is known
  positions: Callable  # (e): the value in each bin of positions


def of_loss(name: str, axis: str, convert: Callable) -> Unit:
  """convert(e, loss): a loss of e in the unit."""
  value = lambda e: convert(e, e.loss)
  return Unit(name, axis, value, lambda e: convert(e, e.loss + (e.stderr or 0)) - value(e),
              lambda e: [loss if loss is None else convert(e, loss) for loss in e.by_position])


UNITS = {"nats": of_loss("validation loss", "loss (nats per token)", lambda e, loss: loss),
         "bits_per_byte": of_loss("bits per byte", "bits per byte", lambda e, loss: (
             loss * e.bits_per_byte / e.loss if e.bits_per_byte and e.loss else None)),
         "perplexity": of_loss("perplexity", "perplexity (of a token)",
                               lambda e, loss: math.exp(loss) if loss < 700 else math.inf),
         "accuracy": Unit("accuracy", "share of the targets that are the likeliest token", lambda e: e.accuracy,
                          lambda e: e.accuracy_stderr or 0, lambda e: e.accuracy_by_position),
         "exact": Unit("exact windows", "share of the windows with all targets right", lambda e: e.exact,
                       lambda e: e.exact_stderr or 0, lambda e: [])}


def title(unit: str) -> str:
  return UNITS[unit].name.replace("validation ", "").capitalize()


def curve(view: View, evaluations: dict[int, metrics.Evaluation]) -> list[tuple[int, float]]:
  """[(length, value in the unit)] of {length: evaluation}."""
  found = [(length, UNITS[view.unit].value(e)) for length, e in sorted(evaluations.items())]
  return [point for point in found if point[1] is not None]


def loss_table(view, runs, at, row_of):
  """row_of(run): {length: evaluation}."""
  columns = [Column(str(length), lambda run, length=length: dict(curve(view, row_of(run))).get(length),
                    share=view.unit in ("accuracy", "exact"))
             for length in sorted({length for run in runs for length in row_of(run)})]
  return table(view.rows(runs.__contains__), columns, [f"{UNITS[view.unit].name} {at}"])


# ----------------------------------------------------------------------------------------------------------- by length

def differences(view: View) -> dict[variants.Variant, dict[int, tuple[float, float, str]]]:
  """{variant: {length: (mean, error, text)}} of the losses less those of the baseline's variant, of variants that have
  any: paired by seed with the 95% interval; of one pair on the same windows, with the standard error over these."""
  base, result = view.base(), {}
  for variant in view.variants:
    alone = len(variant.runs) == len(base.runs) == 1
    pairs = [(run, other) for run in variant.runs for other in base.runs if alone or run.seed() == other.seed()]
    lengths = {length for run, _ in pairs for length in run.row} if variant is not base else {}
    for length in lengths:
      both = [(run.row[length], other.row[length]) for run, other in pairs if length in run.row and length in other.row
              and run.row[length].id == other.row[length].id]
      gap = None
      if len(both) > 1:
        gaps = [one.loss - other.loss for one, other in both]
        gap = metrics.mean(gaps), metrics.half_width(gaps), variants.mean_text(gaps, "{:+.3f}")
      elif both and (windows := metrics.difference(*both[0])):
        gap = *windows, "%+.3f ± %.3f" % windows
      if gap:
        result.setdefault(variant, {})[length] = gap
  return result


def difference_table(view, gaps):
  lengths, base = sorted(set().union(*gaps.values())), view.base().label
  return tables.markdown(["difference in nats at length", *map(str, lengths)], [
      [f"{variant.label} - {base}", *(row[length][2] if length in row else "-" for length in lengths)]
      for variant, row in gaps.items()])


def less_than_trained(length: int, run: metrics.Run) -> float | None:
  trained = run.row.get(run.context())
  return run.row[length].loss - trained.loss if trained and length in run.row else None


def length_tables(view):
  blocks = []
  for group in metrics.comparable(view.runs):
    blocks += [Text(f"{title(view.unit)} of {group[0].of()}:"),
               loss_table(view, group, "at length", lambda run: run.row)]
    if (lengths := sorted({length for run in group for length in run.row}))[1:]:
      columns = [Column(str(n), functools.partial(less_than_trained, n), "{:+.3f}") for n in lengths]
      blocks += [Text("Loss less that at the trained length, in nats:"), table(view.rows(group.__contains__), columns)]
  if gaps := differences(view):
    blocks += [Text(f"Difference to {view.base().label}: paired by seed, mean and 95% interval; of single runs on the "
                    "same windows, with the standard error:"), difference_table(view, gaps)]
  return blocks


def mark_contexts(view, axes):
  for context in sorted({run.context() for run in view.runs if run.context()}):
    axes.axvline(context, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate("trained length", (context, 1), xycoords=("data", "axes fraction"), xytext=(4, -2),
                  textcoords="offset points", va="top", fontsize=8.5, color="#666666")


def draw_lengths(view, axes):
  for variant in view.variants:
    curves = [[point for point in curve(view, run.row) if point[1] < math.inf] for run in variant.runs]
    if points := variants.over_seeds(curves):
      lengths, means, least, most = zip(*points)
      errors = [[mean - low for mean, low in zip(means, least)], [high - mean for mean, high in zip(means, most)]]
      if len(variant.runs) == 1:
        errors = [UNITS[view.unit].error(variant.runs[0].row[length]) for length in lengths]
      axes.errorbar(lengths, means, yerr=errors, linewidth=1.6, markersize=5, capsize=3, **variant.look)
    elif any(run.contexts for run in variant.runs):
      axes.plot([], [], **variant.look)  # for the legend: it is in another panel
  axes.set(title=UNITS[view.unit].name.capitalize() + " by length", xlabel="evaluated length (tokens)",
           ylabel=UNITS[view.unit].axis)
  if lengths := sorted({length for run in view.runs for length in run.row}):
    drawing.length_axis(axes, lengths)
    axes.margins(x=0.06, y=0.12)
  else:
    drawing.note(axes, "no evaluation yet")
  mark_contexts(view, axes)


def positions(evaluation: metrics.Evaluation, unit: str) -> list[tuple[float, float]]:
  """(middle of the bin, value in the unit) of the bins that have one."""
  e = evaluation
  return [((first + last + 1) / 2, value)
          for value, first, last in zip(UNITS[unit].positions(e), e.edges, e.edges[1:]) if value is not None]


def draw_positions(view, axes):
  """The loss by position in the longest windows that all runs with such losses have; names the runs without."""
  found = {run: {length: points for length, e in run.row.items() if (points := positions(e, view.unit))}
           for run in view.runs}
  some = [run for run in view.runs if found[run]]
  length = max(set.intersection(*(set(found[run]) for run in some)), default=None) if some else None
  for variant in view.variants if length else ():
    drawing.mean_line(axes, [found[run][length] for run in variant.runs if run in some], variant.look, marker="")
  axes.set(title=f"{title(view.unit)} by position" + (f" in windows of {length}" if length else ""),
           xlabel="position (token)", ylabel=UNITS[view.unit].axis)
  drawing.length_axis(axes)
  if some and not length:
    drawing.note(axes, "no length in common")
  if without := [variant.label for variant in view.variants if not all(found[run] for run in variant.runs)]:
    text = drawing.in_text("no loss by position: " + ", ".join(without))
    drawing.note(axes, text + "\n(--eval --resume adds it)", 0.02)
  mark_contexts(view, axes)


def draw_differences(view, gaps, axes):
  for number, (variant, row) in enumerate(gaps.items()):
    lengths = sorted(row)
    means, errors, _ = zip(*map(row.get, lengths))
    axes.errorbar(drawing.apart(lengths, number, len(gaps)), means, yerr=errors, markersize=4, capsize=3, linewidth=1.2,
                  **variant.look)
  axes.axhline(0, color="#888888", linewidth=1)
  axes.set(title=drawing.in_text(f"Difference to {view.base().title}", 30),
           xlabel="evaluated length (tokens)", ylabel="nats per token")
  drawing.length_axis(axes, sorted(set().union(*gaps.values())))


def length_panels(view):
  gaps = differences(view)
  return [functools.partial(draw_lengths, view), functools.partial(draw_positions, view),
          *[functools.partial(draw_differences, view, gaps)] * bool(gaps)]


LENGTHS = Section("lengths", "Loss by length", lambda run: bool(run.row), "./train RUN --eval", length_tables,
                  length_panels,
                  "Loss by evaluated length, and by position. Bars are standard errors; of several seeds, the range.")


# ---------------------------------------------------------------------------------------------------------- of labels

def labelled(run: metrics.Run) -> bool:
  """Whether the accuracy of labels is known."""
  return any(e.accuracy is not None and e.labels for e in run.row.values())


def in_unit(view: View, unit: str) -> View:
  view = copy.copy(view)
  view.unit = unit
  return view


def accuracy_tables(view):
  return [loss_table(in_unit(view, unit), group, "at length", lambda run: run.row)
          for group in metrics.comparable([*filter(labelled, view.runs)]) for unit in ("accuracy", "exact")]


def accuracy_panels(view):
  accuracy, exact = in_unit(view, "accuracy"), in_unit(view, "exact")
  return [functools.partial(draw_lengths, accuracy), functools.partial(draw_positions, accuracy),
          functools.partial(draw_lengths, exact)]


ACCURACIES = Section("accuracies", "Accuracy of labels", labelled,
                     "./train RUN --eval --set data.val=SHARDS --set data.val_labels=LABELS", accuracy_tables,
                     accuracy_panels, "Targets that are the likeliest token, and windows of only such targets.")


# ---------------------------------------------------------------------------------------------------------- by context

def context_tables(view):
  blocks = []
  for group in metrics.same_targets(view.runs):
    e = next(iter(group[0].contexts.values()))
    blocks += [Text(f"{title(view.unit)} of the last {e.targets[1]} targets in windows of {e.targets[0]} of "
                    f"{e.data()}, by the context that the model sees:"),
               loss_table(view, group, "with context", lambda run: run.contexts)]
  return blocks


def draw_contexts(view, axes):
  """No error bars: the losses at all lengths are of the same targets, and vary together."""
  for variant in view.variants:
    drawing.mean_line(axes, [curve(view, run.contexts) for run in variant.runs], variant.look)
  axes.set(title=title(view.unit) + " by context", xlabel="context of the same targets", ylabel=UNITS[view.unit].axis)
  drawing.length_axis(axes, sorted({length for run in view.runs for length in run.contexts}))
  mark_contexts(view, axes)


CONTEXTS = Section("contexts", "The same targets with growing context", lambda run: bool(run.contexts),
                   "./train RUN --eval --set eval.mode=suffix", context_tables,
                   lambda view: [functools.partial(draw_contexts, view)] * any(run.contexts for run in view.runs),
                   "Loss of the same targets by context.")


# ------------------------------------------------------------------------------------------------------------ settings

def settings_tables(view):
  """The keys in which the runs differ, the step and the loss at the trained length; among comparable variants the
  lowest loss first. Then what is left out."""
  keys, configs = metrics.differing(view.runs), {run: run.settings() for run in view.runs}
  at_trained = lambda run: (run.row or run.contexts).get(run.context())
  loss = lambda run: e.loss if (e := at_trained(run)) else None
  targets_of = lambda run: (e := at_trained(run)) and e.targets
  groups = [*metrics.comparable(view.runs), [run for run in view.runs if not run.row]]
  mean = lambda row: metrics.mean(map(loss, row[1])) or math.inf
  rows = [row for group in groups for row in sorted(view.rows(group.__contains__), key=mean)]
  columns = [*(Column(key, lambda run, key=key: str(configs[run].get(key, "-"))) for key in keys),
             Column("step", lambda run: str(run.step())), Column("loss at trained length (nats)", loss),
             Column("of the last targets", lambda run: str(targets[1]) if (targets := targets_of(run)) else None)]
  return [*[Text("The settings that differ:")] * bool(keys), table(rows, columns),
          *(Text(run.note()) for run in view.runs if run.note())]


SETTINGS = Section("settings", "Settings", lambda run: True, "", settings_tables)
