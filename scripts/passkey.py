#!/usr/bin/env python3
"""Data that teach passkey retrieval, and what ./train --passkey measured, as a table and a picture.

    python3 scripts/passkey.py make --length 128 --samples 26000 --out data/shards/passkey --name passkey
    python3 scripts/passkey.py picture runs/a runs/b [--out FILE.png]

make writes DIR/NAME_train_000000.bin and DIR/NAME_val_000000.bin (format: data/shards.h).
docs/evaluating.md says what they hold, and what picture shows.
"""
import array
import json
import math
import os
import random
import re
import string

from lib import sections, shards
from lib.section_answers import PASSKEY
from lib.common import (ArgumentParser, Failure, UserError, description, encode, gpt2_vocabulary,
                        plain_name, run, whole_files)
from lib.shards import NO_LABEL

SENTENCES = ("The grass is green. ", "The sky is blue. ", "The sun is yellow. ", "Here we go. ",
             "There and back again. ")
FILLER = "".join(SENTENCES)
KEY_LINE, QUESTION = "The key is {0}. Remember {0}. ", "What is the key? The key is {0}."


# --------------------------------------------------------------------------------------------- make

def passkey(rng, most_after, most):
  """A text whose end is a passkey sample, after more than `most` characters of filler, which will be
  cut. most_after: the most characters of filler between the key and the question."""
  key = "%05d" % rng.randrange(100000)
  first = rng.randrange(len(SENTENCES))  # the key follows any of the sentences
  start = len("".join(SENTENCES[:first]))
  after = (FILLER[start:] + FILLER * (most_after // len(FILLER) + 1))[:rng.randint(0, most_after)]
  after = after[:-1] + " " if after else ""
  before = FILLER * (most // len(FILLER) + 1) + FILLER[:start]
  return before + KEY_LINE.format(key) + after + QUESTION.format(key)


def repeat(rng, most):
  period = "".join(rng.choices(string.ascii_lowercase + string.digits, k=rng.randint(12, 49)))
  return period * (most // len(period) + 1)


def samples(args, rng, count, repeats):
  """Pairs: an array of --length tokens, the separator of documents, if the tokenizer has one, and the
  last of a text; and how many tokens at its end are to be predicted."""
  first = int(args.tokenizer == "gpt2")
  sizes = lambda texts: [len(tokens) - first for tokens in encode(args, texts)]
  keys = ["%05d" % rng.randrange(100000) for _ in range(200)]
  prompts = [KEY_LINE.format(key) + QUESTION.format(key) for key in keys]
  filler, *prompts = sizes([FILLER * 100, *prompts])
  # Other keys may have a token more, and the last word of the filler after the key is cut.
  least = max(prompts) + (6 if first else 0)
  if args.length < least + first:
    raise UserError(f"--length {args.length} is too short for a key and its question; use at least {least + first}")
  per_token = 100 * len(FILLER) / filler
  most = int(args.length * max(per_token, 3))
  most_after = int((args.length - first - least) * per_token)
  texts, answers = [], {}
  for number in range(count):
    if rng.random() < repeats:
      texts.append(repeat(rng, most))
    else:
      texts.append(passkey(rng, most_after, most))
      answers[number] = texts[-1][-len(" 00000."):]
  predicted = dict(zip(answers, sizes([*answers.values()]))) if answers else {}
  made = []
  for number, tokens in enumerate(encode(args, texts)):
    last = tokens[max(first, len(tokens) - args.length + first):]
    made.append((tokens[:first] + last, predicted.get(number, args.length - 1)))
  return made


def write_shards(folder, split, made, args):
  """Whole samples, then one token more: a window needs the token after it as its last target."""
  tokens, labels = array.array("H"), array.array("H")
  for sample, predicted in made:
    if len(sample) != args.length:
      raise Failure(f"a sample has {len(sample)} tokens, not {args.length}")
    tokens += sample
    labels.extend([NO_LABEL] * (args.length - 1 - predicted))
    labels += sample[args.length - predicted:]
    labels.append(NO_LABEL)
  tokens.append(tokens[0])
  labels.append(NO_LABEL)
  shards.write(shard(folder, args.name, split), "tokens", tokens)
  if args.labels:
    shards.write(shard(folder, args.name, f"labels_{split}"), "labels", labels)


def shard(folder, name, kind):
  return os.path.join(folder, f"{name}_{kind}_000000.bin")


def advice(args):
  """What is to be done with the files."""
  data = {"train": "train", "val": "val"}
  if args.labels:
    data.update(labels="labels_train", val_labels="labels_val")
  data = {key: shard(args.out, args.name, kind) for key, kind in data.items()}
  generate = {"tokenizer": args.tokenizer}
  if args.tokenizer == "gpt2":
    generate["tokenizer_dir"] = args.tokenizer_dir
  vocab = len(gpt2_vocabulary(args.tokenizer_dir)[0]) if args.tokenizer == "gpt2" else 256
  config = {"data": data, "model": {"context": args.length, "vocab": vocab}, "generate": generate,
            "passkey": {"form": args.form}}
  return "\n".join([*data.values(), f"for the configuration: {json.dumps(config)[1:-1]}",
                    "then: ./train CONFIG.json; ./train runs/NAME --passkey; "
                    "python3 scripts/passkey.py picture runs/NAME"])


def make(args):
  for key, least, most in (("length", 1, 1 << 20), ("samples", 1, 1 << 30), ("repeats", 0, 1)):
    value = getattr(args, key)
    if not least <= value <= most:
      raise UserError("--%s %g is not between %d and %d" % (key, value, least, most))
  if args.length * args.samples >= 1 << 31:
    raise UserError(f"--length {args.length} x --samples {args.samples} are too many tokens for a "
                    "shard (at most 2147483647)")
  rng = random.Random(args.seed)
  splits = {"train": samples(args, rng, args.samples, args.repeats),
            "val": samples(args, rng, math.ceil(args.samples / 20), 0)}
  names = re.compile(re.escape(args.name) + r"_(labels_)?(train|val)_\d{6}\.(bin|json)")
  with whole_files(args.out, names, args.overwrite) as folder:
    for split, made in splits.items():
      write_shards(folder, split, made, args)
    shards.warn_of_repeats(folder, args.name, args.length)
    shards.describe(folder, args.name, description(args))
  print(advice(args))


def main():
  parser = ArgumentParser(description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)
  made = commands.add_parser("make", help="make shards")
  add = made.add_argument
  add("--form", choices=["compact"], default="compact", help="of the prompts [compact]")
  add("--length", type=int, required=True, metavar="T", help="tokens of a sample: model.context")
  add("--samples", type=int, required=True, metavar="N", help="samples for training")
  add("--tokenizer", choices=["bytes", "gpt2"], default="bytes")
  add("--tokenizer-dir", metavar="DIR", help="gpt2: folder with vocab.json and merges.txt")
  add("--train", default="./train", help="gpt2: the program that makes the tokens [./train]")
  add("--repeats", type=float, default=0.5, metavar="F", help="share of repeat samples, 0 to 1 [0.5]")
  add("--labels", action="store_true", help="also write label files")
  add("--seed", type=int, default=1)
  add("--out", required=True, metavar="DIR", help="folder for the shards")
  add("--name", type=plain_name, required=True, help="the shards are NAME_train_000000.bin, ...")
  add("--overwrite", action="store_true", help="replace shards of the same name")
  drawn = commands.add_parser("picture", help="draw results")
  sections.add_arguments(drawn, "passkey.png")
  args = parser.parse_args()
  make(args) if args.command == "make" else sections.show_one(PASSKEY, args)


if __name__ == "__main__":
  run(main, "nothing was written")
