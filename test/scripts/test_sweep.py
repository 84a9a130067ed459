"""scripts/compare_variants.py with a stand-in for ./train that fails, stops or waits. Standard library only."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

from support.scripts import SCRIPTS, ScriptTest

TRAIN = """#!%s
import json, os, signal, sys, time
settings = dict(flag.split("=", 1) for flag in sys.argv if "=" in flag)
member = settings["attention.variant"] + settings["seed"]
if sys.argv[-1] == "--print-config":
  if settings["attention.variant"] == "":
    print('config: attention.variant = "" is unknown', file=sys.stderr)
    sys.exit(2)
  print("attention.variant", json.dumps(settings["attention.variant"]))
  print("attention.kind", json.dumps(settings.get("same", settings["attention.variant"])))
  print("eval.every", settings.get("eval.every", 2))
  print("eval.mode", json.dumps(settings.get("eval.mode", "windows")))
  sys.exit(0)
print(member, sys.argv[-1], file=open("calls", "a"))
what = os.environ.get(member, "")
os.makedirs("runs/" + settings["name"], exist_ok=True)
config = {"model": {"context": 16}, "train": {"steps": 4}, "batch": {"tokens": 64}, "eval": {"lengths": [16, 32]}}
with open("runs/" + settings["name"] + "/metrics.jsonl", "w") as file:
  print(json.dumps({"type": "start", "config": config, "commit": "abc"}), file=file)
  print(json.dumps({"type": "train", "step": 4 if what in ("", "lacks") else 2, "loss": 1}), file=file)
  for length in (16,) if what == "lacks" else (16, 32):
    print(json.dumps({"type": "val", "step": 2 if what else 4, "length": length, "loss": float(settings["seed"])}), file=file)
if what == "wait":
  def save(*_):
    time.sleep(1)
    open("saved", "w").close()
    sys.exit(0)
  signal.signal(signal.SIGINT, save)
  open("waiting", "w").close()
  time.sleep(60)
if what == "killed":
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  os.kill(os.getpid(), signal.SIGINT)
print("progress\\nloss is not finite")
sys.exit(int(what if what.isdigit() else 0))
""" % sys.executable
HEAD = "| validation loss at length | 16 | 32 |\n|---|---|---|\n"


class Compare(ScriptTest):
  def setUp(self):
    super().setUp()
    os.chmod(self.write("train", TRAIN), 0o755)
    self.write("c.json", "{}")
    self.arguments = ["--config", "c.json", "--variants", "a,b", "--seeds", "1,2"]

  def compare(self, *flags, code=0, **behaviour):
    """Returns the table and which members ./train was called for."""
    environment = {**os.environ, "TRAIN": "./train", **behaviour}
    self.write("calls", "")
    output = self.run_script("compare_variants.py", *self.arguments, *flags, code=code, cwd=self.dir, env=environment)
    with open(self.path("calls")) as file:
      return output, file.read().split("\n")[:-1]

  def test_a_run_that_fails_does_not_end_the_series(self):
    table, calls = self.compare("--results", "r.json", code=1, a2="1")
    self.assertEqual(calls, [member + " --resume" for member in ("a1", "a2", "b1", "b2")])
    self.assertEqual(table, HEAD + "| a (1 of 2 seeds) | 1.000 | 1.000 |\n| b | 1.500 ± 0.707 | 1.500 ± 0.707 |\n")
    with open(self.path("r.json")) as file:
      (name, reason), = json.load(file)["failed"].items()
    self.assertRegex(name, "compare_a_2_")
    self.assertEqual(reason, "exit code 1: loss is not finite")
    self.assert_error(f"runs/{name} failed: {reason}")
    table, calls = self.compare()
    self.assertEqual(calls, ["a2 --resume"])
    self.assertIn("| a | 1.500 ± 0.707 |", table)
    self.assertEqual(self.compare()[1], [])
    self.assertEqual(self.compare("--overwrite")[1], [member + " --overwrite" for member in ("a1", "a2", "b1", "b2")])
    self.assertEqual(self.compare("--seeds", "1", "--set", "x=1", code=1, a1="3", b1="3")[0], "")

  def test_a_run_that_is_stopped_ends_the_series(self):
    for what in ("killed", "130", "0"):  # 0: unfinished all the same
      with self.subTest(what):
        table, calls = self.compare("--set", f"x={what}", code=-signal.SIGINT, b1=what)
        self.assertEqual(table, HEAD + "| a | 1.500 ± 0.707 | 1.500 ± 0.707 |\n")
        self.assertEqual(calls[2:], ["b1 --resume"])

  def test_a_run_without_a_loss_has_failed(self):
    self.assertIn("| b | 1.500", self.compare(code=1, a2="lacks")[0])
    self.assert_error("lacks a finite validation loss")

  def test_refuses_before_training(self):
    os.mkdir(self.path("run"))
    for flags, part in ((["--set", "attention.variant=relu"], "--set attention.variant=relu"), (["--set", "seed=5"], "--set seed=5"),
                        (["--set", "name=x"], "--set name=x"), (["--set", "attention.kind=relu"], "--set attention.kind"),
                        (["--set", "same=x"], "a and b are the same"), (["--seeds", "1,01"], "twice"),
                        (["--variants", "a,a"], "twice"), (["--seeds", "a"], "'a' is not a list such as 1,2,3"),
                        (["--set", "eval.every=0"], "eval.every = 0"), (["--set", "eval.mode=suffix"], "--set eval.mode=windows"),
                        (["--variants", "a,"], 'attention.variant = "" is unknown'), (["--train", "none"], "none cannot be run"),
                        (["--config", "run"], "run/config.json: No such file")):
      with self.subTest(flags):
        self.assertEqual(self.compare(*flags, code=2), ("", []))
        self.assert_error(part)

  def test_the_folder_of_a_run(self):
    os.mkdir(self.path("run"))
    self.write("run/config.json", "{}")
    self.assertIn("| a | 1.500", self.compare("--config", "run")[0])

  def test_without_matplotlib(self):
    blocked = self.write("sitecustomize.py", "import sys\nsys.modules['matplotlib'] = None\n")
    output, calls = self.compare("--picture", "p.png", code=2, PYTHONPATH=os.path.dirname(blocked))
    self.assertIn("| a | 1.500", output)
    self.assertLess(self.errors.index("no picture will be drawn"), self.errors.index("1/4: a, seed 1"))

  def test_interrupting_waits_until_the_run_has_saved(self):
    for sign in (signal.SIGINT, signal.SIGTERM):
      with self.subTest(sign=sign):
        self.interrupt(sign)
        os.remove(self.path("waiting"))
        os.remove(self.path("saved"))

  def interrupt(self, sign):
    process = subprocess.Popen([sys.executable, os.path.join(SCRIPTS, "compare_variants.py"), *self.arguments], cwd=self.dir, text=True,
                               env={**os.environ, "TRAIN": "./train", "a2": "wait"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    while process.poll() is None and not os.path.exists(self.path("waiting")):
      time.sleep(0.01)
    process.send_signal(sign)
    output, errors = process.communicate()
    self.assertEqual(process.returncode, -signal.SIGINT, errors)
    self.assertTrue(os.path.exists(self.path("saved")))
    self.assertEqual(output, HEAD + "| a (1 of 2 seeds) | 1.000 | 1.000 |\n")


if __name__ == "__main__":
  unittest.main()
