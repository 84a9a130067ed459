#!/usr/bin/env python3
"""Measures GPT-2 124M and its attention in PyTorch, as its users write them, beside ours: speed and memory on one GPU.

    python3 dev/bench_peers.py [--ours build/cuda | FILE.json] [--out FILE] [--minutes 8] [--only LSSAR]
    python3 dev/bench_peers.py --cpu [--out FILE]      steps of two small models beside PyTorch's, on this CPU, on
                                                       the quick start's text (after scripts/quickstart.sh)
    python3 dev/bench_peers.py --tiny --out FILE       runs everything once on the CPU, very small

Needs PyTorch. dev/bench/README.md says what is measured, and has the tables.
"""
import contextlib
import functools
import gc
import importlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace

import root  # the path of the next ones
import bench_table
from lib import common

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS is refused where equal bits are asked for
try:
  import torch
  import torch.nn.functional as F
  from torch import nn
  from torch.nn.attention import SDPBackend, sdpa_kernel
  from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
  common.stop(f"PyTorch 2.5 or later is needed ({error}); run this script with a Python that has it")

sys.path.insert(0, os.path.join(root.ROOT, "pytorch"))
import plusgpt_attention  # noqa: E402: found there
from lib import formula, metrics  # noqa: E402

torch.utils.deterministic.fill_uninitialized_memory = False  # a check for NaN that costs time and changes no result
OURS, QUICK_START = os.environ.get("TRAIN", "./train"), "configs/quickstart.json"
LSSAR = SimpleNamespace(kind="lssar", qk_norm="l2", scale="logd_logn", power=15, offset=1, offset_free_rows=3)
LEAST = 1e-30  # in place of 0 under a logarithm; the power makes its weight 0


@dataclass(frozen=True)
class Size:
  name: str
  layers: int
  heads: int
  channels: int
  context: int
  vocab: int
  micro: int  # sequences at a time, at most
  tokens: int  # of an optimizer step
  # of attention alone: head sizes, lengths, tokens of a batch, channels of all heads together
  dims: tuple = ()
  lengths: tuple = ()
  attention_tokens: int = 0
  attention_channels: int = 0


GPT2 = Size("GPT-2 124M", layers=12, heads=12, channels=768, context=1024, vocab=50304, micro=64, tokens=524288,
            dims=(64, 128), lengths=(1024, 2048, 4096, 8192, 16384), attention_tokens=16384, attention_channels=1536)
TINY = Size("a tiny model", layers=2, heads=2, channels=32, context=32, vocab=64, micro=2, tokens=128, dims=(16,),
            lengths=(32, 64), attention_tokens=64, attention_channels=32)


def fused(q, k, v):
  return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def lssar(q, k, v):
  """Its matrices in full. Norms and row scales in float32: a row's number has more digits than bf16."""
  context = q.shape[-2]  # nothing of LSSAR depends on the trained length
  z = formula.scores(q.float(), k.float(), LSSAR, context)
  return (formula.weights(z, LSSAR, context) @ v).to(v.dtype)


@functools.cache
def causal(T, device):
  return create_block_mask(lambda b, h, i, j: j <= i, None, None, T, T, device=device)


def flex(q, k, v, score_mod):
  """Causal attention with the weights softmax(score_mod(q . k)), and log(sum of e^score_mod) [B, H, T]."""
  with warnings.catch_warnings():  # newer versions have another name for it
    warnings.simplefilter("ignore", FutureWarning)
    return flex_attention(q, k, v, score_mod=score_mod, block_mask=causal(q.shape[-2], q.device), scale=1.0,
                          return_lse=True)


def prepared(q, k, v):
  """q, k whose products are the scores of LSSA and LSSAR, of v's type."""
  rows = torch.arange(1, q.shape[-2] + 1, device=q.device)[:, None]
  q, k = (F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1) for x in (q, k))
  return (q * (math.log(q.shape[-1]) * rows.to(q.dtype).log())).to(v.dtype), k.to(v.dtype)


def log_softplus(z, b, h, i, j):
  return F.softplus(z).log()


def flex_lssa(q, k, v):
  """softmax(log f) is f / sum f: the whole of LSSA."""
  return flex(*prepared(q, k, v), v, log_softplus)[0]


