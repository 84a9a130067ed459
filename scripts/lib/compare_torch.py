"""compare.py torch: is our GPT-2 PyTorch's GPT-2? Trains both from the same weights on a shard.

PyTorch's model is scripts/lib/modeling_plusgpt.py. Compared are the loss and every gradient tensor
of the first step, each step's loss, and the validation loss at once and four times the trained
length. A gradient's error is max |ours - torch| / max |torch| over the tensor, with PyTorch in fp32
and in float64; the smaller one counts, as PyTorch's fp32 can be off (at the kink of relu, say).
Bounds in fp32: 1e-4 for the first loss and gradients, or twice what PyTorch's fp32 is off by; 1e-3
for a later loss, from the nearer of PyTorch's precisions, until these are 1e-4 apart: then rounding
decides (dev/bench/TORCH.md). bf16 is only shown.
"""
import itertools
import json
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

from lib import common, formula, shards

CONFIG = {  # --set and ./train's defaults give the rest
    "name": "compare",
    "init": "init",
    "model": {"layers": 3, "heads": 4, "channels": 128, "context": 128, "vocab": 256},
    "data": {"shuffle": False},
    "batch": {"tokens": 1024, "micro": 4},
    "optimizer": {"lr": 2e-3, "warmup_steps": 10, "final_lr_fraction": 0.1},
    "eval": {"tokens": 8192},
    "checkpoint": {"every": 0, "at_end": False},
}


def random_weights(settings, seed):
  """{name: array} of model.safetensors, without the values 0 and 1, which would hide gradients."""
  random = np.random.default_rng(seed)
  weights = {}
  for name, parameter in formula.model_of(settings).named_parameters():
    centre, spread = 0.0, 0.02
    if name.endswith("weight") and ".ln_" in "." + name:
      centre, spread = 1.0, 0.1
    elif name.endswith("ssmax_scale"):
      centre = 0.43
    elif ".score." in name:
      centre = parameter[0].item()
    elif name.endswith(("c_attn.weight", "c_fc.weight", "c_gate.weight", "sink")):
      spread = 0.1
    weights[name] = (centre + spread * random.standard_normal(parameter.shape)).astype(np.float32)
  return weights


def model_with(weights, settings, dtype):
  model = formula.model_of(settings).to(dtype)
  model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
  return model


def loss_of(model, inputs, targets):
  return F.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())


class Windows:
  """The order of an unshuffled run: window w is inputs [wT, wT + T), targets one later."""

  def __init__(self, path, T):
    self.tokens = np.array(shards.tokens(path), np.int64)
    self.T, self.total = T, (len(self.tokens) - 1) // T

  def batch(self, first, count):
    begins = np.arange(first, first + count) % self.total * self.T
    rows = torch.from_numpy(self.tokens[begins[:, None] + np.arange(self.T + 1)])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def learning_rate(settings, s):
  o, steps = settings["optimizer"], settings["train"]["steps"]
  warmup, final = o["warmup_steps"], o["final_lr_fraction"]
  if s < warmup:
    return o["lr"] * (s + 1) / warmup
  x = (s - warmup) / max(1, steps - warmup)
  if o["schedule"] == "linear":
    return o["lr"] * (1 - (1 - final) * x)
  if o["schedule"] != "cosine":
    common.stop(f"optimizer.schedule={o['schedule']} is not implemented here: "
                "use cosine or linear")
  return o["lr"] * (final + (1 - final) * (1 + math.cos(math.pi * x)) / 2)


def backward(model, windows, s, settings):
  """Adds the gradients of step s, averaged over its tokens, to .grad; returns the loss."""
  micro = settings["batch"]["micro"]
  steps = settings["batch"]["tokens"] // (micro * settings["model"]["context"])
  total = 0.0
  for m in range(steps):
    loss = loss_of(model, *windows.batch((s * steps + m) * micro, micro)) / steps
    loss.backward()
    total += loss.item()
  return total


