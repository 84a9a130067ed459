"""Reads the metrics.jsonl of runs, for every script that needs them.

    training, evaluations = load("runs/NAME")  # DataFrames: steps, and evaluations of all types

Evaluations of equal `id` are comparable, and those of equal `series` are one curve by length
(docs/metrics.md): nothing here works out either. Evaluations without an `id` are of an older
program; they are counted and left out.
"""
from __future__ import annotations
import collections
import contextlib
import glob
import hashlib
import itertools
import json
import math
import os
import re
import statistics
import sys
from typing import Iterator, NamedTuple

from lib.common import UserError, read_json, stop


def load_pandas():
  try:
    import pandas
  except ImportError:
    python = sys.executable
    stop(f"no tables: {python} has no pandas; {python} -m pip install pandas, or use "
         "/usr/bin/python3, for which scripts/install_deps.sh installs it")
  return pandas


# ----------------------------------------------------------------------- values

def finite(value: object) -> float | None:
  """The value if it is a number that can be drawn; None if not, or for a loss that exploded."""
  return value if type(value) in (int, float) and abs(value) < 1e39 else None  # any float32


def count(value: object, least: int = 0) -> int:
  if type(value) is not int or not least <= value < 1 << 53:
    raise ValueError("not a number of steps or tokens")
  return value


def section(settings: dict, name: str) -> dict:
  found = settings.get(name)
  return found if isinstance(found, dict) else {}


def flat_row(entry: dict, prefix: str = "") -> dict[str, object]:
  """{"model.layers": 12, ...} of nested objects."""
  result = {}
  for key, value in entry.items():
    if isinstance(value, dict):
      result.update(flat_row(value, f"{prefix}{key}."))
    else:
      result[prefix + key] = value
  return result


def flat(settings: dict) -> dict[str, object]:
  """The same of a configuration; lists as text."""
  return {key: value if isinstance(value, (bool, int, float, str)) else str(value)
          for key, value in flat_row(settings).items()}


def numbers(values: object) -> list:
  """The values if they are a list of numbers (or null, for a loss that exploded), else []."""
  good = isinstance(values, list) and all(v is None or finite(v) is not None for v in values)
  return values if good else []


# ------------------------------------------------------------- what a run is of

UNKNOWN = "unknown"  # the content of what an older program began from


def content(*lists: object) -> str:
  """Equal for lists of files [{"xxh64", ...}] with the same bytes in the same order; or UNKNOWN."""
  files = [file for found in lists if isinstance(found, list) for file in found]
  sums = [str(file.get("xxh64")) for file in files if isinstance(file, dict)]
  return hashlib.sha256(" ".join(sums).encode()).hexdigest()[:16] if sums else UNKNOWN


def contents(identity: dict, folder: str = "") -> dict[str, str]:
  """What a run began from, {"data.train": with its labels, "init"}: by the "identity" of its start
  line, which ./train --print-identity prints too; of an older program, by a checkpoint."""
  train = content(identity.get("data.train"), identity.get("data.labels"))
  if folder and not identity:
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "step_*", "state.json"))):
      with contextlib.suppress(UserError, AttributeError):  # damaged: another may do
        train = content(section(read_json(path), "data").get("train"))
  return {"data.train": train, "init": content(identity.get("init"))}


# ---------------------------------------------------------------------- reading

EVALUATIONS = "val", "eval", "task", "passkey", "diagnostics"  # types of lines
LOSSES = "val", "eval"
OLDER = ("of an older program, which did not write what they are of "
         "(./train RUN --eval --resume evaluates again)")
SCALARS = ("time", "tokens", "tokens_per_s", "ms", "mfu", "grad_norm", "stderr", "loss", "lr",
           "lr_muon", "last_loss", "bits_per_byte", "accuracy", "accuracy_stderr", "exact_stderr",
           "acc", "acc_norm", "chance", "margin", "word_perplexity", "control", "first_token",
           "sink_rate", "entropy", "entropy_norm", "m_act", "gate", "zeros")
LISTS = "position_edges", "by_position", "accuracy_by_position", "window_losses", "window_labels"
# Columns of integers in which some rows may have none.
INTEGERS = "step", "length", "n", "trials", "max_length", "of.windows", "of.tokens_asked"


