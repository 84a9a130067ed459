"""scripts/export.py with stand-ins for the libraries, which record their calls. Standard library only."""
import json
import os
import sys
from unittest import mock

from support.scripts import DAMAGED, ScriptTest

import export  # from SCRIPTS

CONFIG = {"name": "a", "model": {"context": 64, "layers": 2}, "eval": {"lengths": [64, 128], "tokens": 700},
          "data": {"shuffle": True}}
OF = {"data": [{"name": "v.bin", "tokens": 900, "xxh64": "0a"}], "tokens_asked": 700, "rope_scaling": "none"}
LINES = [
    {"type": "start", "config": CONFIG},
    {"type": "train", "time": 2e9, "step": 1, "loss": 5.5, "grad_norm": 1.5, "lr": 1e-3, "mfu": None},
    {"type": "skip", "step": 1, "reason": "loss", "skipped": 1},
    {"type": "val", "step": 2, "length": 64, "loss": 5.25, "tokens": 640, "of": OF},
    {"type": "train", "step": 2, "loss": None, "grad_norm": 2.5, "lr": 2e-3, "mfu": 0.5},
    {"type": "eval", "time": 2e9 + 9, "step": 2, "length": 100, "loss": 4.5, "tokens": 700, "last_loss": 4.25,
     "bits_per_byte": 6.5, "accuracy": 0.375, "exact": 0.0, "of": OF,
     "position_edges": [0, 1, 99, 100], "by_position": [4.0, None, 5.0]},
    {"type": "eval", "step": 1, "length": 100, "loss": 9.5, "tokens": 700, "last_loss": 9.5, "of": OF},
    {"type": "eval", "step": 2, "length": 100, "loss": 0.5, "of": {**OF, "tokens_asked": 70}},
    {"type": "groups", "time": 2e9 + 5, "step": 1, "norms": {}, "learned": {"attn.sink": [None, [0.5, None]]}},
    {"type": "eval", "mode": "suffix", "step": 2, "length": 32, "loss": 4.75, "bits_per_byte": 6.75, "context_of": 100,
     "suffix": 8, "of": OF},
    {"type": "eval", "step": 0, "length": 64, "loss": 1.0, "of": OF, "weights": {"run": "b", "xxh64": "1"}},
]
POINTS = [
    ("step", 1, 2e9, {"train/loss": 5.5, "train/grad_norm": 1.5, "train/lr": 1e-3}),
    ("step", 1, None, {"skip/skipped": 1}),
    ("step", 2, None, {"train/grad_norm": 2.5, "train/lr": 2e-3, "train/mfu": 0.5}),
    ("step", 1, None, {"eval/loss/100": 9.5, "eval/last_loss/100": 9.5}),
    ("step", 2, None, {"val/loss/64": 5.25}),
    ("step", 2, None, {"eval/suffix/loss/32": 4.75, "eval/suffix/bits_per_byte/32": 6.75}),
    ("step", 2, 2e9 + 9, {"eval/loss/100": 4.5, "eval/last_loss/100": 4.25, "eval/bits_per_byte/100": 6.5,
                          "eval/accuracy/100": 0.375, "eval/exact/100": 0.0}),
    ("step", 1, 2e9 + 5, {"learned/attn.sink/1/0": 0.5}),
    ("position", 1, 2e9 + 9, {"eval/by_position/100": 4.0}),
    ("position", 100, 2e9 + 9, {"eval/by_position/100": 5.0}),
]
LAST = {"last/train/loss": 5.5, "last/val/loss/64": 5.25, "last/eval/loss/100": 4.5, "last/eval/last_loss/100": 4.25,
        "last/eval/bits_per_byte/100": 6.5, "last/eval/accuracy/100": 0.375, "last/eval/exact/100": 0.0,
        "last/eval/suffix/loss/32": 4.75, "last/eval/suffix/bits_per_byte/32": 6.75}


class Export(ScriptTest):
  def setUp(self):
    super().setUp()
    self.run_folder = self.make_run("a", [*LINES[:8], *DAMAGED, *LINES[8:], DAMAGED[-1]])

  def export(self, to, *args, code=0, **modules):
    names = dict.fromkeys(("torch", "torch.utils.tensorboard", "tensorboardX", "tensorboardX.summary", "wandb"))
    with mock.patch.dict(sys.modules, {**names, **modules}):
      self.run_module(export, self.run_folder, "--to", to, *args, code=code)

  def test_tensorboard(self):
    library, folder = mock.MagicMock(), os.path.join(self.run_folder, "tensorboard")
    os.mkdir(folder)
    for name in ("events.out.tfevents.old", "mine"):
      self.write("a/tensorboard/" + name, "")
    library.hparams.return_value = ["settings", "metrics"]
    self.export("tensorboard", tensorboardX=library, **{"tensorboardX.summary": library})
    self.assertEqual(os.listdir(folder), ["mine"])
    library.SummaryWriter.assert_called_once_with(folder)
    writer = library.SummaryWriter.return_value
    self.assertEqual(writer.add_scalar.call_args_list, [
        *[mock.call(name, value, place, walltime=time) for _, place, time, values in POINTS
          for name, value in values.items()], *[mock.call(*item) for item in LAST.items()]])
    self.assertEqual(library.hparams.call_args.args, (
        {"name": "a", "model.context": 64, "model.layers": 2, "eval.lengths": "[64, 128]", "eval.tokens": 700,
         "data.shuffle": True}, LAST))
    self.assertEqual(writer.file_writer.add_summary.call_args_list, [mock.call("settings"), mock.call("metrics")])
    writer.close.assert_called_once_with()
    self.assertIn("evaluations left out: 1 of the weights of b, 1 of another series", self.output)

  def test_wandb(self):
    library = mock.MagicMock(Error=OverflowError)
    with mock.patch.dict(os.environ, WANDB_DIR=self.folder):
      self.export("wandb", "--project", "p", wandb=library)
    self.assertEqual(library.mock_calls, [
        mock.call.init(project="p", name="a", config=CONFIG, dir=self.folder),
        mock.call.init().define_metric("*", step_metric="step"),
        mock.call.init().define_metric("eval/by_position/*", step_metric="position"),
        *[mock.call.init().log({axis: place, **({"time": time} if time else {}), **values})
          for axis, place, time, values in POINTS],
        mock.call.init().summary.update(LAST), mock.call.init().finish()])
    library.init.side_effect = OverflowError("api_key not configured")
    self.export("wandb", code=2, wandb=library)
    self.assert_error("api_key not configured", "WANDB_MODE=offline")
    self.write("a/metrics.jsonl", json.dumps(LINES[0]) + "\n")
    self.export("wandb", code=2, wandb=library)
    self.assert_error(self.run_folder, "nothing to export")

  def test_a_missing_library_says_what_to_install(self):
    for name, package in (("tensorboard", "pip install tensorboardX tensorboard"), ("wandb", "pip install wandb")):
      self.export(name, code=2)
      self.assert_error(package)
