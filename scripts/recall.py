#!/usr/bin/env python3
"""Tasks of recall and state, as shards of tokens and labels: they tell small attentions apart.

    python3 scripts/recall.py mqar --length 64 --pairs 4 --out data/recall --name mqar
    python3 scripts/recall.py flipflop --ignored 0.98 --samples 0 --seed 2 --out DIR --name sparse

A window is a sample of --length tokens. The labels are its answers; only these are predicted.
Writes DIR/NAME_train_000000.bin, DIR/NAME_labels_train_000000.bin, the same for val (--samples 0:
only these), and DIR/NAME.json, which says how. The tasks:

  mqar       --pairs D keys with their values, then each key once more; the answer is its value.
             Keys do not repeat, nor do values. Other places have a random token, or 0 with --fill
             zero. As in Zoology's program (arXiv 2312.04927), the k-th of the (length - 2 D) / 2
             places, each of two tokens, is drawn with a weight of k^-0.99, without replacement
  flipflop   pairs of an instruction (write, ignore, read) and a bit; a read's is the last that was
             written. The first instruction writes, the last one reads; the others ignore with the
             probability --ignored, and write or read equally often. Flip-flop language modeling
             (arXiv 2306.00946): trained at 0.8, asked at 0.8, 0.98 and 0.1
  copy       a string of --least to --most letters, then the same again and an end, which are the
             answer; exact windows count. Repeat after me (arXiv 2402.01032), whose program packs
             several into each window that it trains on
  induction  random tokens, of which the last appeared once before; the answer is what followed it
  stack      each token pushes one of 8 symbols or pops; the answer of a pop is the symbol it takes.
             At most 8 are on the stack, an empty one is not popped; else both are equally likely

Needs numpy. Exit code 2: something to fix.
"""
import json
import os
import re

from lib import shards
from lib.common import ArgumentParser, Progress, UserError, plain_name, run, stop, whole_files
from lib.shards import NO_LABEL

try:
  import numpy as np
except ImportError as error:
  stop(f"{error}; use the Python that scripts/install_deps.sh installed it for (/usr/bin/python3)")

CHUNK, CHUNK_TOKENS = 4096, 1 << 21  # at most, of samples made at once
WRITE, READ, IGNORE, BITS = 0, 1, 2, 3
BEGIN, AGAIN, END, LETTERS, ALPHABET = 0, 1, 2, 3, 26
POP, SYMBOLS, DEPTH = 0, 8, 8


def distinct(rng, n, count, choices):
  """[n, count] of 0 to choices - 1, without repeats in a row, by Floyd's algorithm."""
  drawn = np.full((n, count), -1)
  for k, last in enumerate(range(choices - count, choices)):
    number = rng.integers(last + 1, size=n)
    drawn[:, k] = np.where((drawn == number[:, None]).any(axis=1), last, number)
  return rng.permuted(drawn, axis=1)


def mqar(rng, n, args):
  L, D, half = args.length, args.pairs, args.vocab // 2
  random = args.fill == "random"
  tokens = rng.integers(args.vocab, size=(n, L)) if random else np.zeros((n, L), int)
  labels = np.full((n, L), NO_LABEL)
  keys = 1 + distinct(rng, n, D, half - 1)
  values = half + distinct(rng, n, D, args.vocab - half)
  tokens[:, 0:2 * D:2], tokens[:, 1:2 * D:2] = keys, values
  # The order of exponential numbers over weights: drawn one by one, by the weights of those left.
  places = (L - 2 * D) // 2
  clocks = rng.exponential(size=(n, places)) * np.arange(1, places + 1) ** 0.99
  at = 2 * D + 2 * np.argsort(clocks, axis=1)[:, :D]
  np.put_along_axis(tokens, at, keys, axis=1)
  np.put_along_axis(labels, at, values, axis=1)
  return tokens, labels


