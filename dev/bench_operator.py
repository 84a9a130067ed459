#!/usr/bin/env python3
"""Speed of the operator of PyTorch (pytorch/) beside PyTorch's own attention, forward and backward, on the CPU.

    make pytorch BACKEND=cpu && OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 python3 dev/bench_operator.py

Each figure is the least of several rounds, in which all take their turns, so that other programs disturb all alike.
"""
import math
import os
import re
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pytorch"))
from plusgpt_attention import attention  # noqa: E402: found there


def sdpa(q, k, v):
  return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)


def dense_lssar(q, k, v, power=15.0):
  q, k, v = (x.transpose(1, 2) for x in (q, k, v))
  i = torch.arange(1, q.shape[2] + 1, dtype=q.dtype)[:, None]
  seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
  z = F.normalize(q, dim=-1) * (math.log(q.shape[-1]) * i.log()) @ F.normalize(k, dim=-1).transpose(-1, -2)
  f = F.softplus(z) * seen
  r = F.relu(i * f / f.sum(-1, keepdim=True) - (i > 3).to(q)) * seen
  w = (r / r.amax(-1, keepdim=True).clamp(min=1e-3)) ** power
  return (w / w.sum(-1, keepdim=True).clamp(min=1e-30) @ v).transpose(1, 2)


def tensors(B, T, H, D):
  torch.manual_seed(0)
  return [torch.randn(B, T, H, D, requires_grad=True) for _ in range(3)]


def seconds(f, x, repeat=1):
  begin = time.perf_counter()
  for _ in range(repeat):
    f(*x).sum().backward()
  return (time.perf_counter() - begin) / repeat


def compare(title, functions, shape, rounds=7, repeat=1):
  x, least = tensors(*shape), {}
  for n in range(rounds + 1):  # the first warms up
    for name, f in functions.items():
      taken = seconds(f, x, repeat)
      least[name] = min(least.get(name, math.inf), taken) if n else math.inf
  first = next(iter(least.values()))
  print(f"{title}, B T H D {shape}: " + ", ".join(f"{name} {1e3 * t:.2f} ms ({first / t:.2f})"
                                               for name, t in least.items()), flush=True)


def peak():
  """The most memory that this process has had since reset_peak(), in MB."""
  with open("/proc/self/status") as status:
    return int(re.search(r"VmHWM:\s*(\d+)", status.read())[1]) / 1024


def reset_peak():
  with open("/proc/self/clear_refs", "w") as references:
    references.write("5")
  return peak()


def lssar(q, k, v):
  return attention(q, k, v, variant="lssar")


compare("softmax", {"operator": attention, "SDPA": sdpa}, (2, 1024, 4, 64))
compare("lssar", {"operator": lssar, "dense": dense_lssar, "compiled": torch.compile(dense_lssar)}, (2, 1024, 4, 64))
compare("tiny", {"operator": attention, "SDPA": sdpa}, (1, 4, 1, 8), repeat=100)
for name, f in {"softmax": attention, "lssar": lssar}.items():
  x = tensors(1, 8192, 4, 64)
  before = reset_peak()
  seconds(f, x)
  print(f"{name}, B T H D (1, 8192, 4, 64): {peak() - before:.0f} MB beyond q, k and v", flush=True)
