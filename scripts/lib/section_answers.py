"""Sections of answers: benchmarks, passkey retrieval, and what attention looks at."""
from __future__ import annotations
import itertools
import json
import math
import shlex
import statistics
from functools import partial

from lib import drawing, metrics, tables, variants
from lib.common import UserError
from lib.section_training import SPIKES, facts
from lib.sections import Section, Text, newest
from lib.tables import Column


CONDITIONS = "window", "sink_tokens", "rope_scaling", "precision"  # of any evaluation, also in its `of`


def values_of(row, keys):
  """["key value"] of the keys that have one in a row."""
  known = [key for key in keys if row.get(key) not in (None, "none") and row[key] == row[key]]
  text = lambda value: value if isinstance(value, str) else f"{value:.0f}"
  return [f"{key} {text(row[key])}" for key in known]


def with_conditions(rows):
  return rows.rename(columns={f"of.{key}": key for key in CONDITIONS if key not in rows})


def asked(view, kind, name, *more):
  """The newest answers of a type, with a column `asked`: these fields of each question, and of the
  others and CONDITIONS those that tell apart questions of another id. Then the names of the shown
  fields."""
  rows = view.of_type(kind)
  if rows.empty:
    return rows.assign(asked=[]), name
  rows, keys = with_conditions(newest(rows, ["type", "id"])), [*name]
  if kind == "passkey":
    rows = rows.assign(places=rows["depths"], depths=rows["depths"].map(len))
  for key in (*more, *CONDITIONS):
    if key not in rows:
      continue
    same = rows.groupby(keys, dropna=False)
    differs = all(same[each].nunique(dropna=False).max() > 1 for each in ("id", key))
    measurement = key in ("window", "sink_tokens") and rows[key].notna().any()
    if differs or measurement:
      keys.append(key)
  questions = []
  for row in rows.to_dict("records"):
    others = [f"({text})" for text in values_of(row, keys[1:])]
    questions.append(" ".join([str(row[keys[0]]), *others]))
  return rows.assign(asked=questions), keys


# --------------------------------------------------------------------------------------- benchmarks

def asked_tasks(view):
  """With the score of each: by length (acc_norm), else acc, else the perplexity of words."""
  rows, keys = asked(view, "task", ["task"], "n", "max_length", "xxh64")
  rows = rows.assign(score=float("nan"), said="acc")
  for _, same in rows.groupby("asked"):
    for key in ("acc_norm", "acc", "word_perplexity"):
      if key in same and same[key].notna().any():
        rows.loc[same.index, "score"] = same[key].astype(float)
        rows.loc[same.index, "said"] = key
        break
  return rows, keys


def task_summary(view):
  """(a DataFrame by run of the scores, its Columns)."""
  rows, _ = asked_tasks(view)
  if rows.empty:
    return rows, []
  wide = rows.pivot_table(index="run", columns="asked", values="score")
  said = dict(zip(rows["asked"], rows["said"]))
  columns = []
  for name in wide:
    task, opening, others = name.partition(" (")
    digits = "{:.2f}" if said[name] == "word_perplexity" else "{:.1%}"
    columns.append(Column(f"{task} {said[name]}{opening}{others}", name, digits))
  return wide, columns


def right_answers(line: dict) -> dict[int, bool]:
  """{number: whether the choice by length, or without lengths by likelihood alone, was right} of a
  task line's examples; {} if they are not in the file that the line's program wrote."""
  found, key = {}, "acc" if metrics.finite(line.get("acc_norm")) is None else "acc_norm"
  try:
    with open(line["samples"], encoding="utf-8") as file:
      rows = [row for row in map(json.loads, file) if row["task"] == line["task"]]
    for row in rows:
      sizes = row["characters"] if key == "acc_norm" else itertools.repeat(1)
      scores = [likelihood / size for likelihood, size in zip(row["loglikelihood"], sizes)]
      found[row["example"]] = row.get("greedy", scores.index(max(scores)) == row["gold"])
    same = len(found) == line["n"] and abs(statistics.mean(found.values()) - line[key]) < 1e-9
    return found if same else {}
  except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
    return {}


def mcnemar(one: dict[int, bool], other: dict[int, bool]) -> tuple[int, int, float]:
  """(only one is right, only the other, two-sided p of the exact test) of two right_answers()."""
  mine = sum(one[n] and not other[n] for n in one)
  theirs = sum(other[n] and not one[n] for n in one)
  tail = sum(math.comb(mine + theirs, k) for k in range(min(mine, theirs) + 1))
  return mine, theirs, min(1.0, 2 * tail / 2 ** (mine + theirs))


