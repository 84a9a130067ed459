#!/usr/bin/env python3
"""Turns text files into token shards for training and validation.

    python3 scripts/prepare_text.py book.txt --out data/shards/book --name book
    zcat dump.txt.gz | python3 scripts/prepare_text.py - --out data/shards/dump --name dump \\
        --tokenizer gpt2 --tokenizer-dir DIR

Writes DIR/NAME_train_000000.bin, ... and DIR/NAME_val_000000.bin, ... (format: data/shards.h). Needs only Python 3.8;
for GPT-2 tokens also ./train. Files are read in the given order; "-" is standard input. The end of the input becomes the
validation text. It begins where --val-fraction of the input is left, or at the next document if one begins nearby, else
at the next line.

bytes: one token per byte; files are joined without a separator (model.vocab 256).
gpt2:  GPT-2's BPE by ./train --encode, with vocab.json or encoder.json and merges.txt or vocab.bpe from --tokenizer-dir
       (model.vocab 50257). Every file is a document, and <|endoftext|> in a file begins another. Each document that is
       not empty gets one token 50256 before it.

No file gets its final name before all are written. Exit code 2: something to fix; 1: something failed.
"""
import argparse
import codecs
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from common import Failure, UserError, run

MAGIC, VERSION, HEADER_INTS = 20240520, 1, 256  # data/shards.h
MARKER = "<|endoftext|>"
BLOCK = 4 << 20


# ------------------------------------------------------------------------------------------------------------ input

class Text:
  """Several files as one long text, addressed by byte offset. Unseekable input (a pipe) is copied to a temporary file."""

  def __init__(self, names, temporary):
    self.names, self.paths, self.starts, self.temporary = [], [], [0], temporary
    for name in names:
      path = name
      if name == "-" or (os.path.exists(name) and not os.path.isdir(name) and not os.path.isfile(name)):
        path = os.path.join(temporary, "input_%d" % len(self.paths))
        with open(path, "wb") as copy:
          if name == "-":
            shutil.copyfileobj(sys.stdin.buffer, copy, BLOCK)
          else:
            with open(name, "rb") as source:
              shutil.copyfileobj(source, copy, BLOCK)
      try:
        with open(path, "rb") as file:
          size = file.seek(0, os.SEEK_END)
      except OSError as error:
        raise UserError("%s cannot be read: %s; name text files" % (name, error.strerror))
      self.names.append("standard input" if name == "-" else name)
      self.paths.append(path)
      self.starts.append(self.starts[-1] + size)
    self.size = self.starts[-1]

  def files(self, start, end):
    """(name, first byte within the file, blocks) of every file that has text in [start, end)."""
    for name, path, file_start, file_end in zip(self.names, self.paths, self.starts, self.starts[1:]):
      first, last = max(start, file_start), min(end, file_end)
      if first < last:
        yield name, first - file_start, self._blocks(name, path, first - file_start, last - first)

  def read(self, start, end):
    return b"".join(block for _, _, blocks in self.files(start, end) for block in blocks)

  @staticmethod
  def _blocks(name, path, offset, length):
    with open(path, "rb") as file:
      file.seek(offset)
      while length > 0:
        block = file.read(min(BLOCK, length))
        if not block:
          raise UserError("%s became shorter while it was read" % name)
        length -= len(block)
        yield block


def validation_start(text, fraction):
  """The offset where validation begins: the start of a document if there is one nearby, else of a line, else of a character."""
  if fraction in (0, 1):
    return 0 if fraction else text.size
  start = text.size - int(round(text.size * fraction))
  near = start + (text.size - start) // 2  # at least half of the wanted validation text remains
  file_starts = [at for at in text.starts[1:-1] if start <= at <= near]
  if file_starts:
    return file_starts[0]
  before = max(start - 1, 0)  # where a line may have ended
  ahead = text.read(before, min(text.size, near, before + (64 << 20)))
  marker, line = ahead.find(MARKER.encode()), ahead.find(b"\n", 0, 1 << 16)
  if marker >= 0:
    return before + marker
  if line >= 0:
    return before + line + 1
  while start < text.size and text.read(start, start + 1)[0] & 0xC0 == 0x80:
    start += 1
  return start


# ------------------------------------------------------------------------------------------------------- tokenizers

# Both have tokens(text, start, end, errors), which yields (bytes of text read, their tokens as the bytes of uint16).

class Bytes:
  vocab = 256

  @staticmethod
  def tokens(text, start, end, errors):
    for _, _, blocks in text.files(start, end):
      for block in blocks:
        wide = bytearray(2 * len(block))
        wide[::2] = block
        yield len(block), wide


