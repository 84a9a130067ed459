"""Sections of what runs were asked beyond their losses: benchmarks, passkey retrieval, and what attention looks at."""
from __future__ import annotations
import functools
import json
import math
import shlex
import statistics

from lib import drawing, metrics, tables, variants
from lib.common import UserError
from lib.section_training import SPIKES
from lib.sections import Column, Section, Text, field, table


def newest(run: metrics.Run, kind: str, keys: list[str]) -> dict[tuple, dict]:
  """{values of these keys: the last line of a type with them}, of the newest step that has any."""
  lines = run.others.get(kind, [])
  step = max((line["step"] for line in lines), default=None)
  return {tuple(str(line.get(key)) for key in keys): line for line in lines if line["step"] == step}


def line_rows(view, kind, keys):
  """Rows of a table: the newest lines of a type, by variant and by the values of these keys."""
  found = {run: newest(run, kind, keys) for run in view.runs}
  asked_of = lambda variant: dict.fromkeys(asked for run in variant.runs for asked in found[run])
  return [([variant.label, *asked], [found[run][asked] for run in variant.runs if asked in found[run]])
          for variant in view.variants for asked in asked_of(variant)]


# ----------------------------------------------------------------------------------------------------------- benchmarks

ASKED = ["task", "n", "max_length", "xxh64"]  # what makes a question


def task_keys(runs: list[metrics.Run]) -> list[str]:
  """The fields whose values tell apart what one task was: its name, and those in which lines of one name differ."""
  forms = {key: {found for run in runs for found in newest(run, "task", ["task", key])} for key in ASKED[1:]}
  return ["task", *(key for key in forms if len(forms[key]) > len({name for name, _ in forms[key]}))]


def task_columns(runs: list[metrics.Run]) -> list[Column]:
  """By length (acc_norm), or where a task has no such score, acc, or the perplexity of a text's words. Only equal
  questions share a column."""
  keys = task_keys(runs)
  names = sorted({found for run in runs for found in newest(run, "task", keys)})

  def score(name):
    lines = {run: newest(run, "task", keys).get(name, {}) for run in runs}
    key = next((key for key in ("acc_norm", "acc", "word_perplexity")
                if any(field(key)(line) is not None for line in lines.values())), "acc")
    shown = ("{:.2f}", min) if key == "word_perplexity" else ("{:.1%}", max)
    of = ", ".join(map(" ".join, zip(keys[1:], name[1:])))
    return Column(f"{name[0]} {key}" + (f" ({of})" if of else ""), lambda run: field(key)(lines[run]), *shown)
  return [score(name) for name in names]


def right_answers(line: dict) -> dict[int, bool]:
  """{number: whether the choice by length, or without lengths by likelihood alone, was right} of a task line's
  examples; {} if they are not in the file that the line's program wrote."""
  found, key = {}, "acc" if field("acc_norm")(line) is None else "acc_norm"
  try:
    with open(line["samples"], encoding="utf-8") as file:
      for row in map(json.loads, file):
        if row["task"] == line["task"]:
          sizes = row["characters"] if key == "acc_norm" else [1] * len(row["loglikelihood"])
          scores = [likelihood / size for likelihood, size in zip(row["loglikelihood"], sizes)]
          found[row["example"]] = row.get("greedy", scores.index(max(scores)) == row["gold"])
    return found if len(found) == line["n"] and abs(statistics.mean(found.values()) - line[key]) < 1e-9 else {}
  except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
    return {}


def mcnemar(one: dict[int, bool], other: dict[int, bool]) -> tuple[int, int, float]:
  """(only one is right, only the other, two-sided p of the exact test) of two right_answers() to the same questions."""
  counts = [sum(mine and not theirs for mine, theirs in pairs) for pairs in (
      [(one[n], other[n]) for n in one], [(other[n], one[n]) for n in one])]
  tail = sum(math.comb(sum(counts), k) for k in range(min(counts) + 1))
  return *counts, min(1.0, 2 * tail / 2 ** sum(counts))


