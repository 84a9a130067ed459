"""What the metrics.jsonl of runs say, for every script that reads them. Standard library only.

Older files lack some fields: what their evaluations are of follows from the configuration in the latest "start" line
before them. Damaged lines, unknown types and evaluations of an unknown "mode" are skipped.
"""
import collections
import json
import math
import os

from common import stop


def finite(value):
  """The value if it is a number that can be drawn, else None: a loss that exploded, or something else in its place."""
  return value if type(value) in (int, float) and abs(value) < 1e30 else None


def count(value, least=0):
  if type(value) is not int or not least <= value < 1 << 53:
    raise ValueError("not a number of steps or tokens")
  return value


def section(settings, name):
  found = settings.get(name)
  return found if isinstance(found, dict) else {}


def flat(settings, prefix=""):
  """{"model.layers": 12, ...} of a nested configuration; lists as text."""
  result = {}
  for key, value in settings.items():
    if isinstance(value, dict):
      result.update(flat(value, f"{prefix}{key}."))
    else:
      result[prefix + key] = value if isinstance(value, (bool, int, float, str)) else str(value)
  return result


def numbers(values):
  """The values if they are a list of numbers (or null, for a loss that exploded), else []."""
  return values if isinstance(values, list) and all(v is None or finite(v) is not None for v in values) else []


def model_settings(config):
  """The settings, flat, that make an evaluation one of another model."""
  return flat({key: config.get(key) for key in ("model", "attention", "precision", "init")})


