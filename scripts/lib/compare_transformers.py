"""compare.py transformers: do our checkpoints open in transformers as the same model, and its GPT-2
and Llama folders here?

./train trains a tiny model of each kind in cases(), transformers opens the folder, and both
evaluate it, at twice the trained length too unless positions are learned; then ./train reads what
transformers saves of it, and GPT-2 and Llama models that transformers makes, in every type of
number. Compared are the validation loss, the loss by position, a row of logits and greedy
generation, all in fp32. The formula is modeling_plusgpt.py of this tree; if ./train was built with
another, a line says so. The promise is 1e-4 (nats); the bound is 1e-5: rounding makes 1e-6, the
other GELU, say, more than 1e-4.
"""
import copy
import itertools
import json
import os
import random
import re
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers

from lib import common, compare_torch, shards

BOUND = 1e-5
FORMULA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "modeling_plusgpt.py")
CONTEXT, VOCAB, EVAL_TOKENS = 24, 40, 960
CONFIG = {
    "name": "compare",
    "precision": "fp32",
    "threads": 1,
    "model": {"layers": 2, "heads": 2, "channels": 32, "context": CONTEXT, "vocab": VOCAB,
              "mlp_ratio": 4.0, "position": "rope"},
    "attention": {"variant": "softmax"},
    "data": {"train": "train.bin", "val": "val.bin"},
    "batch": {"tokens": 192, "micro": 4},
    "optimizer": {"lr": 1e-2, "warmup_steps": 2},
    "train": {"steps": 12},
    "eval": {"every": 0, "tokens": EVAL_TOKENS},
}

LLAMA = {"model.norm": "rmsnorm", "model.mlp": "swiglu", "model.mlp_ratio": 2, "model.bias": False}
SEPARATE = {"attention.documents": "separate", "data.separator": 1}
FEW = {"attention.window": 5, "attention.sink_tokens": 2}

MIXED = [  # settings of models without a name
    {"model.position": "none"}, {"model.position": "learned", "model.head_dim": 6},
    {"model.mlp_ratio": 2.5, "model.rope_base": 500}, {"attention.qk_norm": "rms"},
    {"attention.scale": "logn"}, {"attention.scale": 0.3}, {"attention.sink": "one"},
    {"model.rope_fraction": 0.5},
    {"attention.window": 4, "attention.layers": [{}, {"window": 0, "rotated": False}]},
    {"attention.sink_tokens": 1,
     "attention.layers": [{"window": 3}, {"kind": "lssa", "window": 7, "rotated": False}]},
    {"attention.bias": "fox",
     "attention.layers": [{"bias": "none", "window": 0}, {"window": 5, "bias": "cable"}]},
    {"attention.layers": [{"window": 4, "bias": "alibi"}, {"rotated": False, "bias": "fox"}],
     "attention.gate": {"activation": "silu"}},
    {"attention.variant": "lssar_softplus_gated",
     "attention.layers": [{"gated": True}, {"kind": "softmax", "gated": False}]},
    {"attention.sink": "learned", "attention.gate": {"activation": "silu"},
     "attention.layers": [{"kind": "lssa", "gated": False}, {"gated": True}]},
    {"attention.variant": "lssar", **FEW},
    {**SEPARATE, "model.position": "learned"},
    {**SEPARATE, "attention.variant": "lssar", **FEW,
     "attention.layers": [{"documents": "separate"}, {"documents": "joined"}]},
    {**SEPARATE, "attention.variant": "threshold"},
    {"attention.variant": "fox", "attention.gate": {"activation": "two_sigmoid"}},
    {"attention.variant": "lssar", "attention.power": 3, "attention.offset": 0.5},
    {"attention.variant": "lssar", "attention.power": 2.5, "attention.offset": 0},
    {"attention.variant": "lssar", "attention.offset_free_rows": 0},
    {"attention.variant": "lssar", "attention.scale": 200},  # rows with all scores below -62
    {"attention.variant": "softmaxr", **FEW},
    {"attention.variant": "softmaxr", "attention.power": 2.5, "attention.offset": 0.5},
    {"attention.variant": "lssa", "attention.gate": {"activation": "silu", "bias": False}},
    {"attention.gate": {"activation": "tanh", "input": "none", "granularity": "shared"}},
    {"model.kv_heads": 1, "attention.gate": {"activation": "sigmoid", "position": "value"}},
    {"model.kv_heads": 1, "attention.output": "exclusive", "attention.variant": "fox"},
    {"attention.output": "exclusive"}, {"attention.output": "silu", "attention.output_norm": "l2"},
    {"attention.output": "exclusive", "attention.output_norm": "rms", "model.position": "learned",
     "attention.gate": {"activation": "sigmoid"}, "attention.layers": ["lssar", {"gated": False}]},
    LLAMA, {**LLAMA, "model.kv_heads": 1},
    {**LLAMA, "model.tied": False, "model.head_dim": 6, "model.rope_base": 500},
    {**LLAMA, "model.logit_cap": 3, "model.tied": False},
    {**LLAMA, "attention.variant": "fox"}, {**LLAMA, "attention.variant": "softplus_gated"},
    {"model.mlp": "relu2", "model.bias": False},
    {"model.norm": "rmsnorm", "attention.variant": "lssar"},
    {"model.tied": False, "model.position": "learned"},
]