def paired_tasks(view):
  """Of runs that were asked the same questions as one of the baseline's variant, where both kept their answers
  (task.samples): by seed, as the same examples with several seeds are not independent."""
  base, rows = view.base(), []
  for variant in view.variants:
    alone = len(variant.runs) == len(base.runs) == 1
    for run, other in ((run, other) for run in variant.runs for other in base.runs if variant is not base):
      if alone or run.seed() == other.seed():
        theirs = newest(other, "task", ASKED)
        for asked, line in newest(run, "task", ASKED).items():
          answers = right_answers(line), right_answers(theirs.get(asked, {}))
          if answers[0] and answers[0].keys() == answers[1].keys():
            *counts, p = mcnemar(*answers)
            label = variant.title + f", seed {run.seed()}" * (not alone)
            rows.append([label, *asked[:2], *map(str, counts), "%.3g" % p])
  return [Text(f"Paired with {base.title}: examples that only one of both answers right, and the exact two-sided p of "
               "McNemar's test:"),
          tables.markdown(["run", "task", "n", "only this run", f"only {base.title}", "p"], rows)] if rows else []


def task_tables(view):
  keys = [*dict.fromkeys(["task", "n", *task_keys(view.runs)])]
  columns = [Column("correct", field("acc"), "{:.1%}"), Column("standard error", field("stderr"), "{:.1%}"),
             Column("chance", field("chance"), "{:.1%}"), Column("by length", field("acc_norm"), "{:.1%}"),
             Column("margin", field("margin")), Column("perplexity of words", field("word_perplexity"), "{:.2f}"),
             Column("bits per byte", field("bits_per_byte"), "{:.4f}")]
  return [table(line_rows(view, "task", keys), columns, ["run", *keys]), *paired_tasks(view)]


def task_scores(runs):
  """({run: [(step, mean score in %)]}, names): the mean over the questions that all runs with any were asked, at the
  steps at which a run was asked all of them; by length, or without lengths by likelihood alone."""
  found = {}  # run: question: step: score
  for run in runs:
    for line in run.others.get("task", []):
      score = next((share for key in ("acc_norm", "acc") if (share := field(key)(line)) is not None), None)
      if score is not None:
        asked = tuple(str(line.get(key)) for key in ASKED)
        found.setdefault(run, {}).setdefault(asked, {})[line["step"]] = 100 * score
  common = sorted(set.intersection(*map(set, found.values()))) if found else []
  means = {}
  for run in found if common else ():
    if steps := sorted(set.intersection(*(set(found[run][asked]) for asked in common))):
      means[run] = [(step, metrics.mean([found[run][asked][step] for asked in common])) for step in steps]
  return means, [asked[0] for asked in common]


def draw_tasks(view, scores, names, axes):
  for variant in view.variants:
    drawing.mean_line(axes, [scores[run] for run in variant.runs if run in scores], variant.look)
  title = "Tasks: " + ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
  axes.set(title=drawing.in_text(title, drawing.TITLE), xlabel="step", ylabel="mean of correct answers (%)")


def task_panels(view):
  scores, names = task_scores(view.runs)
  return [lambda axes: draw_tasks(view, scores, names, axes)] * bool(scores)


TASKS = Section("tasks", "Tasks", lambda run: bool(run.others.get("task")), "./train RUN --tasks", task_tables,
                task_panels, "Mean of correct answers by step.")


# -------------------------------------------------------------------------------------------------------------- passkey

def passkey_cells(run: metrics.Run) -> dict[str, dict[int, list[tuple[float, float, float]]]]:
  """{form: {length: [(depth, share of exact answers, distance)]}} of the last step with whole lines."""
  steps = {}
  for entry in run.others.get("passkey", []):
    try:
      step, form, length = entry["step"], str(entry["form"]), int(entry["length"])
      cells = [tuple(map(float, cell)) for cell in zip(entry["depths"], entry["exact"], entry["distance"])]
    except (ValueError, KeyError, TypeError, OverflowError):
      continue  # a damaged line
    if cells:
      steps.setdefault(step, {}).setdefault(form, {})[length] = cells
  return steps[max(steps)] if steps else {}


