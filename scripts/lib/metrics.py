"""Reads the metrics.jsonl of runs, for every script that needs them. Standard library only.

    rows = load("runs/NAME")  # training: one flat dict for each step; evaluations: one for each evaluation

Evaluations of equal `id` are comparable, and those of equal `series` are one curve by length (docs/metrics.md): nothing
here works out either. Lines of evaluations without an `id` are of an older program; they are counted and left out.
"""
from __future__ import annotations
import collections
import contextlib
import functools
import glob
import hashlib
import itertools
import json
import math
import os
import re
import statistics
import sys
from typing import Callable, Iterable, Iterator, NamedTuple

from lib.common import UserError, read_json, stop


def finite(value: object) -> float | None:
  """The value if it is a number that can be drawn, else None: a loss that exploded, or something else in its place."""
  return value if type(value) in (int, float) and abs(value) < 1e39 else None  # any float32


def count(value: object, least: int = 0) -> int:
  if type(value) is not int or not least <= value < 1 << 53:
    raise ValueError("not a number of steps or tokens")
  return value


JUDGED = 100  # steps from which losses tell whether a run has diverged
POSITIVE = ("time", "tokens", "tokens_per_s", "ms", "mfu", "grad_norm", "stderr")  # in lines of any type


def check_signs(entry: dict) -> None:
  """A UserError for a number below 0 that ./train never writes: it would be drawn, or counted."""
  for key in POSITIVE:
    if (finite(entry.get(key)) or 0) < 0:
      raise UserError(f"{key} is {entry[key]}, must not be below 0; restore the file, or remove the line")


def section(settings: dict, name: str) -> dict:
  found = settings.get(name)
  return found if isinstance(found, dict) else {}