def gates():
  """A gate at each position with each granularity, with activations and operations in turn."""
  positions = "sdpa", "value", "key", "query", "output"
  granularities = ("elementwise", "headwise", "shared")
  activations = itertools.cycle(("sigmoid", "softplus", "silu", "relu", "tanh", "half_sigmoid",
                                 "identity", "exp"))
  ops = itertools.cycle(("multiply", "add"))
  for position, granularity in itertools.product(positions, granularities):
    if position != "output" or granularity == "elementwise":
      yield {"activation": next(activations), "position": position, "granularity": granularity,
             "op": next(ops)}


def cases(variants):
  """(what it is, settings of model and attention) of every comparison."""
  for position, variant in zip(itertools.cycle(("rope", "learned")), variants):
    yield f"{variant}, {position}", {"model.position": position, "attention.variant": variant}
  for gate in gates():
    yield "gate: " + " ".join(gate.values()), {"attention.gate": gate}
  for settings in MIXED:
    yield json.dumps(settings)[1:-1].replace('"', ""), settings


def text(count, seed):
  """Tokens of which about half follow from the one before."""
  chance, tokens = random.Random(seed), [0]
  while len(tokens) < count:
    follows = chance.random() < 0.5
    tokens.append((3 * tokens[-1] + 1) % VOCAB if follows else chance.randrange(VOCAB))
  return tokens


def take_formula(folder):
  """Gives a checkpoint this tree's formula. Whether it was the same; plain GPT-2 has none."""
  carried = os.path.join(folder, os.path.basename(FORMULA))
  if not os.path.exists(carried):
    return True
  with open(FORMULA, encoding="utf-8") as ours, open(carried, encoding="utf-8") as theirs:
    ours, theirs = ours.read(), theirs.read()
  # except for kinds that are files, whose formulas only the checkpoint has
  if formulas := re.search(r"^FORMULAS = \{\n[\s\S]*?^\}\n", theirs, re.MULTILINE):
    ours = ours.replace("FORMULAS = {\n}\n", formulas[0])
  with open(carried, "w", encoding="utf-8") as file:
    file.write(ours)
  return ours == theirs