def mean(key):
  """Of the list in a line; None if it is none, or has a null."""
  def value(line):
    values = metrics.numbers(line.get(key))
    return metrics.mean(values) if None not in values else None
  return value


def passkey_columns(runs: list[metrics.Run]) -> list[Column]:
  lines = {run: newest(run, "passkey", ["form", "length"]) for run in runs}
  found = sorted({(int(length), form) for run in runs for form, length in lines[run] if length.isdecimal()})
  score = lambda asked: lambda run: mean("exact")(lines[run].get(asked, {}))
  several = len({form for _, form in found}) > 1  # a form with a comma names a window that is not the run's own
  return [Column(f"passkey at {length}" + (several or "," in form) * f", {form}", score((form, str(length))), "{:.1%}",
                 max) for length, form in found]


def passkey_tables(view):
  keys = ["form", "length", "trials"]
  return [table(line_rows(view, "passkey", keys), [
      Column("exact", mean("exact"), "{:.1%}"), Column("standard error", field("stderr"), "{:.1%}"),
      Column("nll", mean("nll")), Column("rank", mean("rank"), "{:.2f}"),
      Column("control", field("control"), "{:.1%}")], ["run", *keys])]


def passkey_maps(view):
  """[(variant, form, [{length: cells} of each run])]"""
  found = {run: passkey_cells(run) for run in view.runs}
  return [(variant, form, [found[run][form] for run in variant.runs if form in found[run]])
          for variant in view.variants for form in sorted(set().union(*(found[run] for run in variant.runs)))]


def draw_passkey_map(variant, form, of_runs, axes):
  """The mean over the runs."""
  lengths = sorted({length for by_length in of_runs for length in by_length})
  depths = sorted({depth for by_length in of_runs for cells in by_length.values() for depth, _, _ in cells})
  found = {}
  for by_length in of_runs:
    for length, cells in by_length.items():
      for depth, exact, _ in cells:
        found.setdefault((depth, length), []).append(exact)
  share = [[metrics.mean(found.get((depth, length), [])) for length in lengths] for depth in depths]
  drawing.heat_map(axes, share, 1)
  axes.set(title=drawing.in_text(f"{variant.label}, {form}", drawing.TITLE),
           xlabel="length (tokens); cells: exact answers in %", ylabel="depth of the key (0: the beginning)")
  axes.set_xticks(range(len(lengths)), lengths)
  axes.set_yticks(range(len(depths)), ["%.2g" % depth for depth in depths])
  for row, values in enumerate(share):
    for column, value in enumerate(values):
      if value is not None:
        axes.text(column, row, "%.0f" % (100 * value), ha="center", va="center", fontsize=8,
                  color="white" if value > 0.6 else "black")


def by_distance(by_length: dict[int, list[tuple]]) -> list[tuple[float, float]]:
  """[(distance, share)]: means over the cells whose distance is in [2^i, 2^(i + 1))."""
  octaves = {}
  for cells in by_length.values():
    for _, exact, distance in cells:
      octaves.setdefault(max(int(distance), 1).bit_length(), []).append((distance, exact))
  return [tuple(map(metrics.mean, zip(*octaves[octave]))) for octave in sorted(octaves)]


def draw_by_distance(maps, axes):
  forms = sorted({form for _, form, _ in maps})
  for variant, form, of_runs in maps:
    look = {**variant.look, "label": drawing.in_text(f"{variant.label}{variant.of_other_data}, {form}")}
    if forms[1:]:  # forms have a style each
      look["linestyle"] = variants.LINES[forms.index(form) % len(variants.LINES)]
    drawing.mean_line(axes, [by_distance(by_length) for by_length in of_runs], look)
  axes.set(title="By distance", xlabel="tokens from the key to the answer", ylabel="share of exact answers",
           ylim=(-0.03, 1.03))
  drawing.length_axis(axes)


def passkey_panels(view):
  maps = passkey_maps(view)
  return [functools.partial(draw_by_distance, maps), *(functools.partial(draw_passkey_map, *shown) for shown in maps)]


