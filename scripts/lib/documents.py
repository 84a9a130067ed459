"""Files of documents: text, JSONL and Parquet, also in gzip or zstd. Python 3.8's own library only."""
from __future__ import annotations
import contextlib
import gzip
import itertools
import json
import os
import re
import subprocess
import sys
import zlib
from typing import BinaryIO, Iterator

from lib.common import UserError, parse_json, wide_encoding

MAGICS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", ".parquet": b"PAR1",
          ".xz": b"\xfd7zXZ", ".bz2": b"BZh", ".zip": b"PK\3\4"}
MARKER = b"<|endoftext|>"


def warn(said: str) -> None:
  print(f"prepare_text.py: warning: {said}", file=sys.stderr)


def kind_of(name: str) -> str:
  """The ending of a name, without that of its compression."""
  return os.path.splitext(re.sub(r"\.(gz|zst)$", "", name))[1]


@contextlib.contextmanager
def unpacked(name: str, stream: BinaryIO) -> Iterator[BinaryIO]:
  """The file without the compression that its name tells of."""
  if name.endswith(".gz"):
    try:
      with gzip.GzipFile(fileobj=stream) as whole:
        yield whole
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
      raise UserError(f"{name} is damaged, or not a gzip file: {error}")
  elif name.endswith(".zst"):
    pipe = subprocess.PIPE
    try:  # --long: some archives have windows beyond the default limit
      process = subprocess.Popen(["zstd", "-dcq", "--long=31"], stdin=stream, stdout=pipe, stderr=pipe)
    except OSError as error:
      raise UserError(f"{name} needs the program zstd: {error.strerror}; install it (apt-get install "
                      "zstd), or unpack the file")
    with process:
      yield process.stdout
      if process.wait() != 0:
        said = process.stderr.read().decode(errors="replace")
        said = re.sub(r"/\*stdin\*\\ ?: ", "", said).strip()
        raise UserError(f"{name} is damaged, or not a zstd file: {said}")
  else:
    yield stream


def listed(names: list[str]) -> str:
  return ", ".join('"%s"' % name for name in names[:20]) or "no fields"


def utf8(value: object, where: str, args, flag: str = "--field") -> bytes | None:
  """The text in the field that the flag names, as UTF-8; None if it is null and needs no answer."""
  field = args.fields[flag]
  if value is None and not args.answer_field:
    return None
  if not isinstance(value, str):
    said = json.dumps(value, default=str)[:40]
    raise UserError(f'{where}: "{field}" is {said}, not text; name the field that has the text with {flag}')
  try:
    return value.encode()
  except UnicodeEncodeError:  # JSON can write half of a surrogate pair
    if args.errors == "strict":
      raise UserError(f'{where}: "{field}" has half of a surrogate pair; correct it, or use --errors replace')
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", args.errors).encode()


def problem_of(error: ValueError | RecursionError) -> object:
  """What parse_json() raised, in short: without the line, which is one of many documents."""
  if isinstance(error, json.JSONDecodeError):
    return f"{error.msg}, column {error.colno}"
  return error


def without_field(record: object) -> str:
  """What a line of JSON is, or has, in place of the field that is needed."""
  if isinstance(record, dict):
    return f"has {listed(list(record))}"
  if isinstance(record, list):
    return "is an array; write each of its elements on a line of its own (jq -c '.[]')"
  return f"is {json.dumps(record)[:40]}"


def json_documents(name: str, stream: BinaryIO, args) -> Iterator[bytes | list[bytes]]:
  for number, line in enumerate(stream, 1):
    if line.isspace():
      continue
    where = f"{name}, line {number}"
    wide = wide_encoding(line)
    if wide:
      raise UserError(f"{where} is {wide} text; convert it to UTF-8 (iconv -f {wide} -t UTF-8)")
    try:
      record = parse_json(line.decode("utf-8", args.errors).lstrip("\ufeff"))  # a byte order mark
    except UnicodeDecodeError as error:
      raise UserError(f"{where} is not UTF-8 at byte {error.start} of the line: convert it (iconv -t "
                      "UTF-8) or use --errors replace")
    except (ValueError, RecursionError) as error:
      raise UserError(f"{where} is not JSON: {problem_of(error)}; every line must be a JSON object")
    for flag, field in args.fields.items():
      if not isinstance(record, dict) or field not in record:
        raise UserError(f'{where}: a JSON object with "{field}" is needed, but it '
                        f"{without_field(record)}; {flag} names the field with the text")
    args.unread.update((field, True) for field in record if field not in args.fields.values())
    parts = [utf8(record[field], where, args, flag) for flag, field in args.fields.items()]
    if args.answer_field and not parts[1]:
      raise UserError(f'{where}: the answer, "{args.answer_field}", is empty; write one, or remove the line')
    if args.answer_field and args.tokenizer != "bytes" and MARKER in b"".join(parts):
      raise UserError(f"{where} has {MARKER.decode()}; remove it: it separates documents")
    yield parts if args.answer_field else parts[0]


@contextlib.contextmanager
def parquet_file(name, stream):
  """pyarrow's, with its errors as ours."""
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError as error:
    raise UserError(f"{name}: {error}; {sys.executable} -m pip install pyarrow, or save it as JSONL")
  try:
    yield parquet.ParquetFile(stream, pre_buffer=False)
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
    raise UserError(f"{name} is damaged, or not a Parquet file: {error}")


def parquet_documents(name: str, stream: BinaryIO, args) -> Iterator[bytes]:
  with parquet_file(name, stream) as file:
    names = file.schema_arrow.names
    if args.field not in names:
      raise UserError(f'{name} has no column "{args.field}"; it has {listed(names)}; --field names '
                      "the one with the text")
    args.unread.update((each, True) for each in names if each != args.field)
    columns = (batch.column(0) for batch in file.iter_batches(batch_size=1000, columns=[args.field]))
    for number, value in enumerate(itertools.chain.from_iterable(columns), 1):
      where = f"{name}, row {number}"
      if value.is_valid and str(value.type) in ("string", "large_string"):
        try:
          yield value.as_buffer().to_pybytes().decode("utf-8", args.errors).encode()
        except UnicodeDecodeError as error:
          raise UserError(f'{where}: "{args.field}" is not UTF-8 ({error}); correct it, or use --errors replace')
      else:
        yield utf8(value.as_py(), where, args)


def looks_like(name: str, block: bytes) -> str:
  """What the first block of a file looks like, and what to do about it; "" if like text."""
  for ending, magic in MAGICS.items():
    if block.startswith(magic):
      known = ending in (".gz", ".zst", ".parquet")
      advice = "unpack it, or let its name end so" if known else "convert it to text"
      return f"begins like a file in the format {ending}; {advice}"
  if kind_of(name) == ".json" and block.lstrip()[:1] == b"[":
    return "seems to be a JSON array; for a document from each element make JSONL of it (jq -c '.[]')"
  wide = wide_encoding(block)
  if wide:
    return f"looks like {wide}; convert it to UTF-8 (iconv -f {wide} -t UTF-8)"
  line, newline, _ = block.partition(b"\n")
  if not newline or not line.startswith(b"{"):
    return ""
  try:
    fields = listed(list(json.loads(line)))
  except (ValueError, RecursionError):
    return ""
  return f"its first line is a JSON object, which has {fields}; --jsonl takes a document from each line"
