"""The documents: links lead somewhere, and commands work as they are printed. Standard library only.

A command is a line of an indented block, or a piece of code in the README's table of questions. All of them run here,
in the order of their page, on a tiny model, with these exceptions: those with a comment that says "needs ..." or
"network" (both are missing here) or "hours" (then the command only shows its settings), ELSEWHERE (other tests run
them), and those of dev/bench/, a log of measurements.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

from data.test_labels import label_file
from eval.test_tasks import questions, task_file
from support.workspace import CONFIG, ROOT, TEXT, TRAIN, Workspace, shard

try:
  import matplotlib
except ImportError:
  matplotlib = None

FOLDERS = ("", "attention", "dev", "dev/bench", "dev/ptx", "docs", "docs/results", "emulation", "pytorch", "scripts",
           "test")
PAGES = [os.path.relpath(path, ROOT) for folder in FOLDERS
         for path in sorted(glob.glob(os.path.join(ROOT, folder, "*.md")))]
COMMAND = re.compile(r"(\./train|python3|bash|make|mpirun|torchrun|srun|sbatch|curl|kill|git|build/\S+)( |$)")
ELSEWHERE = ("bash scripts/quickstart.sh", "bash scripts/test.sh", "bash scripts/install_deps.sh", "make",
             "kill", "bash scripts/newton.sh")  # dev/trial.sh, test_signals.py, test_newton.py


def text_of(page):
  with open(os.path.join(ROOT, page), encoding="utf-8") as file:
    return file.read()


def commands(text):
  """(command, comment) for each in a page."""
  for line in re.findall(r"^    (.*)", text.replace("\\\n", " "), re.MULTILINE):
    if COMMAND.match(line):
      command, _, comment = line.partition(" #")
      yield command.strip(), comment
  for cells in re.findall(r"^\| [^|]* \| `([^`]*)` \| \[", text, re.MULTILINE):
    if COMMAND.match(cells):
      yield cells, ""


def anchors(text):
  """Those that GitHub makes of headings."""
  return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
          for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE)}


class Pages(unittest.TestCase):
  def test_links(self):
    for page in PAGES:
      for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"https?:", target):
          continue
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        with self.subTest(page=page, target=target):
          self.assertTrue(os.path.exists(os.path.join(ROOT, path)))
          if anchor:
            self.assertIn(anchor, anchors(text_of(path)))

  def test_every_page_is_found_from_the_front(self):
    found, left = set(), ["README.md"]
    while left:
      page = left.pop()
      if page not in found:
        found.add(page)
        left += [os.path.normpath(os.path.join(os.path.dirname(page), path))
                 for path in re.findall(r"\]\(([^)\s#]+\.md)[)#]", text_of(page))]
    self.assertEqual(found | {"CHANGELOG.md"}, found | set(PAGES))

  def test_prose_is_wrapped(self):
    for page in PAGES:
      text = re.sub(r"<!-- table:.*?<!-- /table -->", "", text_of(page), flags=re.DOTALL)  # dev/readme_tables.py
      with self.subTest(page=page):
        self.assertEqual(re.findall(r"^(?!\||    |#).{121,}", text, re.MULTILINE), [])

  def test_the_front_page_is_short(self):
    text = text_of("README.md")
    self.assertLessEqual(text.count("\n"), 180)
    self.assertLessEqual(len(text.split()), 1450)


class Commands(Workspace):
  def setUp(self):
    super().setUp()
    for name in ("scripts", "configs", "dev", "docs"):
      os.symlink(os.path.join(ROOT, name), self.path(name))
    os.symlink(TRAIN, self.path("train"))
    self.write("train_1.bin", shard(TEXT * 80))
    self.write("val.bin", shard(TEXT * 80))
    self.write("book.txt", TEXT * 80)
    self.write("FILE", TEXT * 80)
    self.write("prompts.jsonl", json.dumps({"prompt": "It was"}) + "\n")
    self.write("pairs.jsonl", "".join(json.dumps({"prompt": f"{i} times? ", "answer": "It was.\n"}) + "\n"
                                      for i in range(200)))
    self.write("hellaswag.bin", task_file(questions(20)))
    config = {**CONFIG, "name": "NAME", "model": {**CONFIG["model"], "context": 128},
              "batch": {"tokens": 256, "micro": 1}, "data": {"train": "train_1.bin", "val": "val.bin"},
              "train": {"steps": 10}, "eval": {"every": 5, "tokens": 4096, "lengths": [128, 256]},
              "checkpoint": {"every": 10}, "task": {"dir": "."}, "passkey": {"form": "compact", "trials": 2}}
    self.write("CONFIG.json", json.dumps(config))
    for name in ("train_1", "val"):
      self.write(f"values_{name}.bin", label_file([0.5, 1.0] * (len(TEXT) * 80), 2))
    probe = {"model": {**config["model"], "head": {"outputs": 2}}, "data": {
        **config["data"], "labels": "values_train_1.bin", "val_labels": "values_val.bin"}}
    self.write("PROBE.json", json.dumps({**config, "name": "PROBE", **probe}))
    as_expected = ["eval.lengths=128,256,512,1024,2048", "train.steps=500", "eval.every=500"]
    for run in ("NAME", "a", "b", "passkey", "quickstart_softmax", "quickstart_lssar"):
      settings = [f"name={run}", *(as_expected if "quick" in run else [])]
      self.run_command(["./train", "CONFIG.json", *(word for key in settings for word in ("--set", key))])
    for run in "ab":
      for question in ("--passkey", "--diagnostics"):
        self.run_command(["./train", f"runs/{run}", question, "--lengths", "128"])
    shutil.copy(os.path.join(ROOT, "dev/bench/results/lr_cpu.json"), self.path("runs/lr_quick.json"))

  def run_command(self, command):
    shell = isinstance(command, str)
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    done = subprocess.run(command, shell=shell, cwd=self.folder, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TRAIN": TRAIN, "PATH": path})
    if "no picture: " in done.stderr and "matplotlib" in done.stderr and matplotlib is None:
      return
    self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

  def test_they_run(self):
    for page in (page for page in PAGES if not page.startswith("dev/bench/")):
      for command, comment in commands(text_of(page)):
        if command.startswith(ELSEWHERE) or re.search(r"\bneeds |\bnetwork\b", comment):
          continue
        if "sweep.py" in command:  # test_sweep.py runs sweeps
          command += " --plan"
        elif "hours" in comment:
          command += " --print-config"
        elif re.match(r"\./train (CONFIG|PROBE)\.json(?!.*--(resume|eval|dry-run|print-config))", command):
          command += " --overwrite"
        with self.subTest(page=page, command=command):
          self.run_command(command)
