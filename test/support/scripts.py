"""For the tests of scripts/: a folder for each test, and ways to run a script and to look. Standard library only."""
import array
import functools
import importlib
import io
import os
import struct
import subprocess
import sys
from unittest import mock

from support.workspace import CRASH, ROOT, SCRIPTS, Folder, default_signals

import common  # from SCRIPTS


def start(script, *args, **options):
  """A script that will get signals."""
  return subprocess.Popen([sys.executable, os.path.join(SCRIPTS, script)] + list(args), bufsize=0,
                          preexec_fn=default_signals, **options)


@functools.cache
def drawing_python():
  """A Python with matplotlib, or None."""
  for python in (sys.executable, "/usr/bin/python3"):
    if subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode == 0:
      return python
  return None


class ScriptTest(Folder):
  def setUp(self):
    super().setUp()
    self.out = self.path("out")

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
      self.skipTest("no matplotlib")
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
