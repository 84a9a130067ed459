#!/usr/bin/env python3
"""Data that teach passkey retrieval, and what ./train --passkey measured, as a table and a picture.

    python3 scripts/passkey.py make --length 128 --samples 26000 --out data/shards/passkey --name passkey
    python3 scripts/passkey.py picture runs/a runs/b [--out FILE.png]

make writes DIR/NAME_train_000000.bin and DIR/NAME_val_000000.bin (format: data/shards.h). docs/evaluating.md says what
they hold, and what picture shows.
"""
import argparse
import array
import json
import os
import random
import re
import string

from lib import sections, shards
from lib.section_answers import PASSKEY
from lib.common import (ArgumentParser, Failure, UserError, description, encode, gpt2_vocabulary, plain_name, run,
                        whole_files)
from lib.shards import NO_LABEL

SENTENCES = ("The grass is green. ", "The sky is blue. ", "The sun is yellow. ", "Here we go. ",
             "There and back again. ")
FILLER = "".join(SENTENCES)
KEY_LINE, QUESTION = "The key is {0}. Remember {0}. ", "What is the key? The key is {0}."


# ------------------------------------------------------------------------------------------------------------- make

def passkey(rng, most_after, most):
  """A text whose end is a passkey sample, after more than `most` characters of filler, which will be cut. most_after:
  the most characters of filler between the key and the question."""
  key = "%05d" % rng.randrange(100000)
  start = len("".join(SENTENCES[:rng.randrange(len(SENTENCES))]))  # the key follows any of the sentences
  after = (FILLER[start:] + FILLER * (most_after // len(FILLER) + 1))[:rng.randint(0, most_after)]
  before = FILLER * (most // len(FILLER) + 1) + FILLER[:start]
  return before + KEY_LINE.format(key) + (after[:-1] + " " if after else "") + QUESTION.format(key)


def repeat(rng, most):
  period = "".join(rng.choices(string.ascii_lowercase + string.digits, k=rng.randint(12, 49)))
  return period * (most // len(period) + 1)


def samples(args, rng, count, repeats):
  """Pairs: an array of --length tokens, the separator of documents, if the tokenizer has one, and the last of a text;
  and how many tokens at its end are to be predicted."""
  first = int(args.tokenizer == "gpt2")
  keys = ["%05d" % rng.randrange(100000) for _ in range(200)]
  filler, *prompts = [len(tokens) - first for tokens in encode(
      args, [FILLER * 100] + [KEY_LINE.format(key) + QUESTION.format(key) for key in keys])]
  # Beside the filler after the key: other keys may have a token more, and the last word of the filler is cut.
  least = max(prompts) + (6 if first else 0)
  if args.length < least + first:
    raise UserError(f"--length {args.length} is too short for a key and its question; use at least {least + first}")
  per_token = 100 * len(FILLER) / filler
  most, most_after = int(args.length * max(per_token, 3)), int((args.length - first - least) * per_token)
  texts, answers = [], []
  for _ in range(count):
    repeated = rng.random() < repeats
    texts.append(repeat(rng, most) if repeated else passkey(rng, most_after, most))
    answers.append("" if repeated else texts[-1][-len(" 00000."):])
  lengths = iter([len(tokens) - first for tokens in encode(args, list(filter(None, answers)))] if any(answers) else [])
  return [(tokens[:first] + tokens[max(first, len(tokens) - args.length + first):],
           next(lengths) if answer else args.length - 1)
          for tokens, answer in zip(encode(args, texts), answers)]


def write_shards(folder, name, split, made, args):
  """Whole samples, then one token more: a window needs the token after it as its last target."""
  tokens, labels = array.array("H"), array.array("H")
  for sample, predicted in made:
    if len(sample) != args.length:
      raise Failure("a sample has %d tokens, not %d" % (len(sample), args.length))
    tokens += sample
    labels.extend([NO_LABEL] * (args.length - 1 - predicted))
    labels += sample[args.length - predicted:]
    labels.append(NO_LABEL)
  tokens.append(tokens[0])
  labels.append(NO_LABEL)
  shards.write(os.path.join(folder, "%s_%s_000000.bin" % (name, split)), "tokens", tokens)
  if args.labels:
    shards.write(os.path.join(folder, "%s_labels_%s_000000.bin" % (name, split)), "labels", labels)


def make(args):
  for flag, value, least, most in (("--length", args.length, 1, 1 << 20), ("--samples", args.samples, 1, 1 << 30),
                                   ("--repeats", args.repeats, 0, 1)):
    if not least <= value <= most:
      raise UserError("%s %g is not between %d and %d" % (flag, value, least, most))
  if args.length * args.samples >= 1 << 31:
    raise UserError(f"--length {args.length} x --samples {args.samples} are too many tokens for a shard "
                    "(at most 2147483647)")
  rng = random.Random(args.seed)
  splits = {split: samples(args, rng, count, repeats) for split, count, repeats in (
      ("train", args.samples, args.repeats), ("val", -(-args.samples // 20), 0))}
  with whole_files(args.out, re.compile(re.escape(args.name) + r"_(labels_)?(train|val)_\d{6}\.(bin|json)"),
                   args.overwrite) as folder:
    for split, made in splits.items():
      write_shards(folder, args.name, split, made, args)
    shards.warn_of_repeats(folder, args.name, args.length)
    shards.describe(folder, args.name, description(args))
  stems = {"train": "train", "val": "val",
           **({"labels": "labels_train", "val_labels": "labels_val"} if args.labels else {})}
  data = {key: os.path.join(args.out, "%s_%s_000000.bin" % (args.name, stem)) for key, stem in stems.items()}
  tokenizer = {"tokenizer": args.tokenizer,
               **({"tokenizer_dir": args.tokenizer_dir} if args.tokenizer == "gpt2" else {})}
  print('%s\nfor the configuration: "data": %s, "model": {"context": %d, "vocab": %d}, "generate": %s, '
        '"passkey": {"form": "%s"}\n'
        'then: ./train CONFIG.json; ./train runs/NAME --passkey; python3 scripts/passkey.py picture runs/NAME' % (
            "\n".join(data.values()), json.dumps(data), args.length,
            256 if args.tokenizer == "bytes" else len(gpt2_vocabulary(args.tokenizer_dir)[0]),
            json.dumps(tokenizer), args.form))


def main():
  parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  commands = parser.add_subparsers(dest="command", required=True)
  made = commands.add_parser("make", help="make shards")
  made.add_argument("--form", choices=["compact"], default="compact", help="of the prompts [compact]")
  made.add_argument("--length", type=int, required=True, metavar="T", help="tokens of a sample: model.context")
  made.add_argument("--samples", type=int, required=True, metavar="N", help="samples for training")
  made.add_argument("--tokenizer", choices=["bytes", "gpt2"], default="bytes")
  made.add_argument("--tokenizer-dir", metavar="DIR", help="gpt2: folder with vocab.json and merges.txt")
  made.add_argument("--train", default="./train", help="gpt2: the program that makes the tokens [./train]")
  made.add_argument("--repeats", type=float, default=0.5, metavar="F", help="share of repeat samples, 0 to 1 [0.5]")
  made.add_argument("--labels", action="store_true", help="also write label files")
  made.add_argument("--seed", type=int, default=1)
  made.add_argument("--out", required=True, metavar="DIR", help="folder for the shards")
  made.add_argument("--name", type=plain_name, required=True, help="the shards are NAME_train_000000.bin, ...")
  made.add_argument("--overwrite", action="store_true", help="replace shards of the same name")
  drawn = commands.add_parser("picture", help="draw results")
  sections.add_arguments(drawn, "passkey.png")
  args = parser.parse_args()
  make(args) if args.command == "make" else sections.show_one(PASSKEY, args)


if __name__ == "__main__":
  run(main, "nothing was written")
