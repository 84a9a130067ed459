"""The file of sweep.py --results, for every script that reads it: its fields and their check. Standard library only."""
from __future__ import annotations
import json
import shlex

from lib.common import UserError, read_json
from lib.metrics import finite

CHARTS = ("lengths", "lines", "bars", "lr")


def list_of(good, value: object) -> bool:
  return isinstance(value, list) and bool(value) and all(map(good, value))


def whole(value: object) -> bool:
  return type(value) is int and 0 <= value < 2**53


def number(value: object) -> bool:
  return finite(value) is not None


# The types of the fields of results: whether a value has the type, and its name.
TEXT = lambda value: isinstance(value, str), "a text"
WHOLES = lambda value: list_of(whole, value), "a list of whole numbers"
NUMBER = lambda value: value is None or number(value), "a number or null"
CHART = lambda value: value in list(CHARTS), f"one of {', '.join(CHARTS)}"
COUNT = lambda value: isinstance(value, str) or whole(value), "a text or a whole number"  # "8 or 16": of an axis
RESULT = {"name": TEXT, "size": TEXT, "config": TEXT, "steps": COUNT, "tokens_per_step": COUNT, "command": TEXT,
          "commit": (lambda value: True, "there"), "device": (lambda value: True, "there"),
          "context": (whole, "a whole number"), "contexts": WHOLES, "chart": CHART, "seeds": WHOLES, "lengths": WHOLES,
          "mode": (lambda value: value in ("windows", "suffix"), "windows or suffix"),
          "set": (lambda value: isinstance(value, dict), "an object"),
          "axes": (lambda value: isinstance(value, dict) and value
                   and all(list_of(TEXT[0], labels) for labels in value.values()), "lists of texts by axis"),
          "runs": (lambda value: list_of(lambda run: isinstance(run, dict), value), "a list of objects")}
ENTRY = {"name": TEXT, "state": TEXT, "why": TEXT, "seed": (whole, "a whole number"), "initial": NUMBER, "loss": NUMBER,
         "losses": (lambda value: isinstance(value, dict) and all(map(number, value.values())), "numbers by length")}
SHARES = "accuracy", "exact"  # of labels, by length
ENTRY.update(dict.fromkeys(("bits_per_byte", *SHARES), ENTRY["losses"]))


def read(path: str) -> dict:
  """What --results wrote, with every field that is read of it checked here."""
  result = read_json(path)

  def check(entry, fields, where=""):
    for key, (good, what) in fields.items():
      if key not in entry or not good(entry[key]):
        found = json.dumps(entry[key])[:40] if key in entry else "missing"
        raise UserError(f"{path} does not hold results of scripts/sweep.py: {where}{key} is {found}, must be {what}; "
                        f"scripts/sweep.py SWEEP.json --table --results {shlex.quote(path)} writes it again")
  if isinstance(result, dict):
    result.setdefault("mode", "windows")  # of older results, which may lack "set" too
    result.setdefault("set", {})
    result.setdefault("best_of", "")
    result.setdefault("contexts", [result.get("context")])
  check(result if isinstance(result, dict) else {}, RESULT)
  check(result, {"best_of": (lambda axis: axis in ("", *result["axes"]), "one of the axes")})
  axes = {"labels": (lambda labels: isinstance(labels, dict) and labels.keys() == result["axes"].keys() and all(
      label in result["axes"][axis] for axis, label in labels.items()), "one of the labels of each axis")}
  for number, entry in enumerate(result["runs"]):
    for key in ("bits_per_byte", *SHARES):
      entry.setdefault(key, {})  # older results lack it
    check(entry, {**ENTRY, **axes}, f"runs[{number}].")
  return result
