"""modeling_plusgpt.py, the formula for PyTorch, for other scripts: with and without transformers.

Of transformers the model needs only its base classes. Plain classes take their place here, so a
comparison depends on PyTorch alone, whatever version of transformers is installed.
"""
import math
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
  from lib.modeling_plusgpt import (  # noqa: F401: four for others
      FORMULAS, PlusGPTLMHeadModel, bias, finished, scores, weights)
  from lib import modeling_plusgpt
modeling_plusgpt.kernels = None  # which are what the formula is compared with

from lib import kind_file
from lib.common import stop


def model_of(settings):
  """The model that ./train makes of its settings (nested, all of model and attention), with random
  weights. float32; its parameters have the names and shapes of model.safetensors;
  model(tokens [B, T]).logits is [B, T, V]."""
  model = settings["model"]
  hidden = int(model["mlp_ratio"] * model["channels"] + 0.5)
  return PlusGPTLMHeadModel(SimpleNamespace(
      n_layer=model["layers"], n_head=model["heads"], n_embd=model["channels"],
      n_positions=model["context"], n_inner=hidden, vocab_size=model["vocab"],
      layer_norm_epsilon=1e-5, initializer_range=model["init_std"], plusgpt=settings))


def add_file(path):
  """Adds the kind of a file to FORMULAS, as ./train does in checkpoints."""
  kind = kind_file.read(path)
  row_weights = re.search(r"weights = RowWeights::(\w+)", kind.text)
  pytorch = re.search(r"pytorch =((?:\s*\"[^\"]*\")+);", kind.text)
  if not row_weights or not pytorch:
    missing = "pytorch formula" if row_weights else "weights"
    stop(f"{path}: has no {missing}; see the head of attention/score.h")
  names = "".join(f", {each}" for each in [*kind.parameters, *kind.learned])
  body = "".join(re.findall(r"\"([^\"]*)\"", pytorch[1]))
  try:
    f = eval(f"lambda z, i, j, n, head, heads, context, seen, softmax, normalised{names}: {body}",
             {"torch": torch, "F": torch.nn.functional, "math": math})
    FORMULAS[kind.name] = (row_weights[1], tuple(kind.parameters), kind.learned, f)
    settings = SimpleNamespace(kind=kind.name, sink="none", **kind.parameters)
    learned = {name: torch.tensor([value]) for name, value in kind.learned.items()}
    weights(torch.ones(1, 1, 1), settings, 1, learned=learned)
  except Exception as problem:  # whatever a formula may do wrong
    stop(f"{path}: its pytorch formula fails: {problem}")


for _path in kind_file.of_the_tree():
  if "pytorch =" in kind_file.read(_path).text:
    add_file(_path)
