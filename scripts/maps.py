#!/usr/bin/env python3
"""Draws the attention of a checkpoint over one text: a map for each layer and head.

    python3 scripts/maps.py runs/NAME --text "It was the best of times" [--out FILE.png]
    python3 scripts/maps.py runs/NAME --shard data/shards/X.bin --at 1000 --tokens 64

Row i of a map is what token i attends to, from the file that the checkpoint carries for
transformers; the scale is the square root of the weights. RUN is a run, of which the newest
checkpoint is taken, or a folder step_N. Marked are sinks (keys with more than 30% of the weight of
the rows that see them, the first one if it is) and, where the checkpoint knows the token between
documents, where documents begin. Of lssar there are two maps for each head: before and after
sharpening. Without --out the picture is RUN/maps.png. Needs PyTorch, transformers and matplotlib in
one Python.
"""
import glob
import os
import sys

from lib import drawing, shards
from lib.common import ArgumentParser, UserError, read_json, run

SINK = 0.3  # as in eval/diagnostics.h


def checkpoint_of(folder):
  """The folder itself, or of a run that of its newest step."""
  if os.path.exists(os.path.join(folder, "model.safetensors")):
    return folder
  steps = sorted(glob.glob(os.path.join(glob.escape(folder), "step_*", "model.safetensors")))
  if not steps:
    raise UserError(f"{folder} is neither a checkpoint nor a run that has one; train it, or name its folder step_N")
  return os.path.dirname(steps[-1])


def tokens_of(args, folder):
  """(tokens, the text of each, or None)"""
  vocab = read_json(os.path.join(folder, "config.json"))["vocab_size"]
  if args.shard:
    found = list(shards.tokens(args.shard)[args.at:args.at + args.tokens])
    texts = [*map(chr, found)] if vocab == 256 else None
  elif os.path.exists(os.path.join(folder, "tokenizer_config.json")):
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = tokenizer(args.text)["input_ids"]
    texts = [tokenizer.decode([token]) for token in found]
  elif vocab == 256:
    found = list(args.text.encode())
    texts = [*map(chr, found)]
  else:
    raise UserError(f"{folder} has no tokenizer; take tokens from a shard: --shard FILE --at N --tokens T")
  if len(found) < 2 or max(found) >= vocab:
    raise UserError(f"the tokens to look at are {len(found)}, of a vocabulary of {vocab}; 2 or more "
                    "of this vocabulary are needed")
  return found, texts


def maps_of(folder, tokens):
  """({title: weights [H, T, T]} by layer, in order, and where documents begin, from 0)."""
  import torch
  import transformers
  # eager: transformers' own GPT-2 has no weights otherwise
  model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, trust_remote_code=True, attn_implementation="eager").float().eval()
  module, before = sys.modules[type(model).__module__], {}
  if hasattr(module, "sharpened"):
    sharpen = module.sharpened

    def kept(a, *rest):
      P = sharpen(a, *rest)
      before[id(P)] = a, P  # which keeps P, so that no other gets its id
      return P
    module.sharpened = kept
  with torch.no_grad():
    found = model(torch.tensor([tokens]), output_attentions=True).attentions
  maps = {}
  for layer, P in enumerate(found, 1):
    name = f"layer {layer}"
    if id(P) in before:
      maps[f"{name}, before sharpening"] = before[id(P)][0][0].numpy()
      name += ", sharpened"
    maps[name] = P[0].numpy()
  about = getattr(model.config, "plusgpt", None) or {}
  separator = about.get("data", {}).get("separator", -1)
  if separator in (-1, None):
    separator = model.config.bos_token_id
  return maps, [i for i, token in enumerate(tokens) if i and token == separator]


def sinks_of(P):
  """The keys of a map [T, T] that get more than SINK of the weight of the rows after them."""
  T, sinks = len(P), []
  total = P.sum(1)
  for j in range(T - 1):
    rows = [i for i in range(j + 1, T) if total[i] > 0]
    share = sum(P[i, j] / total[i] for i in rows) / max(1, len(rows))
    if share > SINK and (T - 1 - j) * 4 >= T:  # of a quarter of the rows
      sinks.append(j)
  return sinks


def draw(maps, documents, texts, path, title):
  pyplot = drawing.load_pyplot()
  from matplotlib.colors import PowerNorm
  H, T = next(iter(maps.values())).shape[:2]
  size = 2.2 * H + 1, 2.3 * len(maps) + 0.6
  figure, grid = pyplot.subplots(len(maps), H, figsize=size, squeeze=False, layout="constrained")
  for (name, heads), row in zip(maps.items(), grid):
    for head, axes in enumerate(row):
      P, sinks = heads[head], sinks_of(heads[head])
      norm = PowerNorm(0.5, 0, max(1, P.max()))
      image = axes.imshow(P, norm=norm, cmap="magma_r", interpolation="nearest")
      for j in sinks:
        axes.plot(j, -0.02 * T - 0.5, marker="v", color="tab:blue", markersize=5, clip_on=False)
      for at in documents:
        axes.axhline(at - 0.5, color="tab:green", linewidth=0.6)
        axes.axvline(at - 0.5, color="tab:green", linewidth=0.6)
      marked = ["", ", sink", ", sinks"][min(len(sinks), 2)]
      axes.set_title(f"head {head + 1}{marked}", fontsize=8)
      axes.grid(False)
      axes.tick_params(labelsize=6)
      if texts and T <= 32:
        labels = [drawing.in_text(repr(text)[1:-1]) for text in texts]
        axes.set_xticks(range(T), labels, rotation=90)
        axes.set_yticks(range(T), labels)
    row[0].set_ylabel(name, fontsize=8)
  figure.colorbar(image, ax=grid, shrink=0.5, label="weight")
  figure.suptitle(title, fontsize=9)
  figure.savefig(path, dpi=drawing.DPI)


def main():
  parser = ArgumentParser(description=__doc__)
  parser.add_argument("run", metavar="RUN")
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument("--text", help="the text, in the checkpoint's own tokens, or bytes")
  what.add_argument("--shard", metavar="FILE", help="instead: tokens of a shard")
  parser.add_argument("--at", type=int, default=0, metavar="N", help="its first token [0]")
  parser.add_argument("--tokens", type=int, default=64, metavar="T", help="and their number [64]")
  parser.add_argument("--out", metavar="FILE.png", help="[RUN/maps.png]")
  args = parser.parse_args()
  path = drawing.picture_path("--out", args.out or os.path.join(args.run, "maps.png"))
  folder = checkpoint_of(args.run)
  try:
    tokens, texts = tokens_of(args, folder)
    maps, documents = maps_of(folder, tokens)
  except ImportError as error:
    raise UserError(f"{error}; {sys.executable} -m pip install torch transformers matplotlib")
  draw(maps, documents, texts, path, f"{folder}, {len(tokens)} tokens")
  print(path)


if __name__ == "__main__":
  run(main, "no picture was drawn")