def metrics_file(run: str) -> str:
  return run if run.endswith(".jsonl") else os.path.join(run, "metrics.jsonl")


def checked_row(entry: dict) -> dict:
  """The flat row of a line; a ValueError, LookupError or TypeError if it is damaged."""
  row = flat_row(entry)
  row.update({key: finite(row[key]) for key in SCALARS if key in row})
  if row["type"] == "passkey":
    row["exact"] = numbers(row["exact"])
    values = [*row["depths"], *row["exact"], *row["distance"]]
    if None in map(finite, values) or not row["exact"]:
      raise ValueError("not a number in each cell")
  if row["type"] in LOSSES:
    row["exact"] = finite(row.get("exact"))
    row.update({key: numbers(row.get(key)) for key in LISTS})
    count(row["length"], 1)
    if row["loss"] is None or None in row["position_edges"] or \
       not isinstance(row["of.data"], list) or not isinstance(row["series"] + row["mode"], str):
      raise ValueError("not the losses of an evaluation")
    [(shard["name"], shard["tokens"], shard["xxh64"]) for shard in row["of.data"]]
  if row["type"] == "diagnostics":
    heads = [layer["heads"] for layer in row["layers"] if len(layer["max"]) == 3]
    bins = {len(numbers(head["reach"])) for layer in heads for head in layer}
    if len(bins) != 1 or len({*map(len, heads)}) != 1:
      raise ValueError("no table of layers and heads")
    row["length"] = count(row["length"], 1)
  return row


def lines_of(path: str, warn: bool = True) -> Iterator[dict]:
  """Each object with a type and, but for "start" lines, a step. Warns of the first damaged line."""
  damaged = []
  with open(path, encoding="utf-8", errors="replace") as file:
    for number, text in enumerate(file, 1):
      try:
        entry = json.loads(text)
        entry.items()  # an AttributeError unless it is an object
      except (ValueError, RecursionError, AttributeError):
        damaged += [number] * text.endswith("\n")  # the last line may be half written
        continue
      try:
        if entry["type"] == "start":
          entry["config"].items()
        elif count(entry["step"]) < 0 or not isinstance(entry["type"], str):
          continue
      except (ValueError, LookupError, TypeError, AttributeError):
        continue
      yield entry
  if damaged and warn:
    more = f", and {len(damaged) - 1} more" if damaged[1:] else ""
    print(f"warning: {path}: line {damaged[0]} is damaged and left out{more}", file=sys.stderr)


class Lines(NamedTuple):
  """Of one file: "start" lines; rows of steps; rows of evaluations, which have an id and the
  `config` of their program; "groups" lines; how many evaluations are of an older program."""
  starts: list[dict]
  training: list[dict]
  evaluations: list[dict]
  groups: list[dict]
  older: int


def read(path: str, warn: bool = True) -> Lines:
  starts, training, evaluations, groups, older = [], [], [], [], 0
  for entry in lines_of(path, warn):
    kind = entry["type"]
    if kind == "start":
      starts.append(entry)
    elif kind == "groups":
      groups.append(entry)
    elif kind in EVALUATIONS and not isinstance(entry.get("id"), str):
      older += 1
    elif kind in ("train", "skip", *EVALUATIONS):
      with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        row = {**checked_row(entry), "config": len(starts) - 1}
        if kind in EVALUATIONS:
          row["weights.run"], row["learned"] = row["weights.run"], entry.get("learned")
        (evaluations if kind in EVALUATIONS else training).append(row)
  return Lines(starts, training, evaluations, groups, older)


class Tables(NamedTuple):
  training: object  # DataFrames
  evaluations: object


def load(run: str) -> Tables:
  """Tables with a column for each field ("loss", "of.precision", "weights.run", ...): of "train"
  and "skip" lines, and of evaluations of all types with an `id`."""
  pandas, found = load_pandas(), read(metrics_file(run))

  def frame(rows):
    made = pandas.DataFrame(rows).drop(columns=["config", "learned"], errors="ignore")
    return made.astype({key: "Int64" for key in INTEGERS if key in made})

  return Tables(frame(found.training), frame(found.evaluations))


# ------------------------------------------------------------------------- runs

