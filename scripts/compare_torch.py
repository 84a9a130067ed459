#!/usr/bin/env python3
"""Is our GPT-2 PyTorch's GPT-2? Trains both from the same weights on the same shard and compares.

    python3 -m venv .venv && .venv/bin/pip install torch numpy
    .venv/bin/python scripts/compare_torch.py SHARD.bin [--variants softmax,lssar] [--bf16] [--set key=value]...

The model is written here once more, as plainly as can be: every variant of attention with its T x T matrices, gradients
by automatic differentiation. Compared are, from random weights that both start from: the loss and every gradient tensor
of the first step; the loss of each of --steps steps; and the validation loss at once and four times the trained length.
A gradient's error is max |ours - torch| / max |torch| over the tensor, with PyTorch in fp32 and in float64; what counts
is the smaller one, as PyTorch's fp32 can be the one that is off (at the kink of relu, say). In fp32 an error above 1e-4
in the loss or a gradient of the first step, or above 1e-3 in a later loss, is a failure (exit 1). LSSAR's later losses are
shown but not judged: its power magnifies rounding, so that two runs of PyTorch itself, which adds in another order each
time, were 0.015 apart after 50 steps; bf16 is shown only. Bytes are expected; for GPT-2 tokens add --set model.vocab=50257.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

try:
  import numpy as np
  import torch
  import torch.nn.functional as F
except ImportError as error:
  print(f"{__doc__}\ncompare_torch.py: {error}", file=sys.stderr)
  sys.exit(2)

CONFIG = {  # everything that the comparison depends on; the rest are the trainer's defaults
    "name": "compare",
    "model": {"layers": 3, "heads": 4, "channels": 128, "context": 128, "vocab": 256, "mlp_ratio": 4.0,
              "position": "rope", "rope_base": 10000.0},
    "data": {"shuffle": False},
    "batch": {"tokens": 1024, "micro": 4},
    "optimizer": {"lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
                  "schedule": "cosine", "warmup_steps": 10, "final_lr_fraction": 0.1},
    "train": {"steps": 50},
    "eval": {"every": 50, "tokens": 8192, "lengths": [128, 512]},
    "checkpoint": {"every": 0, "at_end": False},
}
ATTENTION = {"variant": "softmax", "qk_norm": "none", "scale": "rsqrt_d", "kind": "softmax", "power": 15, "offset": 1,
             "offset_free_rows": 3, "sink": "none"}
GATE = {"activation": "none", "granularity": "elementwise", "op": "multiply", "position": "sdpa", "bias": True}
LSSA = {"qk_norm": "l2", "scale": "logd_logn"}
SOFTPLUS_GATE = {"gate": {"activation": "softplus"}}
VARIANTS = {
    "softmax": {},
    "sigmoid_gated": {"gate": {"activation": "sigmoid", "bias": False}},
    "softplus_gated": SOFTPLUS_GATE,
    "lssa": {**LSSA, "kind": "lssa"},
    "lssar": {**LSSA, "kind": "lssar"},
    "lssar_softplus_gated": {**LSSA, "kind": "lssar", **SOFTPLUS_GATE},
    "softmax_qknorm": LSSA,
    "ssmax": {"scale": "ssmax"},
    "softmax_sink": {"sink": "learned"},
    "sigmoid": {"kind": "sigmoid"},
    "relu": {"kind": "relu"},
    "relu2": {"kind": "relu2"},
}
ACTIVATIONS = {"sigmoid": torch.sigmoid, "softplus": F.softplus, "silu": F.silu, "relu": F.relu, "tanh": torch.tanh,
               "exp": torch.exp}


def resolve(config):
  """Settings of the attention and its gate, and the sizes H, D, A, F and G (0 = no gate), from a config like CONFIG."""
  given = config.get("attention", {})
  variant = VARIANTS[given.get("variant", "softmax")]
  attention = {**ATTENTION, **variant, **given}
  attention["gate"] = gate = {**GATE, **variant.get("gate", {}), **given.get("gate", {})}
  model = config["model"]
  heads = model["heads"]
  head_dim = model.get("head_dim") or model["channels"] // heads
  width = heads if gate["granularity"] == "headwise" else \
      model["channels"] if gate["position"] == "output" else heads * head_dim
  return attention, gate, heads, head_dim, int(math.floor(model["mlp_ratio"] * model["channels"] + 0.5)), \
      0 if gate["activation"] == "none" else width


def shapes(config):
  """Name -> shape of every tensor in model.safetensors."""
  attention, gate, H, D, width, G = resolve(config)
  model, A = config["model"], H * D
  C = model["channels"]
  result = {"wte.weight": (model["vocab"], C)}
  if model["position"] == "learned":
    result["wpe.weight"] = (model["context"], C)
  for layer in range(model["layers"]):
    tensors = {"ln_1.weight": (C,), "ln_1.bias": (C,), "attn.c_attn.weight": (C, 3 * A), "attn.c_attn.bias": (3 * A,),
               "attn.c_proj.weight": (A, C), "attn.c_proj.bias": (C,), "ln_2.weight": (C,), "ln_2.bias": (C,),
               "mlp.c_fc.weight": (C, width), "mlp.c_fc.bias": (width,), "mlp.c_proj.weight": (width, C),
               "mlp.c_proj.bias": (C,)}
    if G:
      tensors["attn.c_gate.weight"] = (C, G)
      if gate["bias"]:
        tensors["attn.c_gate.bias"] = (G,)
    if attention["scale"] == "ssmax":
      tensors["attn.ssmax_scale"] = (H,)
    if attention["sink"] == "learned":
      tensors["attn.sink"] = (H,)
    result.update({f"h.{layer}.{name}": shape for name, shape in tensors.items()})
  result.update({"ln_f.weight": (C,), "ln_f.bias": (C,)})
  return result


def random_weights(config, seed):
  """No tensor at a special value (0 or 1), so that every gradient is put to the test."""
  random = np.random.default_rng(seed)
  weights = {}
  for name, shape in shapes(config).items():
    centre, spread = 0.0, 0.02
    if name.endswith("weight") and ".ln_" in "." + name:
      centre, spread = 1.0, 0.1
    elif name.endswith("ssmax_scale"):
      centre = 0.43
    elif name.endswith(("c_attn.weight", "c_fc.weight", "c_gate.weight", "sink")):
      spread = 0.1
    weights[name] = (centre + spread * random.standard_normal(shape)).astype(np.float32)
  return weights


def rope(x, base):
  """x [B, H, T, D]: rotates channel i with channel i + D/2 by position / base^(2i/D)."""
  T, D = x.shape[-2:]
  at = {"dtype": torch.float64, "device": x.device}
  angle = torch.outer(torch.arange(T, **at), base ** (-torch.arange(0, D, 2, **at) / D))
  cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
  a, b = x[..., :D // 2], x[..., D // 2:]
  return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def weights_of(z, rows, attention, context, sink):
  """Scores z [B, H, T, T] -> P, zero above the diagonal; rows [T, 1] = N_i; sink [H, 1, 1] or None."""
  T = z.shape[-1]
  seen = torch.ones(T, T, dtype=torch.bool, device=z.device).tril()
  kind = attention["kind"]
  if kind == "softmax":
    z = z.masked_fill(~seen, -torch.inf)
    if sink is None:
      return z.softmax(-1)
    return torch.cat([z, sink.expand(*z.shape[:-1], 1)], -1).softmax(-1)[..., :T]
  if kind == "sigmoid":
    return torch.sigmoid(z - math.log(context)) * seen
  if kind == "relu":
    return F.relu(z) / rows * seen
  if kind == "relu2":
    return F.relu(z) ** 2 / rows * seen
  if kind not in ("lssa", "lssar"):
    raise ValueError(f"no formula for attention.kind {kind!r}")
  f = F.softplus(z) * seen
  a = f / f.sum(-1, keepdim=True)
  if kind == "lssa":
    return a
  offset = torch.where(rows <= attention["offset_free_rows"], 0.0, float(attention["offset"])).to(z.dtype)
  r = F.relu(rows * a - offset) * seen
  m = r.amax(-1, keepdim=True)
  degenerate = (offset > 0) & (m < 1e-3)
  w = (r / torch.where(degenerate, 1.0, m)) ** attention["power"]
  return torch.where(degenerate, 0.0, w / torch.where(degenerate, 1.0, w.sum(-1, keepdim=True)))


def attend(q, k, v, attention, config, ssmax, sink):
  """q, k, v [B, H, T, D] -> O [B, H, T, D]."""
  T, D = q.shape[-2:]
  model = config["model"]
  if model["position"] == "rope":
    q, k = rope(q, model["rope_base"]), rope(k, model["rope_base"])
  if attention["qk_norm"] == "l2":
    q, k = (F.normalize(x, dim=-1, eps=1e-12) for x in (q, k))
  elif attention["qk_norm"] == "rms":
    q, k = (x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) for x in (q, k))
  rows = torch.arange(1, T + 1, dtype=q.dtype, device=q.device)[:, None]
  scale = attention["scale"]
  alpha = {"rsqrt_d": lambda: 1 / math.sqrt(D),
           "logd_logn": lambda: math.log(D) * rows.log(),
           "logn": lambda: rows.log() / (math.log(model["context"]) * math.sqrt(D)),
           "ssmax": lambda: ssmax[:, None, None] * rows.log() / math.sqrt(D)}.get(scale, lambda: scale)()
  P = weights_of((q * alpha) @ k.mT, rows, attention, model["context"], None if sink is None else sink)
  return P @ v


def forward(p, tokens, config):
  """p: name -> parameter; tokens [B, T] -> logits [B, T, V]."""
  attention, gate, H, D, _, _ = resolve(config)
  B, T = tokens.shape
  x = p["wte.weight"][tokens]
  if config["model"]["position"] == "learned":
    x = x + p["wpe.weight"][:T]

  def norm(x, name):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5)

  def linear(x, name):
    return x @ p[name + ".weight"] + (p[name + ".bias"] if name + ".bias" in p else 0)

  def gated(y, g, position):  # y [B, T, H, D], or [B, T, C] at the output
    if position != gate["position"] or g is None:
      return y
    g = g[..., None] if gate["granularity"] == "headwise" else g.view(y.shape)
    return y * g if gate["op"] == "multiply" else y + g

  for layer in range(config["model"]["layers"]):
    h = f"h.{layer}."
    y = norm(x, h + "ln_1")
    g = None
    if gate["activation"] != "none":
      g = ACTIVATIONS[gate["activation"]](linear(y, h + "attn.c_gate"))
    q, k, v = linear(y, h + "attn.c_attn").view(B, T, 3, H, D).unbind(2)
    q, k, v = gated(q, g, "query"), gated(k, g, "key"), gated(v, g, "value")
    sink = None
    if attention["sink"] != "none":
      sink = p[h + "attn.sink"][:, None, None] if attention["sink"] == "learned" else x.new_zeros(H, 1, 1)
    o = attend(*(t.transpose(1, 2) for t in (q, k, v)), attention, config, p.get(h + "attn.ssmax_scale"), sink)
    o = gated(o.transpose(1, 2), g, "sdpa")
    x = x + gated(linear(o.reshape(B, T, H * D), h + "attn.c_proj"), g, "output")
    y = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
    x = x + linear(y, h + "mlp.c_proj")
  return norm(x, "ln_f") @ p["wte.weight"].T


def loss_of(p, inputs, targets, config):
  return F.cross_entropy(forward(p, inputs, config).flatten(0, 1), targets.flatten())


class Windows:
  """The fixed order of an unshuffled run: window w of a shard is inputs [wT, wT + T), targets one later."""

  def __init__(self, path, T):
    header = np.fromfile(path, dtype="<i4", count=256)
    if len(header) != 256 or header[0] != 20240520 or header[1] != 1:
      sys.exit(f"compare_torch.py: {path} is not a shard (magic 20240520, version 1)")
    self.tokens = np.fromfile(path, dtype="<u2", offset=1024, count=int(header[2]))
    self.T, self.total = T, (int(header[2]) - 1) // T

  def batch(self, first, count):
    rows = np.stack([self.tokens[w * self.T:w * self.T + self.T + 1].astype(np.int64)
                     for w in (n % self.total for n in range(first, first + count))])
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def learning_rate(config, s):
  o, steps = config["optimizer"], config["train"]["steps"]
  warmup, final = o["warmup_steps"], o["final_lr_fraction"]
  if s < warmup:
    return o["lr"] * (s + 1) / warmup
  x = (s - warmup) / max(1, steps - warmup)
  if o["schedule"] == "linear":
    return o["lr"] * (1 - (1 - final) * x)
  assert o["schedule"] == "cosine", "compare_torch.py knows the cosine and the linear schedule"
  return o["lr"] * (final + (1 - final) * (1 + math.cos(math.pi * x)) / 2)


def parameters(weights, dtype):
  return {name: torch.tensor(w, dtype=dtype, requires_grad=True) for name, w in weights.items()}


def backward(p, windows, s, config):
  """Gradients of step s, averaged over its tokens, in .grad; returns the loss."""
  micro = config["batch"]["micro"]
  steps = config["batch"]["tokens"] // (micro * config["model"]["context"])
  total = 0.0
  for m in range(steps):
    loss = loss_of(p, *windows.batch((s * steps + m) * micro, micro), config) / steps
    loss.backward()
    total += loss.item()
  return total


def evaluate(p, path, config):
  """Validation loss by length: windows in order until tokens / length are used."""
  result = {}
  for length in config["eval"]["lengths"]:
    windows = Windows(path, length)
    count = min(config["eval"]["tokens"] // length, windows.total)
    with torch.no_grad():
      result[length] = sum(loss_of(p, *windows.batch(w, 1), config).item() for w in range(count)) / count
  return result


def train_torch(weights, shard, config):
  """-> losses of all steps, {(step, length): validation loss} at the start and the end."""
  o = config["optimizer"]
  windows = Windows(shard, config["model"]["context"])
  p = parameters(weights, torch.float32)
  decayed = [t for t in p.values() if t.dim() >= 2]
  others = [t for t in p.values() if t.dim() < 2]
  adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": o["weight_decay"]},
                             {"params": others, "weight_decay": 0.0}], betas=(o["beta1"], o["beta2"]), eps=o["eps"])
  steps = config["train"]["steps"]
  val = {(0, length): loss for length, loss in evaluate(p, shard, config).items()}
  losses = []
  for s in range(steps):
    adamw.zero_grad()
    losses.append(backward(p, windows, s, config))
    norm = torch.sqrt(sum(t.grad.square().sum() for t in p.values()))
    if 0 < o["grad_clip"] < norm:
      for t in p.values():
        t.grad *= o["grad_clip"] / norm
    for group in adamw.param_groups:
      group["lr"] = learning_rate(config, s)
    adamw.step()
  val.update({(steps, length): loss for length, loss in evaluate(p, shard, config).items()})
  return losses, val


def gradients_torch(weights, shard, config, dtype):
  p = parameters(weights, dtype)
  loss = backward(p, Windows(shard, config["model"]["context"]), 0, config)
  return loss, {name: t.grad.numpy() for name, t in p.items()}


def save(path, tensors):
  """safetensors: length of the JSON header, the header, the raw arrays."""
  header, offset = {}, 0
  for name, array in tensors.items():
    header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
    offset += array.nbytes
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)
  with open(path, "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    for array in tensors.values():
      file.write(np.ascontiguousarray(array).tobytes())


def load(path):
  with open(path, "rb") as file:
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    data = file.read()
  header.pop("__metadata__", None)
  return {name: np.frombuffer(data[slice(*entry["data_offsets"])], dtype="<f4").reshape(entry["shape"])
          for name, entry in header.items()}


def run_ours(program, folder, weights, shard, config, precision):
  """-> gradients of the first step, losses of all steps, {(step, length): validation loss}."""
  os.makedirs(os.path.join(folder, "init"), exist_ok=True)
  save(os.path.join(folder, "init", "model.safetensors"), weights)
  config = {**config, "precision": precision, "init": "init"}
  config["data"] = {**config["data"], "train": shard, "val": shard}
  with open(os.path.join(folder, "config.json"), "w") as file:
    json.dump(config, file)

  def call(*flags):
    done = subprocess.run([program, "config.json", *flags], cwd=folder, capture_output=True, text=True)
    if done.returncode:
      sys.exit(f"compare_torch.py: {program} config.json {' '.join(flags)}: exit {done.returncode}\n{done.stderr}")

  call("--dump-gradients", "gradients.safetensors")
  call("--overwrite")
  losses, val = [], {}
  with open(os.path.join(folder, "runs", config["name"], "metrics.jsonl")) as lines:
    for entry in map(json.loads, lines):
      if entry["type"] == "train":
        losses.append(entry["loss"])
      elif entry["type"] == "val":
        val[entry["step"], entry["length"]] = entry["loss"]
  return load(os.path.join(folder, "gradients.safetensors")), losses, val


def relative(ours, theirs):
  return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def compare(arguments, config, variant, precision, rows):
  """Adds one line to the table; returns whether all is within bounds."""
  weights = random_weights(config, seed=1)
  shard = os.path.abspath(arguments.shard)
  with tempfile.TemporaryDirectory() as folder:
    gradients, losses, val = run_ours(os.path.abspath(arguments.train), folder, weights, shard, config, precision)
  first, theirs = gradients_torch(weights, shard, config, torch.float32)
  _, exact = gradients_torch(weights, shard, config, torch.float64)
  if set(gradients) != set(theirs):
    sys.exit(f"compare_torch.py: gradient tensors that only one side has: {sorted(set(gradients) ^ set(theirs))}")
  error = {name: relative(gradients[name], theirs[name]) for name in theirs}
  exact_error = {name: relative(gradients[name], exact[name]) for name in theirs}
  worst = max(error, key=error.get)
  torch_worst = max(relative(theirs[name], exact[name]) for name in theirs)
  torch_losses, torch_val = train_torch(weights, shard, config)
  first_error = abs(losses[0] - first) / first
  later_error = max(abs(a - b) for a, b in zip(losses, torch_losses))
  val_error = max(abs(val[key] - torch_val[key]) for key in torch_val)
  bound = math.inf if resolve(config)[0]["kind"] == "lssar" else 1e-3
  good = len(losses) == len(torch_losses) and first_error <= 1e-4 and max(later_error, val_error) <= bound and \
      all(min(error[name], exact_error[name]) <= 1e-4 for name in theirs)
  verdict = "-" if precision == "bf16" else "equal" if good else "DIFFERENT"
  rows.append(f"| {variant}, {config['model']['position']} | {precision} | {first:.6f} | {first_error:.1e} | "
              f"{error[worst]:.1e} ({worst}) | {max(exact_error.values()):.1e} ({torch_worst:.1e}) | "
              f"{torch_losses[-1]:.5f} / {losses[-1]:.5f} | {later_error:.1e} | {val_error:.1e} | {verdict} |")
  if arguments.verbose:
    for name, value in sorted(error.items(), key=lambda item: -item[1]):
      print(f"{value:.2e}  {name}")
  return good or precision == "bf16"


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("shard", help="token shard, e.g. the quick start's training shard")
  parser.add_argument("--variants", default="softmax", help="comma list of attention variants, or all [softmax]")
  parser.add_argument("--positions", default="rope,learned", help="comma list of rope, learned, none [rope,learned]")
  parser.add_argument("--steps", type=int, default=50)
  parser.add_argument("--bf16", action="store_true", help="show bf16 as well")
  parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as ./train's, for both sides")
  parser.add_argument("--train", default="./train", help="the program [./train]")
  parser.add_argument("--verbose", action="store_true", help="the error of every gradient tensor")
  arguments = parser.parse_args()
  torch.set_num_threads(os.cpu_count() or 1)
  torch.manual_seed(0)

  rows, good = [], True
  for variant in list(VARIANTS) if arguments.variants == "all" else arguments.variants.split(","):
    if variant not in VARIANTS:
      parser.error(f"--variants {variant} is unknown ({', '.join(VARIANTS)})")
    for position in arguments.positions.split(","):
      config = json.loads(json.dumps(CONFIG))
      config["attention"] = {"variant": variant}
      config["model"]["position"] = position
      config["train"]["steps"] = config["eval"]["every"] = arguments.steps
      for text in arguments.set:
        key, _, value = text.partition("=")
        try:
          value = json.loads(value)
        except ValueError:
          pass
        *path, last = key.split(".")
        place = config
        for part in path:
          place = place.setdefault(part, {})
        place[last] = value
      if position == "learned":
        config["eval"]["lengths"] = [n for n in config["eval"]["lengths"] if n <= config["model"]["context"]]
      for precision in ("fp32", "bf16") if arguments.bf16 else ("fp32",):
        good &= compare(arguments, config, variant, precision, rows)
  print("| attention, position | precision | first loss | error | worst gradient error | against float64 (PyTorch's) | "
        f"loss of step {arguments.steps}, PyTorch / ours | worst error | worst error of validation | verdict |")
  print("|---" * 10 + "|")
  print("\n".join(rows))
  sys.exit(0 if good else 1)


if __name__ == "__main__":
  main()
