#!/usr/bin/env python3
"""Compares runs and sweeps on one page: Markdown with pictures beside it.

    python3 scripts/report.py RUN... [--sweep FILE.json]... [--out report.md] [--title TEXT]
                              [--baseline RUN] [--csv DIR] [--latex DIR]

docs/comparing.md says what it shows. With --out NAME.html the page is made HTML by python3-markdown.
Equal inputs give equal pages: the date is that of the newest line.
"""
import itertools
import json
import os
import re
import sys
import time
from functools import partial

from lib import drawing, metrics, results, section_sweep, sections, tables, variants
from lib.common import ArgumentParser, UserError, check_output, run as run_main
from lib.section_answers import (DIAGNOSTICS, LEARNED, PASSKEY, TASKS, diagnostics_summary,
                                 passkey_summary, task_summary)
from lib.section_losses import ACCURACIES, CONTEXTS, LENGTHS, SETTINGS, of_data
from lib.section_training import CURVES, DEVICE, SPEED, SPEEDS, STABILITY, facts, time_unit
from lib.sections import Section, Text, View
from lib.tables import Column

FAIR = ("attention.", "seed", "name", "threads", "log.", "checkpoint.", "generate.", "passkey.",
        "task.", "diagnostics.", "eval.every", "batch.micro", "train.recompute", "train.zero_stage")  # may differ
CAPTION = metrics.INTERVAL + "."
PARAMETERS = Column("parameters", "parameters", "{:,.0f}")
TOKENS = Column("tokens", "tokens", "{:,.0f}")


# -------------------------------------------------------------------------------------- the summary

def losses_at(view, mode, title, least=1):
  """(a DataFrame by run of the losses in a mode, Columns), of the series that most runs have."""
  rows = view.current(mode)
  if len(rows):
    wide = rows.pivot(index="run", columns="length", values="loss")
    return wide, [Column(f"{title} {n}", n) for n in wide if n >= least]
  return tables.frame([]), []


def more_losses(view, least):
  """Bits per byte, for models of different tokenizers, at the shortest of these lengths, and the loss
  at the end of the longest."""
  found, columns = tables.frame([]), []
  rows = view.current("windows")
  if len(rows):
    rows = rows[rows["length"] >= least]
    for key, length, text in (("bits_per_byte", rows["length"].min(), "bits per byte at"),
                              ("last_loss", rows["length"].max(), "end of")):
      if key in rows and len(rows):
        found = found.join(rows[rows["length"] == length].set_index("run")[[key]], how="outer")
        columns.append(Column(f"{text} {length}", key))
  return found, columns


def joined(view, *parts):
  """The facts of the runs with these (DataFrame by run, Columns), and the Columns."""
  found, columns = facts(view), []
  for number, (frame, shown) in enumerate(parts):
    keys = {column.key: f"{number}: {column.key}" for column in shown}
    if keys:
      found = found.join(frame[[*keys]].rename(columns=keys), on="run")
    columns += [column._replace(key=keys[column.key]) for column in shown]
  return found, columns


def summary(view):
  least = min(view.contexts(), default=1)
  found, columns = joined(view, losses_at(view, "windows", "loss at", least),
                          more_losses(view, least), task_summary(view), passkey_summary(view),
                          diagnostics_summary(view))
  unit = time_unit(view)
  first = [PARAMETERS, TOKENS, Column(unit, unit, "{:.3g}")]
  return view.table("summary", found, [*first, *columns, *SPEEDS])


def answers(runs):
  """What was asked beyond the loss by length, as Markdown."""
  view = View(runs)
  found, columns = joined(view, losses_at(view, "suffix", "context"), diagnostics_summary(view),
                          passkey_summary(view))
  return sections.in_markdown(view.table("answers", found, columns))


