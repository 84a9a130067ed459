"""The tokenizers of prepare_text.py: bytes, a byte-level BPE by ./train --encode, any tokenizer.json. Python 3.8,
standard library; for a tokenizer.json the package tokenizers."""
import array
import codecs
import collections
import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import zlib

from lib.common import BYTES, Failure, UserError, decoded, gpt2_vocabulary, parse_json, say_once
from lib.documents import MARKER

BLOCK = 4 << 20  # bytes of text
GROUP = 16 << 20  # bytes of documents that one job takes at once, seconds of its work

# Each has tokens(documents, args), which yields (bytes of text read, tokens as the bytes of uint16, lengths: the
# number of bytes of text behind each of these tokens, or None if it is 1 for all), and warn_of_joined(text, count)
# for the end, which says so where documents, `count` of them, have nothing between them.
# changes(split) says, and warns, whether the tokens made since it was last called hold less than the text.
# description: what X.json says of it.

class Bytes:
  vocab, description = BYTES["vocab"], BYTES

  @staticmethod
  def tokens(documents, args):
    for _, _, _, blocks in documents:
      for block in blocks:
        wide = bytearray(2 * len(block))
        wide[::2] = block
        yield len(block), wide, None

  @staticmethod
  def changes(split):
    return False

  @staticmethod
  def warn_of_joined(text, count):
    marked = lambda start: MARKER in text.read(max(start - len(MARKER), 0), start + len(MARKER))
    if count > 1 and not all(map(marked, text.starts[1:-1])):
      print("%d documents are joined with nothing between them: bytes have no token for that (--separator names one of "
            "a tokenizer.json); a model sees their ends only if the text itself has a sign" % count)


def groups(documents):
  """Lists of documents that follow one another, of GROUP bytes or more but for the last."""
  group, size = [], 0
  for document in documents:
    group.append(document)
    size += document[2]
    if size >= GROUP:
      yield group
      group, size = [], 0
  if group:
    yield group


class Gpt2:
  """A byte-level BPE in GPT-2's files, by ./train --encode."""

  def __init__(self, program, directory):
    self.command = [os.path.abspath(program), "--encode", directory]
    with self._start(subprocess.PIPE) as process:  # an error in the vocabulary shows before any text is read
      self._finish(process)
    numbers, self.description = gpt2_vocabulary(directory)
    self.vocab, self.lengths = len(numbers), [0] * len(numbers)
    for token, number in numbers.items():  # written with a character for each byte
      self.lengths[number] = 0 if token == MARKER.decode() else len(token)

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
    said = process.stderr.read().decode(errors="replace")
    if process.wait() != 0:
      raise (UserError if process.returncode == 2 else Failure)("%s: exit %d: %s" % (
          " ".join(process.args), process.returncode, said.strip()))
    say_once(said)

  def tokens(self, documents, args):
    if args.jobs > 1:
      yield from self._tokens_by_jobs(documents, args)
      return
    with tempfile.TemporaryFile(dir=args.out) as output:
      for read in self._encode(documents, args, output):
        yield read, b"", None
      yield from self._parts(output)

  def _tokens_by_jobs(self, documents, args):
    """A document's tokens do not depend on the others, so groups of documents give those of all, in their order."""
    stopped = threading.Event()

    def encoded(group):
      output, read = tempfile.TemporaryFile(dir=args.out), 0
      for part in self._encode(group, args, output):
        read += part
        if stopped.is_set():
          break
      return read, output

    def result(future):
      read, output = future.result()
      with output:
        yield read, b"", None
        yield from self._parts(output)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
      waiting = collections.deque()
      try:
        for group in groups(documents):
          waiting.append(pool.submit(encoded, group))
          if len(waiting) > args.jobs:
            yield from result(waiting.popleft())
        while waiting:
          yield from result(waiting.popleft())
      finally:
        stopped.set()

  def _encode(self, documents, args, output):
    """Writes the tokens to a file. Yields the bytes of text that it has read."""
    with self._start(output) as process:
      try:
        for part in self._utf8(documents, args.errors):
          process.stdin.write(part)
          yield len(part)
      except BrokenPipeError:
        self._finish(process)  # says why, if it knows
        raise Failure("%s ended before it had read the text" % process.args[0])
      self._finish(process)

  def _parts(self, output):
    output.seek(0)
    for block in iter(lambda: output.read(BLOCK), b""):
      yield 0, block, array.array("H", map(self.lengths.__getitem__, memoryview(block).cast("H")))

  @staticmethod
  def _utf8(documents, errors):
    """The text as UTF-8, with a marker before every document."""
    for name, offset, _, blocks in documents:
      yield MARKER
      decoder = codecs.getincrementaldecoder("utf-8")(errors)
      for block in itertools.chain(blocks, [b""]):
        try:
          yield decoder.decode(block, final=not block).encode()
        except UnicodeDecodeError as error:
          at = offset - len(decoder.getstate()[0]) + error.start
          raise UserError(f"{name} is not UTF-8 at byte {at}: convert it (iconv -t UTF-8) or use --errors replace")
        offset += len(block)

  changes = staticmethod(Bytes.changes)

  def warn_of_joined(self, text, count):
    """Never: a token is before every document."""


class Counts:
  """Of a split: tokens of its text, unknown ones, special ones by their number; characters, and those of them that
  decoding does not give back."""

  def __init__(self):
    self.tokens = self.unknown = self.characters = self.lost = 0
    self.special = collections.Counter()


