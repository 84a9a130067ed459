"""modeling_plusgpt.py, the model's formula for PyTorch, for the other scripts: with and without transformers.

Of transformers the model needs only its base classes. Plain classes take their place here, so a comparison depends on
PyTorch alone, whatever version of transformers is installed.
"""
import glob
import math
import os
import re
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch


class PreTrainedModel(torch.nn.Module):
  def __init__(self, config):
    super().__init__()
    self.config = config

  def post_init(self):
    pass


_stand_in = ModuleType("transformers")
_stand_in.GenerationMixin = _stand_in.PretrainedConfig = object
_stand_in.PreTrainedModel, _stand_in.CausalLMOutput = PreTrainedModel, SimpleNamespace
with mock.patch.dict(sys.modules, {"transformers": _stand_in, "transformers.modeling_outputs": _stand_in}):
  from lib.modeling_plusgpt import FORMULAS, PlusGPTLMHeadModel, scores, weights  # noqa: F401: two for others

from lib.common import stop


def model_of(settings):
  """The model that ./train makes of its settings (nested, all of model and attention), with random weights. float32;
  its parameters have the names and shapes of model.safetensors; model(tokens [B, T]).logits is [B, T, V]."""
  model = settings["model"]
  return PlusGPTLMHeadModel(SimpleNamespace(
      n_layer=model["layers"], n_head=model["heads"], n_embd=model["channels"], n_positions=model["context"],
      n_inner=int(model["mlp_ratio"] * model["channels"] + 0.5), vocab_size=model["vocab"], layer_norm_epsilon=1e-5,
      plusgpt=settings))


def kinds_of_the_tree():
  """The files of attention/kinds/, softmax's first, as in ./train --help."""
  folder = os.path.join(os.path.dirname(__file__), "..", "..", "attention", "kinds")
  return sorted(glob.glob(os.path.join(folder, "*.cuh")), key=lambda path: (not path.endswith("/softmax.cuh"), path))


def read_file(path):
  """The name of the kind of a file (attention/kind.h), its text without comments, and the defaults of its parameters
  and of its learned numbers."""
  name = os.path.splitext(os.path.basename(path))[0]
  with open(path, encoding="utf-8") as file:
    text = re.sub(r"//.*", "", file.read())
  found = (re.search(rf"\b{what}\[\] = \{{([\s\S]*?)\}};", text) or ("", "") for what in ("parameters", "learned"))
  numbers = (re.findall(r"\{\s*\"(\w+)\"\s*,\s*([^,}\s]+)", all_of_them[1]) for all_of_them in found)
  return name, text, *({each: float(value) for each, value in some} for some in numbers)


def add_file(path):
  """Adds the kind of a file to FORMULAS, as ./train does in checkpoints. Returns its name, and the defaults of its
  fixed numbers."""
  name, text, fixed, learned = read_file(path)
  row_weights = re.search(r"weights = RowWeights::(\w+)", text)
  pytorch = re.search(r"pytorch = ((?:\s*\"[^\"]*\")+);", text)
  if not row_weights or not pytorch:
    stop(f"{path}: has no {'pytorch formula' if row_weights else 'weights'}; see the head of attention/score.h")
  names = "".join(f", {each}" for each in [*fixed, *learned])
  body = "".join(re.findall(r"\"([^\"]*)\"", pytorch[1]))
  try:
    f = eval(f"lambda z, i, j, n, head, heads, context{names}: {body}",
             {"torch": torch, "F": torch.nn.functional, "math": math})
    f(*torch.ones(7 + len(fixed) + len(learned)))
  except Exception as problem:  # whatever a formula may do wrong
    stop(f"{path}: its pytorch formula fails: {problem}")
  FORMULAS[name] = (row_weights[1], tuple(fixed), learned, f)
  return name, fixed


for _path in kinds_of_the_tree():
  if "pytorch =" in read_file(_path)[1]:
    add_file(_path)
