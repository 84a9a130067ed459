"""Attention by the equations of attention/README.md, with T x T matrices in PyTorch: modeling_plusgpt.py's functions,
which checkpoints carry. And the comparison of test/support/compare.h: the operator may err twice as much as this
formula does in the same precision, op by op, and by a rounding of the result."""
import os
from types import SimpleNamespace
from unittest import mock

import torch
from support.workspace import ROOT  # noqa: F401: adds scripts/ to the path

from lib import formula, kind_file

FILES = os.path.join(ROOT, "test", "attention", "kinds")
UNIT = {torch.float32: 2 ** -24, torch.bfloat16: 2 ** -8}
DEFAULTS = {"kind": "softmax", "window": 0, "sink_tokens": 0, "qk_norm": "none", "scale": "rsqrt_d", "sink": "none",
            "output": "none", "output_norm": "none"}
LEARNED = {}  # of each kind, {name: initial value}
TREE = dict(formula.FORMULAS)
for _path in [*kind_file.of_the_tree(), *sorted(os.path.join(FILES, name) for name in os.listdir(FILES))]:
  _kind = kind_file.read(_path)
  if _path.startswith(FILES) and "pytorch =" in _kind.text:
    formula.add_file(_path)
  LEARNED[_kind.name] = _kind.learned
  DEFAULTS.update({name: value for name, value in _kind.parameters.items() if name != "cap"}, cap=50)
FORMULAS = {**formula.FORMULAS, "softsign": ("none", (), {}, lambda z, **_: 0.5 + 0.5 * z / (1 + z.abs()))}
formula.FORMULAS.clear()  # other tests of this process take those of the tree alone
formula.FORMULAS.update(TREE)


@mock.patch.dict(formula.FORMULAS, FORMULAS)
def dense(q, k, v, *, decay=None, documents=None, sink=None, ssmax_scale=None, learned=(), context=1024, **keys):
  settings = SimpleNamespace(**{**DEFAULTS, **keys})
  q, k, v = (x.transpose(1, 2) for x in (q, k, v))
  k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
  starts = None
  if documents is not None:
    t = torch.arange(q.shape[2]).expand_as(documents)
    starts = torch.where(torch.cat([t[:, :1] == 0, documents.diff(dim=1) != 0], 1), t, 0).cummax(1).values
  if sink is not None:
    settings.sink = sink if isinstance(sink, str) else "learned"
  z = formula.scores(q, k, settings, context, ssmax_scale=ssmax_scale, starts=starts)
  if decay is not None or settings.__dict__.get("bias") == "alibi":
    c = formula.bias(None, "alibi", *q.shape[1:3]) if decay is None else decay.cumsum(1).transpose(1, 2)
    ones = torch.ones_like(c[..., None])
    z = (z + (c[..., None] @ ones.mT - ones @ c[..., None, :])).to(z.dtype)  # products: naive() sums their gradients
  names = LEARNED[settings.kind]
  numbers = dict(zip(names, learned)) or {name: torch.full(q.shape[1:2], value) for name, value in names.items()}
  P = formula.weights(z, settings, context, sink, numbers, starts)
  return formula.finished(P @ v, v, settings.output, settings.output_norm).transpose(1, 2)


class Product(torch.autograd.Function):
  """a @ b, whose sums add from left to right in float32, as the naive formula of compare.h does. PyTorch adds in
  blocks, which errs less."""

  @staticmethod
  def forward(ctx, a, b):
    ctx.save_for_backward(a, b)
    wide = torch.promote_types(a.dtype, torch.float32)
    total = torch.zeros(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1], dtype=wide)
    for n in range(a.shape[-1]):
      total += a[..., n:n + 1].to(wide) * b[..., n:n + 1, :].to(wide)
    return total.to(a.dtype)

  @staticmethod
  def backward(ctx, d):
    a, b = ctx.saved_tensors
    return Product.apply(d, b.transpose(-2, -1)), Product.apply(a.transpose(-2, -1), d)


class LeftToRight(torch.overrides.TorchFunctionMode):
  def __torch_function__(self, func, types, args=(), kwargs=None):
    if func in (torch.Tensor.__matmul__, torch.Tensor.matmul):
      return Product.apply(*args)
    total = lambda x: Product.apply(x, x.new_ones(x.shape[:-2] + (x.shape[-1], 1)))
    if func in (torch.Tensor.sum, torch.Tensor.mean) and args[1:] == (-1,):
      return total(args[0]) / (args[0].shape[-1] if func is torch.Tensor.mean else 1)
    if func is torch.Tensor.softmax:
      e = (args[0] - args[0].amax(-1, keepdim=True).detach()).exp()
      return e / total(e)
    if func is torch.nn.functional.normalize:
      return args[0] / total(args[0].square()).sqrt().clamp(min=1e-12)
    return func(*args, **(kwargs or {}))


def naive(**arguments):
  with LeftToRight():
    return dense(**arguments)


def results(f, tensors, dout, keys):
  """out and all gradients of f, whose `tensors` have the types of a call."""
  tensors = {name: x.detach().clone().requires_grad_() for name, x in tensors.items()}
  learned = [x for name, x in tensors.items() if name.startswith("learned")]
  out = f(learned=learned, **{name: x for name, x in tensors.items() if not name.startswith("learned")}, **keys)
  gradients = torch.autograd.grad(out, list(tensors.values()), dout.to(out.dtype))
  return dict(zip(("out", *tensors), (x.detach().double() for x in (out, *gradients))))


class Pool:
  """compare.h's Pool: results of several draws are compared as one tensor. error: of each result, max |x - exact| /
  max |exact|."""

  def __init__(self):
    self.difference, self.largest = {}, {}

  def add(self, results, exact):
    for name, x in results.items():
      difference = (x - exact[name]).abs().max().nan_to_num(nan=torch.inf).item()
      self.difference[name] = max(difference, self.difference.get(name, 0))
      self.largest[name] = max(exact[name].abs().max().item(), self.largest.get(name, 0))

  def error(self, name):
    return self.difference[name] and self.difference[name] / (self.largest[name] or 1e-300)