class Gpt2:
  """GPT-2's BPE, by ./train --encode."""

  def __init__(self, program, directory):
    self.command = [os.path.abspath(program), "--encode", directory]
    with self._start(subprocess.PIPE) as process:  # an error in the vocabulary shows before any text is read
      self._finish(process)
    name = next(name for name in ("vocab.json", "encoder.json") if os.path.exists(os.path.join(directory, name)))
    with open(os.path.join(directory, name), encoding="utf-8") as file:
      self.vocab = len(json.load(file))

  def _start(self, output):
    try:
      return subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE)
    except OSError as error:
      raise UserError("--train %s cannot be run: %s; build it with make" % (self.command[0], error.strerror))

  @staticmethod
  def _finish(process):
    """Ends the program's input and waits for it."""
    try:
      process.stdin.close()
    except BrokenPipeError:
      pass  # its exit code says why
    said = process.stderr.read().decode(errors="replace").strip()
    if process.wait() != 0:
      raise (UserError if process.returncode == 2 else Failure)("%s: exit %d: %s" % (
          " ".join(process.args), process.returncode, said))

  def tokens(self, text, start, end, errors):
    with tempfile.TemporaryFile(dir=text.temporary) as output:
      with self._start(output) as process:
        try:
          for part in self._utf8(text, start, end, errors):
            process.stdin.write(part)
            yield len(part), b""
        except BrokenPipeError:
          self._finish(process)  # says why, if it knows
          raise Failure("%s ended before it had read the text" % process.args[0])
        self._finish(process)
      output.seek(0)
      while True:
        block = output.read(BLOCK)
        if not block:
          return
        yield 0, block

  @staticmethod
  def _utf8(text, start, end, errors):
    """The text as UTF-8, with a marker after every file."""
    for name, offset, blocks in text.files(start, end):
      decoder = codecs.getincrementaldecoder("utf-8")(errors)
      for block in itertools.chain(blocks, [b""]):
        try:
          yield decoder.decode(block, final=not block).encode()
        except UnicodeDecodeError as error:
          at = offset - len(decoder.getstate()[0]) + error.start
          raise UserError("%s is not UTF-8 at byte %d: convert it (iconv -t UTF-8) or use --errors replace" % (name, at))
        offset += len(block)
      yield MARKER.encode()


# ----------------------------------------------------------------------------------------------------------- output

class ShardWriter:
  def __init__(self, directory, stem, shard_tokens):
    self.directory, self.stem, self.shard_tokens = directory, stem, shard_tokens
    self.counts, self.file = [], None  # tokens of each shard

  def write(self, data):
    data = memoryview(data)
    while len(data):
      if self.file is None or self.counts[-1] == self.shard_tokens:
        self.close()
        self.file = open(os.path.join(self.directory, self.name(len(self.counts))), "wb")
        self.file.write(bytes(4 * HEADER_INTS))
        self.counts.append(0)
      part = data[:2 * (self.shard_tokens - self.counts[-1])]
      self.file.write(part)
      self.counts[-1] += len(part) // 2
      data = data[len(part):]

  def close(self):
    if self.file is not None:
      self.file.seek(0)
      self.file.write(struct.pack("<3i", MAGIC, VERSION, self.counts[-1]))
      self.file.flush()
      os.fsync(self.file.fileno())
      self.file.close()
      self.file = None

  def name(self, index):
    return "%s_%06d.bin" % (self.stem, index)