def flex_lssar(q, k, v):
  """The first call gives S = sum f alone (with few channels of values), the second one the weights."""
  q, k = prepared(q, k, v)
  lse = flex(q, k, v[..., :16], log_softplus)[1]

  def sharpened(z, b, h, i, j):
    a = torch.exp(F.softplus(z).log() - lse[b, h, i])
    offset = torch.where(i < LSSAR.offset_free_rows, 0.0, LSSAR.offset)
    return LSSAR.power * ((i + 1) * a - offset).clamp(min=LEAST).log()

  return flex(q, k, v, sharpened)[0]


def flash(module, deterministic):
  """FlashAttention-3 or -4: the function has one name in both."""
  try:
    flash_attn_func = importlib.import_module(module).flash_attn_func
  except ImportError:
    return None

  def attend(q, k, v):  # [B, H, T, D] here, [B, T, H, D] there
    out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, deterministic=deterministic)
    return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

  return attend


def operator(device, **keys):
  """Our kernels in PyTorch (pytorch/); None where `make pytorch` has not made them."""
  try:
    plusgpt_attention.library(device)
  except RuntimeError:
    return None
  return lambda q, k, v: plusgpt_attention.attention(*(x.transpose(1, 2) for x in (q, k, v)), **keys).transpose(1, 2)


@dataclass(frozen=True)
class Peer:
  name: str
  kind: str
  attend: object  # None where its package is missing
  backend: object = None  # of scaled_dot_product_attention
  deterministic: bool = False
  compiled: bool = True


def peers(tiny):
  sdpa, cudnn = (SDPBackend.MATH,) * 2 if tiny else (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
  whole = [Peer("sdpa flash", "softmax", fused, sdpa), Peer("sdpa cuDNN", "softmax", fused, cudnn),
           Peer("sdpa flash, deterministic", "softmax", fused, sdpa, True),
           Peer("sdpa cuDNN, deterministic", "softmax", fused, cudnn, True),
           Peer("LSSAR eager", "lssar", lssar, compiled=False), Peer("LSSAR compiled", "lssar", lssar),
           Peer("LSSAR FlexAttention", "lssar", flex_lssar)]
  # Nothing to compile around a fused kernel.
  alone = [replace(peer, compiled=False) for peer in whole if peer.kind == "softmax"]
  for name, module in ("FlashAttention-3", "flash_attn_interface"), ("FlashAttention-4", "flash_attn.cute"):
    alone += [Peer(name + (", deterministic" if again else ""), "softmax", flash(module, again), None, again, False)
              for again in (False, True)]
  device = "cpu" if tiny else "cuda"
  alone += [Peer("LSSA FlexAttention", "lssa", flex_lssa),
            Peer("softmax operator", "softmax", operator(device), compiled=False),
            Peer("LSSAR operator", "lssar", operator(device, variant="lssar", power=LSSAR.power), compiled=False)]
  return whole, alone + [peer for peer in whole if peer.kind == "lssar"]


class Block(nn.Module):
  def __init__(self, size):
    super().__init__()
    C = size.channels
    self.heads = size.heads
    self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
    self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
    self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

  def forward(self, x, cos, sin, attend):
    B, T, C = x.shape
    q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).chunk(3, -1))

    def rotate(y):
      a, b = y.chunk(2, -1)
      return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    y = attend(rotate(q), rotate(k), v)
    x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
    return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
  def __init__(self, size, attend, dtype):
    super().__init__()
    self.attend = attend
    self.wte = nn.Embedding(size.vocab, size.channels)
    self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
    self.ln_f = nn.LayerNorm(size.channels)
    nn.init.normal_(self.wte.weight, std=0.02)
    D = size.channels // size.heads
    angle = torch.outer(torch.arange(size.context).double(), 10000 ** (-torch.arange(0, D, 2).double() / D))
    self.register_buffer("cos", angle.cos().to(dtype))
    self.register_buffer("sin", angle.sin().to(dtype))

  def forward(self, tokens, targets):
    x = self.wte(tokens)
    for block in self.blocks:
      x = block(x, self.cos, self.sin, self.attend)
    return F.cross_entropy(F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1), targets.flatten())


