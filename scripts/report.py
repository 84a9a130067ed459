#!/usr/bin/env python3
"""Compares runs and sweeps in one HTML page without scripts or links outside, and in Markdown.

    python3 scripts/report.py RUN... [--sweep FILE.json]... [--out report.html] [--markdown DIR] [--title TEXT]
                              [--baseline RUN]

docs/comparing.md says what it shows. Equal inputs give equal pages: the date is that of the newest line.
"""
import argparse
import base64
import collections
import contextlib
import html
import io
import itertools
import json
import os
import re
import time

from lib import drawing, metrics, results, section_sweep, sections, tables, variants
from lib.common import ArgumentParser, UserError, check_output, output_folder, run as run_main
from lib.section_answers import DIAGNOSTICS, LEARNED, PASSKEY, TASKS, diagnostics_columns, passkey_columns, task_columns
from lib.section_losses import ACCURACIES, CONTEXTS, LENGTHS, SETTINGS
from lib.section_training import CURVES, DEVICE, SPEED, SPEEDS, STABILITY, cost, each, last
from lib.sections import Column, Section, Text, View, field, table

Picture = collections.namedtuple("Picture", "name caption png wide")

FAIR = ("attention.", "seed", "name", "threads", "log.", "checkpoint.", "generate.", "passkey.", "task.",
        "diagnostics.", "eval.every", "batch.micro", "train.recompute", "train.zero_stage")  # may differ
CAPTION = (f"{metrics.INTERVAL}. Bold, where all rows share three seeds or more: the best mean, and all whose "
           "difference from it, paired by seed, may be 0 by its interval.")
STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; margin: 0 auto; padding: 1.2rem; max-width: 1200px }
h1 { font-size: 1.7rem; margin: 0 } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; border-bottom: 1px solid #dde1e7 }
.scroll { overflow-x: auto; margin: .8rem 0 }
table { border-spacing: 0; font-variant-numeric: tabular-nums; font-size: .84rem }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e6e9ee; text-align: right; white-space: nowrap }
th { vertical-align: bottom; background: #f5f7f9; white-space: normal; min-width: 3.5rem }
td.wide { white-space: normal; min-width: 20rem; text-align: left }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; white-space: normal;
  overflow-wrap: break-word; min-width: min(13rem, 38vw); max-width: 40vw } th:first-child { background: #f5f7f9 }
figure { margin: 1rem 0 } img { max-width: 100%; min-width: min(100%, 660px); height: auto }
@media (max-width: 700px) { img.wide { max-width: none; width: 900px } th { min-width: 6rem } }
figcaption { color: #5a6472; font-size: .88rem }
.warning { background: #fff4dc; border-left: 4px solid #d9920a; padding: .4rem .8rem; margin: .5rem 0 }
pre { background: #f5f7f9; padding: .7rem; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere }
@media print { body { max-width: none; font-size: 10px } td { white-space: normal } figure, tr { break-inside: avoid } }
"""


# ---------------------------------------------------------------------------------------------------------- the summary

PARAMETERS = Column("parameters", lambda run: field("parameters")(run.start), "{:,.0f}")


def loss_at(length):
  return lambda run: run.row[length].loss if length in run.row else None


def summary(view):
  context = min((run.context() for run in view.runs if run.context()), default=1)
  lengths = sorted({length for run in view.runs for length in run.row if length >= context})
  columns = [PARAMETERS, *cost(view.runs)]
  columns += [Column(f"loss at {length}", loss_at(length), better=min) for length in lengths]
  if lengths:  # bits per byte compare models of different tokenizers too
    columns.append(Column(f"bits per byte at {lengths[0]}",
                          lambda run: (e := run.row.get(lengths[0])) and e.bits_per_byte, better=min))
    end = lambda run: (e := run.row.get(lengths[-1])) and e.last_loss
    columns.append(Column(f"end of {lengths[-1]}", end, better=min))
  columns += task_columns(view.runs) + passkey_columns(view.runs) + diagnostics_columns() + SPEEDS
  return table(view.rows(), columns, bold=len(metrics.comparable(view.runs)) < 2)


def answers(runs):
  """What was asked beyond the loss by length: losses of the same targets by context, diagnostics, passkey."""
  context = lambda n: lambda run: run.contexts[n].loss if n in run.contexts else None
  columns = [Column(f"context {n}", context(n), better=min) for n in sorted({n for run in runs for n in run.contexts})]
  columns += diagnostics_columns() + passkey_columns(runs)
  return table(View(runs).rows(), columns, bold=len(metrics.comparable(runs)) < 2)


def unfair(view):
  """What sets the runs apart beside attention and seed, as sentences."""
  runs, configs, result, hints = view.runs, [*map(variants.settings, view.runs)], [], []
  found = {key: sorted({str(config.get(key, "-")) for config in configs}) for key in metrics.differing(runs)}
  if more := [f"{key} ({', '.join(values[:6])})" for key, values in found.items()
              if not key.startswith(FAIR) and len(values) > 1]:
    result.append(f"The runs differ in more than attention and seed: {', '.join(more)}.")
  for title, values in (("Parameters", {field("parameters")(run.start) for run in runs} - {None}),
                        ("Trained tokens", {last(run, "tokens") for run in runs} - {None})):
    if len(values) > 1:
      text = f"{title} differ: from {min(values):,} to {max(values):,}"
      if max(values) <= 1.01 * min(values):  # as by a gate's bias: no unfairness
        hints.append(f"{text}, by {100 * (max(values) / min(values) - 1):.1g}%.")
      else:
        result.append(text + ".")
  for title, key in (("Speeds are of different devices", "device"), ("The builds differ", "commit")):
    values = sorted({str(run.start.get(key)) for run in runs})
    if len(values) > 1:
      result.append(f"{title}: {', '.join(values)}.")
  data = metrics.comparable(runs)
  if len(data) > 1:
    of = [f"{', '.join(label for (label,), _ in view.rows(group.__contains__))} of {group[0].of()}" for group in data]
    result.append(f"The losses are of different data: {'; '.join(of)}.")
  for run in runs:
    steps, made = run.steps(), run.lines[-1]["step"] if run.lines else None
    if made and steps and made < steps:
      result.append(f"{run.label} has made {made} of {steps} steps.")
  if len(view.variants) > 1 and any(len(variant.runs) < 2 for variant in view.variants):
    result.append("Not every setting has several seeds: small differences may be those of another seed.")
  return [*(Text(text, "warning") for text in result), *map(Text, hints)]


def facts(view):
  columns = [PARAMETERS, Column("FLOPs per token", lambda run: field("flops_per_token")(run.start), "{:.3g}"),
             Column("step", lambda run: str(run.step())), *cost(view.runs), DEVICE,
             Column("commit", lambda run: str(run.start.get("commit", "-"))),
             Column("versions", lambda run: " ".join(
                 f"{name} {version}" for name, version in metrics.section(run.start, "versions").items()))]
  return [table(view.rows(), columns)]


def appendix(view):
  first = view.runs[0]
  known = metrics.flat(first.config)
  others = lambda run: [f"{key}={value}" for key, value in metrics.flat(run.config).items()
                        if known.get(key) != value and key != "name"]
  rows = [[run.label, ", ".join(others(run)) or "as the first"] for run in view.runs[1:]]
  return [Text("The commands:"),
          Text("\n".join(str(run.start.get("command", "- (unknown)")) for run in view.runs), "code"),
          Text(f"The configuration of {first.label}:"),
          Text(json.dumps(first.config, indent=1, ensure_ascii=False), "code"),
          *([Text("What differs from it:"), tables.markdown(["run", "settings"], rows)] if rows else [])]


RUNS = Section("runs", "Runs", lambda run: True, "", facts)
SECTIONS = (RUNS, SETTINGS, CURVES, LENGTHS, ACCURACIES, CONTEXTS, TASKS, PASSKEY, DIAGNOSTICS, LEARNED, SPEED,
            STABILITY)
MEASURES = {"windows": LENGTHS, "suffix": CONTEXTS}  # the section that a sweep's results are of, by their mode


def newest_time(runs):
  times = [e.time for run in runs for e in run.evaluations if e.time]
  for run in runs:
    times += each([run.start, *run.lines, *itertools.chain(*run.others.values())], "time")
  return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(times))) if times and 0 <= max(times) < 1e11 else "unknown"


# ---------------------------------------------------------------------------------------------------------- the page

def in_html(block):
  if isinstance(block, Picture):
    data = base64.b64encode(block.png).decode()
    caption, kind = html.escape(block.caption), ' class="wide"' * block.wide
    image = f'<img{kind} alt="{caption}" src="data:image/png;base64,{data}">'
    return f'<figure><div class="scroll">{image}</div><figcaption>{caption}</figcaption></figure>'
  if isinstance(block, Text):
    text = html.escape(block.text)
    return f"<pre>{text}</pre>" if block.kind == "code" else f'<p class="{block.kind}">{text}</p>'

  def cell(tag, text):
    inner = html.escape(text)
    kind = ' class="wide"' if len(text) > 60 else ""
    return f"<{tag}{kind}>{f'<b>{inner}</b>' if isinstance(text, tables.Bold) else inner}</{tag}>"
  line = lambda tag, cells: "<tr>" + "".join(cell(tag, text) for text in cells) + "</tr>"
  body = "\n".join(line("td", row) for row in block.rows)
  return f'<div class="scroll"><table><thead>{line("th", block.head)}</thead><tbody>\n{body}\n</tbody></table></div>'


def page(title, subtitle, sections):
  title, body = html.escape(title), []
  for name, blocks in sections:
    body += [f"<section><h2>{html.escape(name)}</h2>", *map(in_html, blocks), "</section>"]
  return "\n".join([
      '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width, initial-scale=1">',
      f"<title>{title}</title><style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1><p>{html.escape(subtitle)}</p>",
      *body, "</body></html>\n"])


def in_markdown(block):
  if isinstance(block, Picture):
    return f"![{tables.escaped(block.caption)}]({block.name}.png)"
  if isinstance(block, Text):
    if block.kind == "code":
      return "\n".join("    " + line for line in block.text.split("\n"))
    text = tables.escaped(block.text)
    return f"> **Warning:** {text}" if block.kind == "warning" else re.sub(r"^(\d*)([-+#.)])", r"\1\\\2", text)
  return tables.markdown(block.head, block.rows, tables.escaped)


def write_markdown(folder, title, subtitle, sections):
  parts = [f"# {tables.escaped(title)}", subtitle]
  for name, blocks in sections:
    parts += [f"## {tables.escaped(name)}", *map(in_markdown, blocks)]
    for block in blocks:
      if isinstance(block, Picture):
        with open(os.path.join(folder, block.name + ".png"), "wb") as file:
          file.write(block.png)
  with open(os.path.join(folder, "report.md"), "w", encoding="utf-8") as file:
    file.write("\n\n".join(parts) + "\n")


def blocks_of(view, section):
  """Its tables, then its picture."""
  try:
    blocks, panels = section.tables(view), section.panels(view)
  except UserError as error:  # no length in common
    return [Text(str(error))]
  if panels:
    figure = sections.figure(view, panels, panels[0]) if section.has else drawing.picture(panels, panels[0])
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=100, metadata={"Software": None})
    blocks = [*blocks, Picture(section.name, section.caption, data.getvalue(), bool(figure.get_figwidth() > 8))]
  return blocks


def write(arguments, view, swept):
  there = [section for section in SECTIONS if any(map(section.has, view.runs))]
  shown = [*there, *(section_sweep.section(result, number) for number, result in enumerate(swept, 1))]
  by_sweep = {MEASURES[result["mode"]] for result in swept}
  missing = [Text(f"{section.title}: {section.needs}") for section in SECTIONS
             if section.needs and section not in (*there, *by_sweep)]
  if not swept:
    missing.append(Text("Sweeps: python3 scripts/sweep.py configs/sweeps/lr.json, and --sweep names its results."))
  parts = [("Summary", [*unfair(view), summary(view), *[Text(CAPTION)] * (len(view.runs) > 1)]),
           *((section.title, blocks_of(view, section)) for section in shown),
           *[("Not measured", missing)] * bool(missing), ("Appendix", appendix(view))]
  subtitle = f"{len(view.runs)} run{'s' * (len(view.runs) > 1)}, newest line of {newest_time(view.runs)}"
  with open(arguments.out, "w", encoding="utf-8") as file:
    file.write(page(arguments.title, subtitle, parts))
  if arguments.markdown:
    write_markdown(arguments.markdown, arguments.title, subtitle, parts)


def main():
  parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--sweep", action="append", default=[], metavar="FILE.json",
                      help="what scripts/sweep.py --results wrote")
  parser.add_argument("--out", default="report.html", metavar="FILE.html", help="[report.html]")
  parser.add_argument("--markdown", metavar="DIR", help="also write report.md and its pictures there")
  parser.add_argument("--title", default="Report")
  sections.add_baseline(parser)
  arguments = parser.parse_args()
  check_output("--out", arguments.out, [*arguments.sweep, *map(metrics.metrics_file, arguments.runs)])
  swept = [results.read(path) for path in arguments.sweep]
  runs = sections.read_runs(arguments.runs, *(section for section in SECTIONS if section.needs))
  view = View(runs, arguments.baseline)
  with output_folder(arguments.markdown, "--markdown") if arguments.markdown else contextlib.nullcontext():
    write(arguments, view, swept)
  print(arguments.out)


if __name__ == "__main__":
  run_main(main, "the report is not complete")