class Progress:
  """A line that rewrites itself on a terminal; a line every half minute elsewhere."""

  def __init__(self, total):
    self.total, self.done, self.begin = max(total, 1), 0, time.monotonic()
    self.terminal = sys.stderr.isatty()
    self.shown = self.begin

  def add(self, amount):
    self.done += amount
    now = time.monotonic()
    if now - self.shown < (0.2 if self.terminal else 30):
      return
    self.shown = now
    left = (now - self.begin) / max(self.done, 1) * (self.total - self.done)
    sys.stderr.write("%s%5.1f%% | %.1f MB/s | eta %d:%02d:%02d%s" % (
        "\r" if self.terminal else "", 100 * self.done / self.total, self.done / 1e6 / (now - self.begin),
        left // 3600, left % 3600 // 60, left % 60, "" if self.terminal else "\n"))
    sys.stderr.flush()

  def end(self):
    if self.terminal:
      sys.stderr.write("\r" + " " * 60 + "\r")


def parse_arguments():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("files", nargs="+", metavar="FILE", help='text files; "-" is standard input')
  parser.add_argument("--out", required=True, metavar="DIR", help="folder for the shards")
  parser.add_argument("--name", required=True, help="the shards are NAME_train_000000.bin, NAME_val_000000.bin, ...")
  parser.add_argument("--tokenizer", choices=["bytes", "gpt2"], default="bytes")
  parser.add_argument("--tokenizer-dir", metavar="DIR", help="folder with GPT-2's vocabulary files")
  parser.add_argument("--train", default="./train", help="gpt2: the program that makes the tokens [./train]")
  parser.add_argument("--val-fraction", type=float, default=0.1, metavar="F",
                      help="share of the text for validation, 0 to 1 [0.1]")
  parser.add_argument("--shard-tokens", type=int, default=100000000, help="tokens of a full shard [100000000]")
  parser.add_argument("--errors", choices=["strict", "replace"], default="strict",
                      help="gpt2: stop at bytes that are not UTF-8, or replace them by U+FFFD [strict]")
  parser.add_argument("--overwrite", action="store_true", help="replace shards of the same name")
  args = parser.parse_args()
  if not re.fullmatch(r"[\w.+-]+", args.name):
    raise UserError("--name %r: use letters, digits and _ . + - only" % args.name)
  if not 0 <= args.val_fraction <= 1:
    raise UserError("--val-fraction %g is not between 0 and 1" % args.val_fraction)
  if not 1 <= args.shard_tokens < 1 << 31:
    raise UserError("--shard-tokens %d is not between 1 and %d" % (args.shard_tokens, (1 << 31) - 1))
  if args.tokenizer == "gpt2" and not args.tokenizer_dir:
    raise UserError("--tokenizer gpt2 needs --tokenizer-dir: a folder with GPT-2's vocab.json or encoder.json and "
                    "merges.txt or vocab.bpe")
  return args


def prepare(args, tokenizer, temporary):
  text = Text(args.files, temporary)
  if text.size == 0:
    raise UserError("there is no text in %s" % ", ".join(text.names))
  start = validation_start(text, args.val_fraction)
  if args.val_fraction not in (0, 1) and start in (0, text.size):
    raise UserError("%d bytes of text are too few to give %g of them to validation; give more text, another "
                    "--val-fraction, or 0 for none" % (text.size, args.val_fraction))
  writers = []
  progress = Progress(text.size)
  for split, first, last in (("train", 0, start), ("val", start, text.size)):
    writer = ShardWriter(temporary, "%s_%s" % (args.name, split), args.shard_tokens)
    for read, tokens in tokenizer.tokens(text, first, last, args.errors):
      writer.write(tokens)
      progress.add(read)
    writer.close()
    if writer.counts:
      writers.append(writer)
    elif first < last:
      raise UserError("the text for %s, %d bytes, gives no tokens; give more text" % (split, last - first))
  progress.end()
  return writers


def existing_shards(args):
  splits = [split for split, unused in (("train", 1), ("val", 0)) if args.val_fraction != unused]
  pattern = re.compile(r"%s_(%s)_\d{6,}\.bin" % (re.escape(args.name), "|".join(splits)))
  return [os.path.join(args.out, name) for name in sorted(os.listdir(args.out)) if pattern.fullmatch(name)]


def main():
  args = parse_arguments()
  tokenizer = Bytes() if args.tokenizer == "bytes" else Gpt2(args.train, args.tokenizer_dir)
  try:
    os.makedirs(args.out, exist_ok=True)
    old = existing_shards(args)
    if old and not args.overwrite:
      raise UserError("%s exists; use --overwrite to replace the shards of this name, or another --name" % old[0])
    temporary = tempfile.mkdtemp(prefix=".tmp_prepare_", dir=args.out)
  except OSError as error:
    raise UserError("--out %s: %s" % (args.out, error.strerror))
  try:
    writers = prepare(args, tokenizer, temporary)
    written = {writer.name(index): count for writer in writers for index, count in enumerate(writer.counts)}
    for name in written:
      os.replace(os.path.join(temporary, name), os.path.join(args.out, name))
    for path in old:  # those that the new text no longer fills would be read along with the new ones
      if os.path.basename(path) not in written:
        os.remove(path)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  for name, count in written.items():
    print("%s  %s tokens" % (os.path.join(args.out, name), format(count, ",")))
  data = {writer.stem[len(args.name) + 1:]: os.path.join(args.out, writer.stem + "_*.bin") for writer in writers}
  print('for the configuration: "data": %s, "model": {"vocab": %d}' % (json.dumps(data), tokenizer.vocab))


if __name__ == "__main__":
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through finally, which removes the temporary folder
  run(main, "nothing was written")