class Machine:
  """Where it runs, how that is timed, and until when."""

  def __init__(self, tiny, cpu):
    self.tiny, self.cpu, self.end = tiny, tiny or cpu, None
    self.device, self.dtype = ("cpu", torch.float32) if self.cpu else ("cuda", torch.bfloat16)
    self.name = "CPU" if tiny else bench_table.processor() if cpu else torch.cuda.get_device_name()
    self.flush = torch.empty(2**10 if self.cpu else 2**30, dtype=torch.uint8, device=self.device)

  def autocast(self, precision=None):
    bf16 = not self.cpu if precision is None else precision == "bf16"
    return torch.autocast(self.device, torch.bfloat16) if bf16 else contextlib.nullcontext()

  def compile(self, what):
    return torch.compile(what, dynamic=False, backend="aot_eager" if self.tiny else "inductor")

  def wait(self):
    if not self.cpu:
      torch.cuda.synchronize()

  def seconds(self, run):
    """Median of repeated runs with something else in the caches before each, as dev/bench/bench.h does it."""
    run(), run()
    times = []
    while len(times) < 5 or (len(times) < 101 and sum(times) < 0.2):
      self.flush.fill_(len(times))
      if self.cpu:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
      else:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)

  def free(self):
    gc.collect()
    torch._dynamo.reset()
    if not self.cpu:
      torch.cuda.empty_cache()
      torch.cuda.reset_peak_memory_stats()

  @contextlib.contextmanager
  def settings(self, peer):
    # Strictly: with warn_only PyTorch continues with the kernel that is not deterministic.
    torch.use_deterministic_algorithms(peer.deterministic)
    try:
      with sdpa_kernel(peer.backend) if peer.backend else contextlib.nullcontext():
        yield
    finally:
      torch.use_deterministic_algorithms(False)

  def attempt(self, measure, *arguments):
    """The result of measure(...), or {"missing": the reason}."""
    if time.monotonic() > self.end:
      return {"missing": "no time left (--minutes)"}
    try:
      return measure(self, *arguments)
    except torch.OutOfMemoryError:
      return {"missing": "out of memory"}
    except Exception as problem:  # whatever a version of PyTorch, or of a compiler that it calls, may raise
      return {"missing": (str(problem).strip() or type(problem).__name__).split("\n")[0][:100].replace("|", "/")}
    finally:
      self.free()


def stepper(machine, peer, size, micro, precision=None):
  """Makes a model and two steps, and returns the function that makes an optimizer step of `micro_steps` micro steps."""
  torch.manual_seed(1)
  model = Gpt(size, peer.attend, machine.dtype).to(machine.device)
  parameters = list(model.parameters())
  run = machine.compile(model) if peer.compiled else model
  adamw = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
  tokens = torch.randint(size.vocab, (micro, size.context + 1), device=machine.device)
  inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

  def step(micro_steps):
    for _ in range(micro_steps):
      with machine.autocast(precision):
        loss = run(inputs, targets) / micro_steps
      loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    adamw.step()
    adamw.zero_grad(set_to_none=True)
    machine.wait()

  step(1), step(2)
  return step


