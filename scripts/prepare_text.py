#!/usr/bin/env python3
"""Turns text into token shards for training and validation.

    python3 scripts/prepare_text.py book.txt --out data/shards/book --name book
    python3 scripts/prepare_text.py part_*.jsonl.zst --out data/shards/web --name web \\
        --val-every 200 --tokenizer gpt2 --tokenizer-dir DIR

Writes DIR/NAME_train_000000.bin, ... and DIR/NAME_val_000000.bin, ... (format: data/shards.h).
docs/data.md says what it reads, how it divides and tokenizes it, and what else it writes. Needs
only Python 3.8; for GPT-2 tokens also ./train, for a tokenizer.json the package tokenizers, for
.zst the program zstd, for .parquet and --download the package pyarrow. No file gets its final name
before all are written. Exit code 2: something to fix; 1: something failed.
"""
import array
import bisect
import codecs
import contextlib
import itertools
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import threading

from lib import hub, shards
from lib.common import ArgumentParser, Progress, UserError, plain_name, run, whole_files
from lib.documents import (MARKER, json_documents, kind_of, listed, looks_like, parquet_documents,
                           unpacked, warn)
from lib.shards import NO_LABEL
from lib.text_tokenizers import BLOCK, Bytes, Gpt2, TokenizerJson

PG19 = "emozilla/pg19"  # on the hub, in Parquet; the field text


# ------------------------------------------------------------------------------------------------------------ input

class Text:
  """All inputs as one long text in `file`, addressed by byte offset. starts: where its documents
  begin, in order, and its end. answers: where the answer of each begins. names, firsts: of the
  inputs, and where they begin. marks: the bytes before each that are not text."""

  def __init__(self, args, file):
    self.args, self.file, self.size = args, file, 0
    self.starts, self.answers = array.array("Q"), array.array("Q")
    self.names, self.firsts, self.marks = [], [], []
    self.empty = self.nulls = self.crlf = 0  # documents left out; lines that end with CR LF
    progress = Progress(sum(os.path.getsize(name) for name in args.files if os.path.isfile(name)))
    for name in args.files:
      self._add(name, progress)
    self.starts.append(self.size)
    self.file.flush()  # it is read by its number
    progress.end()

  def _add(self, name, progress):
    self.names.append("standard input" if name == "-" else name)
    self.firsts.append(self.size)
    self.marks.append(0)
    before = progress.done
    try:
      raw = open(os.dup(0) if name == "-" else name, "rb")
    except OSError as error:
      raise UserError("%s cannot be read: %s; name text files" % (name, error.strerror))
    with raw, unpacked(name, raw) as stream:
      for part in self._parts(name, raw, stream):
        self.file.write(part)
        self.size += len(part)
        self.crlf += part.count(b"\r\n")
        if os.path.isfile(name):
          progress.add(before + raw.tell() - progress.done)

  def _parts(self, name, raw, stream):
    """The text of a file in parts; notes where documents begin."""
    if self.args.jsonl or kind_of(name) == ".jsonl":
      documents = json_documents(name, stream, self.args)
    elif kind_of(name) == ".parquet":
      if stream is not raw:  # it is not read from its beginning to its end
        stream, packed = tempfile.TemporaryFile(dir=self.args.out), stream
        shutil.copyfileobj(packed, stream, BLOCK)
      documents = parquet_documents(name, stream, self.args)
    else:
      yield from self._plain(name, stream)
      return
    for document in documents:
      if document is None:
        self.nulls += 1
        continue
      if self.args.answer_field:
        self.answers.append(self.size + len(document[0]))
        document = b"".join(document)
      if document:
        self.starts.append(self.size)
        yield document
      self.empty += not document

  def _plain(self, name, stream):
    """The blocks of a file that is text."""
    first, window = self.size, b""
    for block in iter(lambda: stream.read(BLOCK), b""):
      if self.size == first:
        if other := looks_like(name, block):
          warn(f"{name} is taken as text, but {other}")
        self.marks[-1] = len(codecs.BOM_UTF8) * block.startswith(codecs.BOM_UTF8)
        block = block[self.marks[-1]:]
        self.starts.extend([first] * bool(block))
      window = window[1 - len(MARKER):]  # where a marker may have begun
      offset, window = self.size - len(window), window + block
      for marker in re.finditer(re.escape(MARKER), window):
        if offset + marker.start() > first:
          self.starts.append(offset + marker.start())
      yield block
    self.empty += self.size == first

  def _spans(self, first, last, chosen):
    """(number from 1, first byte, end) of the text in [first, last) of each chosen document."""
    begin, end = bisect.bisect_right(self.starts, first), bisect.bisect_left(self.starts, last)
    for number in range(begin, end + 1):
      if chosen(number):
        yield number, max(self.starts[number - 1], first), min(self.starts[number], last)

  def documents(self, *part, keeps=None):
    """(name, first byte within the file, bytes, blocks) of each document of a part, or of those
    whose bytes keeps() keeps. Several threads may read blocks."""
    for _, start, end in self._spans(*part):
      if keeps and not keeps(end - start):
        continue
      of = bisect.bisect_right(self.firsts, start) - 1
      offset = start - self.firsts[of] + self.marks[of]
      yield self.names[of], offset, end - start, self._blocks(start, end)

  def answers_in(self, *part):
    """(bytes before its answer, bytes) of each document that documents() yields."""
    for number, start, end in self._spans(*part):
      yield max(self.answers[number - 1] - start, 0), end - start

  def _blocks(self, start, end):
    for at in range(start, end, BLOCK):
      yield os.pread(self.file.fileno(), min(BLOCK, end - at), at)

  def read(self, start, end):
    return b"".join(self._blocks(start, end))


