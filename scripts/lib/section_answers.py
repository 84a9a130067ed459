"""Sections of what runs were asked beyond their losses: benchmarks, passkey retrieval, and what attention looks at."""
from __future__ import annotations
import functools
import json
import math
import shlex
import statistics

from lib import drawing, metrics, tables, variants
from lib.common import UserError
from lib.section_training import SPIKES, facts
from lib.sections import Section, Text, newest
from lib.tables import Column

mean_of = lambda values: sum(values) / len(values) if values and None not in values else None


def asked(view, kind, name, *more):
  """The newest answers of a type, with a column `asked`: these fields of each question, and of the others those that
  tell apart questions of another id. Then the names of the shown fields."""
  rows = view.of_type(kind)
  rows = newest(rows, ["type", "id"]) if len(rows) else rows
  keys, known = [*name], [key for key in more if key in rows]
  ids = lambda keys: rows[[*keys, "id"]].drop_duplicates().groupby(keys, dropna=False)["id"].size().max()
  for key in known:
    if key in ("window", "sink_tokens") and rows[key].notna().any():  # another measurement
      keys.append(key)
    elif len(rows) and ids(keys) > 1 and rows.groupby(keys, dropna=False)[key].nunique(dropna=False).max() > 1:
      keys.append(key)
  said = [" ".join([str(row[keys[0]]), *(f"({key} {row[key]})" for key in keys[1:] if row[key] == row[key])])
          for row in rows.to_dict("records")]
  return rows.assign(asked=said), keys


# ----------------------------------------------------------------------------------------------------------- benchmarks

def asked_tasks(view):
  """With the score of each: by length (acc_norm), or where a task has no such score, acc, or the perplexity of a
  text's words."""
  rows, keys = asked(view, "task", ["task"], "n", "max_length", "xxh64")
  score, said = metrics.load_pandas().Series(dtype=float), "acc"
  rows = rows.assign(score=float("nan"), said=said)
  for _, same in rows.groupby("asked"):
    for key in ("acc_norm", "acc", "word_perplexity"):
      score = same[key].astype(float) if key in same else score
      if key in same and same[key].notna().any():
        rows.loc[same.index, "score"], rows.loc[same.index, "said"] = score, key
        break
  return rows, keys


def task_summary(view):
  """(a DataFrame by run of the scores, its Columns)."""
  rows, _ = asked_tasks(view)
  wide = rows.pivot_table(index="run", columns="asked", values="score") if len(rows) else rows
  said = dict(zip(rows["asked"], rows["said"]))
  shown = lambda key: "{:.2f}" if key == "word_perplexity" else "{:.1%}"
  title = lambda name: name.replace(" (", f" {said[name]} (", 1) if " (" in name else f"{name} {said[name]}"
  return wide, [Column(title(name), name, shown(said[name])) for name in sorted(said) if name in wide]


def right_answers(line: dict) -> dict[int, bool]:
  """{number: whether the choice by length, or without lengths by likelihood alone, was right} of a task line's
  examples; {} if they are not in the file that the line's program wrote."""
  found, key = {}, "acc" if metrics.finite(line.get("acc_norm")) is None else "acc_norm"
  try:
    with open(line["samples"], encoding="utf-8") as file:
      for row in map(json.loads, file):
        if row["task"] == line["task"]:
          sizes = row["characters"] if key == "acc_norm" else [1] * len(row["loglikelihood"])
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
  """Of runs that were asked the same questions as one of the baseline's variant, where both kept their answers
  (task.samples): by seed, as the same examples with several seeds are not independent."""
  base, lines = rows[rows["variant"] == view.base], []
  for row in rows[rows["variant"] != view.base].to_dict("records"):
    alone = base["run"].nunique() == rows[rows["variant"] == row["variant"]]["run"].nunique() == 1
    for other in base[base["id"] == row["id"]].to_dict("records"):
      answers = right_answers(row), right_answers(other)
      if (alone or other["seed"] == row["seed"]) and answers[0] and answers[0].keys() == answers[1].keys():
        *counts, p = mcnemar(*answers)
        label = view.titles[row["variant"]] + f", seed {row['seed']}" * (not alone or view.seeds[row["variant"]] > 1)
        lines.append([label, row["task"], str(row["n"]), *map(str, counts), "%.3g" % p])
  head = ["run", "task", "n", "only this run", f"only {view.titles[view.base]}", "p"]
  said = Text(f"Paired with {view.titles[view.base]}: examples that only one of both answers right, and the exact "
              "two-sided p of McNemar's test:")
  return [said, tables.of_texts("mcnemar", head, lines)] if lines else []


