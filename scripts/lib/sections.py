"""Sections, the parts in which scripts show runs: report.py shows all of them, plot.py, diagnose.py and passkey.py
some. A section is a function of a View that returns its tables and the panels of its picture."""
from __future__ import annotations
import collections
import contextlib
import functools
import os
import shlex
from typing import Callable, NamedTuple

from lib import drawing, metrics, tables, variants
from lib.common import UserError, output_folder


class Section(NamedTuple):
  name: str  # of its lines, and its picture
  title: str
  types: tuple[str, ...]  # of the lines that it shows
  needs: str  # the command that makes them
  content: Callable  # (view): (Texts and Frames, functions that draw on given axes); none if there are no lines
  caption: str = ""


class Text(NamedTuple):
  text: str
  kind: str = ""  # or "warning" or "code"


def newest(rows, by: list[str]):
  """Those of the newest step of each run and series (or type), the last of each of these columns."""
  group = "series" if "series" in by else "type"
  steps = rows.groupby(["run", group])["step"].transform("max")
  return rows[rows["step"] == steps].drop_duplicates(["run", *by], keep="last")


class View:
  """The runs that are shown, as variants, with the run that differences are to. unit: of losses. length: of
  diagnostics; None: the trained one.

  training, evaluations: DataFrames as those of load(), of all runs, in the order of the variants, with columns
  `run` (its number in runs), `variant` (a label) and `seed`. An evaluation is the run's whose weights it is of: one
  under another name (--set name=OTHER) joins it, if both are given. left_out: {run: {"of ...": how many}}."""

  def __init__(self, runs, baseline=None, unit="nats", length=None):
    self.unit, self.length = unit, length
    trained = {name: run for run in runs for name in run.names}
    self.left_out = {run: collections.Counter(run.left_out) for run in runs}
    rows = {run: [] for run in runs}
    for run in runs:
      for row in [*run.evaluations, *run.foreign]:
        name = row["weights.run"]
        owner = run if name in run.names else trained.get(name) or (run if name in run.weights else None)
        if owner:
          rows[owner].append({**row, "samples": run.samples(row)})
        else:
          self.left_out[run][f"of the weights of {name}"] += 1
    runs = [run for run in runs if run.lines or rows[run] or run.learned] or runs
    self.variants = variants.of(runs)
    self.baseline = variants.baseline(runs, baseline)
    self.runs = [run for variant in self.variants for run in variant.runs]
    self.looks = {variant.label: {**variant.look, "label": drawing.in_text(variant.label)}
                  for variant in self.variants}
    self.base = next(variant.label for variant in self.variants if self.baseline in variant.runs)
    self.titles = {variant.label: variant.title for variant in self.variants}
    self.seeds = {variant.label: len(variant.runs) for variant in self.variants}
    self.marks = {run: {"run": number, "variant": variant.label, "seed": run.seed()} for number, (variant, run) in
                  enumerate((variant, run) for variant in self.variants for run in variant.runs)}
    found = [{**row, **self.marks[run]} for run in self.runs for row in rows[run]]
    known = ("type", "step", "series", "mode", "length", "id", "loss", "run", "variant", "seed")
    self.evaluations = self.frame(found, known)

  def pairs(self, variant):
    """The seeds that a variant and the baseline's share."""
    of = lambda label: {mark["seed"] for mark in self.marks.values() if mark["variant"] == label}
    return of(variant) & of(self.base)

  def frame(self, rows, columns):
    """A DataFrame that has these columns in any case."""
    found = metrics.load_pandas().DataFrame(rows)
    return found.reindex(columns=dict.fromkeys([*found, *columns]))

  def of_type(self, *types):
    found = self.evaluations[self.evaluations["type"].isin(types)]
    return found.astype({key: int for key in metrics.INTEGERS if key in found and found[key].notna().all()})

  @functools.cached_property
  def training(self):
    """The "train" lines, with `minutes` and `hours` of training until then."""
    found = self.frame([{**row, **self.marks[run]} for run in self.runs for row in run.lines
                        if row["type"] == "train"], ("step", "run", "variant", "seed"))
    for key in ("loss", "tokens", "ms", "tokens_per_s", "mfu", "grad_norm", "lr"):
      found[key] = found[key].astype(float) if key in found else float("nan")
    found["minutes"] = found["ms"].fillna(0).groupby(found["run"]).cumsum() / 6e4
    found["hours"] = found["minutes"] / 60
    return found

  @functools.cached_property
  def losses(self):
    """The newest losses of each run, series and length, by the series that most runs have."""
    rows = newest(self.of_type(*metrics.LOSSES), ["series", "length"])
    many = rows.groupby("series")["run"].transform("nunique") if len(rows) else 0
    return rows.assign(many=many).sort_values("many", ascending=False, kind="stable")

  def series(self, mode):
    """[(the losses of a series)]: the one that most runs have first."""
    rows = self.losses[self.losses["mode"] == mode]
    return [rows[rows["series"] == series].sort_values("run", kind="stable") for series in rows["series"].unique()]

  def contexts(self):
    return sorted({run.context() for run in self.runs if run.context()})

  def notes(self):
    """How many evaluations of each run are left out, and what they are of."""
    found = {run: [f"{number} {why}" for why, number in left.items()] for run, left in self.left_out.items() if left}
    total = lambda run: sum(self.left_out[run].values())
    return [Text(f"{run.label}: {total(run)} evaluation{'s' * (total(run) > 1)} left out: {', '.join(what)}")
            for run, what in found.items()]