class Run:
  """A run's metrics.jsonl.

  start, config: of the first "start" line, with the optimizer and steps of the newest training.
  programs: the "start" lines of those that trained it. names: what it was called meanwhile.
  lines: the rows of "train" and "skip" lines.
  evaluations: the rows of its own weights, by name; a run that never trained has those that it
  evaluated last, .weights. foreign: the others. learned: [(step, time, {name: [[number of each
  head] of each layer]})]. left_out: {"of ...": how many}."""
  warned = set()  # files

  def __init__(self, folder):
    path = metrics_file(folder)
    self.folder, self.path = os.path.dirname(path) or ".", os.path.realpath(path)
    self.label = os.path.basename(os.path.abspath(self.folder))
    found = read(path, self.path not in self.warned)
    self.warned.add(self.path)
    self.starts = [{"config": {}}, *found.starts]
    self.start, self.lines = self.starts[1] if found.starts else {}, found.training
    self.config = dict(self.start.get("config", {}))
    numbered = dict.fromkeys(row["config"] for row in self.lines)
    self.programs = [self.starts[number + 1] for number in numbered]
    self.names = {program["config"].get("name") for program in self.programs}
    for config in (program["config"] for program in self.programs):
      self.config.update({key: config[key] for key in ("optimizer", "train") if key in config})
    self.left_out = collections.Counter({OLDER: found.older} if found.older else {})
    self.contents = contents(section(self.start, "identity"), self.folder)
    self.take(found.evaluations)
    self.learned = [(line["step"], finite(line.get("time")), by_head)
                    for line in [*found.groups, *self.evaluations]
                    if (by_head := learned_by_head(line))]

  def take(self, evaluations):
    """Tells its own from the others, and leaves out those of weights that were replaced."""
    last = evaluations[-1]["weights.run"] if evaluations else self.config.get("name")
    self.weights = self.names or {last}
    newest = {(row["weights.run"], row["step"]): row["weights.xxh64"]
              for row in evaluations if row.get("weights.xxh64")}
    self.evaluations, self.foreign = [], []
    for row in evaluations:
      if row.get("weights.xxh64") not in (None, newest.get((row["weights.run"], row["step"]))):
        self.left_out["of weights that were replaced since"] += 1
      elif row["weights.run"] in self.weights:
        self.evaluations.append(row)
      else:
        self.foreign.append(row)

  def settings(self):
    """{key: value} of the configuration, and contents() as "content.data.train", ..."""
    return {**flat(self.config), **flat_row(self.contents, "content.")}

  def said(self, key):
    """What those that trained it say, each text once; of a run that never trained, the first."""
    found = [program[key] for program in self.programs or [self.start] if program.get(key)]
    texts = (" ".join(f"{name} {value}" for name, value in each.items()) if isinstance(each, dict)
             else str(each) for each in found)
    return [*dict.fromkeys(texts)]

  def samples(self, row):
    """The file with the answers of a "task" row, where --tasks wrote one."""
    return section(self.config_of(row), "task").get("samples")

  def train(self):
    """(step, loss) of every step."""
    return [(row["step"], row["loss"]) for row in self.lines
            if row["type"] == "train" and row.get("loss") is not None]

  def losses(self, mode="windows"):
    return [row for row in self.evaluations if row["type"] in LOSSES and row["mode"] == mode]

  def context(self):
    return finite(section(self.config, "model").get("context"))

  def seed(self):
    return str(self.config.get("seed"))

  def steps(self):
    """The steps of its whole training."""
    return finite(section(self.config, "train").get("steps"))

  def step(self):
    """The newest step that was evaluated; without losses, that was trained or asked."""
    losses = [row["step"] for row in self.evaluations if row["type"] in LOSSES]
    return max(losses or [step for step, _ in self.train()]
               or [row["step"] for row in self.evaluations] or [0])

  def config_of(self, row):
    """The configuration of the program that wrote an evaluation."""
    return self.starts[row["config"] + 1]["config"]

  def last(self, mode="windows"):
    """The last evaluation in a mode, while training if any was, or None."""
    found = self.losses(mode)
    return ([row for row in found if row["type"] == "val"] or found or [None])[-1]

  def of_series(self, mode="windows"):
    """The losses of the series of last(mode), of all steps."""
    last = self.last(mode)
    return [row for row in self.losses(mode) if row["series"] == last["series"]]

  def by_length(self, mode="windows"):
    """{length: row} of the newest step of of_series(mode)."""
    rows = self.of_series(mode)
    step = max((row["step"] for row in rows), default=0)
    return {row["length"]: row for row in rows if row["step"] == step}


