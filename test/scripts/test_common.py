"""scripts/lib/common.py: what it reads from ./train's output; what all scripts share. Standard library only."""
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from unittest import mock

from support.scripts import SCRIPTS  # noqa: F401: on the path
from support.workspace import ROOT, TRAIN, Folder, Workspace

import prepare_tasks  # from SCRIPTS
from lib import common, shards

DEV = os.path.join(ROOT, "dev")


class Train(Workspace):
  def test_settings_are_nested_and_typed(self):
    self.write("config.json",
               '{"model": {"heads": 2}, "attention": {"variant": "lssar"}, "eval": {"lengths": [64, 128]}}')
    found = common.settings(TRAIN, "config.json", "--set", "attention.scale=0.3", folder=self.folder,
                            settings={"generate.prompt": "two  words"})
    self.assertEqual(found["generate"]["prompt"], "two  words")
    self.assertEqual((found["model"]["heads"], found["eval"]["lengths"]), (2, [64, 128]))
    attention = found["attention"]
    self.assertEqual((attention["kind"], attention["qk_norm"], attention["scale"]), ("lssar", "l2", 0.3))
    self.assertIs(attention["gate"]["bias"], True)
    self.assertNotIn("micro", found["batch"])  # auto

  def test_variants_are_those_that_an_error_lists(self):
    error = self.bad("--set", "attention.variant=none", names=["is unknown"]).stderr
    self.assertEqual(common.variants(TRAIN), re.search(r"\((softmax, [^)]*)\)", error)[1].split(", "))

  def test_outputs_do_not_replace_inputs(self):
    self.write("a.json", "{}")
    with self.assertRaisesRegex(common.UserError, "--results .*a.json: would overwrite what is read"):
      common.check_output("--results", self.path("a.json"), [None, self.path("./a.json")])
    common.check_output("--results", self.path("b.json"), [None, self.path("a.json"), self.path("absent")])

  def test_errors_end_the_script(self):
    self.write("config.json", "{}")
    for program, flag, part in ((TRAIN, "--nothing", "--nothing is unknown"),
                                (self.path("none"), "--help", "cannot be run: No such file")):
      said = io.StringIO()
      with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(said):
        common.train(program, "config.json", flag, folder=self.folder)
      self.assertEqual(ended.exception.code, 2)
      self.assertIn(part, said.getvalue())


class Help(Folder):
  """With stand-ins for packages that may be missing, and for the script that makes classes of theirs."""
  SHOW = """
import importlib, sys
from unittest import mock
for name in ("numpy", "pandas", "scipy", "torch", "torch.nn", "torch.nn.functional", "torch.nn.attention",
             "torch.nn.attention.flex_attention", "lib.formula", "plusgpt_attention"):
  sys.modules[name] = mock.MagicMock()
script = importlib.import_module(sys.argv.pop(1))
print(script.__doc__.split("\\n")[0])
script.main()
"""

  def test_every_script_says_what_it_does(self):
    named = [name.removesuffix(".py") for folder in (SCRIPTS, DEV) for name in os.listdir(folder)
             if name.endswith(".py") and re.search(r"= (common\.)?ArgumentParser\(", self.text_of(folder, name))]
    self.assertIn("draw_kinds", named)
    for name in named:
      done = subprocess.run([sys.executable, "-c", self.SHOW, name, "--help"], capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": f"{SCRIPTS}:{DEV}", "COLUMNS": "200"}, timeout=60)
      with self.subTest(name):
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        first, _, said = done.stdout.partition("\n")
        self.assertIn(first, " ".join(said.split()))


  def test_every_script_ends_quietly_without_a_reader(self):
    for folder, name in ((folder, name) for folder in (SCRIPTS, DEV) for name in sorted(os.listdir(folder))):
      text = self.text_of(folder, name) if name.endswith(".py") else ""
      if "__main__" in text:
        self.assertRegex(text, r"\n  (common\.)?run(_main)?\(", name)  # which knows what a broken pipe means
    for name in ("prepare_text", "sweep", "passkey"):
      reader, writer = os.pipe()
      os.close(reader)
      done = subprocess.run([sys.executable, os.path.join(SCRIPTS, name + ".py"), "--help"], stdout=writer,
                            stderr=subprocess.PIPE, timeout=60)
      os.close(writer)
      self.assertIn((done.returncode, done.stderr), ((0, b""), (-signal.SIGPIPE, b"")))


class Json(Folder):
  def test_what_users_wrote(self):
    read = lambda text: common.read_json(self.write("a.json", text))
    self.assertEqual(read(b'\xef\xbb\xbf{"a": [1, 2.5]}'), {"a": [1, 2.5]})
    self.assertEqual(read("[%s]" % ("9" * 5000)), [float("inf")])
    for text, part in (('{"a": {"b": 1, "c": 2, "b": 3}}', 'a.json is not JSON: the key "b" is given twice'),
                       ("{}".encode("utf-16"), "a.json is UTF-16 text"), (b'"\xff"', "a.json is not JSON")):
      with self.assertRaisesRegex(common.UserError, part):
        read(text)

  def test_empty_values_of_flags(self):
    for command in (("plot.py", "--out="), ("report.py", "--out", ""), ("sweep.py", "a.json", "--results="),
                    ("passkey.py", "make", "--out="), ("prepare_tasks.py", "--task", "piqa", "--input="),
                    ("plot.py", "")):
      done = subprocess.run([sys.executable, os.path.join(SCRIPTS, command[0]), *command[1:]], cwd=self.folder,
                            capture_output=True, text=True)
      self.assertEqual((done.returncode, os.listdir(self.folder)), (2, []), command)
      self.assertIn("the value is empty; give one, or leave the flag out", done.stderr)


class Signals(Folder):
  def test_signals_end_a_script_wherever_they_find_it(self):
    """No exception leaves the callback of a weak reference (import has one a module). Cleaning up is not disturbed."""
    for number, code in (("SIGTERM", 143), ("SIGHUP", 129)):
      self.write("script.py", f"""
import os, signal, sys, time, weakref
sys.path.insert(0, {SCRIPTS!r})
from lib import common
signal.signal(signal.SIGHUP, signal.SIG_DFL)
def main():
  try:
    thing = set()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.{number}) or time.sleep(0.01))
    del thing
    time.sleep(30)
  finally:
    try:
      os.stat("/absent")
    except OSError:
      time.sleep(0.3)
    os.kill(os.getpid(), signal.{number})
    time.sleep(0.3)
    print("cleaned up")
common.run(main, "")
""")
      done = subprocess.run([sys.executable, self.path("script.py")], capture_output=True, text=True, timeout=60)
      self.assertEqual((done.returncode, done.stdout), (code, "cleaned up\n"), done.stderr)


class Written(Folder):
  def test_a_whole_file_is_what_reaches_the_disk(self):
    """Nothing is left in a buffer at fsync(), which makes it survive a loss of power."""
    made, arguments = [("a", ["b", "c"], 0)], Namespace(tokenizer="bytes")
    for write in (lambda path: shards.write(path, "tokens", [1, 2]),
                  lambda path: prepare_tasks.write(arguments, "hellaswag_llmc", made, path)):
      synced = []
      with mock.patch("os.fsync", lambda _: synced.append(self.bytes_of("x"))):
        write(self.path("x"))
      self.assertEqual(synced, [self.bytes_of("x")])