def task_scores(view):
  """(by run and step the mean score in %, names): over the questions that all runs with any were asked, at the steps
  at which a run was asked all of them; by length, or without lengths by likelihood alone."""
  rows = view.of_type("task").copy()
  for key in ("acc_norm", "acc"):
    rows[key] = rows[key].astype(float) if key in rows else float("nan")
  rows["score"] = 100 * rows["acc_norm"].fillna(rows["acc"])
  rows = rows.dropna(subset=["score"]).drop_duplicates(["run", "step", "id"], keep="last")
  of_runs = rows.groupby("id")["run"].nunique()
  rows = rows[rows["id"].isin(of_runs.index[of_runs == rows["run"].nunique()])]
  names = sorted(rows.drop_duplicates("id")["task"])
  means = rows.groupby(["run", "variant", "step"], sort=False)["score"].agg(["mean", "size"]).reset_index()
  return means[means["size"] == len(names)], names


def draw_tasks(view, means, names, axes):
  drawing.mean_lines(axes, view, means, "step", "mean")
  title = "Tasks: " + ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
  axes.set(title=drawing.in_text(title, drawing.TITLE), xlabel="step", ylabel="mean of correct answers (%)")


def tasks(view):
  rows, keys = asked_tasks(view)
  if rows.empty:
    return [], []
  columns = [Column("correct", "acc", "{:.1%}"), Column("standard error", "stderr", "{:.1%}"),
             Column("chance", "chance", "{:.1%}"), Column("by length", "acc_norm", "{:.1%}"),
             Column("margin", "margin"), Column("perplexity of words", "word_perplexity", "{:.2f}"),
             Column("bits per byte", "bits_per_byte", "{:.4f}")]
  keys = [*dict.fromkeys(["task", "n", *keys])]
  means, names = task_scores(view)
  return ([tables.of_groups("tasks", rows, ["variant", *keys], columns, ["run", *keys], view.seeds),
           *paired_tasks(view, rows)],
          [functools.partial(draw_tasks, view, means, names)] * (len(means) > 0))


# -------------------------------------------------------------------------------------------------------------- passkey

def asked_passkeys(view):
  """With the mean over depths of `exact`, `nll` and `rank`, and `measurement`, its form with its window, which
  makes another one."""
  rows, keys = asked(view, "passkey", ["form", "length"], "trials", "window", "sink_tokens")
  windows = [[f", {key.replace('_', ' ')} {row[key]:.0f}" for key in ("window", "sink_tokens")
              if row.get(key) is not None and row[key] == row[key]] for row in rows.to_dict("records")]
  rows["measurement"] = ["".join([form, *more]) for form, more in zip(rows["form"], windows)] if len(rows) else []
  for key in ("exact", "nll", "rank"):
    rows[key + "_mean"] = [mean_of(metrics.numbers(values)) for values in rows[key]] if key in rows else None
  return rows, keys


def passkey_summary(view):
  rows, keys = asked_passkeys(view)
  several = rows["form"].nunique() > 1 if len(rows) else False
  wide = rows.pivot_table(index="run", columns="asked", values="exact_mean") if len(rows) else rows
  columns = []
  for row in rows.drop_duplicates("asked").sort_values(["length", "form"]).to_dict("records") if len(rows) else []:
    more = [f"{key} {row[key]:.0f}" for key in keys[2:] if row[key] == row[key]]
    title = ", ".join([f"passkey at {row['length']}", *[row["form"]] * several, *more]).replace("_", " ")
    columns.append(Column(title, row["asked"], "{:.1%}"))
  return wide, columns