def flat_row(entry: dict, prefix: str = "") -> dict[str, object]:
  """{"model.layers": 12, ...} of nested objects."""
  result = {}
  for key, value in entry.items():
    result.update(flat_row(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
  return result


def flat(settings: dict) -> dict[str, object]:
  """The same of a configuration; lists as text."""
  return {key: value if isinstance(value, (bool, int, float, str)) else str(value)
          for key, value in flat_row(settings).items()}


def numbers(values: object) -> list:
  """The values if they are a list of numbers (or null, for a loss that exploded), else []."""
  return values if isinstance(values, list) and all(v is None or finite(v) is not None for v in values) else []


UNKNOWN = "unknown"  # the content of what an older program began from


def content(*lists: object) -> str:
  """Equal for lists of files [{"name", "xxh64", ...}] with the same bytes in the same order, wherever they are; UNKNOWN
  without any."""
  sums = [str(file.get("xxh64")) for files in lists if isinstance(files, list) for file in files
          if isinstance(file, dict)]
  return hashlib.sha256(" ".join(sums).encode()).hexdigest()[:16] if sums else UNKNOWN


def contents(identity: dict, folder: str = "") -> dict[str, str]:
  """What a run began from, {"data.train": with its labels, "init"}: by the "identity" of its start line, which ./train
  --print-identity prints too; of a run by an older program, by a checkpoint in its folder."""
  train = content(identity.get("data.train"), identity.get("data.labels"))
  states = os.path.join(glob.escape(folder), "step_*", "state.json") if folder and not identity else ""
  for path in sorted(glob.glob(states)):
    with contextlib.suppress(UserError, AttributeError):  # damaged: another may do
      train = content(section(read_json(path), "data").get("train"))
  return {"data.train": train, "init": content(identity.get("init"))}


def lines_of(path: str, warn: bool = True) -> Iterator[tuple[dict, dict]]:
  """(line, the configuration of the latest "start" line) of each that is a JSON object with a type and, but for "start"
  lines, a step. A warning names the first damaged line; a UserError a number that cannot be."""
  config, damaged = {}, []
  with open(path, encoding="utf-8", errors="replace") as file:
    for number, text in enumerate(file, 1):
      try:
        entry = json.loads(text)
        entry.items()  # an AttributeError unless it is an object
      except (ValueError, RecursionError, AttributeError):
        damaged += [number] * text.endswith("\n")  # the last line may be half written
        continue
      try:
        check_signs(entry)
        if entry["type"] == "start":
          config = {**entry["config"]}  # a TypeError unless it is an object
        elif count(entry["step"]) < 0 or not isinstance(entry["type"], str):
          continue
      except (ValueError, LookupError, TypeError, OverflowError):
        continue
      except UserError as error:
        raise UserError(f"{path}: line {number}: {error}")
      yield entry, config
  if damaged and warn:
    more = f", and {len(damaged) - 1} more" if damaged[1:] else ""
    print(f"warning: {path}: line {damaged[0]} is damaged and left out{more}", file=sys.stderr)


class Rows(NamedTuple):
  training: list[dict]
  evaluations: list[dict]


EVALUATIONS = "val", "eval", "task", "passkey", "diagnostics"  # types of lines
OLDER = "of an older program, which did not write what they are of (./train RUN --eval --resume evaluates again)"


def load(run: str) -> Rows:
  """The rows of a run, flat as {"loss": 3.2, "of.precision": "bf16", "weights.run": "NAME", ...}: its "train" and
  "skip" lines, and its evaluations of all types with an `id`."""
  rows = Rows([], [])
  for entry, _ in lines_of(metrics_file(run)):
    if entry["type"] in ("train", "skip"):
      rows.training.append(flat_row(entry))
    elif entry["type"] in EVALUATIONS and isinstance(entry.get("id"), str):
      rows.evaluations.append(flat_row(entry))
  return rows


class Evaluation:
  """A "val" or "eval" line. Losses in nats per token; numbers that the line lacks are None.

  accuracy, exact: shares of the targets that are the likeliest token, and of the windows of only such targets.
  by_position, accuracy_by_position: means of the bins [edges[i], edges[i + 1]) of positions, or []. groups: mean
  losses of consecutive groups of windows, or []; group g of G has windows [g windows / G, (g + 1) windows / G).
  weights: of each group in the loss: its windows, or its labels where the loss is their mean.
  targets: of mode "suffix", the windows' length and how many of the last targets of each count; else None.
  run, loaded: the name of the run whose weights were evaluated, and their checksum, or None while it trained.
  config: of its program."""

  def __init__(self, entry, config):
    row, self.config = flat_row(entry), config
    self.id, self.series, self.run = row["id"], row["series"], row["weights.run"]
    self.loaded = row.get("weights.xxh64")
    self.targets = (count(row["context_of"], 1), count(row["suffix"], 1)) if row["mode"] == "suffix" else None
    self.type, self.step, self.length = row["type"], row["step"], count(row["length"], 1)
    for name in ("loss", "stderr", "last_loss", "bits_per_byte", "time", "accuracy", "accuracy_stderr", "exact",
                 "exact_stderr"):
      setattr(self, name, finite(row.get(name)))
    if self.loss is None:
      raise ValueError("no loss")
    self.edges, self.by_position, self.accuracy_by_position = (
        numbers(row.get(key)) for key in ("position_edges", "by_position", "accuracy_by_position"))
    if None in self.edges or len(self.edges) != len(self.by_position) + 1:
      self.by_position = []
    if len(self.accuracy_by_position) != len(self.by_position):
      self.accuracy_by_position = []
    self.shards = [(count(shard["tokens"]), str(shard["xxh64"])) for shard in row["of.data"]]
    self.names = [os.path.basename(str(shard["name"])) for shard in row["of.data"]]
    self.labels, self.windows = row.get("of.label_mean"), count(row["of.windows"])
    self.settings = {"tokens asked": row["of.tokens_asked"], "eval.start": row.get("start"), **{
        key: row.get("of." + key) for key in ("precision", "rope_scaling", "window", "sink_tokens", "separator")}}
    groups = numbers(row.get("window_losses"))
    self.groups = groups if None not in groups and len(groups) <= self.windows else []
    bounds = [g * self.windows // max(1, len(self.groups)) for g in range(len(self.groups) + 1)]
    self.weights = [end - first for first, end in zip(bounds, bounds[1:])]
    if self.labels == "batch":
      self.weights = numbers(row.get("window_labels"))
      if len(self.weights) != len(self.groups) or not all(self.weights):
        self.groups = self.weights = []

  def data(self):
    """The names of its data, as text."""
    more = f" and {len(self.names) - 2} more" if len(self.names) > 2 else ""
    return " ".join(self.names[:2]) + more

  def of(self, other=None):
    """What it is of, as text: its data and the tokens asked for, or the settings in which it differs from another."""
    shown = {"tokens asked": self.settings["tokens asked"]} if not other else {
        key: value for key, value in self.settings.items() if value != other.settings[key]}
    targets = ["the last %d targets in windows of %d" % self.targets[::-1]] if self.targets else []
    name = lambda key, value: (f"no {key}" if value is None else f"{value} {key}" if key == "tokens asked" else
                               f"{key} {value}")
    return ", ".join([self.data(), *targets, *map(name, *zip(*shown.items()))] if shown else [self.data(), *targets])


def mean(values: Iterable[float | None]) -> float | None:
  """Of those that are numbers; None if none is."""
  known = [value for value in values if value is not None]
  return sum(known) / len(known) if known else None


def window_of(entry: dict) -> str:
  """The window of attention in a "passkey" or "diagnostics" line, as text; "" without one."""
  window = entry.get("window")
  return f"a window of {window} keys and {entry.get('sink_tokens', 0)} sink tokens" if window else ""


def learned_by_head(entry: dict) -> dict[str, list]:
  """{"attn.sink": [[number of each head] of each layer]} in a "diagnostics" or "groups" line; [] for a layer without,
  names without numbers left out."""
  found = {name: [*map(numbers, layers)] for name, layers in section(entry, "learned").items()
           if isinstance(layers, list)}
  return {name: layers for name, layers in found.items() if any(layers)}


class Diagnosis:
  """A "diagnostics" line. Its numbers, and lists by layer: first and the like of each layer's heads, max |x| (the
  largest), gate_shares. reach: the share of each bin of distances, a mean over layers and heads. Null becomes None."""
  NUMBERS = ("first_token", "sink_rate", "entropy", "entropy_norm", "m_act", "gate", "zeros")

  def __init__(self, entry):
    self.step, self.length = count(entry["step"]), count(entry["length"], 1)
    self.sequences = count(entry["sequences"], 1)
    for name in self.NUMBERS:
      setattr(self, name, finite(entry[name]))
    self.window, layers = window_of(entry), entry["layers"]
    self.heads = {name: [[finite(head[name]) for head in layer["heads"]] for layer in layers]
                  for name in ("first", "entropy_norm", "zeros")}
    self.max = [finite(layer["max"][0]) for layer in layers]
    self.gate_shares = [shares for layer in layers if (shares := numbers(layer.get("gate_shares")))]
    reach = [numbers(head["reach"]) for layer in layers for head in layer["heads"]]
    if not reach or any(len({*map(len, lists)}) > 1 for lists in (reach, self.gate_shares, self.heads["first"])):
      raise ValueError("no table of layers and heads")
    self.reach = [mean(shares) for shares in zip(*reach)]

  def by_layer(self, name):
    return [mean(heads) for heads in self.heads[name]]


def student(chance: float, freedom: int) -> float:
  """t: a value of Student's distribution lies within -t to t with this chance. By bisection over the angle
  atan(t / sqrt(freedom)), of which the chance is a finite series."""
  low, high = 0.0, math.pi / 2
  for _ in range(60):
    angle, odd = (low + high) / 2, freedom % 2
    term = total = math.cos(angle) ** odd if freedom > 1 else 0.0
    for k in range(1 + odd, freedom - 2, 2):
      term *= math.cos(angle) ** 2 * k / (k + 1)
      total += term
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    low, high = (angle, high) if within < chance else (low, angle)
  return math.sqrt(freedom) * math.tan(low)


INTERVAL = "± is the 95% interval of a mean over seeds (Student's t, n - 1 degrees of freedom)"


def half_width(values: list[float]) -> float:
  """Of the INTERVAL of their mean; 0 for a single one."""
  n = len(values)
  return student(0.95, n - 1) * statistics.stdev(values) / math.sqrt(n) if n > 1 else 0.0


def plus_minus(values: list[float], digits: str = "{:.3f}") -> str:
  """" ± " and the half width as text, never as 0, an accident of few seeds; "" for a single value."""
  if len(values) < 2:
    return ""
  text = digits.format(half_width(values))
  return f" ± {text}" if re.search("[1-9]", text) else " ± <" + re.sub(r"0(?=\D*$)", "1", text)


def whole_numbers(values: list[float]) -> tuple[list[int], int]:
  """([n], unit): n / unit is exactly the value of each finite number. Running sums of them lose nothing to a huge value
  that enters and leaves the window, as those of floating-point numbers would."""
  ratios = [float(value).as_integer_ratio() for value in values]
  unit = max((below for _, below in ratios), default=1)  # all are powers of 2
  return [above * (unit // below) for above, below in ratios], unit


def window_means(values: list[float]) -> Callable[[int, int], float]:
  """The function from (first, end) to the mean of values[first:end], which is rounded once."""
  numbers, unit = whole_numbers(values)
  sums = [0, *itertools.accumulate(numbers)]
  return lambda first, end: (sums[end] - sums[first]) / (unit * (end - first))


SPIKES = ("Spikes are steps whose loss, or gradient norm, lies 7 standard deviations or more from the mean of the "
          "1,000 steps before it; of runs shorter than 2,000 steps 6, of the 128 before.")


def spike_score(values: list[float]) -> tuple[float, int, int] | None:
  """(share of the values that are `limit` or more standard deviations from the mean of the `window` before them,
  window, limit): 1000 and 7, the score of OLMo 2, if there are 2,000 values, else 128 and 6, as optimizer.skip_spikes;
  None if there are too few, or if one is not finite. The first `window` values are not scored."""
  window, limit = (1000, 7) if len(values) >= 2000 else (128, 6)
  if len(values) <= window or not all(value is not None and math.isfinite(value) for value in values):
    return None
  numbers, _ = whole_numbers(values)
  spikes, total, squares = 0, sum(numbers[:window]), sum(n * n for n in numbers[:window])
  for old, new in zip(numbers, numbers[window:]):  # the comparison times window^2, in whole numbers
    spikes += (window * new - total) ** 2 >= limit ** 2 * (window * squares - total ** 2) > 0
    total += new - old
    squares += new ** 2 - old ** 2
  return spikes / (len(values) - window), window, limit


def metrics_file(run: str) -> str:
  return run if run.endswith(".jsonl") else os.path.join(run, "metrics.jsonl")


class Run:
  """A run's metrics.jsonl.

  start, config: of the first "start" line. lines: the "train" and "skip" lines, whole. others: {type: [line]}, those of
  other types and the run's own weights, unchecked except for their step. own: its last evaluation in mode "windows",
  while training if there is one; evaluations: those of the same series. row: {length: evaluation} of the newest step
  among them. contexts: {length: evaluation} of its evaluations in mode "suffix", of one step and series: the set with
  the most lengths, the newest among equals; suffixes: those of all steps with this series. diagnostics: {length:
  Diagnosis} of the last step that has any with the run's own window. learned: {step: (time, learned_by_head())} of the
  steps with any. left_out: {"of other.bin": how many} of all that is in none of these. evaluates: the name of the run
  whose weights are looked at here under another name, or "".

  The weights are the run's own by its name; a run that never trained has those that it evaluated last."""
  warned = set()  # files

  def __init__(self, folder):
    path = metrics_file(folder)
    self.folder, self.path = os.path.dirname(path) or ".", os.path.realpath(path)
    self.label = os.path.basename(os.path.abspath(self.folder))
    self.start, self.config, self.lines, self.others, self.learned = {}, {}, [], {}, {}
    found, asked, names, last, older = [], [], set(), "", 0
    for entry, latest in lines_of(path, self.path not in self.warned):
      if entry["type"] == "start":
        self.start, self.config = self.start or entry, self.config or dict(latest)
      elif entry["type"] in ("train", "skip"):
        self.lines.append(entry)
        names.add(latest.get("name"))
        # Those of the newest training: optimizer.schedule_start begins another schedule in the same run.
        self.config.update({group: latest[group] for group in ("optimizer", "train") if group in latest})
      elif entry["type"] in EVALUATIONS and not isinstance(entry.get("id"), str):
        older += 1
      else:
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, OverflowError):
          last = section(entry, "weights").get("run", latest.get("name"))
          if entry["type"] in ("val", "eval"):
            found.append(Evaluation(entry, latest))
          else:
            asked.append((last, entry, self.shown(entry, latest)))
    self.warned.add(self.path)
    self.evaluates = last if not names and last != self.config.get("name") else ""
    checksums = {(e.run, e.step): e.loaded for e in found if e.loaded}  # the newest
    other = lambda run: "" if run in (names or (last,)) else f"of the weights of {run}"
    why = lambda e: ("of weights that were replaced since" if e.loaded and e.loaded != checksums[e.run, e.step]
                     else other(e.run))
    windows, suffixes = ([e for e in found if not why(e) and bool(e.targets) == of_suffixes]
                         for of_suffixes in (False, True))
    self.own = next((e for e in reversed(windows) if e.type == "val"), windows[-1] if windows else None)
    self.evaluations = [e for e in windows if e.series == self.own.series]
    step = max((e.step for e in self.evaluations), default=None)
    self.row = {e.length: e for e in self.evaluations if e.step == step}
    sets = {}
    for e in suffixes:
      sets[e.step, e.series] = {**sets.pop((e.step, e.series), {}), e.length: e}  # the newest are at the end
    (_, series), self.contexts = max(reversed(sets.items()), key=lambda item: (len(item[1]), item[0][0]),
                                     default=((None, None), {}))
    self.suffixes = [e for e in suffixes if e.series == series]
    shown = {*self.evaluations, *self.suffixes}
    self.left_out = collections.Counter(why(e) or f"of {e.of(self.own)}" for e in found if e not in shown)
    self.left_out.update(other(run) for run, *_ in asked if other(run))
    self.left_out.update({OLDER: older} if older else {})
    diagnostics = {}
    for _, entry, line in (line for line in asked if not other(line[0])):
      if learned := learned_by_head(entry):
        self.learned[entry["step"]] = finite(entry.get("time")), learned
      if entry["type"] != "diagnostics":
        self.others.setdefault(entry["type"], []).append(line)
      elif line.window == self.window_at(line.length):
        diagnostics.setdefault(line.step, {})[line.length] = line
    self.diagnostics = diagnostics[max(diagnostics)] if diagnostics else {}

  def shown(self, entry, config):
    """A line of another type, as sections show it."""
    if entry["type"] == "task":
      entry["samples"] = section(config, "task").get("samples")  # the answers' file, where --tasks wrote one
    if entry["type"] == "passkey" and window_of(entry) != self.window_at(entry["length"]):
      entry["form"] = f"{entry['form']}, {window_of(entry) or 'no window'}"  # a measurement of its own
    return Diagnosis(entry) if entry["type"] == "diagnostics" else entry

  @functools.cached_property
  def contents(self):
    return contents(section(self.start, "identity"), self.folder)

  def settings(self):
    """{key: value}, with those of the configuration "content.data.train" and "content.init": contents()."""
    return {**flat(self.config), **{f"content.{key}": value for key, value in self.contents.items()}}

  def window_at(self, length):
    """window_of the run's own answers at a length: eval.window counts beyond the trained one."""
    beyond = window_of(section(self.config, "eval")) if length > (self.context() or length) else ""
    return beyond or window_of(section(self.config, "attention"))

  def train(self):
    """(step, loss) of every step."""
    return [(entry["step"], entry["loss"]) for entry in self.lines
            if entry["type"] == "train" and finite(entry.get("loss")) is not None]

  def axis(self, over):
    """The function from a step to its place: itself for "step", or the "tokens", "hours" or "minutes" of training
    until then."""
    if over == "step":
      return lambda step: step
    at, spent, unit = {0: 0.0}, 0.0, {"hours": 3.6e6, "minutes": 6e4}.get(over)
    for entry in (entry for entry in self.lines if entry["type"] == "train"):
      spent += (finite(entry.get("ms")) or 0) / (unit or 1)
      at[entry["step"]] = spent if unit else finite(entry.get("tokens")) or 0
    return lambda step: at.get(step, math.nan)

  def curve(self):
    """(step, loss) of validation at the trained length."""
    return [(e.step, e.loss) for e in self.evaluations if e.type == "val" and e.length == self.context()]

  def context(self):
    return finite(section(self.config, "model").get("context"))

  def seed(self):
    return str(self.config.get("seed"))

  def steps(self):
    """The steps of its whole training."""
    return finite(section(self.config, "train").get("steps"))

  def step(self):
    """The step of the row; without one, of the contexts; without these, the last that was trained or asked."""
    return max([e.step for e in (self.row or self.contexts).values()] or [step for step, _ in self.train()]
               or [line["step"] for lines in self.others.values() for line in lines]
               + [line.step for line in self.diagnostics.values()] or [0])

  def of(self):
    """What its evaluations are of, as text. The run must have some."""
    return self.own.of()

  def note(self):
    """How many evaluations are left out, and what they are of; "" if none is."""
    what = ", ".join(f"{number} {reason}" for reason, number in self.left_out.items())
    number = sum(self.left_out.values())
    return what and f"{self.label}: {number} evaluation{'s' * (number > 1)} left out: {what}"


def joined(runs: list[Run]) -> list[Run]:
  """The runs, without those that only have suffix losses of the weights of another of them, as scripts/sweep.py makes
  under a name of their own: these are that run's contexts, if it has none."""
  kept = list(runs)
  for run in (run for run in runs if run.evaluates and run.contexts and not run.row and not run.others):
    for other in kept:
      if other.config.get("name") == run.evaluates and not other.contexts:
        other.contexts, other.suffixes = run.contexts, run.suffixes
        kept.remove(run)
        break
  return kept


def read_runs(folders: list[str]) -> list[Run]:
  """The run of each, once, joined(). Folders with the same name get enough of the path as labels to tell them apart."""
  given = {}
  for folder in folders:
    given.setdefault(os.path.realpath(metrics_file(folder)), folder)
  try:
    runs = joined([Run(folder) for folder in given.values()])
  except OSError as error:
    stop(f"{error.filename}: {error.strerror}")
  parts = [os.path.abspath(run.folder).split(os.sep) for run in runs]
  for number, run in enumerate(runs):
    others = [other for other in parts if other != parts[number]]
    depth = 1
    while any(other[-depth:] == parts[number][-depth:] for other in others):
      depth += 1
    run.label = os.sep.join(parts[number][-depth:])
  return runs


def grouped(runs: list[Run], series_of: Callable) -> list[list[Run]]:
  """Those with a series, in lists of runs of the same one."""
  groups = {}
  for run in runs:
    groups.setdefault(series_of(run), []).append(run)
  groups.pop(None, None)
  return [*groups.values()]


def comparable(runs: list[Run]) -> list[list[Run]]:
  """Those with evaluations, in lists of runs that were evaluated alike."""
  return grouped(runs, lambda run: run.own.series if run.row else None)


def same_targets(runs: list[Run]) -> list[list[Run]]:
  """Those with contexts, likewise."""
  return grouped(runs, lambda run: next(iter(run.contexts.values())).series if run.contexts else None)


def difference(one: Evaluation, other: Evaluation) -> tuple[float, float] | None:
  """(mean, standard error) of one - other, two evaluations of equal id, in nats per token; else None.

  Each group of windows counts by its share of the loss, its n_g windows or labels of N: mean = sum n_g d_g / N. A
  group's difference d_g is a mean of n_g, so n_g (d_g - mean)^2 estimates the variance of one's difference, and the
  error is the root of sum n_g (d_g - mean)^2 / (G - 1) / N: with groups of one size, their standard deviation /
  sqrt(G). Labels of one window are not independent: groups of them count by n_g^2 (d_g - mean)^2 G / N."""
  groups, windows = len(one.groups), one.windows
  if groups < 2 or one.weights != other.weights or one.id != other.id:
    return None
  gaps, total = [a - b for a, b in zip(one.groups, other.groups)], sum(one.weights)
  mean = sum(n * gap for n, gap in zip(one.weights, gaps)) / total
  each = lambda n: n if total == windows else n * n * groups / total
  squares = sum(each(n) * (gap - mean) ** 2 for n, gap in zip(one.weights, gaps))
  return mean, math.sqrt(squares / (groups - 1) / total)


def clipped(run: Run) -> float | None:
  """The share of its updates whose gradient was clipped; None if none could be."""
  limit = finite(section(run.config, "optimizer").get("grad_clip"))
  norms = [entry["grad_norm"] for entry in run.lines if finite(entry.get("grad_norm")) is not None]
  return sum(norm > limit for norm in norms) / len(norms) if limit and norms else None


def main_length(run: Run) -> int | None:
  """The trained length if the run is evaluated there, else the shortest; None if the configuration names none."""
  lengths = numbers(section(run.config, "eval").get("lengths"))
  return run.context() if run.context() in lengths else min(lengths, default=None)


def evaluated(run: Run) -> dict[int, Evaluation]:
  """{length: evaluation} of the newest step: losses of all targets, or of the last ones where eval.mode is suffix."""
  return run.contexts if section(run.config, "eval").get("mode") == "suffix" else run.row


def initial_loss(run: Run) -> float | None:
  return next((e.loss for e in run.evaluations if e.step == 0 and e.length == main_length(run)), None)


def judged(run: Run) -> str:
  """Why the losses of a run that was evaluated at its last step say that it has diverged, or ""."""
  losses, first, last = [loss for _, loss in run.train()], initial_loss(run), evaluated(run).get(main_length(run))
  if len(losses) < JUDGED or not last or last.step != run.lines[-1]["step"]:
    return ""
  config = run.config
  regression = section(section(config, "model"), "head").get("outputs")
  fresh = not (config.get("init") or regression or section(config, "data").get("labels"))
  if first is not None and last.loss > first - (0.5 if fresh else 0):
    return "the validation loss ended at %.3f, from %.3f" % (last.loss, first)
  width = len(losses) // 20
  mean_of = window_means(losses)
  *earlier, end = [mean_of(first, first + width) for first in range(len(losses) - width + 1)]
  rise = 0.05 * (min(earlier) if regression else max(min(earlier), 1))  # nats near 0 double without meaning anything
  noise = statistics.median(abs(b - a) for a, b in zip(losses, losses[1:])) / 0.954  # the deviation, if normal
  rise = max(rise, 4 * noise * math.sqrt(2 / width))
  before = [e.loss for e in run.evaluations if e.length == main_length(run) and e.step < last.step
            and (e.step or config.get("init"))]
  if before and last.loss < min(before):  # validation still improves
    return ""
  return "the training loss rose from %.3f to %.3f" % (min(earlier), end) if end > min(earlier) + rise else ""


def differing(runs: list[Run]) -> list[str]:
  """The keys of configurations in which runs differ, except their names and those that attention.variant decides."""
  configs = [run.settings() for run in runs]
  keys = [key for key in dict.fromkeys(key for config in configs for key in config)
          if key != "name" and len({config.get(key) for config in configs}) > 1]
  variants = {config.get("attention.variant") for config in configs}
  follows = lambda key: len({(config.get("attention.variant"), config.get(key)) for config in configs}) == len(variants)
  separators = {config.get("data.separator") for config in configs if config.get("attention.documents") == "separate"}
  return [key for key in keys if not (key.startswith("attention.") and key != "attention.variant" and follows(key))
          and not (key == "data.separator" and len(separators) < 2)]  # it has no effect on joined documents
