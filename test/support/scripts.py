"""For the tests of scripts/: a folder for each test, and ways to run a script and to look. Standard library only."""
import array
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from support.workspace import ROOT, default_signals

SCRIPTS = os.path.join(ROOT, "scripts")
sys.path.insert(0, SCRIPTS)  # for tests that import one


def start(script, *args, **options):
  """A script that will get signals."""
  return subprocess.Popen([sys.executable, os.path.join(SCRIPTS, script)] + list(args), bufsize=0,
                          preexec_fn=default_signals, **options)


class ScriptTest(unittest.TestCase):
  def setUp(self):
    self.dir = tempfile.mkdtemp(prefix="plusgpt_test_")
    self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
    self.out = os.path.join(self.dir, "out")

  def path(self, name):
    return os.path.join(self.dir, name)

  def write(self, name, data):
    with open(self.path(name), "wb") as file:
      file.write(data if isinstance(data, bytes) else data.encode())
    return self.path(name)

  def run_script(self, script, *args, code=0, **options):
    done = subprocess.run([sys.executable, os.path.join(SCRIPTS, script)] + [str(a) for a in args],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, **options)
    self.output, self.errors = done.stdout.decode(), done.stderr.decode()
    self.assertEqual(done.returncode, code, self.errors)
    self.assertNotIn("Traceback", self.errors)
    return self.output

  def assert_error(self, *parts):
    for part in parts:
      self.assertIn(str(part), self.errors)

  def files(self):
    return sorted(os.listdir(self.out)) if os.path.isdir(self.out) else []

  def tokens(self, name):
    with open(os.path.join(self.out, name), "rb") as file:
      data = file.read()
    header = struct.unpack("<256i", data[:1024])
    self.assertEqual(header[:2], (20240520, 1))
    self.assertEqual(set(header[3:]), {0})
    self.assertEqual(len(data), 1024 + 2 * header[2])
    return list(array.array("H", data[1024:]))