def unfair(view):
  """What sets the runs apart beside attention and seed, as sentences."""
  result, hints, more = [], [], []
  configs = [*map(variants.settings, view.runs)]
  for key in metrics.differing(view.runs):
    values = sorted({str(config.get(key, "-")) for config in configs})
    if not key.startswith(FAIR) and len(values) > 1:
      more.append(f"{key} ({', '.join(values[:6])})")
  if more:
    result.append(f"The runs differ in more than attention and seed: {', '.join(more)}.")
  of_runs = view.frame(facts(view), ["tokens"])
  for title, key in (("Parameters", "parameters"), ("Trained tokens", "tokens")):
    least, most = of_runs[key].min(), of_runs[key].max()
    text = f"{title} differ: from {least:,.0f} to {most:,.0f}"
    if most > 1.01 * least:
      result.append(text + ".")
    elif most > least:  # as by a gate's bias: no unfairness
      hints.append(f"{text}, by {100 * (most / least - 1):.1g}%.")
  for title, key in (("Speeds are of different devices", "device"), ("The builds differ", "commit")):
    values = sorted(set(of_runs[key]))
    if len(values) > 1:
      result.append(f"{title}: {', '.join(values)}.")
  windows = view.series("windows")
  if windows and set(view.looks) - set(windows[0]["variant"]):
    of = [f"{', '.join(rows['variant'].unique())} of {of_data(rows)}" for rows in windows]
    result.append(f"The losses are of different data: {'; '.join(of)}. The summary has those of the first.")
  for run in view.runs:
    steps, made = run.steps(), run.lines[-1]["step"] if run.lines else None
    if made and steps and made < steps:
      result.append(f"{run.label} has made {made} of {steps} steps.")
  if len(view.seeds) > 1 and 1 in view.seeds.values():
    result.append("Not every setting has several seeds: small differences may be those of another seed.")
  return [*(Text(text, "warning") for text in result), *map(Text, hints)]


def appendix(view):
  commands = [command for run in view.runs for command in run.said("command")]
  run = view.baseline
  blocks = [Text("The commands:"), Text("\n".join(commands), "code")] if commands else []
  return [*blocks, Text(f"The configuration of {run.label}:"), Text(json.dumps(run.config, indent=1), "code")]


def runs_table(view):
  unit = time_unit(view)
  columns = [PARAMETERS, Column("FLOPs per token", "flops", "{:.3g}"),
             Column("step", "step", "{:.0f}"), TOKENS, Column(unit, unit, "{:.3g}"), DEVICE,
             Column("commit", "commit"), Column("versions", "versions")]
  return [view.table("runs", facts(view), columns)], []


RUNS = Section("runs", "Runs", (), "", runs_table)
SECTIONS = (RUNS, SETTINGS, CURVES, LENGTHS, ACCURACIES, CONTEXTS, TASKS, PASSKEY, DIAGNOSTICS,
            LEARNED, SPEED, STABILITY)
MEASURES = {"windows": LENGTHS, "suffix": CONTEXTS}  # what a sweep's results are of, by their mode


def sweep_section(number, result):
  *found, said = section_sweep.texts(result)
  lost = ["{name} {state}: {why}".format(**entry) for entry in result["runs"] if entry["why"]]
  blocks = [tables.of_texts(f"sweep_{number}_{part}", table.head, table.rows) for part, table in enumerate(found, 1)]
  blocks += [Text(said), *[Text("\n".join(lost), "code")] * bool(lost), Text(f"Made by {result['command']}")]
  content = blocks, [partial(section_sweep.draw, result)]
  title = f"Sweep {result['name']}" + (f", size {result['size']}" if result["size"] else "")
  return Section(f"sweep_{number}", title, (), "", lambda view: content, title + ".")


# ----------------------------------------------------------------------------------------- the page

def newest_time(view):
  times = [row["time"] for run in view.runs for row in [run.start, *run.lines, *run.evaluations]
           if metrics.finite(row.get("time")) is not None]
  if not times or not 0 <= max(times) < 1e11:
    return "unknown"
  return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(max(times)))


