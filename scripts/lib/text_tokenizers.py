"""The tokenizers of prepare_text.py: bytes, a byte-level BPE by ./train --encode, any
tokenizer.json. Python 3.8, standard library; for a tokenizer.json the package tokenizers."""
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
from lib.documents import MARKER, warn

BLOCK = 4 << 20  # bytes of text
GROUP = 16 << 20  # bytes of documents that one job takes at once, seconds of its work

# Each has tokens(documents, args), which yields (bytes of text read, tokens as the bytes of uint16,
# lengths: the number of bytes of text behind each of these tokens, or None if it is 1 for all), and
# warn_of_joined(text, count) for the end, which says so where documents, `count` of them, have
# nothing between them. changes(split) says, and warns, whether the tokens made since it was last
# called hold less than the text. description: what X.json says of it.

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
    reach = len(MARKER)
    if count > 1 and any(MARKER not in text.read(max(start - reach, 0), start + reach)
                         for start in text.starts[1:-1]):
      print(f"{count} documents are joined with nothing between them: bytes have no token for that "
            "(--separator names one of a tokenizer.json); a model sees their ends only if the text itself has a sign")


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
    with self._start(subprocess.PIPE) as process:  # shows errors in the vocabulary at once
      self._finish(process)
    numbers, self.description = gpt2_vocabulary(directory)
    self.vocab, self.lengths = len(numbers), [0] * len(numbers)
    for token, number in numbers.items():  # written with a character for each byte
      self.lengths[number] = 0 if token == MARKER.decode() else len(token)

  def _start(self, output):
    try:
      return subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE)
    except OSError as error:
      raise UserError(f"--train {self.command[0]} cannot be run: {error.strerror}; build it with make")

  @staticmethod
  def _finish(process):
    """Ends the program's input and waits for it."""
    try:
      process.stdin.close()
    except BrokenPipeError:
      pass  # its exit code says why
    said = process.stderr.read().decode(errors="replace")
    if process.wait() != 0:
      kind = UserError if process.returncode == 2 else Failure
      raise kind(f"{' '.join(process.args)}: exit {process.returncode}: {said.strip()}")
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
    """A document's tokens do not depend on others, so groups give those of all, in their order."""
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
      tokens = memoryview(block).cast("H")
      yield 0, block, array.array("H", map(self.lengths.__getitem__, tokens))

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


class TokenizerJson:
  """Any that the package tokenizers reads. It may decode to other text, so offsets count bytes."""

  def __init__(self, path, separator):
    self.path, self.texts = path, 0
    # Of a split: tokens and unknown ones, characters and those that decoding loses; special tokens.
    self.counts, self.special_counts = collections.Counter(), collections.Counter()
    about, crc32, off = self._load(path)
    if off:
      warn(f"{path}: used without its {' and '.join(off)}, so that a text always gets the same "
           "tokens, and all of them")
    self.vocab = max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 1 <= self.vocab <= 1 << 16:
      raise UserError(f"--tokenizer {path} has {self.vocab} tokens, but shards hold 1 to 65536; use another")
    self.separator = [self.tokenizer.token_to_id(separator)] if separator else []
    if self.separator == [None]:
      raise UserError(f"--separator {separator} is not a token of {path}; name one that is")
    self.description = {"tokenizer": os.path.basename(path), "vocab": self.vocab, "crc32": crc32,
                        "end_of_text": self.separator[0] if separator else None}
    model = about.get("model") or {}
    self.unknown = model["unk_id"] if "unk_id" in model else model.get("unk_token")
    if isinstance(self.unknown, str):
      self.unknown = self.tokenizer.token_to_id(self.unknown)
    added = about.get("added_tokens", [])
    self.special = {token["id"] for token in added if token["special"]} - {self.unknown}
    self.special.update(self.separator)
    special, plain = (self.tokenizer.encode_batch([""], add_special_tokens=add)[0].ids for add in (True, False))
    self.separates = bool(self.separator) or len(special) > len(plain)

  def _load(self, path):
    """The file's JSON, its checksum, and the names of what it asks for that is turned off."""
    try:
      from tokenizers import Tokenizer
    except ImportError as error:
      raise UserError(f"--tokenizer {path}: {error}; {sys.executable} -m pip install tokenizers")
    try:
      with open(path, "rb") as file:
        data = file.read()
      text = decoded(data, path)
      about = parse_json(text)  # the package takes the last of a key given twice, and no mark
      self.tokenizer = Tokenizer.from_str(text)
      model, changed = about.get("model") or {}, {}
      random = [key for key in ("dropout", "alpha", "nbest_size") if model.get(key)]
      if random:
        changed["model"] = {**model, **dict.fromkeys(random)}
      if not about.get("decoder") and '"ByteLevel"' in json.dumps(about.get("pre_tokenizer")):
        changed["decoder"] = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
      if changed:
        self.tokenizer = Tokenizer.from_str(json.dumps({**about, **changed}))
    except Exception as error:  # the package has no class of its own
      raise UserError(f"--tokenizer {path} cannot be used: {error}; name a tokenizer.json")
    self.tokenizer.no_truncation()  # the file may ask for both
    self.tokenizer.no_padding()
    off = random + [key for key in ("truncation", "padding") if about.get(key)]
    return about, "%08x" % zlib.crc32(data), off

  def warn_of_joined(self, text, count):
    if self.texts > 1 and not self.separates:
      warn(f"{self.texts} documents are joined with nothing between them, as {self.path} adds no "
           "token to a text; --separator TOKEN puts one of its tokens before each")

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
      self.counts.update(tokens=len(written), unknown=len(written) - len(known[-1]))
      self.special_counts.update(filter(self.special.__contains__, written))
    for text, given_back in zip(texts, self.tokenizer.decode_batch(known, skip_special_tokens=False)):
      self.counts["characters"] += len(text)
      if text != given_back:  # what decoding adds, such as spaces, hides nothing
        lost = collections.Counter(text) - collections.Counter(given_back)
        self.counts["lost"] += sum(lost.values())

  def changes(self, split):
    counts, specials = self.counts, self.special_counts
    self.counts, self.special_counts = collections.Counter(), collections.Counter()
    if specials:
      name = self.tokenizer.id_to_token
      each = ", ".join(f"{name(number)}: {count}" for number, count in sorted(specials.items()))
      begins = ""
      if self.separator and specials[self.separator[0]]:
        begins = f"; each {name(self.separator[0])} begins a document"
      warn(f"{split}: the text itself has special tokens of {self.path} ({each}), which become "
           f"these tokens{begins}; remove those that are not meant as such")
    if not counts["unknown"] and not counts["lost"]:
      return False
    unknown = 100 * counts["unknown"] / max(counts["tokens"], 1)
    lost = 100 * counts["lost"] / counts["characters"]
    warn(f"{split}: {self.path} cannot write all of this text: {unknown:.3g}% of its tokens are "
         f"unknown, and {lost:.3g}% of its characters are not given back by decoding; X.json says "
         "no number of bytes, so bits_per_byte will be null")
    return True

  def _encode(self, texts):
    self.texts += len(texts)
    try:
      encodings = self.tokenizer.encode_batch(texts, add_special_tokens=not self.separator)
    except Exception as error:
      raise UserError(f"--tokenizer {self.path} cannot encode this text: {error}")
    self._count(texts, encodings)
    tokens, lengths = array.array("H"), array.array("Q")
    unread = 0  # bytes of text without a token so far
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