def paired_tasks(view, rows):
  """Of runs asked the same questions as one of the baseline's variant, where both kept their answers
  (task.samples): by seed, as the same examples with several seeds are not independent."""
  base, lines = rows[rows["variant"] == view.base], []
  runs_of = rows.groupby("variant")["run"].nunique()
  for row in rows[rows["variant"] != view.base].to_dict("records"):
    variant, seed = row["variant"], row["seed"]
    alone = runs_of.get(view.base) == runs_of[variant] == 1
    for other in base[base["id"] == row["id"]].to_dict("records"):
      if not alone and other["seed"] != seed:
        continue
      mine, theirs = right_answers(row), right_answers(other)
      if mine and mine.keys() == theirs.keys():
        *counts, p = mcnemar(mine, theirs)
        label = view.titles[variant]
        if not alone or view.seeds[variant] > 1:
          label += f", seed {seed}"
        lines.append([label, row["task"], str(row["n"]), *map(str, counts), "%.3g" % p])
  if not lines:
    return []
  base = view.titles[view.base]
  head = ["run", "task", "n", "only this run", f"only {base}", "p"]
  return [Text(f"Paired with {base}: examples that only one of both answers right, and the exact "
               "two-sided p of McNemar's test:"), tables.of_texts("mcnemar", head, lines)]


def task_scores(view):
  """(by run and step the mean score in %, names): of the questions asked of all runs with any, at
  the steps at which a run was asked all; by length, or without lengths by likelihood alone."""
  rows = view.frame(view.of_type("task"), ["acc_norm", "acc"])
  rows["score"] = 100 * rows["acc_norm"].astype(float).fillna(rows["acc"].astype(float))
  rows = rows.dropna(subset=["score"]).drop_duplicates(["run", "step", "id"], keep="last")
  rows = rows[rows.groupby("id")["run"].transform("nunique") == rows["run"].nunique()]
  names = sorted(rows.drop_duplicates("id")["task"])
  scores = rows.groupby(["run", "variant", "step"], sort=False)["score"]
  means = scores.agg(["mean", "size"]).reset_index()
  return means[means["size"] == len(names)], names


def draw_tasks(view, means, names, axes):
  drawing.mean_lines(axes, view, means, "step", "mean")
  more = f" and {len(names) - 3} more" if names[3:] else ""
  title = drawing.in_text("Tasks: " + ", ".join(names[:3]) + more, drawing.TITLE)
  axes.set(title=title, xlabel="step", ylabel="mean of correct answers (%)")


def tasks(view):
  rows, keys = asked_tasks(view)
  if rows.empty:
    return [], []
  columns = [Column("correct", "acc", "{:.1%}"), Column("standard error", "stderr", "{:.1%}"),
             Column("chance", "chance", "{:.1%}"), Column("by length", "acc_norm", "{:.1%}"),
             Column("margin", "margin"), Column("perplexity of words", "word_perplexity", "{:.2f}"),
             Column("bits per byte", "bits_per_byte", "{:.4f}")]
  keys = [*dict.fromkeys(["task", "n", *keys])]
  table = view.table("tasks", rows, columns, keys)
  means, names = task_scores(view)
  panels = [partial(draw_tasks, view, means, names)] if len(means) else []
  return [table, *paired_tasks(view, rows)], panels


# ------------------------------------------------------------------------------------------ passkey

def asked_passkeys(view):
  """With means over depths, `exact_mean` and others, and `measurement`: form, conditions."""
  rows, keys = asked(view, "passkey", ["form", "length"], "trials", "depths")
  conditions = [key for key in keys if key in CONDITIONS]
  rows["measurement"] = [", ".join([row["form"], *values_of(row, conditions)]).replace("_", " ")
                         for row in rows.to_dict("records")]
  for key in ("exact", "nll", "rank"):
    lists = rows[key].map(metrics.numbers) if key in rows else [[]] * len(rows)
    means = [sum(values) / len(values) if values and None not in values else None for values in lists]
    rows[key + "_mean"] = means
  return rows, keys


