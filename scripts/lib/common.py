"""Shared by several scripts: ending with a message, reading flags and texts, folders for what they
write, and ./train. Standard library only."""
from __future__ import annotations
import argparse
import array
import codecs
import contextlib
import functools
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zlib
from typing import Callable, Iterable, Iterator, NoReturn


def stop(message: object, code: int = 2) -> NoReturn:
  """Ends the script. code: 2 for what the user can fix, 1 for what failed."""
  print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
  sys.exit(code)


def end_by(number: int) -> None:
  """Ends the script as the signal does by default."""
  signal.signal(number, signal.SIG_DFL)
  os.kill(os.getpid(), number)


class UserError(Exception):
  """Something that the user can fix."""


class Failure(Exception):
  """Something that failed."""


class ArgumentParser(argparse.ArgumentParser):
  """argparse's, which shows the description as it is written, and refuses an empty value ("--out=")
  where it would take any text."""

  def __init__(self, *args, **options):
    options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
    super().__init__(*args, **options)
    self.register("type", None, self._not_empty)

  def add_subparsers(self, **options):
    made = super().add_subparsers(**options)
    made.type = str  # whose values are all that follows: the parser of the command names the flag
    return made

  @staticmethod
  def _not_empty(value):
    if value == "":
      raise argparse.ArgumentTypeError("the value is empty; give one, or leave the flag out")
    return value


def plain_name(text: str) -> str:
  """For argparse: a name that is safe in file patterns and in commands of a shell."""
  if not re.fullmatch(r"\w[\w.+-]*", text):
    raise argparse.ArgumentTypeError(f"{text!r}: use letters, digits and _, behind them . + - as well")
  return text


def wide_encoding(data: bytes) -> str:
  """The encoding if the bytes begin like text in it, else "": with its mark, or mostly with NUL
  bytes where letters of ASCII have them. wide_encoding() in base/file.h is the same."""
  if len(data) < 4:  # not one character after a mark, or two without
    return ""
  if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
    return "UTF-32"
  if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
    return "UTF-16"
  data = data[:4096]
  mostly = "".join("0" if 8 * data[at::4].count(0) > len(data) else "x" for at in range(4))
  names = {"x0x0": "UTF-16LE", "0x0x": "UTF-16BE", "x000": "UTF-32LE", "000x": "UTF-32BE"}
  return names.get(mostly, "")


def decoded(data: bytes, name: str) -> str:
  """UTF-8 as text, without its mark (BOM). A UserError if it is wide, a ValueError if it is neither."""
  if wide := wide_encoding(data):
    raise UserError(f"{name} is {wide} text; convert it to UTF-8 (iconv -f {wide} -t UTF-8)")
  return data.decode("utf-8-sig")


def unique(pairs: list[tuple]) -> dict:
  """An object of JSON. A ValueError if a key is given twice."""
  found = {}
  for key, value in pairs:
    if key in found:
      raise ValueError(f"the key {json.dumps(key)[:80]} is given twice in one object; remove one")
    found[key] = value
  return found


def parse_json(text: str) -> object:
  """What users wrote as JSON. A ValueError if it is none or has a key twice; a RecursionError."""
  def integer(digits):
    return int(digits) if len(digits) <= 4300 else float(digits)  # Python refuses more digits
  return json.loads(text, object_pairs_hook=unique, parse_int=integer)


def read_json(path: str, what: str = "JSON") -> object:
  """The content of a JSON file. what: its kind, for the error about a damaged file."""
  try:
    with open(path, "rb") as file:
      return parse_json(decoded(file.read(), path))
  except OSError as error:
    raise UserError(f"{path}: {error.strerror}")
  except (ValueError, RecursionError) as error:
    raise UserError(f"{path} is not {what}: {error}")


def end_by_exception(number: int, _) -> None:
  """For signals: raises SystemExit, and again every 0.1 s until it is handled. Callbacks of weak
  references and some C modules lose exceptions, and importing a module runs both. Code that already
  handles it, as `finally`, continues."""
  handled = sys.exc_info()[1]
  while handled:
    if isinstance(handled, SystemExit):
      return
    handled = handled.__context__
  signal.signal(signal.SIGALRM, lambda *_: end_by_exception(number, None))
  signal.setitimer(signal.ITIMER_REAL, 0.1)
  sys.exit(128 + number)


