#!/usr/bin/env python3
"""Compares runs and sweeps in one HTML page without scripts or links outside, and in Markdown.

    python3 scripts/report.py RUN... [--sweep FILE.json]... [--out report.html] [--markdown DIR] [--title TEXT] [--baseline RUN]

All numbers are from RUN/metrics.jsonl and the results of scripts/sweep.py (--sweep). Runs that differ in nothing but the seed
are one row of the summary, with mean and 95% interval. Differences are to the first run, or --baseline. What makes a
comparison unfair is listed first. A section without lines says which command makes them. Equal inputs give equal pages: the
date is that of the newest line. Damaged lines are skipped.
"""
import argparse
import base64
import collections
import contextlib
import html
import io
import json
import math
import os
import re
import statistics
import time

import diagnose
import metrics
import passkey
import plot
import results
import sweep
import tables
import variants
from common import UserError, check_output, output_folder, run as run_main

Text = collections.namedtuple("Text", "text kind", defaults=("",))  # kind: "", "warning", "missing" or "code"
Figure = collections.namedtuple("Figure", "name caption png wide")
Column = collections.namedtuple("Column", "title value digits better", defaults=(None,))  # value(run): a number or None; better: min, max

FAIR = ("attention.", "seed", "name", "threads", "log.", "checkpoint.", "generate.", "passkey.", "task.", "diagnostics.",
        "eval.every", "batch.micro", "train.recompute", "train.zero_stage")  # may differ between runs that are compared