def validation_start(text, fraction):
  """Where validation begins: at a document if one is nearby, else at a line or character."""
  if fraction in (0, 1):
    return 0 if fraction else text.size
  start = text.size - int(round(text.size * fraction))
  near = start + (text.size - start) // 2  # at least half of the wanted validation text remains
  document = text.starts[bisect.bisect_left(text.starts, start)]
  if document <= near:
    return document
  before = max(start - 1, 0)  # where a line may have ended
  line = text.read(before, min(near, before + (1 << 16))).find(b"\n")
  if line >= 0:
    return before + line + 1
  while start < text.size and text.read(start, start + 1)[0] & 0xC0 == 0x80:
    start += 1
  return start


# ----------------------------------------------------------------------------------------------------------- output

class LongDocuments:
  """Keeps the documents of at least `least` tokens, with the one before each; counts them and all."""

  def __init__(self, least, separator):
    self.least, self.separator, self.kept, self.all = least, separator, 0, 0

  def keeps(self, size):
    self.all += 1
    self.kept += size >= self.least
    return size >= self.least

  def of(self, parts):
    """What a tokenizer's tokens() yields, without the other documents."""
    document, lengths = array.array("H"), []
    end = 0, struct.pack("=H", self.separator), [0]
    for read, block, block_lengths in itertools.chain(parts, [end]):
      block, kept, kept_lengths = memoryview(block).cast("H"), array.array("H"), []
      begins = [at for at, token in enumerate(block) if token == self.separator]
      for first, last in zip([None, *begins], [*begins, len(block)]):
        if first is not None:  # a document ends here and another begins
          if document and self.keeps(len(document)):
            kept += document
            kept_lengths += lengths
          document, lengths = array.array("H"), []
        document.extend(block[first or 0:last])
        lengths.extend(block_lengths[first or 0:last] if block_lengths else [])
      yield read, kept.tobytes(), kept_lengths


class ShardWriter:
  kind = "tokens"

  def __init__(self, directory, stem, args):
    self.directory, self.stem, self.args = directory, stem, args
    self.counts, self.bytes, self.file = [], [], None  # of each shard: tokens, bytes of their text

  def write(self, data, lengths=None):
    data = memoryview(data).cast("B")
    while len(data):
      if self.file is None or self.counts[-1] == self.args.shard_tokens:
        self.close()
        path = os.path.join(self.directory, self.name(len(self.counts)))
        self.file = shards.Writer(path, self.kind)
        self.counts.append(0)
        self.bytes.append(0)
      part = data[:2 * (self.args.shard_tokens - self.counts[-1])]
      self.file.write(part)
      count = len(part) // 2
      self.counts[-1] += count
      self.bytes[-1] += sum(lengths[:count]) if lengths else count
      data, lengths = data[len(part):], lengths and lengths[count:]

  def close(self):
    if self.file is not None:
      self.file.close()
      self.file = None

  def describe(self, more):
    """Writes the X.json of each shard. more: fields that it has besides, or has otherwise."""
    for index, (tokens, size) in enumerate(zip(self.counts, self.bytes)):
      path = os.path.join(self.directory, self.name(index))
      shards.write_description(path, tokens, size, {**self.args.description, **more})

  def name(self, index):
    return "%s_%06d.bin" % (self.stem, index)


