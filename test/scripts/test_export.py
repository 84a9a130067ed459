"""scripts/export.py with stand-ins for the libraries, which record their calls. Standard library only."""
import json
import os
import unittest

from scripts.test_scripts import ScriptTest

REFUSE = "raise ImportError('No module named ' + repr(__name__))\n"
RECORD = """
import json, os
def write(*event):
  with open(os.environ["EVENTS"], "a") as file:
    file.write(json.dumps(event) + "\\n")
"""
TENSORBOARDX = RECORD + """
class SummaryWriter:
  def __init__(self, folder):
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, "events.out.tfevents.new"), "w").close()
    write("open", folder)
  def add_scalar(self, name, value, step): write("scalar", name, value, step)
  def add_hparams(self, settings, metrics, name): write("hparams", settings, metrics, name)
  def close(self): write("close")
"""
WANDB = RECORD + """
class Error(Exception): pass
class Target:
  summary = property(lambda self: self)
  def define_metric(self, name, step_metric): write("axis", name, step_metric)
  def log(self, values): write("log", values)
  def update(self, values): write("summary", values)
  def finish(self): write("finish")
def init(**arguments):
  if os.environ.get("REFUSED"): raise Error("api_key not configured")
  write("init", arguments)
  return Target()
"""
CONFIG = {"name": "a", "model": {"context": 64, "layers": 2}, "eval": {"lengths": [64, 128]}, "data": {"shuffle": True}}
LINES = [
    {"type": "start", "config": CONFIG},
    {"type": "train", "step": 1, "loss": 5.5, "grad_norm": 1.5, "lr": 1e-3, "mfu": None},
    {"type": "skip", "step": 1, "reason": "loss", "skipped": 1},
    {"type": "val", "step": 1, "length": 64, "loss": 5.25, "tokens": 640},
    {"type": "train", "step": 2, "loss": None, "grad_norm": 2.5, "lr": 2e-3, "mfu": 0.5},
    {"type": "eval", "step": 1, "length": 100, "loss": 9.5, "tokens": 700, "last_loss": 9.5, "by_position": [9.0] * 34},
    {"type": "eval", "step": 2, "length": 100, "loss": 4.5, "tokens": 700, "last_loss": 4.25,
     "by_position": [4.0] + [None] * 32 + [5.0]},
    {"type": "start", "config": {**CONFIG, "init": "elsewhere"}},  # an evaluation of other weights
    {"type": "eval", "step": 0, "length": 64, "loss": 1.0, "tokens": 700, "last_loss": 1.0, "by_position": [1.0] * 32},
]
DAMAGED = [line + "\n" for line in (
    '{"type":"start","config":null}', '{"type":"train","step":3,"loss":1e400}', '{"type":"train","step":"a","loss":1}',
    '{"type":"eval","step":3,"length":"100","loss":1,"by_position":7}', '{"type":"skip","step":null,"skipped":1}',
    '{"type":"eval","step":3,"length":100,"loss":Infinity,"by_position":7}', "[]")]
POINTS = [
    ("step", 1, {"train/loss": 5.5, "train/grad_norm": 1.5, "train/lr": 1e-3}),
    ("step", 1, {"skip/skipped": 1}),
    ("step", 1, {"val/loss/64": 5.25}),
    ("step", 2, {"train/grad_norm": 2.5, "train/lr": 2e-3, "train/mfu": 0.5}),
    ("step", 1, {"eval/loss/100": 9.5, "eval/last_loss/100": 9.5}),
    ("step", 2, {"eval/loss/100": 4.5, "eval/last_loss/100": 4.25}),
    ("position", 3, {"eval/by_position/100": 4.0}),
    ("position", 100, {"eval/by_position/100": 5.0}),  # the last bin is shorter
]
LAST = {"last/train/loss": 5.5, "last/val/loss/64": 5.25, "last/eval/loss/100": 4.5, "last/eval/last_loss/100": 4.25}


class Export(ScriptTest):
  def setUp(self):
    super().setUp()
    self.run_folder = self.path("a")
    os.mkdir(self.run_folder)
    lines = [json.dumps(line) + "\n" for line in LINES]
    self.write("a/metrics.jsonl", "".join(lines[:7] + DAMAGED + lines[7:]) + '{"type":"train","st')
    self.libraries(torch=REFUSE, tensorboardX=REFUSE, wandb=REFUSE)

  def libraries(self, **modules):
    for name, text in modules.items():
      self.write(name + ".py", text)

  def export(self, *args, code=0, **variables):
    environment = {**os.environ, "PYTHONPATH": self.dir, "EVENTS": self.path("events"), **variables}
    self.run_script("export.py", self.run_folder, *args, code=code, env=environment)
    if not os.path.exists(self.path("events")):
      return []
    with open(self.path("events")) as file:
      return [json.loads(line) for line in file]

  def test_tensorboard(self):
    self.libraries(tensorboardX=TENSORBOARDX)
    folder = os.path.join(self.run_folder, "tensorboard")
    os.mkdir(folder)
    self.write("a/tensorboard/events.out.tfevents.old", "")
    self.write("a/tensorboard/mine", "")
    settings = {"name": "a", "model.context": 64, "model.layers": 2, "eval.lengths": "[64, 128]", "data.shuffle": True}
    self.assertEqual(self.export("--to", "tensorboard"), [
        ["open", folder],
        *[["scalar", name, value, place] for _, place, values in POINTS for name, value in values.items()],
        ["hparams", settings, LAST, "."], ["close"]])
    self.assertEqual(sorted(os.listdir(folder)), ["events.out.tfevents.new", "mine"])
    self.assertIn(folder, self.output)

  def test_wandb(self):
    self.libraries(wandb=WANDB)
    self.assertEqual(self.export("--to", "wandb", "--project", "p", WANDB_DIR=self.dir), [
        ["init", {"project": "p", "name": "a", "config": CONFIG, "dir": self.dir}],
        ["axis", "*", "step"], ["axis", "eval/by_position/*", "position"],
        *[["log", {axis: place, **values}] for axis, place, values in POINTS],
        ["summary", LAST], ["finish"]])

  def test_errors_say_what_to_do(self):
    self.export("--to", "tensorboard", code=2)
    self.assert_error("pip install tensorboardX tensorboard")
    self.export("--to", "wandb", code=2)
    self.assert_error("pip install wandb")
    self.libraries(wandb=WANDB)
    self.export("--to", "wandb", code=2, REFUSED="1")
    self.assert_error("api_key not configured", "WANDB_MODE=offline")
    self.export("--to", "excel", code=2)
    self.assert_error("excel", "tensorboard")
    self.write("a/metrics.jsonl", json.dumps(LINES[0]) + "\n")
    self.export("--to", "wandb", code=2)
    self.assert_error(self.run_folder, "nothing to export")
    os.remove(self.path("a/metrics.jsonl"))
    self.export("--to", "wandb", code=2)
    self.assert_error(self.path("a/metrics.jsonl"), "No such file")


if __name__ == "__main__":
  unittest.main()