def passkey_cells(rows):
  """A row for each cell: run, variant, measurement, length, depth, exact, distance."""
  found = [{**{key: row[key] for key in ("run", "variant", "measurement", "length")}, "depth": depth, "exact": exact,
            "distance": distance} for row in rows.to_dict("records")
           for depth, exact, distance in zip(row["depths"], row["exact"], row["distance"])]
  return metrics.load_pandas().DataFrame(found)


def draw_passkey_map(title, cells, axes):
  """The mean over the runs."""
  share = cells.pivot_table(index="depth", columns="length", values="exact")
  drawing.heat_map(axes, share.values, 1)
  axes.set(title=drawing.in_text(title, drawing.TITLE), xlabel="length (tokens); cells: exact answers in %",
           ylabel="depth of the key (0: the beginning)")
  axes.set_xticks(range(len(share.columns)), share.columns)
  axes.set_yticks(range(len(share.index)), ["%.2g" % depth for depth in share.index])
  for (row, column), value in ((at, share.iat[at]) for at in
                               ((r, c) for r in range(len(share)) for c in range(len(share.columns)))):
    if value == value:
      axes.text(column, row, "%.0f" % (100 * value), ha="center", va="center", fontsize=8,
                color="white" if value > 0.6 else "black")


def draw_by_distance(view, cells, axes):
  """Means over the cells whose distance is in [2^i, 2^(i + 1))."""
  forms = sorted(cells["measurement"].unique())
  cells = cells.assign(octave=[max(int(distance), 1).bit_length() for distance in cells["distance"]])
  for (variant, form), mine in cells.groupby(["variant", "measurement"], sort=False):
    look = {**view.looks[variant], "label": drawing.in_text(f"{variant}, {form}")}
    if forms[1:]:  # forms have a style each
      look["linestyle"] = variants.LINES[forms.index(form) % len(variants.LINES)]
    of_run = mine.groupby(["run", "octave"])[["distance", "exact"]].mean().reset_index()
    drawing.mean_line(axes, of_run, "octave", "exact", look, at="distance")
  axes.set(title="By distance", xlabel="tokens from the key to the answer", ylabel="share of exact answers",
           ylim=(-0.03, 1.03))
  drawing.length_axis(axes)


def passkey(view):
  rows, keys = asked_passkeys(view)
  if rows.empty:
    return [], []
  columns = [Column("exact", "exact_mean", "{:.1%}"), Column("standard error", "stderr", "{:.1%}"),
             Column("nll", "nll_mean"), Column("rank", "rank_mean", "{:.2f}"), Column("control", "control", "{:.1%}")]
  keys = [key for key in dict.fromkeys(["form", "length", "trials", *keys]) if key in rows]
  cells = passkey_cells(rows)
  maps = [functools.partial(draw_passkey_map, f"{variant}, {form}", mine)
          for (variant, form), mine in cells.groupby(["variant", "measurement"], sort=False)]
  return ([tables.of_groups("passkey", rows, ["variant", *keys], columns, ["run", *keys], view.seeds)],
          [functools.partial(draw_by_distance, view, cells), *maps])


# ---------------------------------------------------------------------------------------------------------- diagnostics

NUMBERS = (  # title, field, digits, title in a summary
    ("first token", "first_token", "{:.3f}", "F-Attn"), ("sink rate", "sink_rate", "{:.1f}%", ""),
    ("M-Act", "m_act", "{:.4g}", "M-Act"), ("entropy / uniform", "entropy_norm", "{:.3f}", "entropy"),
    ("gate", "gate", "{:.3f}", ""), ("zeros", "zeros", "{:.3f}", "zeros"))


