"""The file of a sweep with the flags of sweep.py applied."""
from __future__ import annotations
import json
import os
import re

from lib.common import UserError, read_json

CHARTS = "lengths", "lines", "bars", "lr"
DEFAULTS = {"config": "configs/quickstart.json", "seeds": [1337], "chart": "lines", "best_of": "",
            "set": {}, "axes": {}}


def text(value):
  return value if isinstance(value, str) else json.dumps(value)


def texts(values):
  return {key: text(value) for key, value in values.items()}


def only_evaluates(key):
  return key in ("data.val", "data.val_labels") or key.startswith("eval.") and key != "eval.every"


def is_text(value):
  return isinstance(value, str)


def is_name(value):
  return is_text(value) and re.fullmatch(r"[\w.+-]+", value)


def is_object(value):
  return isinstance(value, dict)


def is_axis(values):
  named = is_object(values) and {*map(type, values.values())} == {dict}
  return named or isinstance(values, list) and 0 < len(values) == len({*map(text, values)})


def are_seeds(values):
  return is_axis(values) and all(type(seed) is int and 0 <= seed < 2**53 for seed in values)


# Of a sweep's file, and of each of its sizes: whether a value is good, and what it must be.
ENTRIES = {
    "_": (lambda value: True, ""),
    "name": (is_name, "a text of letters, digits and _ . + -"),
    "config": (is_text, "a text"),
    "set": (is_object, "an object {key: value}"),
    "axes": (is_object, "an object of axes"),
    "seeds": (are_seeds, "a list of different whole numbers, from 0"),
    "chart": (lambda value: value in [*CHARTS], f"one of {', '.join(CHARTS)}"),
    "best_of": (is_text, "a text"),
    "sizes": (lambda value: is_object(value) and all(map(is_name, value)), "an object of sizes"),
}


def check(path, entries):
  if not is_object(entries):
    raise UserError(f"{path}: must be a JSON object with entries of {', '.join(ENTRIES)}")
  for key, value in entries.items():
    if key not in ENTRIES:
      raise UserError(f"{path}: {key}: must be one of {', '.join(ENTRIES)}")
    good, what = ENTRIES[key]
    if not good(value):
      raise UserError(f"{path}: {key}: must be {what}, not {json.dumps(value)[:40]}")
  for axis, values in entries.get("axes", {}).items():
    if not is_axis(values):
      raise UserError(f"{path}: axes: {axis}: must be a list of different values, or an object "
                      f"{{label: {{key: value}}}}, not {json.dumps(values)[:40]}")


def axis_of(axis, values, own):
  """{label: {key: text}}. own: the axis as the file has it, of which a list selects labels."""
  if is_object(values):
    return {label: texts(chosen) for label, chosen in values.items()}
  labels = [*map(text, values)]
  if not is_object(own):
    return {label: {axis: label} for label in labels}
  for label in labels:
    if label not in own:
      raise UserError(f"axis {axis}: {label} is not one of {', '.join(own)}")
  return {label: texts(own[label]) for label in labels}


def read(path, arguments):
  """The sweep: name, size, config, seeds, chart, best_of, axes {axis: {label: {key: text}}}; set: the
  settings of all runs; own_set: those of the file alone."""
  sweep = read_json(path, "the JSON of a sweep")
  check(path, sweep)
  sizes = sweep.get("sizes", {})
  if arguments.size and arguments.size not in sizes:
    raise UserError(f"--size {arguments.size}: {path} has {', '.join(sizes) or 'no sizes'}")
  size = sizes[arguments.size] if arguments.size else {}
  check(f"{path}: sizes: {arguments.size}", size)
  own_axes, given = sweep.get("axes", {}), dict(arguments.set)
  axes = {**own_axes, **size.get("axes", {}), **dict(arguments.axis)}
  set_ = texts({**sweep.get("set", {}), **size.get("set", {})})
  stem = os.path.splitext(os.path.basename(path))[0]
  sweep = {**DEFAULTS, "name": stem, **sweep, **size, "size": arguments.size or ""}
  check(path, {"name": sweep["name"]})
  sweep["axes"] = {axis: axis_of(axis, values, own_axes.get(axis)) for axis, values in axes.items()}
  sweep["seeds"] = arguments.seeds or sweep["seeds"]
  sweep["config"] = arguments.config or sweep["config"]
  if os.path.isdir(sweep["config"]):
    sweep["config"] = os.path.join(sweep["config"], "config.json")
  if not os.path.isfile(sweep["config"]):
    raise UserError(f"{sweep['config']}: No such file")
  check_axes(path, sweep, set_, given)
  always = {key for labels in sweep["axes"].values()
            for key in set.intersection(*map(set, labels.values()))}
  own = {key: value for key, value in set_.items()
         if key not in always or only_evaluates(key)}  # else the axis wins
  return {**sweep, "own_set": own, "set": {**own, **given}}


def check_axes(path, sweep, set_, given):
  axes, everything = sweep["axes"], {**set_, **given}
  if not axes:
    raise UserError(f"{path}: axes: name at least one, with values")
  if sweep["best_of"] and sweep["best_of"] not in [*axes][sweep["chart"] != "lengths":]:
    raise UserError(f"{path}: best_of: {sweep['best_of']} is not one of the axes that make rows")
  own = {key for labels in axes.values() for chosen in labels.values() for key in chosen}
  for key in sorted({"seed", "name"} & own):
    raise UserError(f"{path}: axes: {key}: the sweep itself gives each run a {key}; remove it, and "
                    'list seeds in "seeds", or with --seeds')
  mine = own & given.keys() | {"name", "seed"} & everything.keys()
  if "attention.variant" in own - {"attention.kind"}:
    mine |= {"attention.kind"} & everything.keys()
  for key in sorted(mine):
    raise UserError(f"--set {key}={everything[key]}: the sweep sets {', '.join(sorted(own))}, name "
                    "and seed itself; use --axis and --seeds")