def flipflop(rng, n, args):
  half, share = args.length // 2, (1 - args.ignored) / 2
  shares = [args.ignored, share, share]
  instructions = rng.choice([IGNORE, WRITE, READ], p=shares, size=(n, half))
  instructions[:, 0], instructions[:, -1] = WRITE, READ
  bits = rng.integers(2, size=(n, half))
  last = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(half), 0), axis=1)
  reads = instructions == READ
  bits = np.where(reads, np.take_along_axis(bits, last, axis=1), bits)
  tokens = np.stack([instructions, BITS + bits], axis=2).reshape(n, args.length)
  labels = np.full((n, args.length), NO_LABEL)
  labels[:, ::2] = np.where(reads, BITS + bits, NO_LABEL)
  return tokens, labels


def copy(rng, n, args):
  size = rng.integers(args.least, args.most + 1, size=(n, 1))
  letters = LETTERS + rng.integers(ALPHABET, size=(n, args.most))
  at = np.broadcast_to(np.arange(args.length), (n, args.length))
  again = at - size - 2  # places in the second string, which follows AGAIN

  def letter(index):
    return np.take_along_axis(letters, np.clip(index, 0, args.most - 1), axis=1)

  tokens = np.select([at == 0, at <= size, at == size + 1, again < size],
                     [BEGIN, letter(at - 1), AGAIN, letter(again)], END)
  labels = np.select([again < -1, again < size - 1, again == size - 1],
                     [NO_LABEL, letter(again + 1), END], NO_LABEL)
  return tokens, labels


def induction(rng, n, args):
  L, rows = args.length, np.arange(n)
  asked = rng.integers(args.vocab, size=n)
  tokens = rng.integers(args.vocab - 1, size=(n, L))
  tokens += tokens >= asked[:, None]  # none of them is the one that is asked for
  before = rng.integers(L - 2, size=n)
  tokens[rows, before], tokens[:, -1] = asked, asked
  labels = np.full((n, L), NO_LABEL)
  labels[:, -1] = tokens[rows, before + 1]
  return tokens, labels


def stack(rng, n, args):
  rows, depth = np.arange(n), np.zeros(n, int)
  held = np.zeros((n, DEPTH + 1), int)
  tokens, labels = np.empty((2, n, args.length), int)
  for t in range(args.length):
    symbol = 1 + rng.integers(SYMBOLS, size=n)
    pops = (rng.random(n) < 0.5) & (depth > 0) | (depth == DEPTH)
    tokens[:, t] = np.where(pops, POP, symbol)
    labels[:, t] = np.where(pops, held[rows, depth - 1], NO_LABEL)
    held[rows, depth] = symbol  # of a pop: above what is left, and never read
    depth = depth + np.where(pops, -1, 1)
  return tokens, labels


# What makes n samples; the options with their defaults; the vocabulary, if no option says it.
TASKS = {"mqar": (mqar, {"length": 64, "pairs": 4, "vocab": 8192, "fill": "random"}, None),
         "flipflop": (flipflop, {"length": 512, "ignored": 0.8}, BITS + 2),
         "copy": (copy, {"length": 128, "least": 10, "most": 50}, LETTERS + ALPHABET),
         "induction": (induction, {"length": 128, "vocab": 64}, None),
         "stack": (stack, {"length": 128}, 1 + SYMBOLS)}
HELP = {"length": "tokens of a window: model.context", "pairs": "of a key and a value",
        "vocab": "tokens", "fill": "random or zero: the places without a key",
        "ignored": "share of ignore, 0 to 1", "least": "letters of the shortest string",
        "most": "letters of the longest string"}


def check(args):
  """A UserError says which size does not fit, and what would."""
  L, task, samples = args.length, args.task, max(args.samples, args.val_samples)
  pairs, most = getattr(args, "pairs", 0), getattr(args, "most", 0)
  least = {"mqar": 4 * pairs, "flipflop": 4, "copy": 2 * most + 2, "induction": 3, "stack": 2}[task]
  vocab = {"mqar": 2 * pairs + 2, "induction": 2}.get(task)
  if task == "mqar" and pairs < 1:
    raise UserError("--pairs must be 1 or more")
  if task == "copy" and not 1 <= args.least <= most:
    raise UserError("--least must be 1 or more, and at most --most")
  if L < least:
    raise UserError(f"--length {L} is too short for {task} of this size; use at least {least}")
  if task in ("mqar", "flipflop") and L % 2:
    raise UserError(f"--length {L} must be even: tokens come in pairs")
  if vocab and not vocab <= args.vocab <= NO_LABEL:
    raise UserError(f"--vocab {args.vocab} is not between {vocab} and {NO_LABEL}")
  if task == "flipflop" and not 0 <= args.ignored <= 1:
    raise UserError("--ignored must be between 0 and 1")
  if min(args.samples, args.seed) < 0 or args.val_samples < 1:
    raise UserError("--samples and --seed must be 0 or more, and --val-samples 1 or more")
  if L * samples >= (1 << 31) - 1:
    raise UserError(f"--length {L} x {samples} samples are too many tokens for a shard")