class LabelWriter(ShardWriter):
  kind = "labels"

  def __init__(self, directory, stem, args, answers):
    super().__init__(directory, stem, args)
    self.answers, self.read = answers, 0  # read, answer, document_end: bytes of text
    self.answer = self.document_end = 0  # where those of the present document begin and end
    self.begun, self.shared = False, 0  # shared: tokens with text of both a prompt and its answer

  def write_next(self, tokens, lengths):
    """A token is a label if it has text of an answer, or has no text and comes after one."""
    labels = array.array("H")
    for token, length in zip(memoryview(tokens).cast("H"), lengths or itertools.repeat(1)):
      while self.read + length > self.document_end:
        before, size = next(self.answers)
        self.answer, self.document_end = self.document_end + before, self.document_end + size
      self.shared += self.read < self.answer < self.read + length
      self.read += length
      if self.begun:
        labels.append(token if self.read > self.answer else NO_LABEL)
      self.begun = True
    self.write(labels)

  def finish(self):
    self.write(array.array("H", [NO_LABEL] * self.begun))  # the last token has no successor
    self.close()


def argument_parser():
  parser = ArgumentParser(description=__doc__)
  add = parser.add_argument
  add("files", nargs="*", metavar="FILE",
      help='.jsonl, .parquet or text, also .gz and .zst of them; "-" is standard input')
  add("--download", choices=["train", "validation", "test"],
      help="instead of files: the books of PG19, from the Hugging Face hub")
  add("--download-files", type=int, default=0, metavar="N", help="only the first N of its Parquet files [all]")
  add("--base-url", default=hub.URL, metavar="URL", help="server of --download [%(default)s]")
  add("--out", required=True, metavar="DIR", help="folder for the shards")
  add("--name", type=plain_name, required=True, help="the shards are NAME_train_000000.bin, ...")
  add("--tokenizer", default="bytes", help="bytes, gpt2, or the path of a tokenizer.json [bytes]")
  add("--separator", metavar="TOKEN", help="tokenizer.json: the token before each document [the "
                                           "tokens that the file adds]")
  add("--tokenizer-dir", metavar="DIR", help="gpt2: folder with vocab.json and merges.txt")
  add("--train", default="./train", help="gpt2: the program that makes the tokens [./train]")
  add("--jobs", type=int, default=1, metavar="N",
      help="gpt2: processes that make the tokens, which are the same for every N [1]")
  add("--min-tokens", type=int, default=0, metavar="N",
      help="leave out documents of fewer tokens, with the one before each [keep all]")
  add("--field", help="JSONL, Parquet: the field or column that has the text [text]")
  add("--answer-field", metavar="FIELD",
      help="JSONL: the field that has the answer to --field; also writes label files")
  add("--jsonl", action="store_true", help="every input is JSONL, whatever its name is")
  validation = parser.add_mutually_exclusive_group()
  validation.add_argument("--val-fraction", type=float, default=0.1, metavar="F",
                          help="share of the text for validation, 0 to 1, from its end [0.1]")
  validation.add_argument("--val-every", type=int, metavar="N",
                          help="instead: every N-th document is for validation")
  add("--shard-tokens", type=int, default=100000000, help="tokens of a full shard [100000000]")
  add("--errors", choices=["strict", "replace"], default="strict",
      help="gpt2, JSONL: stop at bytes that are not UTF-8, or replace them by U+FFFD [strict]")
  add("--overwrite", action="store_true", help="replace shards of the same name")
  return parser


