"""scripts/export.py with stand-ins for the libraries, which record their calls, and with TensorBoard's own where they
are installed. Standard library only."""
import importlib.util
import json
import os

from support.scripts import DAMAGED, ScriptTest

REFUSE = "raise ImportError('No module named ' + repr(__name__))\n"
RECORD = """
import json, os
def write(*event):
  with open(os.environ["EVENTS"], "a") as file:
    file.write(json.dumps(event) + "\\n")
"""
TENSORBOARDX = RECORD + """
class SummaryWriter:
  file_writer = property(lambda self: self)
  def __init__(self, folder):
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, "events.out.tfevents.new"), "w").close()
    write("open", folder)
  def add_scalar(self, name, value, step=None, walltime=None): write("scalar", name, value, step, walltime)
  def add_summary(self, summary): write(*summary)
  def close(self): write("close")
"""
SUMMARY = """
def hparams(settings, metrics): return [["settings", settings], ["metrics", metrics]]
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
CONFIG = {"name": "a", "model": {"context": 64, "layers": 2}, "eval": {"lengths": [64, 128], "tokens": 700},
          "data": {"shuffle": True}}
OF = {"data": [{"name": "v.bin", "tokens": 900, "xxh64": "0a"}], "tokens_asked": 700, "rope_scaling": "none"}
LINES = [
    {"type": "start", "config": CONFIG},
    {"type": "train", "time": 2e9, "step": 1, "loss": 5.5, "grad_norm": 1.5, "lr": 1e-3, "mfu": None},
    {"type": "skip", "step": 1, "reason": "loss", "skipped": 1},
    {"type": "val", "step": 2, "length": 64, "loss": 5.25, "tokens": 640},
    {"type": "train", "step": 2, "loss": None, "grad_norm": 2.5, "lr": 2e-3, "mfu": 0.5},
    {"type": "eval", "time": 2e9 + 9, "step": 2, "length": 100, "loss": 4.5, "tokens": 700, "last_loss": 4.25,
     "bits_per_byte": 6.5, "of": OF, "position_edges": [0, 1, 99, 100], "by_position": [4.0, None, 5.0]},
    {"type": "eval", "step": 1, "length": 100, "loss": 9.5, "tokens": 700, "last_loss": 9.5, "by_position": [9.0] * 34},
    {"type": "eval", "step": 2, "length": 100, "loss": 0.5, "of": {**OF, "tokens_asked": 70},
     "by_position": [0.5] * 34},
    {"type": "groups", "time": 2e9 + 5, "step": 1, "norms": {}, "learned": {"attn.sink": [None, [0.5, None]]}},
    {"type": "eval", "mode": "suffix", "step": 2, "length": 32, "loss": 4.75, "bits_per_byte": 6.75, "context_of": 100,
     "suffix": 8, "of": OF},
    {"type": "start", "config": {**CONFIG, "init": "elsewhere"}},  # an evaluation of other weights
    {"type": "eval", "step": 0, "length": 64, "loss": 1.0, "tokens": 700, "last_loss": 1.0, "by_position": [1.0] * 32},
]
POINTS = [
    ("step", 1, 2e9, {"train/loss": 5.5, "train/grad_norm": 1.5, "train/lr": 1e-3}),
    ("step", 1, None, {"skip/skipped": 1}),
    ("step", 2, None, {"train/grad_norm": 2.5, "train/lr": 2e-3, "train/mfu": 0.5}),
    ("step", 1, None, {"eval/loss/100": 9.5, "eval/last_loss/100": 9.5}),
    ("step", 2, None, {"val/loss/64": 5.25}),
    ("step", 2, None, {"eval/suffix/loss/32": 4.75, "eval/suffix/bits_per_byte/32": 6.75}),
    ("step", 2, 2e9 + 9, {"eval/loss/100": 4.5, "eval/last_loss/100": 4.25, "eval/bits_per_byte/100": 6.5}),
    ("step", 1, 2e9 + 5, {"learned/attn.sink/1/0": 0.5}),
    ("position", 1, 2e9 + 9, {"eval/by_position/100": 4.0}),
    ("position", 100, 2e9 + 9, {"eval/by_position/100": 5.0}),
]
LAST = {"last/train/loss": 5.5, "last/val/loss/64": 5.25, "last/eval/loss/100": 4.5, "last/eval/last_loss/100": 4.25,
        "last/eval/bits_per_byte/100": 6.5, "last/eval/suffix/loss/32": 4.75, "last/eval/suffix/bits_per_byte/32": 6.75}


class Export(ScriptTest):
  def setUp(self):
    super().setUp()
    self.run_folder = self.make_run("a", [*LINES[:8], *DAMAGED, *LINES[8:], DAMAGED[-1]])
    self.libraries(torch=REFUSE, tensorboardX=REFUSE, wandb=REFUSE)

  def libraries(self, **modules):
    for name, text in modules.items():
      self.write(name + ".py", text)

  def scalars(self):
    return [(name, value, place, time) for _, place, time, values in POINTS for name, value in values.items()] + [
        (name, value, None, None) for name, value in LAST.items()]

  def export(self, *args, code=0, **variables):
    environment = {**os.environ, "PYTHONPATH": self.folder, "EVENTS": self.path("events"), **variables}
    self.run_script("export.py", self.run_folder, *args, code=code, env=environment)
    if not os.path.exists(self.path("events")):
      return []
    return [json.loads(line) for line in self.bytes_of("events").splitlines()]

  def test_tensorboard(self):
    os.mkdir(self.path("tensorboardX"))
    self.libraries(**{"tensorboardX/__init__": TENSORBOARDX, "tensorboardX/summary": SUMMARY})
    folder = os.path.join(self.run_folder, "tensorboard")
    os.mkdir(folder)
    self.write("a/tensorboard/events.out.tfevents.old", "")
    self.write("a/tensorboard/mine", "")
    settings = {"name": "a", "model.context": 64, "model.layers": 2, "eval.lengths": "[64, 128]", "eval.tokens": 700,
                "data.shuffle": True}
    self.assertEqual(self.export("--to", "tensorboard"), [
        ["open", folder], *[["scalar", *scalar] for scalar in self.scalars()[:-len(LAST)]],
        ["settings", settings], ["metrics", LAST],
        *[["scalar", *scalar] for scalar in self.scalars()[-len(LAST):]], ["close"]])
    self.assertEqual(sorted(os.listdir(folder)), ["events.out.tfevents.new", "mine"])
    self.assertIn(folder, self.output)
    self.assertIn("2 evaluations left out: 1 of 70 tokens asked, 1 with init=elsewhere", self.output)

  def test_the_real_libraries(self):
    """What TensorBoard reads is what was exported, written by either library."""
    try:
      from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
      self.skipTest("no tensorboard")
    for package in ("tensorboardX", "torch"):
      with self.subTest(package):
        if not importlib.util.find_spec(package):
          self.skipTest(f"no {package}")
        self.libraries(torch=REFUSE, tensorboardX=REFUSE)
        os.remove(self.path(package + ".py"))
        self.export("--to", "tensorboard")
        events = EventAccumulator(os.path.join(self.run_folder, "tensorboard"))
        events.Reload()
        found = [(name, round(event.value, 6), event.step, event.wall_time)
                 for name in events.Tags()["scalars"] for event in events.Scalars(name)]
        expected = [(name, value, place or 0, time) for name, value, place, time in self.scalars()]
        self.assertEqual(sorted(scalar[:3] for scalar in found), sorted(scalar[:3] for scalar in expected))
        self.assertLessEqual({scalar for scalar in expected if scalar[3]}, set(found))
        self.assertEqual(sorted(events.PluginTagToContent("hparams")), [
            "_hparams_/experiment", "_hparams_/session_end_info", "_hparams_/session_start_info"])

  def test_wandb(self):
    self.libraries(wandb=WANDB)
    self.assertEqual(self.export("--to", "wandb", "--project", "p", WANDB_DIR=self.folder), [
        ["init", {"project": "p", "name": "a", "config": CONFIG, "dir": self.folder}],
        ["axis", "*", "step"], ["axis", "eval/by_position/*", "position"],
        *[["log", {axis: place, **({"time": time} if time else {}), **values}] for axis, place, time, values in POINTS],
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