def diagnosed(view):
  """The newest diagnostics, of the ids that most runs have where a length has several, as with another window."""
  rows = view.of_type("diagnostics")
  if rows.empty:
    return rows
  rows = newest(rows, ["type", "id"])
  many = rows.groupby("id")["run"].transform("nunique")
  return rows.assign(many=many).sort_values("many", ascending=False, kind="stable").drop_duplicates(
      ["run", "length"]).sort_values("run", kind="stable")


def diagnostics_summary(view):
  rows = diagnosed(view)
  if len(rows):
    trained = rows["run"].map(lambda run: view.runs[run].context())
    rows = rows[rows["length"] == trained].set_index("run")
  return rows, [Column(short, key, digits) for _, key, digits, short in NUMBERS if short and key in rows]


def chosen_length(view, rows):
  """Of the diagnostics that are shown: one that all runs with any have."""
  runs = [view.runs[run] for run in rows["run"].unique()]
  of_run = {run: set(rows[rows["run"] == view.runs.index(run)]["length"]) for run in runs}
  common, wanted = set.intersection(*of_run.values()), view.length
  if wanted is None:
    wanted = next((run.context() for run in runs if run.context() in common), min(common, default=None))
  if wanted not in common:
    missing = next((run for run in runs if wanted not in of_run[run]), runs[0])
    raise UserError("%s: no length in common; run ./train %s --diagnostics --lengths %s" % (
        missing.label, shlex.quote(missing.folder), wanted or min(rows["length"])))
  return wanted


def cumulative(shares: list[float | None]) -> list[tuple[int, float]]:
  """(end of the bin, share of attention within it) of bins of distances 0, 1, 2 to 3, 4 to 7, ..."""
  return [(2 ** number, sum(share or 0 for share in shares[:number + 1])) for number in range(len(shares))]


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


def by_head(rows):
  """A row for each head: run, variant, layer, head, first, entropy_norm, zeros, and its layer's max."""
  found = [{"run": row["run"], "variant": row["variant"], "layer": layer, "head": head, "max": of_layer["max"][0],
            **{key: metrics.finite(of_head[key]) for key in ("first", "entropy_norm", "zeros")}}
           for row in rows.to_dict("records") for layer, of_layer in enumerate(row["layers"])
           for head, of_head in enumerate(of_layer["heads"])]
  return metrics.load_pandas().DataFrame(found).astype(
      dict.fromkeys(("first", "entropy_norm", "zeros"), float))


def in_bins(rows, bins):
  """A row for each bin: bins(row) has pairs (x, y)."""
  found = [{"run": row["run"], "variant": row["variant"], "x": x, "y": y}
           for row in rows.to_dict("records") for x, y in bins(row)]
  return metrics.load_pandas().DataFrame(found, columns=["run", "variant", "x", "y"])


def mean_lists(lists):
  return [sum(values) / len(values) for values in zip(*lists)]


def gate_bins(row):
  shares = [found for layer in row["layers"] if (found := metrics.numbers(layer.get("gate_shares")))]
  return [((bin - 0.5) / 20, share) for bin, share in enumerate(mean_lists(shares))]


def reach_bins(row):
  lists = [metrics.numbers(head["reach"]) for layer in row["layers"] for head in layer["heads"]]
  return cumulative(mean_lists([[share or 0 for share in shares] for shares in lists]))


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
  lengths = sorted(map(int, rows["length"].unique()))
  styles = {length: variants.LINES[number % 3] for number, length in enumerate(lengths)}
  for length, style in styles.items():
    bins = in_bins(rows[rows["length"] == length], reach_bins)
    drawing.mean_lines(axes, view, bins, "x", "y", linewidth=1.2, linestyle=style)
    axes.plot(*zip(*cumulative(uniform_reach(length))), color="#888888", linewidth=1, linestyle=":")
  axes.legend(handles=[lines.Line2D([], [], color="#444444", linestyle=style, label="length %d" % length)
                       for length, style in styles.items()], loc="best")
  axes.set(title="Reach (dotted: uniform)", xlabel="distance (tokens)", ylabel="attention within it", ylim=(0, 1.03))
  drawing.length_axis(axes)