class Trainer:
  """./train in a folder of its own, with the settings of one case."""

  def __init__(self, program, folder, settings):
    self.program, self.folder = program, folder
    self.config = copy.deepcopy(CONFIG)
    for name, value in settings.items():
      section, key = name.split(".")
      self.config[section][key] = value
    with open(self.path("config.json"), "w") as file:
      json.dump(self.config, file)

  def path(self, *parts):
    return os.path.join(self.folder, *parts)

  def call(self, *flags, **settings):
    common.train(self.program, "config.json", *flags, settings=settings, folder=self.folder)

  def trained(self):
    """The folder of a model that was trained from weights so large that scores differ by several
    units: with the usual ones attention is nearly uniform, and hides its errors below the bound."""
    settings = common.settings(self.program, "config.json", folder=self.folder)
    weights = compare_torch.random_weights(settings, seed=1)
    for array in weights.values():
      if array.ndim == 2:
        array *= 3
    os.makedirs(self.path("large"), exist_ok=True)
    compare_torch.save(self.path("large", "model.safetensors"), weights)
    self.call("--overwrite", init="large")
    return self.path("runs", CONFIG["name"], f"step_{CONFIG['train']['steps']:08d}")

  def evaluated(self, init, length, **settings):
    """The line of metrics.jsonl for the model in the folder `init`."""
    self.call("--eval", "--lengths", str(length), **{"name": "eval", "init": init, **settings})
    return common.metrics_of(self.folder, "eval")[-1]

  def row_of_logits(self, init, window):
    """Log-probabilities [V] of what follows the window. ./train prints losses only: of the window
    once for each token, which is the label of its last position, as no other position has one."""
    shards.write(self.path("window.bin"), "tokens", window * VOCAB + [0])
    labels = []
    for token in range(VOCAB):
      labels += [shards.NO_LABEL] * (len(window) - 1) + [token]
    shards.write(self.path("labels.bin"), "labels", labels + [0])
    settings = {"data.val": "window.bin", "data.val_labels": "labels.bin",
                "eval.tokens": len(window) * VOCAB}
    line = self.evaluated(init, len(window), **settings)
    return -torch.tensor(line["window_losses"], dtype=torch.float64)


def losses_of(model, tokens, length):
  """[windows, length], of the windows that ./train evaluates."""
  count = min(EVAL_TOKENS // length, (len(tokens) - 1) // length)
  inputs = torch.tensor(tokens[:count * length]).view(count, length)
  targets = torch.tensor(tokens[1:count * length + 1]).view(count, length)
  return F.cross_entropy(model(inputs).logits.transpose(1, 2), targets, reduction="none")


def by_position(losses, edges):
  """The mean loss in each of ./train's bins of positions."""
  return torch.stack([losses[:, first:after].mean() for first, after in itertools.pairwise(edges)])


def generates(model):
  """Whether generate() takes the largest logit each time, across the end of the trained length."""
  # GPT-2 there ends with its positions, and Llama continues with all tokens
  count = CONTEXT + 8 if model.config.model_type == "plusgpt" else CONTEXT
  prompts = torch.tensor([text(CONTEXT - 4, seed) for seed in (5, 6)])
  expected = prompts
  while expected.shape[1] < count:
    largest = model(expected[:, -CONTEXT:]).logits[:, -1:].argmax(-1)
    expected = torch.cat([expected, largest], 1)
  ids = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False,
                       max_new_tokens=count - prompts.shape[1], pad_token_id=0)
  return torch.equal(ids, expected)


@torch.no_grad()
def compare(trainer, folder, model, lengths):
  """{"loss": error, "by position": ..., "logits": ...}, and whether it generates as it should."""
  val = text(EVAL_TOKENS + 1, seed=2)
  errors = {"loss": 0.0, "by position": 0.0}
  for length in lengths:
    ours, theirs = trainer.evaluated(folder, length), losses_of(model, val, length)
    errors["loss"] = max(errors["loss"], abs(ours["loss"] - theirs.mean().item()))
    difference = torch.tensor(ours["by_position"]) - by_position(theirs, ours["position_edges"])
    errors["by position"] = max(errors["by position"], difference.abs().max().item())
  window = text(lengths[-1], seed=3)  # the longest: its last row has every layer, position and key
  row = model(torch.tensor([window])).logits[0, -1].log_softmax(-1)
  errors["logits"] = (trainer.row_of_logits(folder, window) - row).abs().max().item()
  return errors, generates(model)