def check_arguments(args):
  jsonl = [args.jsonl or kind_of(name) == ".jsonl" for name in args.files]
  plain = next((name for name, known in zip(args.files, jsonl) if not known), "")
  bytes_or_gpt2 = args.tokenizer in ("bytes", "gpt2")
  for wrong, message in (
      (not 0 <= args.val_fraction <= 1, f"--val-fraction {args.val_fraction:g} is not between 0 and 1"),
      (args.val_every is not None and args.val_every < 2,
       f"--val-every {args.val_every} is less than 2, which validates on every second document"),
      (args.field is not None and not any(jsonl) and ".parquet" not in map(kind_of, args.files),
       f"--field {args.field}: no input is called .jsonl or .parquet; --jsonl reads others as JSONL"),
      (not bytes_or_gpt2 and not args.tokenizer.endswith(".json"),
       f"--tokenizer {args.tokenizer}: use bytes, gpt2, or the path of a tokenizer.json"),
      (args.separator and bytes_or_gpt2,
       f"--separator {args.separator}: only a tokenizer.json can choose; leave it out"),
      (args.min_tokens < 0 or (args.min_tokens and args.answer_field),
       f"--min-tokens {args.min_tokens} must be 0 or more, and goes without --answer-field"),
      (args.answer_field and plain,
       f"--answer-field {args.answer_field}: {plain} is not called .jsonl; --jsonl reads it as JSONL if it is"),
      (not 1 <= args.jobs <= 1024, f"--jobs {args.jobs} is not between 1 and 1024"),
      (args.jobs > 1 and args.tokenizer != "gpt2",
       f"--jobs {args.jobs}: only --tokenizer gpt2 has jobs; bytes need none, and the package "
       "tokenizers takes all cores"),
      (not 1 <= args.shard_tokens < 1 << 31,
       f"--shard-tokens {args.shard_tokens} is not between 1 and {(1 << 31) - 1}"),
      (args.tokenizer == "gpt2" and not args.tokenizer_dir,
       "--tokenizer gpt2 needs --tokenizer-dir: a folder with GPT-2's vocab.json or encoder.json "
       "and merges.txt or vocab.bpe")):
    if wrong:
      raise UserError(message)


def parse_arguments():
  args = argument_parser().parse_args()
  if (bool(args.files) == bool(args.download)
      or not 0 <= args.download_files <= (1 << 31) * bool(args.download)):
    raise UserError("name the files that have the text, or give --download SPLIT, and with it "
                    "--download-files, 0 or more")
  if args.download:
    args.files = ["books.parquet"]  # until they are there
  check_arguments(args)
  args.replaced = 0
  args.unread = {}  # fields of JSONL and columns of Parquet besides the text, in order
  lock = threading.Lock()

  def replace(error):
    with lock:
      args.replaced += 1
    return "\ufffd", error.end

  if args.errors == "replace":
    codecs.register_error("counted", replace)
    args.errors = "counted"
  args.field = args.field or "text"
  args.fields = {"--field": args.field}
  if args.answer_field:
    args.fields["--answer-field"] = args.answer_field
  return args


def null_note(text, args):
  said = f': "{args.field}" is null in {text.nulls} document' + "s" * (text.nulls > 1)
  return said if text.nulls else ""


def parts_of(text, args):
  """Of training and of validation: the first byte, the end, and which documents are chosen."""
  if args.val_every:
    every, count = args.val_every, len(text.starts) - 1
    if count < every:
      raise UserError(f"--val-every {every}: the number of documents is only {count}")
    train = 0, text.size, lambda number: number % every
    return train, (0, text.size, lambda number: number % every == 0)
  start = validation_start(text, args.val_fraction)
  if args.val_fraction not in (0, 1) and start in (0, text.size):
    raise UserError(f"{text.size} bytes of text are too few to give {args.val_fraction:g} of "
                    "them to validation; give more text, another --val-fraction, or 0 for none")
  return (0, start, lambda number: True), (start, text.size, lambda number: True)


def write_split(split, part, text, args, tokenizer, folder, progress):
  """The writers of its shards and label files, and its LongDocuments."""
  before = progress.done
  writer = ShardWriter(folder, f"{args.name}_{split}", args)
  labels = LabelWriter(folder, f"{args.name}_labels_{split}", args, text.answers_in(*part))
  long = LongDocuments(args.min_tokens, args.description["end_of_text"])
  of_bytes = args.tokenizer == "bytes"
  keeps = long.keeps if args.min_tokens and of_bytes else None
  documents = text.documents(*part, keeps=keeps)
  with contextlib.closing(tokenizer.tokens(documents, args)) as parts:  # an error ends its jobs too
    kept = long.of(parts) if args.min_tokens and not of_bytes else parts
    for read, tokens, lengths in kept:
      writer.write(tokens, lengths)
      if args.answer_field:
        labels.write_next(tokens, lengths)
      progress.add(read)
  writer.close()
  more = {}
  if tokenizer.changes(split) or args.replaced > 0:
    more["bytes"] = None
  if long.least:
    more.update(min_tokens=long.least, documents=long.kept, of_documents=long.all)
  writer.describe(more)
  labels.finish()
  if long.all:
    print(f"{split}: {long.kept} of {long.all} documents have at least {long.least} tokens")
  if labels.shared:
    warn(f"{split}: tokens with text of both a prompt and its answer: {labels.shared}; end no "
         "prompt with a space, but begin the answer with it")
  read = progress.done - before
  if not writer.counts and long.all:
    raise UserError(f"the text for {split} has no document of {long.least} tokens; give more text, "
                    "or a lower --min-tokens")
  if not writer.counts and read:
    raise UserError(f"the text for {split}, {read} bytes, gives no tokens; give more text")
  return writer, labels, long