# ------------------------------------------------------------------------------------- scripts that show some sections

def add_arguments(parser, picture: str = "") -> None:
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  if picture:
    parser.add_argument("--out", metavar="FILE.png",
                        help=f"the picture (.png, .pdf or .svg), or a folder for {picture} [the first run's]")
  parser.add_argument("--csv", metavar="DIR", help="also write each table there, as CSV: means and half widths")
  parser.add_argument("--latex", metavar="DIR", help="also write each table there, as LaTeX")


def add_baseline(parser) -> None:
  parser.add_argument("--baseline", metavar="RUN",
                      help="the one of these runs that differences are to [the first; of a sweep, its first]")


def read_runs(folders: list[str], *sections: Section) -> list[metrics.Run]:
  """The runs, of which each must have lines of one of the sections."""
  runs, types = metrics.read_runs(folders), {kind for section in sections for kind in section.types}
  for run in runs:
    if not any(row["type"] in types for row in [*run.lines, *run.evaluations, *run.foreign]):
      raise UserError(f"{metrics.metrics_file(run.folder)} holds no {sections[0].name} yet; run "
                      + sections[0].needs.replace("RUN", shlex.quote(run.folder)))
  return runs


@contextlib.contextmanager
def table_folders(args):
  """Those of --csv and --latex, for the block."""
  with contextlib.ExitStack() as stack:
    for flag in ("csv", "latex"):
      if folder := getattr(args, flag):
        stack.enter_context(output_folder(folder, "--" + flag))
    yield


def in_markdown(block, shown=tables.in_cell) -> str:
  if isinstance(block, Text):
    return block.text
  return tables.markdown(*block.parts(), shown)


def figure(view, panels, below=None):
  """below: the panel that has the legend, if it is not the first."""
  drawn = drawing.picture(panels, below)
  if (most := max(len(variant.runs) for variant in view.variants)) > 1:
    drawn.supxlabel(f"Mean and range over up to {most} seeds", fontsize=9, color="#666666", x=0.01, ha="left")
  return drawn


def show(view, args, sections, picture, draw):
  """Prints the sections' tables, and saves the picture that draw(their panels, by name) returns."""
  path = args.out or view.runs[0].folder
  path = drawing.picture_path("--out", os.path.join(path, picture) if os.path.isdir(path) else path)
  found = {section.name: section.content(view) for section in sections}
  blocks = [block for shown, _ in found.values() for block in shown]
  print("\n\n".join(map(in_markdown, blocks)))
  with table_folders(args):
    for block in blocks:
      if isinstance(block, tables.Frame):
        block.write(args.csv, args.latex)
  draw({name: panels for name, (_, panels) in found.items()}).savefig(path, dpi=drawing.DPI)
  print(f"\npicture: {path}")


def show_one(section, args, *more, **options):
  """more: sections of which the tables are printed too."""
  view = View(read_runs(args.runs, section), **options)
  show(view, args, [section, *more], section.name + ".png",
       lambda panels: figure(view, panels[section.name]))