def row(name, model, loss, errors, generates):
  keys = "loss", "by position", "logits", "back"
  cells = [f"{errors[key]:.1e}" if key in errors else "-" for key in keys]
  good = max(errors.values()) <= BOUND
  verdict = "GENERATES DIFFERENTLY" if not generates else "equal" if good else "DIFFERENT"
  return name, type(model).__name__, f"{loss:.6f}", *cells, verdict


def ours_there(trainer, name):
  folder = trainer.trained()
  if not take_formula(folder):
    print(f"warning: compared is {FORMULA}; {trainer.program} was built with another one, "
          "so run make", file=sys.stderr, flush=True)
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
  learned = trainer.config["model"]["position"] == "learned"
  lengths = [CONTEXT] if learned else [CONTEXT, 2 * CONTEXT]
  errors, generated = compare(trainer, folder, model, lengths)
  model.save_pretrained(trainer.path("saved"))
  loss = trainer.evaluated(folder, CONTEXT)["loss"]
  errors["back"] = abs(trainer.evaluated("saved", CONTEXT)["loss"] - loss)
  return row(name, model, loss, errors, generated)


SHARED = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None,
          "initializer_range": 0.2}  # for logits far from 0


def gpt2():
  sizes = CONFIG["model"]
  return transformers.GPT2LMHeadModel(transformers.GPT2Config(
      n_layer=sizes["layers"], n_head=sizes["heads"], n_embd=sizes["channels"],
      n_positions=CONTEXT, **SHARED))


def llama():
  sizes = CONFIG["model"]
  return transformers.LlamaForCausalLM(transformers.LlamaConfig(
      num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"],
      hidden_size=sizes["channels"], intermediate_size=64, max_position_embeddings=CONTEXT,
      rms_norm_eps=1e-5, pad_token_id=None, **SHARED))


def theirs_here(trainer, name, make, dtype):
  torch.manual_seed(1)
  model = make().eval()
  model.to(dtype).save_pretrained(trainer.path("theirs"))
  rounded, model = model.state_dict(), make().eval()
  model.load_state_dict(rounded)  # what the file holds; Llama's frequencies must not be rounded
  errors, generated = compare(trainer, "theirs", model, [CONTEXT])
  loss = trainer.evaluated("theirs", CONTEXT)["loss"]
  return row(name, model, loss, errors, generated)


def rows(program, ours, theirs):
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  with tempfile.TemporaryDirectory() as folder:
    transformers.dynamic_module_utils.HF_MODULES_CACHE = os.path.join(folder, "modules")
    shards.write(os.path.join(folder, "train.bin"), "tokens", text(4000, seed=1))
    shards.write(os.path.join(folder, "val.bin"), "tokens", text(EVAL_TOKENS + 1, seed=2))
    for name, settings in ours.items():
      yield ours_there(Trainer(program, folder, settings), name)
    for name, (make, dtype, settings) in theirs.items():
      yield theirs_here(Trainer(program, folder, settings), name, make, dtype)


def table(args):
  types = torch.float32, torch.float16, torch.bfloat16
  ours = dict(cases(common.variants(args.train)))
  if args.kinds:
    names = [os.path.splitext(os.path.basename(path))[0] for path in args.kinds]
    ours = {name: settings for name, settings in ours.items() if name.split(",")[0] in names}
    types = ()
  theirs = {}
  for dtype in types:
    suffix = str(dtype).removeprefix("torch.")
    theirs[f"transformers' GPT-2, {suffix}"] = gpt2, dtype, {"model.position": "learned"}
    theirs[f"transformers' Llama, {suffix}"] = llama, dtype, {**LLAMA, "model.tied": False}
  ours = {name: case for name, case in ours.items() if args.only in name}
  theirs = {name: case for name, case in theirs.items() if args.only in name}
  if not ours and not theirs:
    raise common.UserError(f"--only {args.only}: no model has this in its name")
  columns = ("model", "opens as", "validation loss", "error", "worst by position",
             "worst of a row of logits", "and back")
  return columns, rows(args.train, ours, theirs)