def evaluated(run: Run) -> dict[int, dict]:
  """run.by_length() of all targets, or of the last ones if eval.mode is suffix."""
  suffix = section(run.config, "eval").get("mode") == "suffix"
  return run.by_length("suffix" if suffix else "windows")


def learned_by_head(entry: dict) -> dict[str, list]:
  """{"attn.sink": [[number of each head] or [] of each layer]} of an evaluation or "groups" line."""
  found = {}
  for name, layers in section(entry, "learned").items():
    by_layer = [*map(numbers, layers)] if isinstance(layers, list) else []
    if any(by_layer):
      found[name] = by_layer
  return found


def read_runs(folders: list[str]) -> list[Run]:
  """The run of each, once. Labels have enough of the path to tell equal names apart."""
  given = {}
  for folder in folders:
    given.setdefault(os.path.realpath(metrics_file(folder)), folder)
  try:
    runs = [Run(folder) for folder in given.values()]
  except OSError as error:
    stop(f"{error.filename}: {error.strerror}")
  parts = [os.path.abspath(run.folder).split(os.sep) for run in runs]
  for run, mine in zip(runs, parts):
    depth = 1
    while any(other != mine and other[-depth:] == mine[-depth:] for other in parts):
      depth += 1
    run.label = os.sep.join(mine[-depth:])
  return runs


# ------------------------------------------------------------------- statistics

def student(chance: float, freedom: int) -> float:
  """t: a value of Student's distribution lies within -t to t with this chance."""
  from scipy import special
  return float(special.stdtrit(freedom, 0.5 + chance / 2))


INTERVAL = "± is the 95% interval of a mean over seeds (Student's t, n - 1 degrees of freedom)"


def half_width(values) -> float:
  """Of the INTERVAL of their mean; 0 for a single one."""
  n = len(values)
  return student(0.95, n - 1) * statistics.stdev(values) / math.sqrt(n) if n > 1 else 0.0


def plus_minus(values, digits: str = "{:.3f}") -> str:
  """" ± " and the half width as text, never as 0, an accident of few seeds; "" for one value."""
  if len(values) < 2:
    return ""
  text = digits.format(half_width(values))
  return f" ± {text}" if re.search("[1-9]", text) else " ± <" + re.sub(r"0(?=\D*$)", "1", text)