PASSKEY = Section("passkey", "Passkey retrieval", lambda run: bool(passkey_cells(run)), "./train RUN --passkey, for a "
                  "model of bytes with --set passkey.form=compact --set generate.tokenizer=bytes", passkey_tables,
                  passkey_panels, "Exact answers by distance, and by length and depth of the key.")


# ---------------------------------------------------------------------------------------------------------- diagnostics

NUMBERS = (  # title, field, digits, title in a summary
    ("first token", "first_token", "{:.3f}", "F-Attn"), ("sink rate", "sink_rate", "{:.1f}%", ""),
    ("M-Act", "m_act", "{:.4g}", "M-Act"), ("entropy / uniform", "entropy_norm", "{:.3f}", "entropy"),
    ("gate", "gate", "{:.3f}", ""), ("zeros", "zeros", "{:.3f}", "zeros"))


def of_length(length, key):
  return lambda run: getattr(run.diagnostics.get(length or run.context()), key, None)


def diagnostics_columns() -> list[Column]:
  return [Column(short, of_length(None, key), digits) for _, key, digits, short in NUMBERS if short]


def chosen_length(view):
  """Of the diagnostics that are shown: one that all runs with any have."""
  some, wanted = [*filter(DIAGNOSTICS.has, view.runs)], view.length
  common = set.intersection(*(set(run.diagnostics) for run in some))
  if wanted is None:
    wanted = next((run.context() for run in some if run.context() in common), min(common, default=None))
  if wanted not in common:
    missing = next((run for run in some if wanted not in run.diagnostics), some[0])
    raise UserError("%s: no length in common; run ./train %s --diagnostics --lengths %s" % (
        missing.label, shlex.quote(missing.folder), wanted or min(some[0].diagnostics)))
  return wanted


def diagnostics_tables(view):
  length = chosen_length(view)
  columns = [Column("step", lambda run: str(run.diagnostics[length].step)),
             *(Column(title, of_length(length, key), digits) for title, key, digits, _ in NUMBERS), *SPIKES]
  return [Text(f"What attention looks at, at length {length}. {metrics.SPIKES}"),
          table(view.rows(DIAGNOSTICS.has), columns)]


def learned_tables(view):
  """Of each run's newest step with any: a row for each layer, a column for each head."""
  newest_of = lambda run: run.learned[max(run.learned)][1]
  rows, most = [], 0
  for variant in view.variants:
    found = [newest_of(run) for run in filter(LEARNED.has, variant.runs)]
    for name in dict.fromkeys(name for learned in found for name in learned):
      for layer in range(max(len(learned.get(name, [])) for learned in found)):
        heads = [learned[name][layer] for learned in found if any(learned.get(name, [])[layer:layer + 1])]
        rows += [([variant.label, name, str(layer)], heads)] if heads else []
        most = max([most, *map(len, heads)])
  columns = [Column(f"head {head}", lambda heads, head=head: heads[head] if head < len(heads) else None, "{:.4g}")
             for head in range(most)]
  return [Text("Numbers that each head has learned, by layer and head; docs/metrics.md says what they mean."),
          table(rows, columns, ["run", "number", "layer"])]


def cumulative(shares: list[float | None]) -> list[tuple[int, float]]:
  """(end of the bin, share of attention within it) of bins of distances 0, 1, 2 to 3, 4 to 7, ..."""
  total, points = 0, []
  for number, share in enumerate(shares):
    total += share or 0
    points.append((2 ** number, total))
  return points


def uniform_reach(length: int) -> list[float]:
  """Of weights 1 / i, as a mean over rows i = 2 .. length."""
  later = [0.0] * (length + 1)  # later[d] = sum of 1 / i over the rows that see distance d: i > d, i >= 2
  for i in range(length, 1, -1):
    later[i - 1] = later[i] + 1 / i
  later[0] = later[1]
  shares = [0.0] * ((length - 1).bit_length() + 1)
  for distance in range(length):
    shares[distance.bit_length()] += later[distance] / max(1, length - 1)
  return shares