def run(main: Callable, interrupted: str) -> None:
  """Runs main() and prints its errors as messages. interrupted: what Ctrl-C leaves behind. Other
  signals end it through `finally`, which removes temporary folders, with code 128 + signal."""
  for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup, nor sweep.py's own
      signal.signal(number, end_by_exception)
  try:
    try:
      main()
    finally:
      signal.setitimer(signal.ITIMER_REAL, 0)
      sys.stdout.flush()
  except BrokenPipeError:  # the reader of its output (head) has ended
    end_by(signal.SIGPIPE)
  except UserError as error:
    stop(error)
  except (Failure, OSError) as error:
    stop(f"failed: {error}", 1)
  except KeyboardInterrupt:
    script = os.path.basename(sys.argv[0])
    print(f"{script}: interrupted; {interrupted}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
      sys.stdout.flush()
    end_by(signal.SIGINT)  # only then does a shell end the loop that runs this


class Progress:
  """Of bytes or steps: a line on standard error; rewritten on a terminal, else one each 30 s."""

  def __init__(self, total, title="", unit="MB/s", of=1e6):
    """total: 0 if not known yet, which shows nothing. unit, of: of the speed, and its size."""
    self.total, self.title, self.unit, self.of = total, title, unit, of
    self.done, self.moved = 0, 0  # moved: now, not in an earlier attempt
    self.terminal = sys.stderr.isatty()
    self.begin = self.shown = time.monotonic()

  def add(self, amount):
    self.done += amount
    self.moved += amount
    now = time.monotonic()
    if not self.total or now - self.shown < (0.2 if self.terminal else 30):
      return
    self.shown = now
    speed = max(self.moved, 1) / max(now - self.begin, 1e-3)
    left = (self.total - self.done) / speed
    share = 100 * self.done / self.total
    text = f"{self.title}{share:5.1f}% | {speed / self.of:.1f} {self.unit} | "
    text += "eta %d:%02d:%02d" % (left // 3600, left % 3600 // 60, left % 60)
    self._write(f"\r{text}   " if self.terminal else text + "\n")

  def end(self):
    if self.terminal:
      self._write("\r" + " " * 60 + "\r")

  def say(self, text):
    self.end()
    self._write(text + "\n")

  @staticmethod
  def _write(text):
    sys.stderr.write(text)
    sys.stderr.flush()


def check_output(flag: str, path: str, inputs: Iterable[str] = ()) -> None:
  """A UserError unless the flag's file can be written and is no input. Leaves nothing behind."""
  for given in filter(os.path.exists, filter(None, inputs)):
    if os.path.exists(path) and os.path.samefile(path, given):
      raise UserError(f"{flag} {path}: would overwrite what is read; name another file")
  folder = os.path.dirname(path) or "."
  if not os.path.isdir(folder):
    raise UserError(f"{flag} {path}: there is no folder {folder}; create it, or name another file")
  known = os.path.lexists(path)
  try:
    open(path, "ab").close()
  except OSError as error:
    raise UserError(f"{flag} {path}: {error.strerror}; name another file")
  if not known:
    os.remove(path)


@contextlib.contextmanager
def output_folder(folder: str, flag: str = "--out") -> Iterator[None]:
  """Makes it for the block; afterwards removes what it made, if empty. A UserError if it cannot."""
  made, path = [], os.path.abspath(folder)
  while not os.path.lexists(path):
    made.append(path)
    path = os.path.dirname(path)
  try:
    try:
      os.makedirs(folder, exist_ok=True)
    except OSError as error:
      raise UserError(f"{flag} {folder}: {error.strerror}")
    yield
  finally:
    for path in made:
      with contextlib.suppress(OSError):  # not empty
        os.rmdir(path)


@contextlib.contextmanager
def whole_files(folder: str, pattern: re.Pattern, overwrite: bool,
                what: str = "files of this name, or another folder (--out)") -> Iterator[str]:
  """A temporary folder. When the block ends without an error, its files move to `folder` and
  replace all whose names match the pattern; before that nothing changes there. A UserError if some
  match and overwrite is false. what: the end of its advice to use --overwrite."""
  with output_folder(folder):
    # The name first: a signal as soon as the folder is there must not leave it behind.
    temporary = os.path.join(folder, f".tmp_prepare_{secrets.token_hex(8)}")
    try:
      try:
        old = sorted(filter(pattern.fullmatch, os.listdir(folder)))
        if old and not overwrite:
          first = os.path.join(folder, old[0])
          raise UserError(f"{first} exists; use --overwrite to replace the {what}")
        os.mkdir(temporary, mode=0o700)
      except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}")
      yield temporary
      for name in old:  # all of them first: if this is stopped, old and new do not mix
        os.remove(os.path.join(folder, name))
      for name in sorted(os.listdir(temporary)):
        os.replace(os.path.join(temporary, name), os.path.join(folder, name))
    finally:
      shutil.rmtree(temporary, ignore_errors=True)


@functools.cache
def say_once(text: str) -> None:
  """Prints the warnings of a program that is run several times."""
  sys.stderr.write(text)


def gpt2_vocabulary(directory: str) -> tuple[dict[str, int], dict]:
  """{token: number} of a folder with a tokenizer in GPT-2's files, one that ./train accepts, and
  what X.json says of it (data/tokenizer.h)."""
  def path(*names):
    paths = [os.path.join(directory, name) for name in names]
    return next(filter(os.path.exists, paths))

  numbers = read_json(path("vocab.json", "encoder.json"))
  with open(path("merges.txt", "vocab.bpe"), "rb") as file:
    text = file.read().removeprefix(codecs.BOM_UTF8)
  lines = [line.rstrip(b"\r") for line in text.split(b"\n")]
  lines = lines[lines[0].startswith(b"#version"):]
  content = [*map(str.encode, sorted(numbers, key=numbers.get)), *filter(None, lines)]
  crc32 = zlib.crc32(b"".join(line + b"\n" for line in content))
  return numbers, {"tokenizer": "gpt2", "vocab": len(numbers),
                   "end_of_text": numbers.get("<|endoftext|>"), "crc32": f"{crc32:08x}"}


BYTES = {"tokenizer": "bytes", "vocab": 256, "end_of_text": None}  # what X.json says of bytes


def description(args: argparse.Namespace) -> dict:
  """What X.json says of the tokenizer that args.tokenizer and args.tokenizer_dir name."""
  return BYTES if args.tokenizer == "bytes" else gpt2_vocabulary(args.tokenizer_dir)[1]


def encode(args: argparse.Namespace, texts: list[str]) -> list[array.array]:
  """The tokens of each text, none of them empty, by args.tokenizer, args.tokenizer_dir and
  args.train. Those of GPT-2 begin with the token that separates documents."""
  if args.tokenizer == "bytes":
    return [array.array("H", list(text.encode())) for text in texts]
  if not args.tokenizer_dir:
    raise UserError("--tokenizer gpt2 needs --tokenizer-dir: a folder with GPT-2's vocabulary files")
  command = [os.path.abspath(args.train), "--encode", args.tokenizer_dir]
  joined = "<|endoftext|>".join(["", *texts]).encode()
  try:
    done = subprocess.run(command, input=joined, capture_output=True)
  except OSError as error:
    raise UserError(f"--train {command[0]} cannot be run: {error.strerror}; build it with make")
  said = done.stderr.decode(errors="replace")
  if done.returncode:
    kind = UserError if done.returncode == 2 else Failure
    raise kind(f"{shlex.join(command)}: exit {done.returncode}: {said.strip()}")
  say_once(said)
  tokens = array.array("H", done.stdout)
  starts = [at for at, token in enumerate(tokens) if token == tokens[0]] + [len(tokens)]
  return [tokens[start:end] for start, end in zip(starts, starts[1:])]


def train(program: str, *flags: str, settings: dict = {}, folder: str | None = None) -> str:
  """Runs ./train in a folder, with --set for each setting; its output. Ends the script if it fails."""
  flags = [*flags]
  for key, value in settings.items():
    flags += "--set", f"{key}={value}"
  command = [os.path.abspath(program), *flags]
  try:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
  except OSError as error:
    stop(f"{program} cannot be run: {error.strerror}; "
         "build it with make, or name it with --train")
  if done.returncode:
    said = f"{shlex.join([program, *flags])}: exit {done.returncode}\n{done.stderr}"
    stop(said, 2 if done.returncode == 2 else 1)
  return done.stdout


def metrics_of(folder: str, name: str) -> list[dict]:
  """The lines of the metrics.jsonl of the run `name` that ./train made in a folder."""
  with open(os.path.join(folder, "runs", name, "metrics.jsonl"), encoding="utf-8") as lines:
    return [json.loads(line) for line in lines]


def rows(program: str, *flags: str, **options) -> dict[str, tuple[str, str]]:
  """{key: (value as ./train writes it, its origin and whether it may change)} of every setting that
  ./train makes of flags, except those that are chosen when a run starts (auto)."""
  result = {}
  for line in train(program, *flags, "--print-config", **options).splitlines():
    key, rest = line.split(None, 1)
    with contextlib.suppress(ValueError):
      _, end = json.JSONDecoder().raw_decode(rest)
      result[key] = rest[:end], rest[end:].strip()
  return result


def nested(rows: dict[str, tuple[str, str]]) -> dict:
  """{"model": {"layers": 12, ...}, ...}: the values of rows()."""
  result = {}
  for key, (value, _) in rows.items():
    *path, last = key.split(".")
    place = result
    for part in path:
      place = place.setdefault(part, {})
    place[last] = json.loads(value)
  return result


def settings(program: str, *flags: str, **options) -> dict:
  return nested(rows(program, *flags, **options))


def variants(program: str) -> list[str]:
  """The names that attention.variant can have, in the order of ./train --help."""
  section = train(program, "--help").partition("\nVariants (attention.variant)")[2]
  return re.findall(r"^  (\w+) ", section, re.MULTILINE)
