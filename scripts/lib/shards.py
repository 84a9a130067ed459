"""Shards, label files (data/shards.h) and safetensors files. Standard library only."""
from __future__ import annotations
import array
import collections
import json
import os
import re
import struct
import sys

from lib.common import UserError

MAGIC, LABEL_MAGIC, VERSION, HEADER_BYTES = 20240520, 20261101, 1, 1024
NO_LABEL = 65535
TYPES = {"tokens": "H", "labels": "H", "values": "f"}  # of a file: uint16, or float32 labels


def header(kind: str, count: int, columns: int = 1) -> bytes:
  """The header of a file with `count` tokens, or with `columns` labels for each."""
  fields = [MAGIC, VERSION, count]
  if kind != "tokens":
    fields = [LABEL_MAGIC, VERSION, count, 1 if kind == "labels" else 2, columns]
  return struct.pack("<%di" % len(fields), *fields).ljust(HEADER_BYTES, b"\0")


class Writer:
  """Writes a file piece by piece. The header comes last, so a file that was cut short is none."""

  def __init__(self, path, kind, columns=1):
    self.file, self.kind, self.columns = open(path, "wb"), kind, columns
    self.file.write(bytes(HEADER_BYTES))
    self.write = self.file.write  # of bytes, or an array of the right type

  def close(self):
    size = array.array(TYPES[self.kind]).itemsize * self.columns
    count = (self.file.tell() - HEADER_BYTES) // size
    self.file.seek(0)
    self.file.write(header(self.kind, count, self.columns))
    self.file.flush()
    os.fsync(self.file.fileno())
    self.file.close()


def write(path: str, kind: str, values: list[float], columns: int = 1) -> None:
  writer = Writer(path, kind, columns)
  writer.write(array.array(TYPES[kind], values))
  writer.close()


def write_description(shard: str, tokens: int, size: int | None, about: dict) -> None:
  """Writes X.json of a shard X.bin: its tokens, bytes of text (None: unknown), what made them."""
  with open(shard[:-len("bin")] + "json", "w", encoding="utf-8") as file:
    json.dump({"tokens": tokens, "bytes": size, **about}, file)
    file.write("\n")


def describe(folder: str, name: str, about: dict) -> None:
  """Writes the X.json of the shards NAME_train_*.bin and NAME_val_*.bin, whose tokens are of no
  text: which tokenizer, or what else, made them."""
  shard = re.compile(re.escape(name) + r"_(train|val)_\d{6}\.bin")
  for file in filter(shard.fullmatch, os.listdir(folder)):
    path = os.path.join(folder, file)
    write_description(path, (os.path.getsize(path) - HEADER_BYTES) // 2, None, about)


def size_by_header(start: bytes) -> int:
  """The size in bytes of the shard that begins so. A ValueError if it is none."""
  magic, version, count = struct.unpack("<3i", start[:12].ljust(12))
  if len(start) < HEADER_BYTES or magic != MAGIC or version != VERSION or count < 0:
    raise ValueError("is not a token shard: it begins with %r" % start[:16])
  return HEADER_BYTES + 2 * count


def tokens(path: str) -> array.array:
  """All tokens of a shard, as an array."""
  with open(path, "rb") as file:
    data = file.read()
  try:
    return array.array("H", data[HEADER_BYTES:size_by_header(data)])
  except ValueError as error:
    raise UserError(f"{path} {error}")


def warn_of_repeats(folder: str, name: str, length: int) -> None:
  """Counts the samples of `length` tokens in NAME_val_*.bin that training has too."""
  def samples(split):
    for path in sorted(os.listdir(folder)):
      if path.startswith(f"{name}_{split}_") and path.endswith(".bin"):
        with open(os.path.join(folder, path), "rb") as file:
          file.seek(HEADER_BYTES)
          while len(sample := file.read(2 * length)) == 2 * length:
            yield sample

  val = collections.Counter(samples("val"))
  seen = sum(val.pop(sample, 0) for sample in samples("train"))
  if seen:
    print(f"{os.path.basename(sys.argv[0])}: warning: {seen} of {seen + sum(val.values())} "
          "validation samples are in training too, where a model may just remember them; make "
          "larger samples, or fewer for training", file=sys.stderr)


def read_safetensors(path: str) -> dict[str, tuple[str, list[int], bytes]]:
  """{name: (dtype, shape, bytes)}"""
  with open(path, "rb") as file:
    tensors = json.loads(file.read(*struct.unpack("<Q", file.read(8))))
    data = file.read()
  tensors.pop("__metadata__", None)
  return {name: (tensor["dtype"], tensor["shape"], data[slice(*tensor["data_offsets"])])
          for name, tensor in tensors.items()}


def write_safetensors(path: str, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
  """tensors: as read_safetensors() returns them."""
  entries, offset = {}, 0
  for name, (dtype, shape, data) in tensors.items():
    entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
    offset += len(data)
  text = json.dumps(entries).encode()
  text += b" " * (-len(text) % 8)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.writelines(data for _, _, data in tensors.values())
