"""Files of documents: text, JSONL and Parquet, also packed by gzip or zstd. Python 3.8, standard library only."""
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

MAGICS = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd", ".parquet": b"PAR1", ".xz": b"\xfd7zXZ", ".bz2": b"BZh",
          ".zip": b"PK\3\4"}
MARKER = b"<|endoftext|>"


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
      raise UserError("%s is damaged, or not a gzip file: %s" % (name, error))
  elif name.endswith(".zst"):
    try:  # --long: some archives have windows beyond the default limit
      process = subprocess.Popen(["zstd", "-dcq", "--long=31"], stdin=stream, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
    except OSError as error:
      raise UserError("%s needs the program zstd: %s; install it (apt-get install zstd), or unpack the file" % (
          name, error.strerror))
    with process:
      yield process.stdout
      if process.wait() != 0:
        said = re.sub(r"/\*stdin\*\\ ?: ", "", process.stderr.read().decode(errors="replace")).strip()
        raise UserError("%s is damaged, or not a zstd file: %s" % (name, said))
  else:
    yield stream


def listed(names: list[str]) -> str:
  return ", ".join('"%s"' % name for name in names[:20]) or "no fields"


def utf8(value: object, where: str, args, flag: str = "--field") -> bytes | None:
  """The text of a document, in the field that the flag names, as UTF-8; None if it is null and no answer is needed."""
  field = args.fields[flag]
  if value is None and not args.answer_field:
    return None
  if not isinstance(value, str):
    raise UserError('%s: "%s" is %s, not text; name the field that has the text with %s' % (
        where, field, json.dumps(value, default=str)[:40], flag))
  try:
    return value.encode()
  except UnicodeEncodeError:  # JSON can write half of a surrogate pair
    if args.errors == "strict":
      raise UserError('%s: "%s" has half of a surrogate pair; correct it, or use --errors replace' % (where, field))
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", args.errors).encode()


def json_documents(name: str, stream: BinaryIO, args) -> Iterator[bytes | list[bytes]]:
  for number, line in enumerate(stream, 1):
    if line.isspace():
      continue
    where = "%s, line %d" % (name, number)
    wide = wide_encoding(line)
    if wide:
      raise UserError("%s is %s text; convert it to UTF-8 (iconv -f %s -t UTF-8)" % (where, wide, wide))
    try:
      record = parse_json(line.decode("utf-8", args.errors).lstrip("\ufeff"))  # a byte order mark
    except UnicodeDecodeError as error:
      raise UserError("%s is not UTF-8 at byte %d of the line: convert it (iconv -t UTF-8) or use --errors replace" % (
          where, error.start))
    except (ValueError, RecursionError) as error:
      at = "%s, column %d" % (error.msg, error.colno) if isinstance(error, json.JSONDecodeError) else error
      raise UserError("%s is not JSON: %s; every line must be a JSON object" % (where, at))
    for flag, field in args.fields.items():
      if not isinstance(record, dict) or field not in record:
        raise UserError('%s: a JSON object with "%s" is needed, but it %s; %s names the field with the text' % (
            where, field, "has " + listed(list(record)) if isinstance(record, dict) else
            "is an array; write each of its elements on a line of its own (jq -c '.[]')"
            if isinstance(record, list) else "is " + json.dumps(record)[:40], flag))
    args.unread.update((field, True) for field in record if field not in args.fields.values())
    parts = [utf8(record[field], where, args, flag) for flag, field in args.fields.items()]
    if args.answer_field and not parts[1]:
      raise UserError('%s: the answer, "%s", is empty; write one, or remove the line' % (where, args.answer_field))
    if args.answer_field and args.tokenizer != "bytes" and MARKER in b"".join(parts):
      raise UserError("%s has %s; remove it: it separates documents" % (where, MARKER.decode()))
    yield parts if args.answer_field else parts[0]


@contextlib.contextmanager
def parquet_file(name, stream):
  """pyarrow's, with its errors as ours."""
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError as error:
    raise UserError("%s: %s; %s -m pip install pyarrow, or save it as JSONL" % (name, error, sys.executable))
  try:
    yield parquet.ParquetFile(stream, pre_buffer=False)
  except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
    raise UserError("%s is damaged, or not a Parquet file: %s" % (name, error))


def parquet_documents(name: str, stream: BinaryIO, args) -> Iterator[bytes]:
  with parquet_file(name, stream) as file:
    if args.field not in file.schema_arrow.names:
      raise UserError('%s has no column "%s"; it has %s; --field names the one with the text' % (
          name, args.field, listed(file.schema_arrow.names)))
    args.unread.update((name, True) for name in file.schema_arrow.names if name != args.field)
    columns = (batch.column(0) for batch in file.iter_batches(batch_size=1000, columns=[args.field]))
    for number, value in enumerate(itertools.chain.from_iterable(columns), 1):
      where = "%s, row %d" % (name, number)
      if value.is_valid and str(value.type) in ("string", "large_string"):
        try:
          yield value.as_buffer().to_pybytes().decode("utf-8", args.errors).encode()
        except UnicodeDecodeError as error:
          raise UserError('%s: "%s" is not UTF-8 (%s); correct it, or use --errors replace' % (
              where, args.field, error))
      else:
        yield utf8(value.as_py(), where, args)


def warn_of_another_format(name: str, block: bytes) -> None:
  """Of a file that is taken as text, if its first block looks like something else."""
  warn = lambda what: sys.stderr.write("prepare_text.py: warning: %s is taken as text, but %s\n" % (name, what))
  for ending, magic in MAGICS.items():
    if block.startswith(magic):
      advice = "unpack it, or let its name end so" if ending in (".gz", ".zst", ".parquet") else "convert it to text"
      return warn("begins like a file in the format %s; %s" % (ending, advice))
  if kind_of(name) == ".json" and block.lstrip()[:1] == b"[":
    return warn("seems to be a JSON array; for a document from each element make JSONL of it (jq -c '.[]')")
  wide = wide_encoding(block)
  if wide:
    return warn("looks like %s; convert it to UTF-8 (iconv -f %s -t UTF-8)" % (wide, wide))
  line, newline, _ = block.partition(b"\n")
  try:
    fields = listed(list(json.loads(line))) if newline and line.startswith(b"{") else ""
  except ValueError:
    return
  if fields:
    warn("its first line is a JSON object, which has %s; --jsonl takes a document from each line" % fields)