class TokenizerJson:
  """Any that the package tokenizers reads. It may not decode to the same text, so bytes are counted by offsets."""

  def __init__(self, path, separator):
    try:
      from tokenizers import Tokenizer
    except ImportError as error:
      raise UserError("--tokenizer %s: %s; %s -m pip install tokenizers" % (path, error, sys.executable))
    try:
      with open(path, "rb") as file:
        data = file.read()
      text = decoded(data, path)
      about = parse_json(text)  # the package takes the last of a key given twice, and no mark
      self.tokenizer = Tokenizer.from_str(text)
      model = about.get("model") or {}
      random = [key for key in ("dropout", "alpha", "nbest_size") if model.get(key)]
      changed = {"model": {**model, **dict.fromkeys(random)}} if random else {}
      if not about.get("decoder") and '"ByteLevel"' in json.dumps(about.get("pre_tokenizer")):
        changed["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
      if changed:
        self.tokenizer = Tokenizer.from_str(json.dumps({**about, **changed}))
    except Exception as error:  # the package has no class of its own
      raise UserError("--tokenizer %s cannot be used: %s; name a tokenizer.json" % (path, error))
    self.path, self.counts = path, Counts()
    self.tokenizer.no_truncation()  # the file may ask for both
    self.tokenizer.no_padding()
    off = random + [key for key in ("truncation", "padding") if about.get(key)]
    if off:
      print("prepare_text.py: warning: %s: used without its %s, so that a text always gets the same tokens, and "
            "all of them" % (path, " and ".join(off)), file=sys.stderr)
    self.vocab = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 1 <= self.vocab <= 1 << 16:
      raise UserError("--tokenizer %s has %d tokens, but shards hold 1 to 65536; use another" % (path, self.vocab))
    self.separator = [self.tokenizer.token_to_id(separator)] if separator else []
    if self.separator == [None]:
      raise UserError("--separator %s is not a token of %s; name one that is" % (separator, path))
    self.description = {"tokenizer": os.path.basename(path), "vocab": self.vocab, "crc32": "%08x" % zlib.crc32(data),
                        "end_of_text": self.separator[0] if separator else None}
    unknown = model.get("unk_token") if "unk_id" not in model else model["unk_id"]
    self.unknown = self.tokenizer.token_to_id(unknown) if isinstance(unknown, str) else unknown
    self.special = {token["id"] for token in about.get("added_tokens", []) if token["special"]} - {self.unknown}
    self.special.update(self.separator)
    self.texts = 0
    special, plain = (self.tokenizer.encode_batch([""], add_special_tokens=add)[0].ids for add in (True, False))
    self.separates = bool(self.separator) or len(special) > len(plain)

  def warn_of_joined(self, text, count):
    if self.texts > 1 and not self.separates:
      print("prepare_text.py: warning: %d documents are joined with nothing between them, as %s adds no token to "
            "a text; --separator TOKEN puts one of its tokens before each" % (self.texts, self.path), file=sys.stderr)

  def tokens(self, documents, args):
    texts, read = [], 0
    for document in itertools.chain(documents, [None]):
      if document:
        whole = b"".join(Gpt2._utf8([document], args.errors)).decode()
        read += len(whole) - len(MARKER)
        texts += filter(None, whole.split(MARKER.decode()))
      if read and (read >= BLOCK or not document):
        yield (read, *self._encode(texts))
        texts, read = [], 0

  def _count(self, texts, encodings):
    known = []
    for encoding in encodings:
      written = [number for number, added in zip(encoding.ids, encoding.special_tokens_mask) if not added]
      known.append([number for number in written if number != self.unknown])
      self.counts.tokens += len(written)
      self.counts.unknown += len(written) - len(known[-1])
      self.counts.special.update(filter(self.special.__contains__, written))
    for text, given_back in zip(texts, self.tokenizer.decode_batch(known, skip_special_tokens=False)):
      self.counts.characters += len(text)
      if text != given_back:  # what decoding adds, such as spaces, hides nothing
        self.counts.lost += sum((collections.Counter(text) - collections.Counter(given_back)).values())

  def changes(self, split):
    counts, self.counts = self.counts, Counts()
    warn = lambda said: print("prepare_text.py: warning: %s: %s" % (split, said), file=sys.stderr)
    if counts.special:
      warn("the text itself has special tokens of %s (%s), which become these tokens%s; remove those that are not "
           "meant as such" % (self.path, ", ".join("%s: %d" % (self.tokenizer.id_to_token(number), count)
                                                   for number, count in sorted(counts.special.items())),
                              "; each %s begins a document" % self.tokenizer.id_to_token(self.separator[0])
                              if counts.special[self.separator[0] if self.separator else None] else ""))
    if not counts.unknown and not counts.lost:
      return False
    warn("%s cannot write all of this text: %.3g%% of its tokens are unknown, and %.3g%% of its characters are not "
         "given back by decoding; X.json says no number of bytes, so bits_per_byte will be null" % (
             self.path, 100 * counts.unknown / counts.tokens if counts.tokens else 0,
             100 * counts.lost / counts.characters))
    return True

  def _encode(self, texts):
    self.texts += len(texts)
    try:
      encodings = self.tokenizer.encode_batch(texts, add_special_tokens=not self.separator)
    except Exception as error:
      raise UserError("--tokenizer %s cannot encode this text: %s" % (self.path, error))
    self._count(texts, encodings)
    tokens, lengths, unread = array.array("H"), array.array("Q"), 0  # unread: bytes of text without a token so far
    for text, encoding in zip(texts, encodings):
      at, first = 0, len(tokens)
      tokens.extend(self.separator + encoding.ids)
      lengths.extend([0] * len(self.separator))
      for _, end in encoding.offsets:  # in characters, which several tokens may share
        lengths.append(unread + len(text[at:end].encode()))
        at, unread = max(at, end), 0
      unread += len(text[at:].encode())
      if len(tokens) > first:
        lengths[-1] += unread
        unread = 0
    return tokens.tobytes(), lengths