CAPTION = f"{metrics.INTERVAL}. Bold: the best mean, and all whose intervals meet its own."
STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; margin: 0 auto; padding: 1.2rem; max-width: 1200px }
h1 { font-size: 1.7rem; margin: 0 } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; border-bottom: 1px solid #dde1e7 }
.scroll { overflow-x: auto; margin: .8rem 0 } table { border-spacing: 0; font-variant-numeric: tabular-nums; font-size: .84rem }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e6e9ee; text-align: right; white-space: nowrap }
th { vertical-align: bottom; background: #f5f7f9; white-space: normal }
td.wide { white-space: normal; min-width: 20rem; text-align: left }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; white-space: normal; overflow-wrap: anywhere;
  min-width: 7rem; max-width: 40vw } th:first-child { background: #f5f7f9 }
figure { margin: 1rem 0 } img { max-width: 100%; min-width: min(100%, 660px); height: auto }
@media (max-width: 700px) { img.wide { max-width: none; width: 900px } }
figcaption { color: #5a6472; font-size: .88rem }
.warning { background: #fff4dc; border-left: 4px solid #d9920a; padding: .4rem .8rem; margin: .5rem 0 }
pre { background: #f5f7f9; padding: .7rem; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere }
@media print { body { max-width: none; font-size: 10px } td { white-space: normal } figure, tr { break-inside: avoid } }
"""


# ---------------------------------------------------------------------------------------------------------- the numbers

def each(values, key):
  return [entry[key] for entry in values if metrics.finite(entry.get(key)) is not None]


def middle(run, key):
  values = each(run.lines, key)
  return statistics.median_low(values) if values else None  # one of the values


def last(run, key):
  return next(iter(each(reversed(run.lines), key)), None)


def trained_hours(run):
  return run.axis("hours")(run.lines[-1]["step"]) if run.lines else None


def newest(run, kind, keys):
  """The last line of a type for each value of these keys, of the newest step that has any."""
  lines = run.others.get(kind, [])
  step = max((line["step"] for line in lines), default=None)
  return {tuple(str(line.get(key)) for key in keys): line for line in lines if line["step"] == step}


def number(value, text="{:.3f}".format):
  return "-" if metrics.finite(value) is None else text(value) if abs(value) < 1e15 else "%.3g" % value


def percent(value):
  return number(value, lambda share: "%.1f" % (100 * share))


def loss_at(length):
  return lambda run: run.row[length].loss if length in run.row else None


def grouped(runs, columns):
  """Markdown: a row for runs that differ by seed only, with mean and interval. In bold is the best mean, with those whose intervals
  meet its own: a difference within the errors is none."""
  groups, comparable = variants.of(runs), len(metrics.comparable(runs)) < 2
  cells = []  # by column
  for column in columns:
    found = [[value for run in group.runs if (value := column.value(run)) is not None] for group in groups]
    means = [statistics.mean(values) for values in found if values]
    top = column.better((v for v in found if v), key=statistics.mean) if column.better and comparable and len(set(means)) > 1 else None
    texts = []
    for values in found:
      text = column.digits.format(statistics.mean(values)) if values else "-"
      text += metrics.plus_minus(values, column.digits) if len(set(values)) > 1 else ""
      bold = values and top and abs(statistics.mean(values) - statistics.mean(top)) <= metrics.half_width(values) + metrics.half_width(top)
      texts.append(f"**{text}**" if bold else text)
    if means:
      cells.append((column.title, texts))
  return tables.markdown(["run", *(title for title, _ in cells)],
                       [[group.label, *(texts[number] for _, texts in cells)] for number, group in enumerate(groups)])


def summary(runs):
  context = min((run.context() for run in runs if run.context()), default=1)
  lengths = sorted({length for run in runs for length in run.row if length >= context})
  columns = [Column("parameters", lambda run: metrics.finite(run.start.get("parameters")), "{:,.0f}"),
             Column("tokens", lambda run: last(run, "tokens"), "{:,.0f}"), Column("hours", trained_hours, "{:.3g}")]
  columns += [Column(f"loss at {length}", loss_at(length), "{:.3f}", min) for length in lengths]
  if lengths:
    columns.append(Column(f"end of {lengths[-1]}", lambda run: lengths[-1] in run.row and run.row[lengths[-1]].last_loss or None, "{:.3f}", min))
  columns += task_columns(runs) + passkey_columns(runs) + diagnostics_columns(runs)
  columns += [Column("tokens/s", lambda run: middle(run, "tokens_per_s"), "{:,.0f}", max),
              Column("MFU", lambda run: middle(run, "mfu"), "{:.1%}", max)]
  return grouped(runs, columns)


def answers(runs):
  """A table of what was asked beyond the loss by length: losses of the same targets by context, diagnostics, passkey."""
  context = lambda n: lambda run: run.contexts[n].loss if n in run.contexts else None
  columns = [Column(f"context {n}", context(n), "{:.3f}", min) for n in sorted({n for run in runs for n in run.contexts})]
  return grouped(runs, columns + diagnostics_columns(runs) + passkey_columns(runs))


def unfair(runs):
  """What sets the runs apart beside attention and seed, as sentences."""
  configs = {run: variants.settings(run) for run in runs}
  keys = [key for key in metrics.differing(runs)
          if not key.startswith(FAIR) and len({str(config.get(key)) for config in configs.values()}) > 1]
  result = ["The runs differ in more than attention and seed: %s." % ", ".join(
      f"{key} ({', '.join(sorted({str(config.get(key, '-')) for config in configs.values()})[:6])})" for key in keys)] if keys else []
  for title, values in (("Parameters", {metrics.finite(run.start.get("parameters")) for run in runs} - {None}),
                        ("Trained tokens", {last(run, "tokens") for run in runs} - {None})):
    if len(values) > 1:
      result.append(f"{title} differ: from {min(values):,} to {max(values):,}.")
  for title, key in (("Speeds are of different devices", "device"), ("The builds differ", "commit")):
    values = sorted({str(run.start.get(key)) for run in runs})
    if len(values) > 1:
      result.append(f"{title}: {', '.join(values)}.")
  data = metrics.comparable(runs)
  if len(data) > 1:
    result.append("The losses are of different data: " + "; ".join(f"{', '.join(run.label for run in group)} of {group[0].of()}" for group in data) + ".")
  for run in runs:
    steps, made = run.steps(), run.lines[-1]["step"] if run.lines else None
    if made and steps and made < steps:
      result.append(f"{run.label} has made {made} of {steps} steps.")
  groups = variants.of(runs)
  if len(groups) > 1 and any(len(group.runs) < 2 for group in groups):
    result.append("Not every setting has several seeds: small differences may be those of another seed.")
  return [Text(text, "warning") for text in result]


# ---------------------------------------------------------------------------------------------------------- sections

def figure(name, caption, draw, panels=2, labels=0):
  """draw(*axes, ticker). labels: lines of the legend, which take room below."""
  pyplot, ticker = plot.load_pyplot()
  drawn, axes = pyplot.subplots(1, panels, figsize=({1: 7, 2: 11}.get(panels, 4.3 * panels), 4 + 0.2 * labels), constrained_layout=True, squeeze=False)
  draw(*axes[0], ticker)
  return as_png(name, caption, drawn)


def as_png(name, caption, drawn):
  data = io.BytesIO()
  drawn.savefig(data, format="png", dpi=100, metadata={"Software": None})
  plot.load_pyplot()[0].close(drawn)
  return Figure(name, caption, data.getvalue(), bool(drawn.get_figwidth() > 8))


def legend_below(axes, labels):
  if axes.get_legend_handles_labels()[1]:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=3.7, ncol=2 if labels > 2 else 1, fontsize=8.5)


def runs_section(runs, baseline):
  rows = [[run.label, number(run.start.get("parameters"), "{:,.0f}".format),
           number(run.start.get("flops_per_token"), "{:.3g}".format),
           str(run.step()), number(last(run, "tokens"), "{:,.0f}".format),
           number(trained_hours(run), "{:.3g}".format), str(run.start.get("device", "-")),
           str(run.start.get("commit", "-")), " ".join(f"{k} {v}" for k, v in metrics.section(run.start, "versions").items())] for run in runs]
  notes = [Text(run.note()) for run in runs if run.note()]
  return [tables.markdown(["run", "parameters", "FLOPs per token", "step", "tokens", "hours", "device", "commit", "versions"], rows),
          *([Text("The settings that differ:"), plot.settings_table(runs)] if len(runs) > 1 else []), *notes]


def curves(runs, baseline):
  if not any(run.train() for run in runs):
    return [Text("./train CONFIG.json trains.", "missing")]
  style = plot.looks(runs)

  def losses(left, right, ticker):
    for axes, over in ((left, "tokens"), (right, "hours")):
      plot.draw_losses(runs, style, axes, over)
    legend_below(left, len(runs))
  blocks = [figure("losses", "Training and validation loss by tokens and by hours of training; of several seeds mean and range.", losses, labels=len(runs) / 2)]
  smooth = {run: plot.smooth([loss for _, loss in run.train()]) for run in runs}
  goal = smooth[baseline][-1] if smooth[baseline] else -1

  def reached(run, over):
    step = next((step for (step, _), loss in zip(run.train(), smooth[run]) if loss <= goal), None)
    return step and run.axis(over)(step)
  rows = []
  for run in runs:
    rows.append([run.label, number(smooth[run][-1]) if smooth[run] else "-"])
    for over, digits in (("tokens", "{:,.0f}"), ("hours", "{:.3g}")):
      mine, other = reached(run, over), reached(baseline, over)
      rows[-1] += [digits.format(mine), "%.2f" % (other / mine)] if mine else ["not reached", "-"]
  if len(runs) > 1 and smooth[baseline]:
    blocks += [Text(f"How soon each run first reaches the last training loss of {baseline.label} (both as means over a window around the step):"),
               tables.markdown(["run", "last loss", "tokens to there", "times as fast", "hours to there", "times as fast"], rows)]
  return blocks


def lengths(runs, baseline):
  if not any(run.row for run in runs):
    return [Text("./train RUN --eval measures it.", "missing")]
  blocks = []
  for group in metrics.comparable(runs):
    less = lambda n: lambda run: run.row[n].loss - run.row[run.context()].loss if n in run.row and run.context() in run.row else None
    some = sorted({length for run in group for length in run.row})
    blocks += [Text(f"Loss in nats per token, of {group[0].of()}:"), plot.table(group), Text("Loss less that at the trained length:"),
               grouped(group, [Column(str(n), less(n), "{:+.3f}") for n in some])]
  style, (base, gaps) = plot.looks(runs), plot.differences(runs, baseline)

  def draw(left, middle, *more):
    ticker = more[-1]
    plot.draw_lengths(runs, style, left, ticker, "nats")
    plot.mark_contexts(runs, [left])
    legend_below(left, len(runs))
    plot.draw_positions(runs, style, middle, ticker, "nats")
    if gaps:
      plot.draw_differences(base, gaps, style, more[0], ticker)
  blocks.append(figure("lengths", "Loss by evaluated length, and by position. Bars are standard errors; of several seeds, the range.", draw, 2 + bool(gaps), len(runs) / 2))
  if gaps:
    blocks += [Text(f"Difference to {base.label}: paired by seed, mean and 95% interval; of single runs on the same windows, with the standard error:"),
               plot.difference_table(base, gaps)]
  return blocks


def contexts(runs, baseline):
  groups = metrics.same_targets(runs)
  if not groups:
    return [Text("./train RUN --eval --set eval.mode=suffix measures it.", "missing")]
  blocks = []
  for group in groups:
    e = next(iter(group[0].contexts.values()))
    blocks += [Text("Loss of the last %d targets in windows of %d of %s, by the context that the model sees:" % (e.targets[1], e.targets[0], e.data())),
               plot.table(group, "nats", "with context", lambda run: run.contexts)]

  style = plot.looks(runs)

  def draw(axes, ticker):
    plot.draw_contexts(style, groups, axes, ticker, "nats")
    legend_below(axes, len(runs))
  return [*blocks, figure("contexts", "Loss of the same targets by context.", draw, 1, len(runs) / 2)]


def lines_table(runs, kind, keys, columns):
  """The newest lines of a type as a table, or None without any. columns: {title: (field, its text)}."""
  rows = [[run.label, *found, *(text(line.get(field)) for field, text in columns.values())]
          for run in runs for found, line in newest(run, kind, keys).items()]
  return tables.markdown(["run", *keys, *columns], rows) if rows else None


def task_keys(runs):
  """The fields whose values tell apart what one task was: its name, and those in which lines of one name differ."""
  keys = ["n", "max_length", "xxh64"]
  forms = {key: {found for run in runs for found in newest(run, "task", ["task", key])} for key in keys}
  return ["task", *(key for key in keys if len(forms[key]) > len({name for name, _ in forms[key]}))]


def task_columns(runs):
  """By length (acc_norm), or where a task has no such score, acc. Only equal questions share a column."""
  keys = task_keys(runs)
  names = sorted({found for run in runs for found in newest(run, "task", keys)})

  def score(name):
    lines = {run: newest(run, "task", keys).get(name, {}) for run in runs}
    key = "acc_norm" if any(metrics.finite(line.get("acc_norm")) is not None for line in lines.values()) else "acc"
    of = ", ".join(f"{field} {value}" for field, value in zip(keys[1:], name[1:]))
    return Column(f"{name[0]} {key}" + (f" ({of})" if of else ""), lambda run: metrics.finite(lines[run].get(key)), "{:.1%}", max)
  return [score(name) for name in names]


def right_answers(line):
  """{number: whether the choice by length, or without lengths by likelihood alone, was right} of a task line's examples; {} if
  they are not in the file that the line's program wrote."""
  found, key = {}, "acc" if metrics.finite(line.get("acc_norm")) is None else "acc_norm"
  try:
    with open(line["samples"], encoding="utf-8") as file:
      for row in map(json.loads, file):
        if row["task"] == line["task"]:
          sizes = row["characters"] if key == "acc_norm" else [1] * len(row["loglikelihood"])
          scores = [likelihood / size for likelihood, size in zip(row["loglikelihood"], sizes)]
          found[row["example"]] = scores.index(max(scores)) == row["gold"]
    return found if len(found) == line["n"] and abs(statistics.mean(found.values()) - line[key]) < 1e-9 else {}
  except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
    return {}


def mcnemar(one, other):
  """(only one is right, only the other, two-sided p of the exact test) of two right_answers() to the same questions."""
  counts = [sum(mine and not theirs for mine, theirs in pairs) for pairs in (
      [(one[n], other[n]) for n in one], [(other[n], one[n]) for n in one])]
  tail = sum(math.comb(sum(counts), k) for k in range(min(counts) + 1))
  return *counts, min(1.0, 2 * tail / 2 ** sum(counts))


def paired_tasks(runs, baseline):
  """Of runs that were asked the same questions as the baseline, where both kept their answers (task.samples)."""
  rows, keys = [], ["task", "n", "max_length", "xxh64"]
  base = {asked: found for asked, line in newest(baseline, "task", keys).items() if (found := right_answers(line))}
  for run in runs if base else ():
    for asked, line in newest(run, "task", keys).items():
      if run is not baseline and asked in base and (found := right_answers(line)).keys() == base[asked].keys():
        mine, others, p = mcnemar(found, base[asked])
        rows.append([run.label, *asked[:2], str(mine), str(others), "%.3g" % p])
  return [Text(f"Paired with {baseline.label}: examples that only one of both answers right, and the exact two-sided p of McNemar's test:"),
          tables.markdown(["run", "task", "n", "only this run", f"only {baseline.label}", "p"], rows)] if rows else []


def tasks(runs, baseline):
  table = lines_table(runs, "task", [*dict.fromkeys(["task", "n", *task_keys(runs)])], {
      "correct %": ("acc", percent), "standard error": ("stderr", percent), "chance %": ("chance", percent),
      "by length %": ("acc_norm", percent), "margin": ("margin", number)})
  return [table, *paired_tasks(runs, baseline)] if table else [Text("./train RUN --tasks measures it.", "missing")]


def mean(values):
  """Of a list in a line; None if it is none, or has a null."""
  values = metrics.numbers(values)
  return statistics.mean(values) if values and None not in values else None


def passkey_columns(runs):
  found = sorted({(int(length), form) for run in runs for form, length in newest(run, "passkey", ["form", "length"]) if length.isdecimal()})
  score = lambda key: lambda run: mean(newest(run, "passkey", ["form", "length"]).get(key, {}).get("exact"))
  several = len({form for _, form in found}) > 1  # a form with a comma names a window that is not the run's own
  return [Column(f"passkey at {length}" + (several or "," in form) * f", {form}", score((form, str(length))), "{:.1%}", max) for length, form in found]


def passkeys(runs, baseline):
  table = lines_table(runs, "passkey", ["form", "length", "trials"], {
      "exact %": ("exact", lambda values: percent(mean(values))), "standard error": ("stderr", percent),
      "nll": ("nll", lambda values: number(mean(values))), "rank": ("rank", lambda values: number(mean(values), "{:.2f}".format)),
      "control %": ("control", percent)})
  shown = passkey.by_variant(runs)
  return [table, *(as_png(f"passkey_{i // 3 + 1}", "Exact answers by length and depth of the key, and by distance.", passkey.draw(shown[i:i + 3]))
                   for i in range(0, len(shown), 3))] if table else [Text("./train RUN --passkey measures it.", "missing")]


def diagnostics_columns(runs):
  return [Column(title, lambda run, field=field: getattr(run.diagnostics.get(run.context()), field, None), text)
          for title, field, text in (("F-Attn", "first_token", "{:.3f}"), ("M-Act", "m_act", "{:.4g}"),
                                     ("entropy", "entropy_norm", "{:.3f}"), ("zeros", "zeros", "{:.3f}"))]


def diagnostics(runs, baseline):
  some, picture = [run for run in runs if run.diagnostics], io.BytesIO()
  if not some:
    return [Text("./train RUN --diagnostics measures it.", "missing")]
  try:
    length = diagnose.chosen_length(some, None)
  except UserError as error:
    return [Text(str(error))]
  diagnose.draw(some, length, picture)
  return [Text(f"What attention looks at, at length {length}:"), diagnose.table(some, length),
          Figure("diagnostics", "Diagnostics by layer, head and distance.", picture.getvalue(), True)]


def sweeps(results):
  blocks = []
  for position, result in enumerate(results, 1):
    *tables, said = sweep.texts(result)
    blocks += [Text(f"{result['name']}{', size ' + result['size'] if result['size'] else ''}: {said}"), *tables]
    lost = [f"{entry['name']} {entry['state']}: {entry['why']}" for entry in result["runs"] if entry["why"]]
    blocks += [figure(f"sweep_{position}", f"Sweep {result['name']}.", lambda axes, ticker: sweep.draw(result, axes, ticker), 1, 3)]
    blocks += [Text("\n".join(lost), "code")] * bool(lost) + [Text(f"Made by {result['command']}")]
  return blocks or [Text("python3 scripts/sweep.py configs/sweeps/lr.json makes one; name its results with --sweep.", "missing")]


def speed(runs, baseline):
  rows = [[run.label, number(middle(run, "tokens_per_s"), "{:,.0f}".format), number(middle(run, "ms"), "{:.1f}".format), percent(middle(run, "mfu")),
           str(run.start.get("device", "-"))] for run in runs if middle(run, "tokens_per_s")]
  if not rows:
    return [Text("./train CONFIG.json trains.", "missing")]
  return [Text("Medians over the steps of training. MFU is known only where the peak of the device is."),
          tables.markdown(["run", "tokens/s", "ms a step", "MFU %", "device"], rows)]


def stability(runs, baseline):
  if not any(run.lines for run in runs):
    return [Text("./train CONFIG.json trains.", "missing")]
  rows, score = [], lambda found: "-" if found is None else "%.2f (%d sd, %d steps)" % (100 * found[0], found[2], found[1])
  for run in runs:
    norms, why = each(run.lines, "grad_norm"), sweep.judged(run)
    skipped = {entry["step"] for entry in run.lines if entry["type"] == "skip"}  # of steps without labels the loss is null too
    broken = [entry["step"] for entry in run.lines if entry["type"] == "train" and entry.get("loss", 0) is None and entry["step"] not in skipped]
    rows.append([run.label, score(metrics.spike_score([loss for _, loss in run.train()])), score(metrics.spike_score(norms)),
                 number(max(norms, default=None)), percent(metrics.clipped(run)), str(len(skipped)),
                 f"loss not finite at step {broken[0]}" if broken else why or "no"])
  style, found = plot.looks(runs), plot.details(runs)
  return [Text("Spikes: share in % of the steps whose loss, or gradient norm, lies that many standard deviations or more from the mean of the steps before it."),
          tables.markdown(["run", "loss spikes %", "norm spikes %", "largest norm", "clipped %", "skipped updates", "diverged"], rows),
          *([figure("details", "Gradient norm, learning rate and speed.", lambda *axes: plot.draw_details(found, style, axes[:-1]), len(found))]
            if found else [])]


def appendix(runs, baseline):
  configs = {run: metrics.flat(run.config) for run in runs}
  rows = [[run.label, ", ".join(f"{key}={value}" for key, value in configs[run].items() if configs[runs[0]].get(key) != value and key != "name")
           or "as the first"] for run in runs[1:]]
  return [Text("The commands:"), Text("\n".join(str(run.start.get("command", "- (unknown)")) for run in runs), "code"),
          Text(f"The configuration of {runs[0].label}:"), Text(json.dumps(runs[0].config, indent=1, ensure_ascii=False), "code"),
          *([Text("What differs from it:"), tables.markdown(["run", "settings"], rows)] if rows else [])]


SECTIONS = (("Runs", runs_section), ("Training", curves), ("Loss by length", lengths), ("The same targets with growing context", contexts),
            ("Tasks", tasks), ("Passkey retrieval", passkeys), ("Diagnostics", diagnostics), ("Speed", speed), ("Stability", stability))


MEASURES = {"windows": SECTIONS[2][0], "suffix": SECTIONS[3][0]}  # the section that a sweep's results are of, by their mode


def newest_time(runs):
  times = [time_ for run in runs for entries in ([run.start], run.lines, *run.others.values()) for time_ in each(entries, "time")]
  times += [e.time for run in runs for e in run.evaluations if e.time]
  return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(times))) if times and 0 <= max(times) < 1e11 else "unknown"


# ---------------------------------------------------------------------------------------------------------- the page

def in_html(block):
  if isinstance(block, Figure):
    data = base64.b64encode(block.png).decode()
    caption, kind = html.escape(block.caption), ' class="wide"' * block.wide
    return f'<figure><div class="scroll"><img{kind} alt="{caption}" src="data:image/png;base64,{data}"></div><figcaption>{caption}</figcaption></figure>'
  if isinstance(block, Text):
    text = html.escape(block.text)
    return f"<pre>{text}</pre>" if block.kind == "code" else f'<p class="{block.kind}">{text}</p>' if block.kind else f"<p>{text}</p>"

  def cell(tag, text):
    bold = text.startswith("**") and text.endswith("**") and len(text) > 4
    inner = html.escape(text[2:-2] if bold else text)
    kind = ' class="wide"' if len(text) > 60 else ""
    return f"<{tag}{kind}>{f'<b>{inner}</b>' if bold else inner}</{tag}>"
  line = lambda tag, cells: "<tr>" + "".join(cell(tag, text) for text in cells) + "</tr>"
  body = "\n".join(line("td", row) for row in block.rows)
  return f'<div class="scroll"><table><thead>{line("th", block.head)}</thead><tbody>\n{body}\n</tbody></table></div>'


def page(title, subtitle, sections):
  body = "\n".join(f"<section><h2>{html.escape(name)}</h2>\n" + "\n".join(map(in_html, blocks)) + "\n</section>" for name, blocks in sections)
  return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
          f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n<h1>{html.escape(title)}</h1><p>{html.escape(subtitle)}</p>\n{body}\n</body></html>\n")


def in_markdown(block):
  escaped = lambda text: html.escape(text, quote=False).replace("|", "\\|")
  if isinstance(block, Figure):
    return f"![{block.caption}]({block.name}.png)"
  if isinstance(block, Text):
    if block.kind == "code":
      return "\n".join("    " + line for line in block.text.split("\n"))
    return "> **Warning:** " * (block.kind == "warning") + escaped(block.text)
  return tables.markdown([escaped(text) for text in block.head], [[escaped(text) for text in row] for row in block.rows])


def write_markdown(folder, title, subtitle, sections):
  parts = [f"# {html.escape(title, quote=False)}", subtitle]
  for name, blocks in sections:
    parts += [f"## {name}", *map(in_markdown, blocks)]
    for block in blocks:
      if isinstance(block, Figure):
        with open(os.path.join(folder, block.name + ".png"), "wb") as file:
          file.write(block.png)
  with open(os.path.join(folder, "report.md"), "w", encoding="utf-8") as file:
    file.write("\n\n".join(parts) + "\n")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--sweep", action="append", default=[], metavar="FILE.json", help="what scripts/sweep.py --results wrote")
  parser.add_argument("--out", default="report.html", metavar="FILE.html", help="[report.html]")
  parser.add_argument("--markdown", metavar="DIR", help="also write report.md and its pictures there")
  parser.add_argument("--title", default="Report")
  parser.add_argument("--baseline", metavar="RUN", help="the one of these runs that differences are to [the first; of a sweep, its first]")
  arguments = parser.parse_args()
  check_output("--out", arguments.out)
  swept = [results.read(path) for path in arguments.sweep]
  runs = metrics.read_runs(arguments.runs)
  for run in runs:
    if not run.lines and not run.row and not run.contexts:
      raise UserError(f"{run.folder}/metrics.jsonl holds no losses yet")
  baseline = variants.baseline(runs, arguments.baseline)
  with output_folder(arguments.markdown, "--markdown") if arguments.markdown else contextlib.nullcontext():
    write(arguments, runs, baseline, swept)
  print(arguments.out)


def write(arguments, runs, baseline, results):
  sections = [(name, make(runs, baseline)) for name, make in SECTIONS] + [("Sweeps", sweeps(results))]
  by_sweep = {MEASURES[result.get("mode", "windows")] for result in results}
  empty = [(name, blocks) for name, blocks in sections if isinstance(blocks[0], Text) and blocks[0].kind == "missing"]
  sections = [("Summary", [*unfair(runs), summary(runs), *[Text(CAPTION)] * (len(runs) > 1)]), *(section for section in sections if section not in empty),
              *([("Not measured", [Text(f"{name}: {blocks[0].text}") for name, blocks in empty if name not in by_sweep])] if empty else []),
              ("Appendix", appendix(runs, baseline))]
  subtitle = f"{len(runs)} run{'s' * (len(runs) > 1)}, newest line of {newest_time(runs)}"
  with open(arguments.out, "w", encoding="utf-8") as file:
    file.write(page(arguments.title, subtitle, sections))
  if arguments.markdown:
    write_markdown(arguments.markdown, arguments.title, subtitle, sections)


if __name__ == "__main__":
  run_main(main, "the report is not complete")
