#!/usr/bin/env python3
"""Draws what the weights of each kind of attention look like, for the same queries and keys: attention/kinds.png.

    python3 scripts/draw_kinds.py [--out FILE.png]

The formulas are those of attention/README.md, materialised. Keys are random directions that repeat every 17 positions, so each
query has a few keys that it agrees with; kinds with a length scale see unit vectors times ln D ln i, the others 3 sqrt D cos / sqrt D.
"""
import argparse
import os

import numpy as np

T, D, SEED = 64, 32, 3


def scores():
  random = np.random.default_rng(SEED)
  topics = random.normal(size=(17, D))
  keys = topics[np.arange(T) % 17] + 0.7 * random.normal(size=(T, D))
  queries = topics[np.arange(T) % 17] + 0.7 * random.normal(size=(T, D))
  unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
  cosine = unit(queries) @ unit(keys).T
  rows = np.arange(1, T + 1)[:, None]
  return cosine * np.log(D) * np.log(rows), cosine * np.sqrt(D)


def weights():
  """{kind: [T, T]}, rows i, columns j; 0 above the diagonal."""
  scaled, plain = scores()
  seen, rows = np.tril(np.ones((T, T), bool)), np.arange(1, T + 1)[:, None]
  normalise = lambda w: w / np.maximum(w.sum(1, keepdims=True), 1e-30)
  f = np.where(seen, np.log1p(np.exp(scaled)), 0)
  relative = rows * f / f.sum(1, keepdims=True)
  r = np.where(seen, np.maximum(0, relative - (rows > 3)), 0)
  top = r.max(1, keepdims=True)
  positive = np.where(seen, np.maximum(plain, 0), 0)
  return {
      "softmax": normalise(np.where(seen, np.exp(plain), 0)),
      "lssa": f / f.sum(1, keepdims=True),
      "lssar, p = 3": normalise((r / np.where(top > 1e-3, top, np.inf)) ** 3),
      "lssar, p = 15": normalise((r / np.where(top > 1e-3, top, np.inf)) ** 15),
      "sigmoid": np.where(seen, 1 / (1 + np.exp(np.log(T) - plain)), 0),
      "relu": positive / rows,
      "relu2": positive ** 2 / rows,
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../attention/kinds.png")
  parser.add_argument("--out", default=os.path.normpath(default), metavar="FILE.png")
  arguments = parser.parse_args()
  import matplotlib
  matplotlib.use("Agg")
  from matplotlib import pyplot
  kinds = weights()
  columns = 4
  rows = -(-(len(kinds) + 1) // columns)
  figure, panels = pyplot.subplots(rows, columns, figsize=(12, 3.1 * rows), constrained_layout=True, squeeze=False)
  for axes in panels.flat[len(kinds):-1]:
    axes.axis("off")
  for axes, (kind, w) in zip(panels.flat, kinds.items()):
    axes.imshow(np.where(np.tril(np.ones((T, T), bool)), w / w.max(1, keepdims=True).clip(1e-30), np.nan), cmap="Blues", vmin=0, vmax=1)
    axes.set_title(kind, loc="left", fontweight="bold", fontsize=10)
    axes.set(xlabel="key", ylabel="query")
  last = panels.flat[-1]
  for kind, w in kinds.items():
    last.plot(np.sort(w[-1])[::-1][:24] / w[-1].sum(), label=kind, linewidth=1.4)
  last.set(xlabel="keys of the last query, by weight", ylabel="share of the row", yscale="log", ylim=(1e-3, 1))
  last.set_title("the last row", loc="left", fontweight="bold", fontsize=10)
  last.legend(frameon=False, fontsize=8)
  figure.suptitle("Weights of each row, relative to its largest", fontsize=10)
  figure.savefig(arguments.out, dpi=110)
  print(f"picture: {arguments.out}")


if __name__ == "__main__":
  main()