def passkey_summary(view):
  rows, keys = asked_passkeys(view)
  if rows.empty:
    return rows, []
  wide = rows.pivot_table(index="run", columns="asked", values="exact_mean")
  several = rows["form"].nunique() > 1
  columns = []
  for row in rows.drop_duplicates("asked").sort_values(["length", "form"]).to_dict("records"):
    form = [row["form"].replace("_", " ")] if several else []
    title = ", ".join([f"passkey at {row['length']}", *form, *values_of(row, keys[2:])])
    columns.append(Column(title.replace("_", " "), row["asked"], "{:.1%}"))
  return wide, columns


def passkey_cells(rows):
  """A row for each cell: run, variant, measurement, length, depth, exact, distance."""
  found, shared = [], ["run", "variant", "measurement", "length"]
  for row in rows.to_dict("records"):
    of_row = [row[key] for key in shared]
    found += [(*of_row, *cell) for cell in zip(row["places"], row["exact"], row["distance"])]
  return tables.frame(found, [*shared, "depth", "exact", "distance"])


def draw_passkey_map(title, cells, axes):
  """The mean over the runs."""
  share = cells.pivot_table(index="depth", columns="length", values="exact")
  drawing.heat_map(axes, share.values, 1)
  axes.set(title=drawing.in_text(title, drawing.TITLE), xlabel="length (tokens); cells: exact answers in %",
           ylabel="depth of the key (0: the beginning)")
  axes.set_xticks(range(len(share.columns)), share.columns)
  axes.set_yticks(range(len(share.index)), ["%.2g" % depth for depth in share.index])
  for row, values in enumerate(share.values):
    for column, value in enumerate(values):
      if value == value:
        axes.text(column, row, "%.0f" % (100 * value), ha="center", va="center", fontsize=8,
                  color="white" if value > 0.6 else "black")


def draw_by_distance(view, cells, axes):
  """Means over the cells whose distance is in [2^i, 2^(i + 1))."""
  forms = sorted(cells["measurement"].unique())
  cells = cells.assign(octave=[max(int(at), 1).bit_length() for at in cells["distance"]])
  for (variant, form), mine in cells.groupby(["variant", "measurement"], sort=False):
    look = {**view.looks[variant], "label": drawing.in_text(f"{variant}, {form}")}
    if forms[1:]:  # forms have a style each
      look["linestyle"] = variants.LINES[forms.index(form) % len(variants.LINES)]
    of_run = mine.groupby(["run", "octave"])[["distance", "exact"]].mean().reset_index()
    drawing.mean_line(axes, of_run, "octave", "exact", look, at="distance")
  axes.set(title="By distance", xlabel="tokens from the key to the answer",
           ylabel="share of exact answers", ylim=(-0.03, 1.03))
  drawing.length_axis(axes)


def passkey(view):
  rows, keys = asked_passkeys(view)
  if rows.empty:
    return [], []
  columns = [Column("exact", "exact_mean", "{:.1%}"), Column("standard error", "stderr", "{:.1%}"),
             Column("nll", "nll_mean"), Column("rank", "rank_mean", "{:.2f}"), Column("control", "control", "{:.1%}")]
  keys = [key for key in dict.fromkeys(["form", "length", "trials", *keys]) if key in rows]
  table = view.table("passkey", rows, columns, keys)
  cells = passkey_cells(rows)
  panels = [partial(draw_by_distance, view, cells)]
  for (variant, form), mine in cells.groupby(["variant", "measurement"], sort=False):
    panels.append(partial(draw_passkey_map, f"{variant}, {form}", mine))
  return [table], panels


# -------------------------------------------------------------------------------------- diagnostics

NUMBERS = (  # title, field, digits, title in a summary
    ("first token", "first_token", "{:.3f}", "F-Attn"), ("sink rate", "sink_rate", "{:.1f}%", ""),
    ("M-Act", "m_act", "{:.4g}", "M-Act"),
    ("entropy / uniform", "entropy_norm", "{:.3f}", "entropy"),
    ("gate", "gate", "{:.3f}", ""), ("zeros", "zeros", "{:.3f}", "zeros"))


def diagnosed(view):
  """The newest diagnostics; of several of a length, as by window, those that most runs have."""
  rows = view.of_type("diagnostics")
  if rows.empty:
    return rows
  rows = with_conditions(newest(rows, ["type", "id"]))
  keys = [key for key in CONDITIONS if key in rows and (key != "precision" or rows[key].nunique() > 1)]
  rows["conditions"] = [", ".join(values_of(row, keys)) or None for row in rows.to_dict("records")]
  rows = rows.assign(many=rows.groupby("id")["run"].transform("nunique"))
  rows = rows.sort_values("many", ascending=False, kind="stable")
  return rows.drop_duplicates(["run", "length"]).sort_values("run", kind="stable")