def prepare(text, args, tokenizer, folder):
  """The writers of all shards and label files."""
  if text.size == 0:
    raise UserError(f"there is no text in {', '.join(text.names)}{null_note(text, args)}")
  writers, kept = [], 0
  parts, progress = parts_of(text, args), Progress(text.size)
  for split, part in zip(("train", "val"), parts):
    *both, long = write_split(split, part, text, args, tokenizer, folder, progress)
    writers += [writer for writer in both if writer.counts]
    kept += long.kept
  progress.end()
  tokenizer.warn_of_joined(text, kept if args.min_tokens else len(text.starts) - 1)
  if text.nulls:
    print(f"left out{null_note(text, args)}", file=sys.stderr)
  if text.empty:
    print(f"empty documents, left out: {text.empty}")
  if text.crlf:
    print(f"lines that end with CR LF, which stays in the text: {text.crlf}; dos2unix removes CR")
  if args.unread:
    print(f"fields that are not read: {len(args.unread)}, {listed(list(args.unread))}")
  if args.replaced:
    warn(f"U+FFFD replaces what is not UTF-8 at {args.replaced} place{'s' * (args.replaced > 1)}: "
         "X.json says no number of bytes, so bits_per_byte will be null")
  return writers


def tokenizer_of(args):
  if args.tokenizer == "bytes":
    return Bytes()
  if args.tokenizer == "gpt2":
    return Gpt2(args.train, args.tokenizer_dir)
  return TokenizerJson(args.tokenizer, args.separator)


def say_written(args, writers, vocab):
  """The shards, and what a configuration says of them."""
  for writer in writers:
    if writer.kind == "tokens":
      for index, count in enumerate(writer.counts):
        print(f"{os.path.join(args.out, writer.name(index))}  {count:,} tokens")
  keys = {"train": "train", "val": "val", "labels_train": "labels", "labels_val": "val_labels"}
  data = {keys[writer.stem[len(args.name) + 1:]]: os.path.join(args.out, writer.stem + "_*.bin")
          for writer in writers}
  said = f'"data": {json.dumps(data)}, "model": {{"vocab": {vocab}}}'
  if args.tokenizer.endswith(".json"):
    print(f"for the configuration: {said}\n"
          "./train itself reads and writes text in bytes and in byte-level BPE from GPT-2's files: "
          "leave out generate.every, --generate and --passkey, or give such files (vocab.json, "
          "merges.txt) by --tokenizer gpt2")
    return
  folder = {"tokenizer_dir": args.tokenizer_dir} if args.tokenizer_dir else {}
  generate = {"tokenizer": args.tokenizer, **folder}
  print(f'for the configuration: {said}, "generate": {json.dumps(generate)}')


def main():
  args = parse_arguments()
  tokenizer = tokenizer_of(args)
  args.description = tokenizer.description
  if args.min_tokens and args.tokenizer.endswith(".json") and not args.separator:
    raise UserError(f"--min-tokens {args.min_tokens} needs to know where documents begin; add --separator TOKEN")
  if args.answer_field and tokenizer.vocab > NO_LABEL:
    raise UserError("--answer-field needs a tokenizer of at most 65535 tokens, as 65535 means no "
                    f"label; {args.tokenizer} has {tokenizer.vocab}")
  splits = {0: "train", 1: "val"}.get(args.val_fraction, "train|val")
  old = re.compile(rf"{re.escape(args.name)}_(labels_)?({splits})_\d{{6,}}\.(bin|json)")
  with whole_files(args.out, old, args.overwrite, "shards of this name, or another --name") as folder, \
      tempfile.TemporaryFile(dir=args.out) as whole, tempfile.TemporaryDirectory(dir=args.out) as books:
    if args.download:
      args.files = hub.parquet_files(args.base_url, PG19, args.download, args.download_files, books, "name files")
    writers = prepare(Text(args, whole), args, tokenizer, folder)
  say_written(args, writers, tokenizer.vocab)


if __name__ == "__main__":
  run(main, "nothing was written")
