#!/usr/bin/env python3
"""Draws the weights of each kind of attention for the same queries and keys: attention/kinds.png.

    python3 dev/draw_kinds.py [--out FILE.png] [my_score.cuh...]

Kinds of other files (attention/kind.h) are drawn beside them, by their formulas in PyTorch, all with their default
parameters. Keys are random directions that repeat every 17 positions, so each query agrees with a few keys; kinds whose
variant has a length scale see unit vectors times ln D ln i, the others sqrt D times the cosine. Needs numpy, matplotlib
and PyTorch.
"""
import os
from types import SimpleNamespace

from root import ROOT
from lib import common

try:
  import numpy as np
  import torch
except ImportError as error:
  common.stop(f"{error}; pip install torch numpy matplotlib")

from lib import drawing, formula, kind_file

T, D, SEED = 64, 32, 3
ALSO = {"lssar": {"power": 3}}  # drawn before the kind as it is by default


def scores():
  random = np.random.default_rng(SEED)
  topics = random.normal(size=(17, D))
  keys = topics[np.arange(T) % 17] + 0.7 * random.normal(size=(T, D))
  queries = topics[np.arange(T) % 17] + 0.7 * random.normal(size=(T, D))
  unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
  cosine = unit(queries) @ unit(keys).T
  rows = np.arange(1, T + 1)[:, None]
  return cosine * np.log(D) * np.log(rows), cosine * np.sqrt(D)


def weights(files):
  """{kind: [T, T]}, rows i, columns j; 0 above the diagonal."""
  scaled, plain = scores()
  result = {}
  for path in files:
    formula.add_file(path)
  for kind in map(kind_file.read, kind_file.of_the_tree() + files):
    z = torch.from_numpy(scaled if '"logd_logn"' in kind.text else plain)[None]
    learned = {each: torch.tensor([value]) for each, value in kind.learned.items()}
    also = ALSO.get(kind.name)
    for numbers in ([{**kind.parameters, **also}] if also else []) + [kind.parameters]:
      settings = SimpleNamespace(kind=kind.name, sink="none", **numbers)
      name = kind.name + (f", p = {numbers['power']:g}" if also else "")
      result[name] = formula.weights(z, settings, T, learned=learned)[0].numpy()
  return result


def main():
  parser = common.ArgumentParser(description=__doc__.split("\n")[0])
  default = os.path.join(ROOT, "attention/kinds.png")
  parser.add_argument("files", nargs="*", metavar="my_score.cuh")
  parser.add_argument("--out", metavar="FILE.png", help="[attention/kinds.png; with files kinds.png]")
  arguments = parser.parse_args()
  import matplotlib
  matplotlib.use("Agg")
  from matplotlib import pyplot
  out = arguments.out or ("kinds.png" if arguments.files else default)
  kinds = weights(arguments.files)
  columns = 3
  rows = -(-(len(kinds) + 1) // columns)
  figure, panels = pyplot.subplots(rows, columns, figsize=(11, 3.4 * rows), constrained_layout=True, squeeze=False)
  for axes in panels.flat[len(kinds):-1]:
    axes.axis("off")
  for axes, (kind, w) in zip(panels.flat, kinds.items()):
    axes.imshow(np.where(np.tril(np.ones((T, T), bool)), w / w.max(1, keepdims=True).clip(1e-30), np.nan), cmap="Blues",
                vmin=0, vmax=1)
    axes.set_title(drawing.in_text(kind, drawing.TITLE), loc="left", fontweight="bold", fontsize=10)
    axes.set(xlabel="key", ylabel="query")
  last = panels.flat[-1]
  for kind, w in kinds.items():
    last.plot(np.sort(w[-1])[::-1][:24] / w[-1].sum(), label=drawing.in_text(kind), linewidth=1.4)
  last.set(xlabel="keys of the last query, by weight", ylabel="share of the row", yscale="log", ylim=(1e-3, 1))
  last.set_title("the last row", loc="left", fontweight="bold", fontsize=10)
  drawing.legend(last, frameon=False, fontsize=8)
  figure.suptitle("Weights of each row, relative to its largest", fontsize=10)
  figure.savefig(out, dpi=110)
  print(f"picture: {out}")


if __name__ == "__main__":
  common.run(main, "no picture was drawn")