def diagnostics_summary(view):
  rows = diagnosed(view)
  if len(rows):
    rows = rows[rows["length"] == view.trained(rows)].set_index("run")
  columns = [Column(short, key, digits) for _, key, digits, short in NUMBERS if short]
  return rows, [column for column in columns if column.key in rows]


def chosen_length(view, rows):
  """Of the diagnostics that are shown: one that all runs with any have."""
  of_run = {view.runs[run]: set(mine) for run, mine in rows.groupby("run")["length"]}
  common, wanted = set.intersection(*of_run.values()), view.length
  if wanted is None:
    trained = [run.context() for run in of_run if run.context() in common]
    wanted = trained[0] if trained else min(common, default=None)
  if wanted not in common:
    missing = next(run for run, lengths in of_run.items() if wanted not in lengths)
    length = wanted or min(rows["length"])
    raise UserError(f"{missing.label}: no length in common; run ./train "
                    f"{shlex.quote(missing.folder)} --diagnostics --lengths {length}")
  return wanted


def cumulative(shares: list[float | None]) -> list[tuple[int, float]]:
  """(end of the bin, share of attention within it) of bins of distances 0, 1, 2 to 3, 4 to 7, ..."""
  sums = itertools.accumulate(share or 0 for share in shares)
  return [(2 ** number, within) for number, within in enumerate(sums)]


def uniform_reach(length: int) -> list[float]:
  """Of weights 1 / i, as a mean over rows i = 2 .. length."""
  later = [0.0] * (length + 1)  # later[d] = sum of 1 / i over the rows that see d: i > d, i >= 2
  for i in range(length, 1, -1):
    later[i - 1] = later[i] + 1 / i
  later[0] = later[1]
  shares = [0.0] * ((length - 1).bit_length() + 1)
  for distance in range(length):
    shares[distance.bit_length()] += later[distance] / max(1, length - 1)
  return shares


def by_head(rows):
  """A row for each head, also with its layer's max."""
  found, shares = [], ("first", "entropy_norm", "zeros")
  for row in rows.to_dict("records"):
    for layer, of_layer in enumerate(row["layers"]):
      for head, of_head in enumerate(of_layer["heads"]):
        numbers = [metrics.finite(of_head[key]) for key in shares]
        found.append((row["run"], row["variant"], layer, head, of_layer["max"][0], *numbers))
  frame = tables.frame(found, ["run", "variant", "layer", "head", "max", *shares])
  return frame.astype(dict.fromkeys(shares, float))


def in_bins(rows, bins):
  """A row for each bin: bins(row) has pairs (x, y)."""
  found = [(row["run"], row["variant"], x, y)
           for row in rows.to_dict("records") for x, y in bins(row)]
  return tables.frame(found, ["run", "variant", "x", "y"])


def mean_lists(lists):
  return [sum(values) / len(values) for values in zip(*lists)]


def gate_bins(row):
  lists = [metrics.numbers(layer.get("gate_shares")) for layer in row["layers"]]
  shares = mean_lists(filter(None, lists))
  return [((bin - 0.5) / 20, share) for bin, share in enumerate(shares)]


def reach_bins(row):
  lists = [[share or 0 for share in metrics.numbers(head["reach"])]
           for layer in row["layers"] for head in layer["heads"]]
  return cumulative(mean_lists(lists))


def draw_by_layer(view, heads, keys, texts, axes):
  """keys: {column: how it is drawn}."""
  layers = heads.groupby(["run", "variant", "layer"], sort=False)[[*keys]].mean().reset_index()
  for key, how in keys.items():
    drawing.mean_lines(axes, view, layers, "layer", key, **how)
  axes.set(xlabel="layer", **texts)
  drawing.whole_numbers(axes.xaxis)
  if "max" in keys and heads["max"].max() > 10 * heads["max"].min() > 0:
    axes.set_yscale("log")


def draw_gate(view, bins, axes):
  drawing.mean_lines(axes, view, bins, "x", "y", drawstyle="steps-mid", marker="")
  axes.set(title="Gate scores", xlabel="score (at the ends: below 0, above 1)", ylabel="share")