def in_markdown(block):
  if not isinstance(block, Text):
    return sections.in_markdown(block, tables.escaped)
  if block.kind == "code":
    return "\n".join("    " + line for line in block.text.split("\n"))
  text = tables.escaped(block.text)
  if block.kind == "warning":
    return f"> **Warning:** {text}"
  return re.sub(r"^(\d*)([-+#.)])", r"\1\\\2", text)


class Page:
  """The Markdown, and the pictures and tables that it writes on the way."""

  def __init__(self, args, view):
    self.args, self.view, self.parts = args, view, []

  def add(self, title, blocks, panels=(), name="", caption=""):
    self.parts += [f"## {tables.escaped(title)}", *map(in_markdown, blocks)]
    for block in blocks:
      if isinstance(block, tables.Frame):
        block.write(self.args.csv, self.args.latex)
    if panels:
      picture = f"{os.path.splitext(self.args.out)[0]}_{name}.png"
      if name in {section.name for section in SECTIONS}:
        made = sections.figure(self.view, panels)
      else:
        made = drawing.picture(panels)
      made.savefig(picture, dpi=100, metadata={"Software": None})
      target = os.path.basename(picture).replace(" ", "%20")
      self.parts.append(f"![{tables.escaped(caption)}]({target})")

  def write(self):
    text = "\n\n".join(self.parts) + "\n"
    if self.args.out.endswith(".html"):
      import markdown
      body = markdown.markdown(text, extensions=["tables"])
      text = f"<!DOCTYPE html>\n<meta charset=\"utf-8\">\n{body}\n"
    with open(self.args.out, "w", encoding="utf-8") as file:
      file.write(text)


def write(args, view, swept):
  page, missing = Page(args, view), []
  runs = f"{len(view.runs)} run{'s' * (len(view.runs) > 1)}"
  page.parts = [f"# {tables.escaped(args.title)}", f"{runs}, newest line of {newest_time(view)}"]
  page.add("Summary", [*unfair(view), summary(view), *[Text(CAPTION)] * (len(view.runs) > 1)])
  of_sweeps = [MEASURES[result["mode"]] for result in swept]
  for section in [*SECTIONS, *map(sweep_section, itertools.count(1), swept)]:
    try:
      blocks, panels = section.content(view)
    except UserError as error:  # no length in common
      blocks, panels = [Text(str(error))], []
    if blocks or panels:
      page.add(section.title, blocks, panels, section.name, section.caption)
    elif section.needs and section not in of_sweeps:
      missing.append(Text(f"{section.title}: {section.needs}"))
  if not swept:
    missing.append(Text("Sweeps: python3 scripts/sweep.py configs/sweeps/lr.json, and --sweep names its results."))
  if missing:
    page.add("Not measured", missing)
  page.add("Appendix", appendix(view))
  page.write()


def main():
  parser = ArgumentParser(description=__doc__)
  sections.add_arguments(parser)
  parser.add_argument("--sweep", action="append", default=[], metavar="FILE.json",
                      help="what scripts/sweep.py --results wrote")
  parser.add_argument("--out", default="report.md", metavar="FILE", help="FILE.md or FILE.html [report.md]")
  parser.add_argument("--title", default="Report")
  sections.add_baseline(parser)
  args = parser.parse_args()
  if os.path.splitext(args.out)[1] not in (".md", ".html"):
    raise UserError(f"--out {args.out}: must end with .md or .html")
  check_output("--out", args.out, [*args.sweep, *map(metrics.metrics_file, args.runs)])
  if args.out.endswith(".html"):
    try:
      import markdown  # noqa: F401
    except ImportError:
      raise UserError(f"--out {args.out}: {sys.executable} has no module markdown; name a .md, or "
                      "pip install markdown")
  swept = [results.read(path) for path in args.sweep]
  runs = sections.read_runs(args.runs, *(section for section in SECTIONS if section.needs))
  view = View(runs, args.baseline)
  with sections.table_folders(args):
    write(args, view, swept)
  print(args.out)


if __name__ == "__main__":
  run_main(main, "the report is not complete")