def evaluate(model, shard, settings):
  """Validation losses by length, the shortest first, of tokens / length windows in order."""
  result = []
  for length in sorted(settings["eval"]["lengths"]):
    windows = Windows(shard, length)
    count = min(settings["eval"]["tokens"] // length, windows.total)
    with torch.no_grad():
      losses = [loss_of(model, *windows.batch(w, 1)).item() for w in range(count)]
    result.append(sum(losses) / count)
  return result


def train_torch(weights, shard, settings, dtype, progress):
  """-> losses of all steps, and these between the validation losses at the start and the end."""
  o = settings["optimizer"]
  windows = Windows(shard, settings["model"]["context"])
  model = model_with(weights, settings, dtype)
  parameters = list(model.parameters())
  matrices = {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": o["weight_decay"]}
  others = {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}
  adamw = torch.optim.AdamW([matrices, others], betas=(o["beta1"], o["beta2"]), eps=o["eps"])
  begin, losses = evaluate(model, shard, settings), []
  for s in range(settings["train"]["steps"]):
    adamw.zero_grad()
    losses.append(backward(model, windows, s, settings))
    norm = torch.sqrt(sum(p.grad.square().sum() for p in parameters))
    if 0 < o["grad_clip"] < norm:
      for p in parameters:
        p.grad *= o["grad_clip"] / norm
    for group in adamw.param_groups:
      group["lr"] = learning_rate(settings, s)
    adamw.step()
    progress.add(1)
  return losses, [*begin, *losses, *evaluate(model, shard, settings)]


def gradients_torch(weights, shard, settings, dtype):
  """-> loss and {name: gradient} of the first step."""
  model = model_with(weights, settings, dtype)
  loss = backward(model, Windows(shard, settings["model"]["context"]), 0, settings)
  return loss, {name: p.grad.numpy() for name, p in model.named_parameters()}


def save(path, tensors):
  content = {name: ("F32", array.shape, array.tobytes()) for name, array in tensors.items()}
  shards.write_safetensors(path, content)


def load(path):
  return {name: np.frombuffer(data, "<f4").reshape(shape)
          for name, (_, shape, data) in shards.read_safetensors(path).items()}


def run_ours(program, folder, changes, weights):
  """-> gradients of the first step, and what train_torch() returns."""
  save(os.path.join(folder, "init", "model.safetensors"), weights)
  dump = "--dump-gradients", "gradients.safetensors"
  common.train(program, "config.json", *dump, settings=changes, folder=folder)
  common.train(program, "config.json", settings=changes, folder=folder)
  lines = common.metrics_of(folder, CONFIG["name"])
  losses = [line["loss"] for line in lines if line["type"] == "train"]
  val = {(line["step"], line["length"]): line["loss"] for line in lines if line["type"] == "val"}
  begin = [val[key] for key in sorted(val) if key[0] == 0]
  end = [val[key] for key in sorted(val) if key[0] > 0]
  gradients = load(os.path.join(folder, "gradients.safetensors"))
  return gradients, losses, [*begin, *losses, *end]


def relative(ours, theirs):
  return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-30))


def judge_losses(ours, single, double):
  """Losses of ours and of PyTorch in both precisions, in the order of steps -> how many PyTorch's
  precisions agree on, and the worst error of ours among these."""
  worst, judged = 0.0, 0
  for a, b, c in zip(ours, single, double, strict=True):
    if not abs(b - c) <= 1e-4:
      break
    worst = max(worst, min(abs(a - b), abs(a - c)))
    judged += 1
  return judged, worst


def compare(args, variant, position, precision, progress):
  """A row of the table, and {name: error of the gradient}."""
  shard = os.path.abspath(args.shard)
  changes = {"attention.variant": variant, "model.position": position, "precision": precision,
             "train.steps": args.steps, "eval.every": args.steps, "data.train": shard,
             "data.val": shard, "eval.lengths": [128] if position == "learned" else [128, 512]}
  changes.update(text.partition("=")[::2] for text in args.set)
  with tempfile.TemporaryDirectory() as folder:
    os.mkdir(os.path.join(folder, "init"))
    with open(os.path.join(folder, "config.json"), "w") as file:
      json.dump(CONFIG, file)
    settings = common.settings(args.train, "config.json", settings=changes, folder=folder)
    weights = random_weights(settings, seed=1)
    gradients, losses, all_losses = run_ours(args.train, folder, changes, weights)
  first, theirs = gradients_torch(weights, shard, settings, torch.float32)
  _, exact = gradients_torch(weights, shard, settings, torch.float64)
  if set(gradients) != set(theirs):
    only = sorted(set(gradients) ^ set(theirs))
    common.stop(f"gradient tensors that only one side has: {only}", 1)
  error = {name: relative(gradients[name], theirs[name]) for name in theirs}
  exact_error = {name: relative(gradients[name], exact[name]) for name in theirs}
  worst = max(error, key=error.get)
  torch_worst = max(relative(theirs[name], exact[name]) for name in theirs)
  torch_losses, single = train_torch(weights, shard, settings, torch.float32, progress)
  _, double = train_torch(weights, shard, settings, torch.float64, progress)
  first_error = abs(losses[0] - first) / first
  judged, later_error = judge_losses(all_losses, single, double)
  bound = max(1e-4, 2 * torch_worst)
  good = first_error <= 1e-4 and later_error <= 1e-3 and \
      all(min(error[name], exact_error[name]) <= bound for name in theirs)
  verdict = "-" if precision == "bf16" else "equal" if good else "DIFFERENT"
  progress.end()
  return (", ".join([variant, settings["model"]["position"], *args.set]), precision,
          f"{first:.6f}", f"{first_error:.1e}", f"{error[worst]:.1e} ({worst})",
          f"{max(exact_error.values()):.1e} ({torch_worst:.1e})",
          f"{torch_losses[-1]:.5f} / {losses[-1]:.5f}",
          f"{later_error:.1e} ({judged} of {len(all_losses)})", verdict), error


def rows(args, cases):
  title = "PyTorch, in two precisions: "
  progress = common.Progress(2 * args.steps * len(cases), title, "steps/s", 1)
  for case in cases:
    row, error = compare(args, *case, progress)
    yield row
    if args.verbose:
      for name, value in sorted(error.items(), key=lambda item: -item[1]):
        print(f"{value:.2e}  {name}")


def table(args):
  torch.manual_seed(0)
  variants = args.variants.split(",")
  if args.variants == "all":
    variants = common.variants(args.train)
  positions = args.positions.split(",")
  precisions = ("fp32", "bf16") if args.bf16 else ("fp32",)
  columns = ("attention, position", "precision", "first loss", "error", "worst gradient error",
             "against float64 (PyTorch's)", f"loss of step {args.steps}, PyTorch / ours",
             "worst error of a loss (losses judged)")
  return columns, rows(args, [*itertools.product(variants, positions, precisions)])
