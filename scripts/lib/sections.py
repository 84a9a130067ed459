"""Sections, the parts in which scripts show runs: report.py shows all of them, plot.py, diagnose.py and
passkey.py some.

It says which command makes its lines, and has tables and the panels of a picture, with a row or a line for each
variant."""
from __future__ import annotations
import dataclasses
import os
import shlex
from typing import Callable, NamedTuple

from lib import drawing, metrics, tables, variants
from lib.common import UserError


@dataclasses.dataclass(frozen=True)
class Section:
  name: str  # of its lines, and its picture
  title: str
  has: Callable  # (run): whether the run has such lines
  needs: str  # the command that makes them
  tables: Callable  # (view): a list of tables and Texts
  panels: Callable = lambda view: []  # (view): functions that draw on given axes; the first has the legend
  caption: str = ""


class Text(NamedTuple):
  text: str
  kind: str = ""  # or "warning" or "code"


class Column(NamedTuple):
  title: str
  value: Callable  # (item): a number, a text or None
  digits: str = "{:.3f}"
  better: Callable = None  # min or max, of a number whose best is in bold
  share: bool = False  # between 0 and 1, as numbers in % always are


def field(key: str) -> Callable[[dict], float | None]:
  """Of a line: its number of this name, or None."""
  return lambda line: metrics.finite(line.get(key))


class View:
  """The runs that are shown, as variants, with the run that differences are to. unit: of losses. length: of
  diagnostics; None: the trained one."""

  def __init__(self, runs, baseline=None, unit="nats", length=None):
    self.runs, self.unit, self.length, self.variants = runs, unit, length, variants.of(runs)
    self.baseline = variants.baseline(runs, baseline)
    other = {run: f"\nof {run.of()}".replace(", ", ",\n") for group in metrics.comparable(runs)[1:] for run in group}
    for variant in self.variants:
      variant.of_other_data = other.get(variant.runs[0], "")
      variant.look["label"] = drawing.in_text(variant.label + variant.of_other_data)

  def base(self):
    return next(variant for variant in self.variants if self.baseline in variant.runs)

  def rows(self, has=lambda run: True):
    """[([label], those of a variant's runs that it is true of)] of the variants that have some."""
    found = [([variant.label], [*filter(has, variant.runs)]) for variant in self.variants]
    return [row for row in found if row[1]]


def cells(rows: list[tuple[list, list]], column: Column, bold: bool) -> list[str] | None:
  """Of a column, or None if it has no values."""
  found = [[value for item in items if (value := column.value(item)) is not None] for _, items in rows]
  known = [values for values in found if values]
  if not known:
    return None
  if isinstance(known[0][0], str):
    return [", ".join(dict.fromkeys(values)) or "-" for values in found]
  texts = [variants.mean_text(values, column.digits, len(items), exact=True, share=column.share or "%" in column.digits)
           for values, (_, items) in zip(found, rows)]
  if column.better and bold and len(set(map(metrics.mean, known))) > 1:
    by_seed = [{item.seed(): value for item in items if (value := column.value(item)) is not None} for _, items in rows]
    best = column.better(filter(None, by_seed), key=lambda values: metrics.mean(values.values()))
    gaps = [[values[seed] - best[seed] for seed in values if seed in best] for values in by_seed]
    if all(len(gap) >= 3 for gap, values in zip(gaps, by_seed) if values):
      alike = lambda gap: gap and abs(metrics.mean(gap)) <= metrics.half_width(gap)
      texts = [tables.Bold(text) if alike(gap) else text for text, gap in zip(texts, gaps)]
  return texts


def table(rows, columns, head=("run",), bold=False):
  """rows: (texts, items) of each. A cell has the mean of the column's value over the items, or the texts that differ;
  a column without values is left out. bold: for the best mean, and all whose difference from it, paired by seed, has an
  interval that holds 0; for none unless each row shares three seeds with the best, as fewer say too little. Items are
  then runs."""
  made = [(column.title, texts) for column in columns if (texts := cells(rows, column, bold))]
  return tables.markdown([*head, *(title for title, _ in made)],
                         [[*texts, *(column[number] for _, column in made)] for number, (texts, _) in enumerate(rows)])


# ------------------------------------------------------------------------------------- scripts that show some sections

def add_arguments(parser, picture: str) -> None:
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  parser.add_argument("--out", metavar="FILE.png",
                      help=f"the picture (.png, .pdf or .svg), or a folder for {picture} [the first run's]")


def add_baseline(parser) -> None:
  parser.add_argument("--baseline", metavar="RUN",
                      help="the one of these runs that differences are to [the first; of a sweep, its first]")


def read_runs(folders: list[str], *sections: Section) -> list[metrics.Run]:
  """The runs, of which each must have lines of one of the sections."""
  runs = metrics.read_runs(folders)
  for run in runs:
    if not any(section.has(run) for section in sections):
      raise UserError(f"{metrics.metrics_file(run.folder)} holds no {sections[0].name} yet; run "
                      + sections[0].needs.replace("RUN", shlex.quote(run.folder)))
  return runs


def figure(view, panels, legend, inside=None):
  drawn = drawing.picture(panels, legend, inside)
  if (most := max(len(variant.runs) for variant in view.variants)) > 1:
    drawn.supxlabel(f"Mean and range over up to {most} seeds", fontsize=9, color="#666666", x=0.01, ha="left")
  return drawn


def show(view, shown, out, name, draw):
  """Prints the sections' tables, and saves the picture that draw() returns, as all that a script does."""
  path = out or view.runs[0].folder
  path = drawing.picture_path("--out", os.path.join(path, name) if os.path.isdir(path) else path)
  blocks = [block for section in shown if any(map(section.has, view.runs)) for block in section.tables(view)]
  print("\n\n".join(block.text if isinstance(block, Text) else block for block in blocks))
  draw().savefig(path, dpi=drawing.DPI)
  print(f"\npicture: {path}")


def show_one(section, args, *more, **options):
  """more: sections of which the tables are printed too."""
  view = View(read_runs(args.runs, section), **options)
  panels = section.panels(view)
  show(view, [section, *more], args.out, section.name + ".png", lambda: figure(view, panels, panels[0]))
