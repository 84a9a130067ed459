"""The file of a kind of attention (attention/kind.h), as scripts read it. Standard library only."""
from __future__ import annotations
import glob
import os
import re
from dataclasses import dataclass

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


@dataclass
class KindFile:
  name: str
  text: str  # without comments
  parameters: dict[str, float]  # defaults
  learned: dict[str, float]     # initial values
  ranges: dict[str, str]        # of the parameters, as "(0, 1]"


def of_the_tree() -> list[str]:
  """The files of attention/kinds/, softmax's first, as in ./train --help."""
  paths = glob.glob(os.path.join(ROOT, "attention", "kinds", "*.cuh"))
  return sorted(paths, key=lambda path: (not path.endswith("/softmax.cuh"), path))


def code_of(path: str) -> str:
  with open(path, encoding="utf-8") as file:
    return re.sub(r"//.*", "", file.read())


def read(path: str) -> KindFile:
  text = code_of(path)
  if shared := re.search(r"parameters = (\w+);", text):  # in a header that several kinds include
    header, = re.findall(r'#include "(attention/\w+\.cuh)"', text)
    text += code_of(os.path.join(ROOT, header)).replace(f"{shared[1]}[]", "parameters[]")

  def rows(array):  # (name, default, range or "")
    found = re.search(rf"\b{array}\[\] = \{{([\s\S]*?)\}};", text)
    return re.findall(r'\{\s*"(\w+)"\s*,\s*([^,}\s]+)(?:\s*,\s*"([^"]*)")?', found[1] if found else "")

  parameters = rows("parameters")
  return KindFile(os.path.splitext(os.path.basename(path))[0], text,
                  {name: float(default) for name, default, _ in parameters},
                  {name: float(initial) for name, initial, _ in rows("learned")},
                  {name: allowed for name, _, allowed in parameters})
