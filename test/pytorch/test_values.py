"""The operator's values and gradients against float64, for every kind of the library. Skipped without PyTorch or
without the library: make pytorch, or with kinds of files too, make pytorch KINDS="test/attention/kinds/bump.cuh ...".
PLUSGPT_DEVICE=cuda: bfloat16 on a GPU (dev/gpu/visit.sh).
"""
import functools
import os
import re
import sys
import unittest

from support.workspace import ROOT

DEVICE = os.environ.get("PLUSGPT_DEVICE", "cpu")
try:
  import torch
  import torch.nn.functional as F
  sys.path.insert(0, os.path.join(ROOT, "pytorch"))
  import plusgpt_attention
  from plusgpt_attention import attention, attention_qkvpacked

  from pytorch.reference import LEARNED, UNIT, Pool, dense, naive, results
  plusgpt_attention.library(DEVICE)
  missing = ""
except (ImportError, RuntimeError) as problem:
  torch, missing = None, str(problem)

SHAPES = [(2, 150, 3, 24), (1, 1, 1, 1), (3, 5, 2, 7), (1, 130, 1, 33), (2, 65, 2, 129), (1, 70, 2, 300)]


@functools.cache
def kinds():
  """Those of the library: of others its error says that they are unknown, or left out by make."""
  def is_built(kind):
    try:
      attention(*torch.ones(3, 1, 1, 1, 8, dtype=torch.bfloat16, device=DEVICE), kind=kind)
    except ValueError as error:
      return not re.search(r"kind.* is unknown|ATTN=", str(error))
    return True
  return [kind for kind in LEARNED if is_built(kind)]


def cases():
  """{name: (keys, names of tensors beside q, k and v)}"""
  scaled = {"qk_norm": "l2", "scale": "logd_logn"}
  some = {"lssar": {**scaled, "power": 3}, "lssa": scaled, "softmaxr": {"power": 3},
          "threshold": {"qk_norm": "rms", "output_norm": "rms", "threshold": 0.25}, "polynomial": {"scale": 0.1}}
  every = {kind: ({"kind": kind, **some.get(kind, {})}, ["learned"] * bool(LEARNED[kind])) for kind in kinds()}
  windows = {"window": 64, "sink_tokens": 4}
  for kind in list(every):
    keys, tensors = every[kind]
    every[f"{kind}, window"] = ({**keys, **windows}, tensors)
    every[f"{kind}, documents"] = (keys, [*tensors, "documents"])
    every[f"{kind}, decay"] = (keys, [*tensors, "decay"])
  lssar = every["lssar"][0]
  return {**every, "power 15": ({**lssar, "power": 15}, []), "power 2.5": ({**lssar, "power": 2.5}, []),
          "offset": ({**lssar, "offset": 0.5, "offset_free_rows": 7}, []), "alibi": ({"bias": "alibi"}, []),
          "sink one": ({"sink": "one"}, []), "sink": ({}, ["sink"]), "sink, window": (windows, ["sink"]),
          "ssmax": ({"scale": "ssmax"}, ["ssmax_scale"]), "logn": ({"scale": "logn", "context": 128}, []),
          "threshold l2": ({"kind": "threshold", "output_norm": "l2"}, []), "rms": ({"qk_norm": "rms"}, []),
          "silu": ({"output": "silu"}, []), "exclusive": ({"output": "exclusive"}, []),
          "lssar, silu, l2": ({**lssar, "output": "silu", "output_norm": "l2"}, []),
          "exclusive, rms, documents": ({"output": "exclusive", "output_norm": "rms"}, ["documents"]),
          "documents, window, decay": (windows, ["documents", "decay"]),
          "documents, window, decay, lssar": ({**lssar, **windows}, ["documents", "decay"])}