def draw_heads(title, heads, most, axes):
  shares = heads.pivot_table(index="layer", columns="head", values="first", dropna=False)
  drawing.heat_map(axes, shares.values, most, "share of attention")
  axes.set(title=drawing.in_text(f"First token: {title}", drawing.TITLE), xlabel="head", ylabel="layer")
  drawing.whole_numbers(axes.xaxis, axes.yaxis)


def diagnostics(view):
  every = diagnosed(view)
  if every.empty:
    return [], []
  length = chosen_length(view, every)
  rows = every[every["length"] == length]
  spikes = facts(view).set_index("run").reindex(columns=[column.key for column in SPIKES])
  rows = rows.join(spikes, on="run").assign(at=rows["step"].astype(str))
  columns = [Column("step", "at"), *(Column(title, key, digits) for title, key, digits, _ in NUMBERS), *SPIKES]
  heads, gates = by_head(rows), in_bins(rows, gate_bins)
  shares = heads.groupby(["variant", "layer", "head"])["first"].mean()
  most = shares.max() if shares.notna().any() else 1
  by_layer = lambda keys, **texts: functools.partial(draw_by_layer, view, heads, keys, texts)
  both = {"entropy_norm": {"linestyle": "-"}, "zeros": {"linestyle": "--", "markerfacecolor": "white", "label": None}}
  panels = [by_layer({"first": {}}, title=f"First token, length {length}", ylabel="share of attention", ylim=(0, None)),
            by_layer({"max": {}}, title="Largest activation", ylabel="max |x| of the residual stream"),
            by_layer(both, title="Entropy (solid) and zeros (dashed)", ylabel="relative to uniform; share of pairs",
                     ylim=(0, 1.03)),
            functools.partial(draw_reach, view, every),
            *[functools.partial(draw_gate, view, gates)] * (len(gates) > 0),
            *(functools.partial(draw_heads, variant.title, heads[heads["variant"] == variant.label], most)
              for variant in view.variants if variant.label in set(heads["variant"]))]
  return [Text(f"What attention looks at, at length {length}. {metrics.SPIKES}"),
          tables.of_groups("diagnostics", rows, ["variant"], columns, ["run"], view.seeds)], panels


def learned(view):
  """Of each run's newest step with any: a row for each layer, a column for each head."""
  rows = []
  for run in view.runs:
    found = max(run.learned, key=lambda item: item[0])[-1] if run.learned else {}
    rows += [{**view.marks[run], "number": name, "layer": str(layer), **dict(enumerate(heads))}
             for name, layers in found.items() for layer, heads in enumerate(layers) if heads]
  if not rows:
    return [], []
  frame = metrics.load_pandas().DataFrame(rows)
  columns = [Column(f"head {head}", head, "{:.4g}") for head in frame if isinstance(head, int)]
  return [Text("Numbers that each head has learned, by layer and head; docs/metrics.md says what they mean."),
          tables.of_groups("learned", frame, ["variant", "number", "layer"], columns, ["run", "number", "layer"])], []


TASKS = Section("tasks", "Tasks", ("task",), "./train RUN --tasks", tasks, "Mean of correct answers by step.")
PASSKEY = Section("passkey", "Passkey retrieval", ("passkey",), "./train RUN --passkey, for a model of bytes with "
                  "--set passkey.form=compact --set generate.tokenizer=bytes", passkey,
                  "Exact answers by distance, and by length and depth of the key.")
DIAGNOSTICS = Section("diagnostics", "Diagnostics", ("diagnostics",), "./train RUN --diagnostics", diagnostics,
                      "Diagnostics by layer and distance, and the first token's share by head.")
LEARNED = Section("learned", "What the heads learned", ("groups", "diagnostics"), "", learned)