def train(machine, peer, size, micro):
  """Tokens per second of optimizer steps: the median of up to 5."""
  with machine.settings(peer):
    step, times = stepper(machine, peer, size, micro), []
    while len(times) < 2 or (len(times) < 5 and sum(times) < 15):
      start = time.perf_counter()
      step(size.tokens // (micro * size.context))
      times.append(time.perf_counter() - start)
  memory = 0 if machine.tiny else torch.cuda.max_memory_allocated() - machine.flush.numel()
  rates = sorted(size.tokens / t for t in times)
  return {"tokens_per_s": statistics.median(rates), "least": rates[0], "most": rates[-1], "micro": micro,
          "memory_bytes": memory}


@dataclass(frozen=True)
class CpuModel:
  name: str
  settings: dict  # beside the quick start's
  steps: int  # in a turn


CPU_MODELS = (CpuModel("the quick start's model", {}, 40),
              CpuModel("6 layers, 384 channels, T 256", {"model.layers": 6, "model.heads": 6, "model.channels": 384,
                                                         "model.context": 256, "batch.tokens": 4096}, 6))


def size_of(model):
  config = common.read_json(QUICK_START)
  at = {**{f"{part}.{key}": value for part in ("model", "batch") for key, value in config[part].items()},
        **model.settings}
  return Size(model.name, *(at["model." + key] for key in ("layers", "heads", "channels", "context", "vocab")),
              micro=at["batch.micro"], tokens=at["batch.tokens"])


def our_steps(model, precision):
  """The start line of ./train, and the median of the milliseconds of a model's steps."""
  with tempfile.TemporaryDirectory(dir="runs") as folder:
    settings = {"name": os.path.basename(folder), "train.steps": model.steps, "eval.every": 0, "checkpoint.every": 0,
                "log.every": model.steps, "precision": precision, **model.settings}
    common.train(OURS, QUICK_START, "--overwrite", settings=settings)
    run = metrics.Run(folder)
    return run.start, statistics.median(line["ms"] for line in run.lines if line["type"] == "train")


def in_turns(machine, model, turns=5):
  """Our start line, and {precision: {name: medians of a step in ms by turn}}, ours first."""
  size = size_of(model)
  os.makedirs("runs", exist_ok=True)
  eager = Peer("eager", "softmax", fused, None, compiled=False)
  peers_here = (eager, replace(eager, name="torch.compile", compiled=True))
  # where only AVX2 is there PyTorch emulates bf16, in 17 times the time of fp32
  precisions = ("fp32", "bf16")[:1 if torch.backends.cpu.get_cpu_capability() == "AVX2" else 2]
  steps = {precision: {peer.name: stepper(machine, peer, size, size.micro, precision) for peer in peers_here}
           for precision in precisions}
  rows = {precision: {"plusgpt": [], **{name: [] for name in named}} for precision, named in steps.items()}
  for turn in range(turns):
    for precision, named in steps.items():
      start, ms = our_steps(model, precision)
      rows[precision]["plusgpt"].append(ms)
      for name, step in named.items():
        times = []
        for _ in range(model.steps):
          begin = time.perf_counter()
          step(size.tokens // (size.micro * size.context))
          times.append(1e3 * (time.perf_counter() - begin))
        rows[precision][name].append(statistics.median(times))
      print(f"{model.name}, turn {turn + 1} of {turns}, {precision}: " +
            ", ".join(f"{name} {row[-1]:.1f} ms" for name, row in rows[precision].items()), file=sys.stderr, flush=True)
  return start, rows


def whole_step(machine, peer, size):
  micro = size.micro
  while True:
    row = machine.attempt(train, peer, size, micro)
    if row.get("missing") != "out of memory" or micro == 1:
      return row
    micro //= 2


def attention(machine, peer, size, D, T):
  """FLOP/s forward and backward by the FlashAttention count, and whether the backward's bits repeat."""
  torch.manual_seed(1)
  B, H = max(1, size.attention_tokens // T), size.attention_channels // D

  def random():
    return torch.randn(B, T, H, D, device=machine.device, dtype=machine.dtype).transpose(1, 2)

  q, k, v, dout = (random() for _ in range(4))
  inputs = [x.requires_grad_() for x in (q, k, v)]
  run = machine.compile(peer.attend) if peer.compiled else peer.attend
  with machine.settings(peer), machine.autocast():
    forward = machine.seconds(lambda: run(*inputs))
    out = run(*inputs)

    def gradients():
      return torch.autograd.grad(out, inputs, dout, retain_graph=True)

    backward = machine.seconds(gradients)
    repeats = all(torch.equal(a, b) for a, b in zip(gradients(), gradients()))
  flops = 2.0 * B * H * T * T * D
  return {"forward": flops / forward, "backward": 2.5 * flops / backward, "repeats": repeats}


def ours(place, machine):
  """Commit, {variant: tokens/s}, {"kind D T": (forward, backward) in FLOP/s}; where there is none it says so."""
  if place.endswith(".json"):
    if not os.path.exists(place):
      print(f"no {place}: run make bench for the ratios to ours", file=sys.stderr)
      return None
    parts = [common.read_json(place)]
  else:
    parts = []
    with tempfile.TemporaryDirectory() as folder:
      for program, arguments in (("bench_step", []), ("bench_attention", ["softmax,lssa,lssar"])):
        path = os.path.join(folder, program + ".json")
        subprocess.run([os.path.join(place, program), "--json", path, *arguments], check=True, stdout=sys.stderr)
        parts.append(common.read_json(path))
  if parts[0]["device"] != machine.name:
    print(f"{place} is of {parts[0]['device']}, this is {machine.name}: no ratios", file=sys.stderr)
    return None
  return {"commit": parts[0]["commit"],
          "steps": {step["variant"]: step["tokens_per_s"] for part in parts for step in part.get("steps", [])},
          "attention": {f"{row['kind']} {row['D']} {row['T']}": [row[what]["flops_per_s"]
                                                                for what in ("forward", "backward")]
                        for part in parts for row in part.get("attention", [])}}


def main():
  results = bench_table.RESULTS
  built = os.path.exists("build/cuda/bench_step") and os.path.exists("build/cuda/bench_attention")
  parser = common.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--ours", help="folder of bench_step and bench_attention, or what make bench wrote",
                      default="build/cuda" if built else os.path.join(results, "gpu.json"))
  parser.add_argument("--out", help="[dev/bench/results/peers_gpu.json, with --cpu peers_cpu.json]")
  parser.add_argument("--minutes", type=float, default=8, help="start no measurement of PyTorch after this time [8]")
  parser.add_argument("--only", type=str, default="", help="only peers whose name contains this")
  where = parser.add_mutually_exclusive_group()
  where.add_argument("--cpu", action="store_true", help="steps of two small models, on the CPU")
  where.add_argument("--tiny", action="store_true", help="try the script on the CPU, in float32")
  arguments = parser.parse_args()
  if not (arguments.tiny or arguments.cpu or torch.cuda.is_available()):
    common.stop("PyTorch finds no GPU (nvidia-smi says whether there is one); --cpu compares on the CPU, --tiny tries "
                "the script there")
  arguments.out = arguments.out or os.path.normpath(
      os.path.join(results, "peers_cpu.json" if arguments.cpu else "peers_gpu.json"))
  machine, size = Machine(arguments.tiny, arguments.cpu), TINY if arguments.tiny else GPT2
  if arguments.tiny:
    torch.set_num_threads(1)  # there is nothing to share
  if arguments.cpu:
    common.train(OURS, QUICK_START, "--dry-run")  # says what is missing before PyTorch compiles for minutes
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    measured = {model.name: in_turns(machine, model) for model in CPU_MODELS}
    start = measured[CPU_MODELS[0].name][0]
    result = {"command": " ".join(["dev/bench_peers.py"] + sys.argv[1:]), "device": machine.name,
              "threads": torch.get_num_threads(), "torch": torch.__version__, "commit": start["commit"],
              "products": start["versions"]["products"],
              "step_ms": {name: rows for name, (_, rows) in measured.items()}}
    bench_table.write(arguments.out, result)
    print(bench_table.cpu_peers(result), f"\n\nwritten to {arguments.out}")
    return
  result = {"command": " ".join(["dev/bench_peers.py"] + sys.argv[1:]), "device": machine.name,
            "driver": "" if arguments.tiny else bench_table.driver(), "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(), "model": size.name,
            "ours": ours(arguments.ours, machine), "steps": [], "attention": []}

  def add(kind, row):
    result[kind].append(row)
    print(json.dumps(row), file=sys.stderr, flush=True)
    bench_table.write(arguments.out, result)  # after every row: what is measured stays, whatever comes

  machine.end = time.monotonic() + 60 * arguments.minutes
  whole, alone = peers(arguments.tiny)

  def chosen(some, kind):
    return [peer for peer in some if peer.kind == kind and arguments.only in peer.name]

  def measure_alone(kind):
    for peer, D, T in itertools.product(chosen(alone, kind), size.dims, size.lengths):
      at = {"name": peer.name, "kind": kind, "D": D, "T": T}
      row = machine.attempt(attention, peer, size, D, T) if peer.attend else {"missing": "not installed"}
      add("attention", {**at, **row})

  def measure_whole(kind):
    for peer in chosen(whole, kind):
      add("steps", {"name": peer.name, "variant": kind, **whole_step(machine, peer, size)})

  # Compiling for every length, for which the time may be too short, comes last.
  measure_alone("softmax")
  measure_whole("softmax")
  measure_whole("lssar")
  measure_alone("lssar")
  measure_alone("lssa")
  print(bench_table.peers(result))
  print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
  common.run(main, "the comparison is not complete")
