"""The results of sweep.py: a file of JSON, and its runs as tables of pandas."""
from __future__ import annotations
import itertools
import json
import shlex
import sys

from lib.common import UserError, read_json, stop

try:
  import pandas
  from scipy import special
except ImportError as error:
  stop(f"{sys.executable} has no {error.name}; {sys.executable} -m pip install pandas scipy, or use "
       "/usr/bin/python3, for which scripts/install_deps.sh installs both")

SHARES = "accuracy", "exact"  # of labels
MEASURES = "loss", "bits_per_byte", *SHARES
FIELDS = ("name", "size", "config", "steps", "tokens_per_step", "command", "commit", "device",
          "context", "seeds")


def read(path: str) -> dict:
  """What --results wrote. A UserError unless its tables can be made."""
  result = read_json(path)
  try:
    result = {"mode": "windows", "set": {}, "best_of": "", "contexts": [result["context"]],
              **result}  # older results lack these
    Grid(result)
    [result[key] for key in FIELDS]
    [run[key] for run in result["runs"] for key in ("name", "why")]
  except (LookupError, TypeError, ValueError, AttributeError) as error:
    why = f"{type(error).__name__}: {error}"
    again = f"scripts/sweep.py SWEEP.json --table --results {shlex.quote(path)}"
    raise UserError(f"{path} does not hold results of scripts/sweep.py ({why}); {again} writes it again")
  return result


def text(result: dict) -> str:
  """As read() reads it, with a line for each entry and for each run, so that a difference names runs."""
  line = lambda value: json.dumps(value, ensure_ascii=False)
  entries = [f"{line(key)}: {line(value)}" for key, value in result.items() if key != "runs"]
  return "{" + ",\n ".join([*entries, '"runs": [\n  ' + ",\n  ".join(map(line, result["runs"]))]) + "]}\n"


def statistics(values, chance: float = 0.95):
  """Of the rows of a table, with a column for each seed: count, mean, and the half width of the
  interval that holds the mean with this chance (Student's t), NaN for a single value."""
  count = values.count(axis=1)
  width = values.sem(axis=1) * special.stdtrit((count - 1).clip(lower=1), 0.5 + chance / 2)
  return pandas.DataFrame({"count": count, "mean": values.mean(axis=1), "half": width})


def best(found):
  """By row, the column with the lowest mean of those with the most seeds and none that diverged."""
  good = found[(found["count"] > 0) & (found["diverged"] == 0)].reset_index()
  good = good.sort_values(["count", "mean", "column"], ascending=[False, True, True])
  return good.drop_duplicates("row").set_index("row")["column"]


class Grid:
  """Results as tables.

  rows: the combinations of all axes but the one along x and best_of, as text. columns: the lengths,
  or the values of the axis along x, of losses at the trained length. data: for each run and column
  its row, column, seed, state, initial loss and MEASURES (NaN where it has none); of best_of, only
  the runs with each row's best value, chosen: {row: value}."""

  def __init__(self, result: dict):
    axes, best_of = result["axes"], result.get("best_of", "")
    self.result, self.chosen = result, {}
    self.x = None if result["chart"] == "lengths" else next(iter(axes))
    others = [axis for axis in axes if axis not in (self.x, best_of)]
    label = lambda labels: ", ".join(labels) or "loss"
    self.columns = axes[self.x] if self.x else [*map(str, result["lengths"])]
    self.rows = [*map(label, itertools.product(*(axes[axis] for axis in others)))]
    cells = []
    for run in result["runs"]:
      labels, losses = run["labels"], run["losses"]
      main = next((length for length, loss in losses.items() if loss == run["loss"]), None)
      for column in [labels[self.x]] if self.x else self.columns:
        length = main if self.x else column
        cells.append({
            **{key: run[key] for key in ("seed", "state", "initial")}, "main": run["loss"],
            **{key: run.get(key, {}).get(length) for key in MEASURES[1:]},
            "loss": run["loss"] if self.x else losses.get(length),
            "row": label([labels[axis] for axis in others]), "column": column,
            "value": labels.get(best_of, "")})
    data = pandas.DataFrame(cells)
    data = data.astype(dict.fromkeys(("initial", "main", *MEASURES), float))
    if best_of:  # by the loss in the first column
      first = data[data["column"] == self.columns[0]].assign(column=lambda cells: cells["value"])
      tops = best(self._statistics(first, "main", self.rows, axes[best_of]))
      self.chosen = {row: tops.get(row, axes[best_of][0]) for row in self.rows}
      data = data[data["value"] == data["row"].map(self.chosen)]
    self.data = data

  def by_seed(self, measure="loss"):
    """Of complete runs: a row for each (row, column), a column for each seed."""
    return self._by_seed(self.data, measure, self.rows, self.columns)

  def statistics(self, measure="loss"):
    """By (row, column): count, mean, half, and how many runs diverged."""
    return self._statistics(self.data, measure, self.rows, self.columns)

  def has(self, measure) -> bool:
    """Whether all losses have this measure too, and there are any."""
    there = self.data[measure].notna()
    return there.any() and there.equals(self.data["loss"].notna())

  def sensitivity(self):
    """By row: the mean over the columns of min(loss, that of step 0), less the lowest; NaN unless
    each column has a run."""
    data = self.data.dropna(subset=["initial"])
    data = data[data["state"].isin(["complete", "diverged"])]
    data = data.assign(least=data[["loss", "initial"]].min(axis=1))
    means = data.pivot_table(index="row", columns="column", values="least")
    means = means.reindex(index=self.rows, columns=self.columns)
    return means.mean(axis=1, skipna=False) - means.min(axis=1)

  @staticmethod
  def _by_seed(data, measure, rows, columns):
    cells = pandas.MultiIndex.from_product([rows, columns], names=["row", "column"])
    complete = data[data["state"] == "complete"].set_index(["row", "column", "seed"])
    return complete[measure].unstack("seed").reindex(cells)

  @classmethod
  def _statistics(cls, data, measure, rows, columns):
    found = statistics(cls._by_seed(data, measure, rows, columns))
    lost = data[data["state"] == "diverged"].groupby(["row", "column"]).size()
    return found.assign(diverged=lost.reindex(found.index, fill_value=0))