def draw_reach(view, rows, axes):
  from matplotlib import lines
  handles = []
  for number, length in enumerate(sorted(map(int, rows["length"].unique()))):
    style = variants.LINES[number % 3]
    bins = in_bins(rows[rows["length"] == length], reach_bins)
    drawing.mean_lines(axes, view, bins, "x", "y", linewidth=1.2, linestyle=style)
    axes.plot(*zip(*cumulative(uniform_reach(length))), color="#888888", linewidth=1, linestyle=":")
    handles.append(lines.Line2D([], [], color="#444444", linestyle=style, label=f"length {length}"))
  axes.legend(handles=handles, loc="best")
  axes.set(title="Reach (dotted: uniform)", xlabel="distance (tokens)", ylabel="attention within it",
           ylim=(0, 1.03))
  drawing.length_axis(axes)


def draw_heads(title, heads, most, axes):
  shares = heads.pivot_table(index="layer", columns="head", values="first", dropna=False)
  drawing.heat_map(axes, shares.values, most, "share of attention")
  axes.set(title=drawing.in_text(f"First token: {title}", drawing.TITLE), xlabel="head", ylabel="layer")
  drawing.whole_numbers(axes.xaxis, axes.yaxis)


def panels_by_layer(view, heads, length):
  panel = lambda keys, **texts: partial(draw_by_layer, view, heads, keys, texts)
  dashed = {"linestyle": "--", "markerfacecolor": "white", "label": None}
  return [panel({"first": {}}, title=f"First token, length {length}", ylabel="share of attention", ylim=(0, None)),
          panel({"max": {}}, title="Largest activation", ylabel="max |x| of the residual stream"),
          panel({"entropy_norm": {"linestyle": "-"}, "zeros": dashed},
                title="Entropy (solid) and zeros (dashed)",
                ylabel="relative to uniform; share of pairs", ylim=(0, 1.03))]


def diagnostics(view):
  every = diagnosed(view)
  if every.empty:
    return [], []
  length = chosen_length(view, every)
  rows = every[every["length"] == length]
  spikes = facts(view).set_index("run").reindex(columns=[column.key for column in SPIKES])
  rows = rows.join(spikes, on="run").assign(at=rows["step"].astype(str))
  columns = [Column(title, key, digits) for title, key, digits, _ in NUMBERS]
  columns = [Column("step", "at"), Column("conditions", "conditions"), *columns, *SPIKES]
  table = view.table("diagnostics", rows, columns)
  heads, gates = by_head(rows), in_bins(rows, gate_bins)
  panels = [*panels_by_layer(view, heads, length), partial(draw_reach, view, every)]
  if len(gates):
    panels.append(partial(draw_gate, view, gates))
  shares = heads.groupby(["variant", "layer", "head"])["first"].mean()
  most = shares.max() if shares.notna().any() else 1
  for variant in view.variants:
    mine = heads[heads["variant"] == variant.label]
    if len(mine):
      panels.append(partial(draw_heads, variant.title, mine, most))
  said = Text(f"What attention looks at, at length {length}. {metrics.SPIKES}")
  return [said, table], panels


def learned(view):
  """Of each run's newest step with any: a row for each layer, a column for each head."""
  rows = []
  for run in view.runs:
    *_, found = max(run.learned, key=lambda item: item[0], default=[{}])
    for name, layers in found.items():
      rows += [{**view.marks[run], "number": name, "layer": str(layer), **dict(enumerate(heads))}
               for layer, heads in enumerate(layers) if heads]
  if not rows:
    return [], []
  frame = tables.frame(rows)
  columns = [Column(f"head {head}", head, "{:.4g}") for head in frame if isinstance(head, int)]
  return [Text("Numbers that each head has learned, by layer and head; docs/metrics.md says what they "
               "mean."), tables.of_groups("learned", frame, columns, ["number", "layer"])], []


TASKS = Section("tasks", "Tasks", ("task",), "./train RUN --tasks", tasks, "Mean of correct answers by step.")
PASSKEY = Section("passkey", "Passkey retrieval", ("passkey",),
                  "./train RUN --passkey, for a model of bytes with "
                  "--set passkey.form=compact --set generate.tokenizer=bytes", passkey,
                  "Exact answers by distance, and by length and depth of the key.")
DIAGNOSTICS = Section("diagnostics", "Diagnostics", ("diagnostics",), "./train RUN --diagnostics", diagnostics,
                      "Diagnostics by layer and distance, and the first token's share by head.")
LEARNED = Section("learned", "What the heads learned", ("groups", "diagnostics"), "", learned)