def write_split(folder, args, split, count, progress):
  """Whole samples, then one token more: a window needs the token after it as its last target."""
  rng = np.random.default_rng([args.seed, split == "val"])
  path = os.path.join(folder, args.name)
  files = [shards.Writer(f"{path}_{split}_000000.bin", "tokens"),
           shards.Writer(f"{path}_labels_{split}_000000.bin", "labels")]
  most = max(1, min(CHUNK, CHUNK_TOKENS // args.length))
  samples = TASKS[args.task][0]
  for begin in range(0, count, most):
    here = min(most, count - begin)
    for file, made in zip(files, samples(rng, here, args)):
      file.write(made.astype("<u2").tobytes())
    progress.add(here)
  for file, last in zip(files, (0, NO_LABEL)):
    file.write(np.array([last], "<u2").tobytes())
    file.close()


def parse_arguments():
  parser = ArgumentParser(description=__doc__)
  tasks = parser.add_subparsers(dest="task", required=True)
  for name, (_, options, _) in TASKS.items():
    add = tasks.add_parser(name).add_argument
    for option, default in options.items():
      add("--" + option, type=type(default), default=default, help=f"{HELP[option]} [{default}]",
          choices=["random", "zero"] if option == "fill" else None)
    add("--samples", type=int, default=100000, metavar="N", help="for training; 0: none [100000]")
    add("--val-samples", type=int, default=3000, metavar="N", help="for validation [3000]")
    add("--seed", type=int, default=1)
    add("--out", required=True, metavar="DIR", help="folder for the shards")
    add("--name", type=plain_name, required=True, help="the shards are NAME_train_000000.bin, ...")
    add("--overwrite", action="store_true", help="replace shards of the same name")
  return parser.parse_args()


def main():
  args = parse_arguments()
  check(args)
  _, options, vocab = TASKS[args.task]
  vocab = vocab or args.vocab
  splits = {"train": args.samples} if args.samples else {}
  splits["val"] = args.val_samples
  name = re.escape(args.name)
  old = re.compile(name + r"(_(labels_)?(train|val)_\d{6}\.(bin|json)|\.json)")
  what = "shards of this name, or another --name"
  with whole_files(args.out, old, args.overwrite, what) as folder:
    progress = Progress(sum(splits.values()), args.task, "samples/s", 1)
    for split, count in splits.items():
      write_split(folder, args, split, count, progress)
    progress.end()
    shards.warn_of_repeats(folder, args.name, args.length)
    shards.describe(folder, args.name, {"tokenizer": f"recall {args.task} {vocab}"})
    sizes = {key: getattr(args, key) for key in options}
    made = {"task": args.task, **sizes, "seed": args.seed, "samples": splits, "vocab": vocab}
    with open(os.path.join(folder, args.name + ".json"), "w") as file:
      file.write(json.dumps(made, indent=1) + "\n")
  stems = {"train": "train", "labels": "labels_train", "val": "val", "val_labels": "labels_val"}
  data = {key: os.path.join(args.out, f"{args.name}_{stem}_000000.bin")
          for key, stem in stems.items() if args.samples or "train" not in stem}
  print(*data.values(), sep="\n")
  print('for the configuration: "data": %s, "model": {"context": %d, "vocab": %d}' % (
      json.dumps(data), args.length, vocab))


if __name__ == "__main__":
  run(main, "nothing was written")
