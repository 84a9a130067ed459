"""Sections, the parts in which scripts show runs: report.py shows all, other scripts some. A section
is a function of a View that returns its tables and the panels of its picture."""
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
  content: Callable  # (view): (Texts and Frames, functions that draw on axes); none without lines
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
  """The runs that are shown, as variants, with the run that differences are to. unit: of losses.
  length: of diagnostics; None: the trained one.

  training, evaluations: DataFrames as load()'s, of all runs by variant, with columns `run` (its
  number in runs), `variant` (a label) and `seed`. left_out: {run: {"of ...": how many}}."""

  def __init__(self, runs, baseline=None, unit="nats", length=None):
    self.unit, self.length = unit, length
    self.left_out = {run: collections.Counter(run.left_out) for run in runs}
    rows = self.by_owner(runs)
    runs = [run for run in runs if run.lines or rows[run] or run.learned] or runs
    self.variants = variants.of(runs)
    self.baseline = variants.baseline(runs, baseline)
    self.runs, self.marks, self.looks, self.titles, self.seeds = [], {}, {}, {}, {}
    for variant in self.variants:
      label = variant.label
      self.looks[label] = {**variant.look, "label": drawing.in_text(label)}
      self.titles[label], self.seeds[label] = variant.title, len(variant.runs)
      for run in variant.runs:
        self.marks[run] = {"run": len(self.runs), "variant": label, "seed": run.seed()}
        self.runs.append(run)
    self.base = self.marks[self.baseline]["variant"]
    known = ("type", "step", "series", "mode", "length", "id", "loss", "run", "variant", "seed")
    self.evaluations = self.frame(self.marked(rows), known)

  def by_owner(self, runs):
    """{run: the evaluations of its weights, also those in a given run of another name}."""
    trained = {name: run for run in runs for name in run.names}
    rows = {run: [] for run in runs}
    for run in runs:
      for row in [*run.evaluations, *run.foreign]:
        name = row["weights.run"]
        owner = run if name in run.names else trained.get(name) or (run if name in run.weights else None)
        if owner:
          rows[owner].append({**row, "samples": run.samples(row)})
        else:
          self.left_out[run][f"of the weights of {name}"] += 1
    return rows

  def marked(self, rows):
    return [{**row, **self.marks[run]} for run in self.runs for row in rows[run]]

  def pairs(self, variant):
    """The seeds that a variant and the baseline's share."""
    of = lambda label: {mark["seed"] for mark in self.marks.values() if mark["variant"] == label}
    return of(variant) & of(self.base)

  def frame(self, rows, columns):
    """A DataFrame that has these columns in any case."""
    found = tables.frame(rows)
    return found.reindex(columns=dict.fromkeys([*found, *columns]))

  def table(self, name, rows, columns, keys=(), head="run"):
    return tables.of_groups(name, rows, columns, keys, head, self.seeds)

  def of_type(self, *types):
    found = self.evaluations[self.evaluations["type"].isin(types)]
    whole = [key for key in metrics.INTEGERS if key in found and found[key].notna().all()]
    return found.astype(dict.fromkeys(whole, int))

  @functools.cached_property
  def training(self):
    """The "train" lines, with `minutes` and `hours` of training until then."""
    rows = {run: [row for row in run.lines if row["type"] == "train"] for run in self.runs}
    numbers = ("loss", "tokens", "ms", "tokens_per_s", "mfu", "grad_norm", "lr")
    found = self.frame(self.marked(rows), ("step", "run", "variant", "seed", *numbers))
    found = found.astype(dict.fromkeys(numbers, float))
    found["minutes"] = found["ms"].fillna(0).groupby(found["run"]).cumsum() / 6e4
    found["hours"] = found["minutes"] / 60
    return found

  @functools.cached_property
  def losses(self):
    """The newest losses of each run, series and length, by the series that most runs have. `current`:
    of the newest step of the run's losses; a resumed run may have given up a series."""
    rows = newest(self.of_type(*metrics.LOSSES), ["series", "length"])
    current = rows["step"] == rows.groupby("run")["step"].transform("max")
    now, many = [runs.groupby(rows["series"]).transform("nunique")
                 for runs in (rows["run"].where(current), rows["run"])]
    rows = rows.assign(current=current.astype(bool), now=now, many=many)
    return rows.sort_values(["now", "many"], ascending=False, kind="stable")

  def series(self, mode):
    """[(the losses of a series)]: the one that most runs have first."""
    rows = self.losses[self.losses["mode"] == mode]
    return [of_one.sort_values("run", kind="stable") for _, of_one in rows.groupby("series", sort=False)]

  def current(self, mode):
    """The losses of the first series that are of their runs' newest step."""
    rows = [*self.series(mode), self.losses[:0]][0]
    return rows[rows["current"]]

  def earlier(self, rows):
    """Which of these losses are not of their run's newest step, as text."""
    old = rows[~rows["current"]].drop_duplicates("run")
    found = [f"{self.runs[run].label} after {step} steps" for run, step in zip(old["run"], old["step"])]
    return f" (of {', '.join(found)}, not the newest)" if found else ""

  def contexts(self):
    return sorted({run.context() for run in self.runs if run.context()})

  def trained(self, rows):
    """The trained length of each row's run."""
    return rows["run"].map(lambda number: self.runs[number].context())

  def notes(self):
    """How many evaluations of each run are left out, and what they are of."""
    found = []
    for run, left in self.left_out.items():
      total, what = sum(left.values()), ", ".join(f"{number} {why}" for why, number in left.items())
      if left:
        found.append(Text(f"{run.label}: {total} evaluation{'s' * (total > 1)} left out: {what}"))
    return found