def inputs(shape, kind, names, dtype, seed, kv_heads=None):
  """Tensors of a call, and keys that are tensors without a gradient."""
  torch.manual_seed(seed)
  B, T, H, D = shape
  head = lambda heads: torch.randn(B, heads, T, D).transpose(1, 2).to(dtype)
  tensors = {"q": head(H), "k": head(kv_heads or H), "v": head(kv_heads or H)}
  if kind in ("lssar", "softmaxr"):  # queries find keys, so that rows are not degenerate
    tensors["k"] = (tensors["k"] + 2 * tensors["q"][:, :1, :kv_heads or H]).to(dtype)
  numbers = {"sink": lambda: torch.randn(H), "ssmax_scale": lambda: 0.43 + 0.1 * torch.randn(H),
             "decay": lambda: F.logsigmoid(torch.randn(B, T, H) + 2)}
  for name in names:
    if name == "learned":
      for n, initial in enumerate(LEARNED[kind].values()):
        tensors[f"learned {n}"] = (initial * (1 + 0.2 * torch.rand(H))).to(dtype).float()
    elif name != "documents":
      x = numbers[name]()
      tensors[name] = x if name == "decay" else x.to(dtype).float()
  keys = {"documents": (torch.rand(B, T) < 0.03).cumsum(1)} if "documents" in names else {}
  return tensors, keys, torch.randn(B, T, H, D).to(dtype)


def operator(**arguments):
  """attention() on DEVICE, from and to the CPU, where all else is computed."""
  def move(x):
    return [move(y) for y in x] if isinstance(x, list) else x.to(DEVICE) if isinstance(x, torch.Tensor) else x
  return attention(**{name: move(x) for name, x in arguments.items()}).cpu()


@unittest.skipUnless(torch, missing)
class Values(unittest.TestCase):
  def compare(self, name, shape, keys, names, dtype=None, seeds=range(3), kv_heads=None):
    dtype = dtype or torch.float32
    found, plain = Pool(), Pool()
    for seed in seeds:
      tensors, more, dout = inputs(shape, keys.get("kind", "softmax"), names, dtype, seed, kv_heads)
      keys = {**keys, **more}
      wide = {name: x.double() for name, x in tensors.items()}
      exact = results(dense, wide, dout.double(), keys)
      for pool, f in ((found, operator), (plain, naive)):
        pool.add(results(f, tensors, dout, keys), exact)
    for each in exact:
      bound = 2 * plain.error(each) + 2 * UNIT[dtype]
      self.assertLessEqual(found.error(each), bound, f"{name}, {each}, {shape}, {dtype}")

  def test_every_kind_and_key(self):
    for name, (keys, names) in cases().items():
      with self.subTest(name):
        if "decay" in names and "learned" not in names:  # long enough that tiles are left out
          self.compare(name, SHAPES[0], keys, names, seeds=range(5))
        else:  # many draws, because the gradient of a learned number has only H of them
          self.compare(name, (2, 70, 3, 20), keys, names, seeds=range(16))

  def test_odd_shapes(self):
    for shape in SHAPES[1:]:
      for kind in ("softmax", "lssar", "threshold"):
        keys, names = cases()[kind]
        with self.subTest(f"{kind} {shape}"):
          self.compare(kind, shape, keys, names, seeds=range(20 if shape[1] < 10 else 4))

  def test_bf16(self):
    for name in ("softmax", "lssar", "my_score", "softmax, window", "softmax, documents", "softmax, decay", "sink",
                 "ssmax", "threshold", "documents, window, decay, lssar"):
      if name not in cases():
        continue  # a kind that this library lacks
      with self.subTest(name):
        self.compare(name, SHAPES[0], *cases()[name], dtype=torch.bfloat16, seeds=range(3))

  def test_fewer_heads_of_k_and_v(self):
    for name in ("softmax", "lssar", "documents, window, decay"):
      self.compare(name, (2, 75, 6, 16), *cases()[name], kv_heads=2, seeds=range(3))

  @unittest.skipIf(DEVICE == "cuda", "bfloat16 rounds more than is left of these outputs")
  def test_exclusive_outputs_of_which_little_is_left(self):
    """Beside a sink the own key has nearly all of the weight. The norm leaves a direction that q does not change."""
    tensors, _, dout = inputs((4, 2, 3, 32), "softmax", [], torch.float32, 0)
    tensors["k"] = torch.stack([-8 * tensors["q"][:, 1], tensors["q"][:, 1]], 1)
    keys = {"output": "exclusive", "output_norm": "l2", "scale": 0.03, "sink": "one"}
    exact = results(dense, {name: x.double() for name, x in tensors.items()}, dout.double(), keys)
    found, plain = (results(f, tensors, dout, keys) for f in (operator, dense))
    for name, right in exact.items():
      error, bound = ((x[name] - right).abs().max().item() for x in (found, plain))
      self.assertLess(error, 2 * bound, name)


if __name__ == "__main__":
  unittest.main()
