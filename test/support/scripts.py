"""For the tests of scripts/: a folder for each test, and ways to run a script and to look. Standard library only."""
import array
import functools
import html
import importlib
import io
import json
import os
import re
import struct
import subprocess
import sys
from unittest import mock

from support.workspace import CRASH, ROOT, SCRIPTS, Folder, default_signals

from lib import common  # from SCRIPTS


def start(script, *args, **options):
  """A script that will get signals."""
  return subprocess.Popen([sys.executable, os.path.join(SCRIPTS, script)] + list(args), bufsize=0,
                          preexec_fn=default_signals, **options)


@functools.cache
def drawing_python():
  """A Python with matplotlib and pandas, or None."""
  for python in (sys.executable, "/usr/bin/python3"):
    if subprocess.run([python, "-c", "import matplotlib, pandas"], capture_output=True).returncode == 0:
      return python
  return None


DAMAGED = ['{"type":"start","config":null}', '{"type":"start","config":[]}', '{"type":"start","config":"model"}',
           '{"type":"start"}', "[]", "7", "null", '"start"', "[" * 100000, '{"type":["train"],"step":1,"loss":1}',
           '{"type":"train","step":"a","loss":1}', '{"type":"train","step":true,"loss":1}',
           '{"type":"train","step":-1,"loss":1}', '{"type":"train","step":1' + "0" * 400 + ',"loss":1}',
           '{"type":"train","step":2,"loss":1e400}', '{"type":"train","step":2,"loss":Infinity}',
           '{"type":"val","step":8,"length":16,"loss":1e308}', '{"type":"train","step":2,"loss":NaN}',
           '{"type":"train","step":2,"loss":"1"}', '{"type":"train","step":2,"loss":1' + "0" * 400 + "}",
           '{"type":"val","step":8,"length":"16","loss":1}', '{"type":"val","step":8,"length":0,"loss":1}',
           '{"type":"val","step":8,"length":[16],"loss":1}', '{"type":"eval","step":8,"length":16,"loss":{}}',
           '{"type":"eval","step":8,"length":"16","loss":null,"by_position":7}',
           *('{"type":"eval","step":9,"length":16,"loss":1,"of":%s}' % of
             for of in ('{"data":[7]}', '{"data":7}', '{"data":[{"name":"a","tokens":[]}]}', '{"windows":-1}')),
           '{"type":"eval","step":9,"length":16,"loss":1,"mode":"suffix"}',
           '{"type":"inspect","step":9,"length":16,"loss":1}',
           '{"type":"skip","step":null,"skipped":1}', '{"type":"task","step":8,"task":{"a":1},"acc":"high"}',
           '{"type":"passkey","step":8}', '{"type":"passkey","step":8,"form":"x","length":"y","exact":[null]}',
           '{"type":"val","st']  # lines of a run, which all scripts pass over
DAMAGED = [re.sub(r'("type":"(val|eval|task|passkey)")', r'\1,"id":"x"', line) for line in DAMAGED]


EVALUATIONS = "val", "eval", "task", "passkey", "diagnostics"


def identified(line, run):
  """An evaluation's line with what ./train writes of what it is of, where a test does not say it."""
  if line["type"] not in EVALUATIONS or line.get("id", "") is None:
    return line
  of = {"data": [], "tokens_asked": 64, "windows": 3, "rope_scaling": "none", **line.get("of", {})}
  asked = [line.get(key) for key in ("mode", "start", "context_of", "suffix", "task", "n", "max_length", "xxh64",
                                     "form", "trials", "window")] + [
      {key: value for key, value in of.items() if key != "data"},
      [[file.get("tokens"), file.get("xxh64")] for file in of["data"]]]
  return {"id": json.dumps([asked, line.get("length")]), "series": json.dumps(asked), "weights": {"run": run},
          "mode": "windows", **line, "of": of}


def tables_of(text):
  """The tables of a page in Markdown: lists of rows of cells."""
  found = re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE)
  cells = lambda line: [html.unescape(re.sub(r"\\(.)", r"\1", cell.replace("**", ""))).strip()
                        for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
  return [[cells(line) for line in [head, *rows]] for head, _, *rows in (table.splitlines() for table in found)]


class ScriptTest(Folder):
  def setUp(self):
    super().setUp()
    self.out = self.path("out")

  def make_run(self, name, lines):
    """The folder of a run with these lines, as objects or text, as its metrics.jsonl; evaluations as identified()."""
    os.makedirs(self.path(name), exist_ok=True)
    config = next((line["config"] for line in lines if isinstance(line, dict) and line["type"] == "start"), {})
    lines = [line if isinstance(line, str) else json.dumps(identified(line, config.get("name"))) for line in lines]
    self.write(os.path.join(name, "metrics.jsonl"), "\n".join(lines))
    return self.path(name)

  def run_script(self, script, *args, code=0, python=sys.executable, **options):
    done = subprocess.run([python, os.path.join(SCRIPTS, script)] + [str(a) for a in args],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, **options)
    self.output, self.errors = done.stdout.decode(), done.stderr.decode()
    self.assertEqual(done.returncode, code, self.errors)
    self.assertNotRegex(self.errors, CRASH)
    return self.output

  def run_module(self, module, *args, code=0):
    """As run_script, in this process: that spares the start of Python and of large packages."""
    said, errors = io.StringIO(), io.StringIO()
    command = mock.patch("sys.argv", [module.__file__, *map(str, args)])
    with command, mock.patch("sys.stdout", said), mock.patch("sys.stderr", errors):
      try:
        common.run(module.main, "")
        ended = 0
      except SystemExit as end:
        ended = end.code
    self.output, self.errors = said.getvalue(), errors.getvalue()
    self.assertEqual(ended, code, self.errors)
    return self.output

  def draw(self, script, *args, alone=False, **options):
    """As run_script, in the test's folder, with matplotlib. alone: in a process of its own in any case."""
    python = drawing_python()
    if not python:
      self.skipTest("no matplotlib, or no pandas")
    if alone or python != sys.executable:
      return self.run_script(script, *args, python=python, cwd=self.folder, **options)
    before = os.getcwd()
    os.chdir(self.folder)
    try:
      return self.run_module(importlib.import_module(script.removesuffix(".py")), *args, **options)
    finally:
      os.chdir(before)
      if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")

  def assert_error(self, *parts):
    for part in parts:
      self.assertIn(str(part), self.errors)

  def files(self):
    return sorted(os.listdir(self.out)) if os.path.isdir(self.out) else []

  def tokens(self, name):
    data = self.bytes_of(self.out, name)
    header = struct.unpack("<256i", data[:1024])
    self.assertEqual(header[:2], (20240520, 1))
    self.assertEqual(set(header[3:]), {0})
    self.assertEqual(len(data), 1024 + 2 * header[2])
    return list(array.array("H", data[1024:]))