def paired(one, other) -> tuple[float, float] | None:
  """(mean, standard error) of one - other over their windows, in nats per token: two evaluations of
  equal id (rows of load()). None if their groups of windows are not known.

  Each group counts by its share of the loss, its n_g windows or labels of N: mean = sum n_g d_g /
  N. A group's difference d_g is a mean of n_g, so n_g (d_g - mean)^2 estimates the variance of
  one's difference, and the error is the root of sum n_g (d_g - mean)^2 / (G - 1) / N. Labels of one
  window are not independent: groups of them count by n_g^2 (d_g - mean)^2 G / N."""
  mine, theirs, windows = one["window_losses"], other["window_losses"], int(one["of.windows"])
  groups = len(mine)
  if one["id"] != other["id"] or not 1 < groups == len(theirs) or None in [*mine, *theirs]:
    return None
  by_label = one.get("of.label_mean") == "batch"
  if by_label:
    sizes = one["window_labels"]
    if sizes != other["window_labels"] or len(sizes) != groups or not all(sizes):
      return None
  else:
    ends = [g * windows // groups for g in range(groups + 1)]
    sizes = [end - begin for begin, end in zip(ends, ends[1:])]
  gaps, total = [a - b for a, b in zip(mine, theirs)], sum(sizes)
  mean = sum(n * gap for n, gap in zip(sizes, gaps)) / total
  weights = [n * n * groups / total for n in sizes] if by_label else sizes
  squares = sum(weight * (gap - mean) ** 2 for weight, gap in zip(weights, gaps))
  return mean, math.sqrt(squares / (groups - 1) / total)


SPIKES = ("Spikes are steps whose loss, or gradient norm, lies 7 standard deviations or more from the "
          "mean of the 1,000 steps before it; of runs shorter than 2,000 steps 6, of the 128 before.")


def spike_score(values: list[float]) -> tuple[float, int, int] | None:
  """(share of the values that are `limit` or more standard deviations from the mean of the `window`
  before them, window, limit); None if there are too few, or if one is not finite. 1000 and 7, the
  score of OLMo 2, if there are 2,000 values, else 128 and 6, as optimizer.skip_spikes."""
  import numpy
  window, limit = (1000, 7) if len(values) >= 2000 else (128, 6)
  values = numpy.array(values, float)
  if len(values) <= window or not numpy.isfinite(values).all():
    return None
  spikes = 0
  for first in range(window, len(values), 4096):  # a table of all windows would be large
    part = values[first - window:first + 4096]
    before = numpy.lib.stride_tricks.sliding_window_view(part, window)[:-1]
    gap, deviation = abs(part[window:] - before.mean(axis=1)), before.std(axis=1)
    spikes += numpy.sum((gap >= limit * deviation) & (deviation > 0))
  return int(spikes) / (len(values) - window), window, limit


def clipped(run: Run) -> float | None:
  """The share of its updates whose gradient was clipped; None if none could be."""
  limits = [finite(section(start["config"], "optimizer").get("grad_clip")) for start in run.starts]
  norms = [(row["grad_norm"], limits[row["config"] + 1]) for row in run.lines
           if row.get("grad_norm") is not None]
  above = [norm > limit for norm, limit in norms if limit]
  return sum(above) / len(norms) if above else None


def main_length(run: Run) -> int | None:
  """The trained length if the run is evaluated there, else the shortest, if there is one."""
  lengths = numbers(section(run.config, "eval").get("lengths"))
  return run.context() if run.context() in lengths else min(lengths, default=None)


def main_losses(run: Run) -> list[dict]:
  """The rows of all steps at the main length, of the series that is evaluated while training."""
  length = main_length(run)
  return [row for row in run.of_series() if row["length"] == length]


def initial_loss(run: Run) -> float | None:
  return next((row["loss"] for row in main_losses(run) if row["step"] == 0), None)


JUDGED = 100  # steps from which losses tell whether a run has diverged


def judged(run: Run) -> str:
  """Why the losses of a run that was evaluated at its last step say that it has diverged, or ""."""
  import numpy
  losses, first = numpy.array([loss for _, loss in run.train()]), initial_loss(run)
  last = evaluated(run).get(main_length(run))
  if len(losses) < JUDGED or not last or last["step"] != run.lines[-1]["step"]:
    return ""
  init = run.config.get("init")
  regression = section(section(run.config, "model"), "head").get("outputs")
  fresh = not (init or regression or section(run.config, "data").get("labels"))
  if first is not None and last["loss"] > first - (0.5 if fresh else 0):
    return "the validation loss ended at %.3f, from %.3f" % (last["loss"], first)
  before = [row["loss"] for row in main_losses(run)
            if row["step"] < last["step"] and (row["step"] or init)]
  if before and last["loss"] < min(before):  # validation still improves
    return ""
  width = len(losses) // 20
  *earlier, end = numpy.lib.stride_tricks.sliding_window_view(losses, width).mean(axis=1)
  lowest = min(earlier)
  rise = 0.05 * (lowest if regression else max(lowest, 1))  # nats near 0 double for no reason
  noise = numpy.median(abs(numpy.diff(losses))) / 0.954  # the deviation, if normal
  rose = end > lowest + max(rise, 4 * noise * math.sqrt(2 / width))
  return "the training loss rose from %.3f to %.3f" % (lowest, end) if rose else ""


def differing(runs: list[Run]) -> list[str]:
  """The keys in which configurations differ, but for names and what attention.variant decides."""
  configs = [run.settings() for run in runs]

  def values(*keys):
    return {tuple(config.get(key) for key in keys) for config in configs}

  variant = "attention.variant"
  separators = {config.get("data.separator") for config in configs
                if config.get("attention.documents") == "separate"}  # only then it has an effect

  def matters(key):
    if key == "name" or len(values(key)) < 2:
      return False
    if key == "data.separator":
      return len(separators) > 1
    follows = len(values(variant, key)) == len(values(variant))
    return key == variant or not key.startswith("attention.") or not follows

  return [key for key in dict.fromkeys(itertools.chain(*configs)) if matters(key)]