class Evaluation:
  """A "val" or "eval" line. Losses in nats per token; numbers that the line lacks are None.

  by_position: mean loss of the bins [edges[i], edges[i + 1]) of positions, or []. groups: mean losses of consecutive
  groups of windows, or []; group g of G has windows [g windows / G, (g + 1) windows / G). targets: of mode "suffix", the
  windows' length and how many of the last targets of each count; else None."""

  def __init__(self, entry, config):
    mode = entry.get("mode", "windows")
    if mode not in ("windows", "suffix"):
      raise ValueError("evaluated in another way")
    self.targets = (count(entry["context_of"], 1), count(entry["suffix"], 1)) if mode == "suffix" else None
    self.type, self.step, self.length = entry["type"], count(entry["step"]), count(entry["length"], 1)
    self.loss, self.stderr, self.last_loss, self.bits_per_byte, self.time = (
        finite(entry.get(key)) for key in ("loss", "stderr", "last_loss", "bits_per_byte", "time"))
    if self.loss is None:
      raise ValueError("no loss")
    self.edges, self.by_position = numbers(entry.get("position_edges")), numbers(entry.get("by_position"))
    bins = range(0, self.length, max(1, min(256, self.length // 32)))  # of older lines
    if not self.edges and len(bins) == len(self.by_position):
      self.edges = [*bins, self.length]
    if None in self.edges or len(self.edges) != len(self.by_position) + 1:
      self.by_position = []
    of, evaluation = section(entry, "of"), section(config, "eval")
    self.shards = [(count(shard["tokens"]), str(shard.get("xxh64") or shard["name"])) for shard in of.get("data", [])]
    self.patterns = section(config, "data").get("val")
    names = [shard["name"] for shard in of.get("data", [])] or self.patterns or "unknown data"
    self.names = names if isinstance(names, list) else [names]
    self.asked = of.get("tokens_asked", evaluation.get("tokens"))
    self.rope_scaling = of.get("rope_scaling", evaluation.get("rope_scaling")) or "none"
    self.settings = model_settings(config)
    self.windows = count(of.get("windows", 0))
    groups = numbers(entry.get("window_losses"))
    self.groups = groups if None not in groups and len(groups) <= self.windows else []

  def same_data(self, other):
    """By the content of their shards. Of one data.val a length can need fewer shards than another, and older lines do not
    name any."""
    mine, others = set(self.shards), set(other.shards)
    return mine <= others or mine >= others if self.patterns == other.patterns else bool(mine) and mine == others

  def data(self):
    """The names of its data, as text."""
    more = f" and {len(self.names) - 2} more" if len(self.names) > 2 else ""
    return " ".join(os.path.basename(str(name)) for name in self.names[:2]) + more

  def differs(self, settings, own):
    """What sets it apart from the settings of a run and from an evaluation of its own (or None), or ""."""
    other = [f"with {key}={value}" for key, value in self.settings.items() if settings.get(key, value) != value]
    if other or not own:
      return ", ".join(other[:1])
    reasons = []
    if not self.same_data(own):
      reasons.append(f"of {self.data()}")
    if self.asked != own.asked:
      reasons.append(f"of {self.asked} tokens asked")
    if self.rope_scaling != own.rope_scaling:
      reasons.append(f"with rope_scaling {self.rope_scaling}")
    return " and ".join(reasons)


class Run:
  """A run's metrics.jsonl.

  start, config: of the first "start" line. lines: the "train" and "skip" lines, whole. own: the evaluation that says
  what the run's own evaluations are of (its last "val" line; without one its first "eval" line). evaluations: those that
  are of the same settings, data, tokens asked for and rope scaling. row: {length: evaluation} of the newest step among
  them. left_out: {"of other.bin": how many} of all that is in none of these. Evaluations in mode "suffix" are apart:
  contexts is {length: evaluation} of the last, the same targets at all lengths."""

  def __init__(self, folder):
    path = folder if folder.endswith(".jsonl") else os.path.join(folder, "metrics.jsonl")
    self.folder = os.path.dirname(path) or "."
    self.label = os.path.basename(os.path.abspath(self.folder))
    self.start, self.config, self.lines, found, suffixes = {}, {}, [], [], []
    latest = {}  # the configuration of the lines that follow
    with open(path, encoding="utf-8", errors="replace") as lines:
      for line in lines:
        try:
          entry = json.loads(line)
          if entry["type"] == "start":
            latest = {**entry["config"]}  # a TypeError unless it is an object
            self.start, self.config = self.start or entry, self.config or latest
          elif entry["type"] in ("train", "skip"):
            count(entry["step"])
            self.lines.append(entry)
          elif entry["type"] in ("val", "eval"):
            evaluation = Evaluation(entry, latest)
            (suffixes if evaluation.targets else found).append(evaluation)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
          continue
    settings = model_settings(self.config)
    mine = [e for e in found if not e.differs(settings, None)]
    self.own = next((e for e in reversed(mine) if e.type == "val"), mine[0] if mine else None)
    self.evaluations = [e for e in mine if not e.differs(settings, self.own)]
    step = max((e.step for e in self.evaluations), default=None)
    self.row = {}
    for e in self.evaluations:
      if e.step == step and (e.by_position or e.length not in self.row):  # again, of the same weights
        self.row[e.length] = e
    self.left_out = collections.Counter(e.differs(settings, self.own) for e in found)
    self.left_out.update(f"of step {e.step}" for e in self.evaluations if e.length not in self.row)
    self.left_out.update(e.differs(settings, None) for e in suffixes)
    mine = [e for e in suffixes if not e.differs(settings, None)]
    self.contexts = {e.length: e for e in mine if not e.differs(settings, mine[-1]) and e.step == mine[-1].step
                     and e.targets == mine[-1].targets}
    del self.left_out[""]

  def train(self):
    """(step, loss) of every step."""
    return [(entry["step"], entry["loss"]) for entry in self.lines
            if entry["type"] == "train" and finite(entry.get("loss")) is not None]

  def curve(self):
    """(step, loss) of validation at the trained length."""
    return [(e.step, e.loss) for e in self.evaluations if e.type == "val" and e.length == self.context()]

  def context(self):
    return finite(section(self.config, "model").get("context"))

  def step(self):
    """The step of the row; without one the last that was trained."""
    return max([e.step for e in self.row.values()] or [step for step, _ in self.train()] or [0])

  def of(self):
    """What its evaluations are of, as text. The run must have some."""
    return self.own.data() + (f", {self.own.asked} tokens asked" if self.own.asked else "")

  def note(self):
    """How many evaluations are left out, and what they are of; "" if none is."""
    what = ", ".join(f"{number} {reason}" for reason, number in self.left_out.items())
    number = sum(self.left_out.values())
    return what and f"{self.label}: {number} evaluation{'s' * (number > 1)} left out: {what}"


def read_runs(folders):
  """The run of each. Runs whose folders have the same name get as much of the path as tells them apart as labels."""
  try:
    runs = [Run(folder) for folder in folders]
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


def comparable(runs):
  """Those with evaluations, in lists of runs that were evaluated on the same data and asked for as many tokens of it."""
  groups = []
  for run in runs:
    if run.own:
      same = [group for group in groups if group[0].own.same_data(run.own) and group[0].own.asked == run.own.asked]
      if same:
        same[0].append(run)
      else:
        groups.append([run])
  return groups


def same_targets(runs):
  """Those with contexts, in lists of runs whose contexts have the same targets."""
  groups = {}
  for run in runs:
    if run.contexts:
      e = run.contexts[min(run.contexts)]
      groups.setdefault((e.targets, e.windows, tuple(e.shards)), []).append(run)
  return [*groups.values()]


def difference(one, other):
  """(mean, standard error) of one - other, two evaluations of the same windows, in nats per token; else None.

  Each group of windows counts by its number of windows n_g of W: mean = sum n_g d_g / W. A group's difference d_g is a
  mean of n_g windows, so n_g (d_g - mean)^2 estimates the variance of one window's difference, and the error is the
  root of sum n_g (d_g - mean)^2 / (G - 1) / W: with groups of one size, their standard deviation / sqrt(G)."""
  groups, windows = len(one.groups), one.windows
  if groups < 2 or groups != len(other.groups) or windows != other.windows or one.length != other.length or not (
      one.shards and one.shards == other.shards):
    return None
  sizes = [(g + 1) * windows // groups - g * windows // groups for g in range(groups)]
  gaps = [a - b for a, b in zip(one.groups, other.groups)]
  mean = sum(n * gap for n, gap in zip(sizes, gaps)) / windows
  return mean, math.sqrt(sum(n * (gap - mean) ** 2 for n, gap in zip(sizes, gaps)) / (groups - 1) / windows)


def differing(runs):
  """The keys of configurations in which runs differ, but for their names and those that attention.variant decides."""
  configs = [flat(run.config) for run in runs]
  keys = [key for key in dict.fromkeys(key for config in configs for key in config)
          if key != "name" and len({config.get(key) for config in configs}) > 1]
  variants = {config.get("attention.variant") for config in configs}
  follows = lambda key: len({(config.get("attention.variant"), config.get(key)) for config in configs}) == len(variants)
  return [key for key in keys if not (key.startswith("attention.") and key != "attention.variant" and follows(key))]