# ----------------------------------------------------------------- scripts that show some sections

def add_arguments(parser, picture: str = "") -> None:
  parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder with metrics.jsonl")
  if picture:
    parser.add_argument("--out", metavar="FILE.png",
                        help=f"the picture (.png, .pdf or .svg), or a folder for {picture} [the first run's]")
  parser.add_argument("--csv", metavar="DIR", help="also write each table there, as CSV: means and half widths")
  parser.add_argument("--latex", metavar="DIR", help="also write each table there, as LaTeX")


def add_baseline(parser) -> None:
  parser.add_argument("--baseline", metavar="RUN", help="the one of these runs that differences are "
                      "to [the first; of a sweep, its first]")


def read_runs(folders: list[str], *sections: Section) -> list[metrics.Run]:
  """The runs, of which each must have lines of one of the sections."""
  first, runs = sections[0], metrics.read_runs(folders)
  types = {kind for section in sections for kind in section.types}
  for run in runs:
    rows = [*run.lines, *run.evaluations, *run.foreign]
    if not any(row["type"] in types for row in rows):
      command = first.needs.replace("RUN", shlex.quote(run.folder))
      raise UserError(f"{metrics.metrics_file(run.folder)} holds no {first.name} yet; run {command}")
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
  drawn, most = drawing.picture(panels, below), max(view.seeds.values())
  if most > 1:
    drawn.supxlabel(f"Mean and range over up to {most} seeds", fontsize=9, color="#666666", x=0.01, ha="left")
  return drawn


def show(view, args, sections, picture, draw):
  """Prints the sections' tables, and saves the picture that draw(their panels, by name) returns."""
  path = args.out or view.runs[0].folder
  path = os.path.join(path, picture) if os.path.isdir(path) else path
  path = drawing.picture_path("--out", path)
  blocks, panels = [], {}
  for section in sections:
    shown, panels[section.name] = section.content(view)
    blocks += shown
  print("\n\n".join(map(in_markdown, blocks)))
  with table_folders(args):
    for block in blocks:
      if isinstance(block, tables.Frame):
        block.write(args.csv, args.latex)
  draw(panels).savefig(path, dpi=drawing.DPI)
  print(f"\npicture: {path}")


def show_one(section, args, *more, **options):
  """more: sections of which the tables are printed too."""
  view = View(read_runs(args.runs, section), **options)
  show(view, args, [section, *more], section.name + ".png", lambda panels: figure(view, panels[section.name]))