def diagnostics_panels(view):
  length = chosen_length(view)
  shown = [(variant, [run.diagnostics for run in variant.runs if run.diagnostics]) for variant in view.variants]
  shown = [(variant, of_runs) for variant, of_runs in shown if of_runs]
  lengths = sorted({length for run in view.runs for length in run.diagnostics})
  styles = [(at, variants.LINES[number % 3]) for number, at in enumerate(lengths)]

  def by_layer(axes, values, **how):
    points = lambda d: [(layer, math.nan if value is None else value) for layer, value in enumerate(values(d[length]))]
    for variant, of_runs in shown:
      drawing.mean_line(axes, [points(d) for d in of_runs], variant.look, **how)
    axes.set(xlabel="layer")
    drawing.whole_numbers(axes.xaxis)

  def first_token(axes):
    by_layer(axes, lambda d: d.by_layer("first"))
    axes.set(title="First token, length %d" % length, ylabel="share of attention", ylim=(0, None))

  def largest(axes):
    by_layer(axes, lambda d: d.max)
    axes.set(title="Largest activation", ylabel="max |x| of the residual stream")
    known = [value for _, of_runs in shown for d in of_runs for value in d[length].max if value]
    axes.set_yscale("log" if known and max(known) > 10 * min(known) else "linear")

  def sparse(axes):
    by_layer(axes, lambda d: d.by_layer("entropy_norm"), linestyle="-")
    by_layer(axes, lambda d: d.by_layer("zeros"), linestyle="--", markerfacecolor="white")
    axes.set(title="Entropy (solid) and zeros (dashed)", ylabel="relative to uniform; share of pairs", ylim=(0, 1.03))

  def gate(axes):
    for variant, of_runs in shown:
      shares = [[metrics.mean(share) for share in zip(*d[length].gate_shares)] for d in of_runs]
      bins = [[((bin - 0.5) / 20, share) for bin, share in enumerate(of_run)] for of_run in shares]
      drawing.mean_line(axes, bins, variant.look, drawstyle="steps-mid", marker="")
    axes.set(title="Gate scores", xlabel="score (at the ends: below 0, above 1)", ylabel="share")

  def reach(axes):
    for at, style in styles:
      for variant, of_runs in shown:
        drawing.mean_line(axes, [cumulative(d[at].reach) for d in of_runs if at in d], variant.look, linewidth=1.2,
                          linestyle=style)
      axes.plot(*zip(*cumulative(uniform_reach(at))), color="#888888", linewidth=1, linestyle=":")
    axes.legend(handles=[axes.plot([], [], color="#444444", linestyle=style, label="length %d" % at)[0]
                         for at, style in styles], loc="best")
    axes.set(title="Reach (dotted: uniform)", xlabel="distance (tokens)", ylabel="attention within it", ylim=(0, 1.03))
    drawing.length_axis(axes)

  by_head = {variant: [[*map(metrics.mean, zip(*heads))] for heads in zip(*(d[length].heads["first"] for d in of_runs))]
             for variant, of_runs in shown}
  most = max([value for layers in by_head.values() for heads in layers for value in heads if value is not None] or [1])

  def heads(variant, axes):
    drawing.heat_map(axes, by_head[variant], most, "share of attention")
    axes.set(title=drawing.in_text(f"First token: {variant.title}", drawing.TITLE), xlabel="head", ylabel="layer")
    drawing.whole_numbers(axes.xaxis, axes.yaxis)
  gated = any(d[length].gate_shares for _, of_runs in shown for d in of_runs)
  return [first_token, largest, sparse, reach, *[gate] * gated,
          *(functools.partial(heads, variant) for variant, _ in shown)]


DIAGNOSTICS = Section("diagnostics", "Diagnostics", lambda run: bool(run.diagnostics), "./train RUN --diagnostics",
                      diagnostics_tables, diagnostics_panels,
                      "Diagnostics by layer and distance, and the first token's share by head.")
LEARNED = Section("learned", "What the heads learned", lambda run: bool(run.learned), "", learned_tables)
