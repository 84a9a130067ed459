"""Ways of computing that must not matter: each task of TASKS, in each way of WAYS that applies to it.

A new task or a new way is a row. Results are equal to the bit; where only rounding may differ, the way says by how much
and why. Each task is a test: python3 -m unittest program.test_invariance -k diagnostics. FULL=1 takes both precisions.
"""
import json
import os
import shutil
from typing import NamedTuple
from unittest import mock

from data.test_labels import LABELS, SHARDS, following, label_file, some
from eval.test_predict import some_values
from eval.test_tasks import questions, task_file, text_file
from support.runs import FILES, RankRuns
from support.workspace import TEXT, read_safetensors, shard

# A step has 12 windows, in 6 micro batches: for 1, 2 or 3 ranks. An epoch of 59, in two shards, ends within step 5.
COMMON = {"batch.tokens": 192, "optimizer.lr": 1e-3, "train.steps": 6, "checkpoint.every": 2, "checkpoint.keep": 9,
          "eval.every": 3, "eval.lengths": [16, 48], "eval.batch": 2, "model.channels": 64, "task.dir": ".",
          "passkey.form": "compact", "passkey.trials": 3, "passkey.depths": 3}
LARGE = {"model.mlp_ratio": 64.0, "eval.lengths": [16]}  # a million parameters: each rank owns a part of every bucket
MUON = {**LARGE, "model.mlp_ratio": 32.0, "optimizer.matrices": "muon"}  # its products take most of a step's time
LABELLED = {key.replace("__", "."): value for key, value in LABELS.items()}
TRAINING, GRADIENTS, EVALUATION, OTHER = KINDS = "training", "gradients", "evaluation", "other"


class Task(NamedTuple):
  kind: str
  precision: str
  settings: dict
  flags: tuple = ()


TASKS = {
    "large": Task(TRAINING, "fp32", LARGE),
    "large_with_gates": Task(TRAINING, "bf16", {
        **LARGE, "attention.gate.activation": "sigmoid", "data.shuffle": False}),
    "lssar": Task(TRAINING, "fp32", {"attention.variant": "lssar_softplus_gated", "model.channels": 16}),
    # Power 15 magnifies every rounding so much that sums in another order are another run.
    "softmaxr": Task(TRAINING, "fp32", {"attention.variant": "softmaxr", "attention.power": 3, "model.channels": 16}),
    "learned": Task(TRAINING, "fp32", {"model.position": "learned", "attention.sink": "learned", "eval.lengths": [16],
                                       "model.vocab": 5000}),
    "layers_that_differ": Task(TRAINING, "bf16", {
        "attention.layers": [{"kind": "lssa", "window": 5}, {"gated": False, "bias": "fox"}],
        "attention.gate.activation": "silu", "model.kv_heads": 1,
        "eval.mode": "suffix"}),
    "outputs": Task(TRAINING, "bf16", {
        "attention.output": "exclusive", "attention.output_norm": "rms", "attention.gate.activation": "half_sigmoid",
        "attention.gate.granularity": "shared", "attention.gate.input": "none", "eval.lengths": [16]}),
    "pruned": Task(TRAINING, "fp32", {"attention.variant": "fox", "model.context": 130, "batch.tokens": 12 * 130,
                                      "model.channels": 16, "eval.lengths": [130, 200]}),
    "documents": Task(TRAINING, "fp32", {
        "attention.documents": "separate", "data.separator": ord(" "), "attention.variant": "fox",
        "attention.layers": ["lssa", {"documents": "joined"}], "model.position": "learned", "eval.lengths": [16]}),
    "diagnostics_of_training": Task(TRAINING, "fp32", {
        "attention.variant": "ssmax", "diagnostics.every": 3, "diagnostics.tokens": 96, "log.groups_every": 1}),
    "muon": Task(TRAINING, "fp32", {**MUON, "attention.variant": "fox"}),
    # A low rate, because five steps in bf16 amplify the rounding of small singular values.
    "muon_with_gates": Task(TRAINING, "bf16", {
        **MUON, "optimizer.muon.scale": "rms", "optimizer.muon.lr": 1e-5,
        "optimizer.muon.weight_decay": 0.1, "attention.variant": "softplus_gated", "log.groups_every": 2}),
    "llama": Task(TRAINING, "fp32", {"model.norm": "rmsnorm", "model.mlp": "swiglu", "model.bias": False,
                                     "model.tied": False}),
    "another_block": Task(TRAINING, "bf16", {
        "model.norm": "rmsnorm", "model.mlp": "relu2", "model.bias": False, "model.residual_init": "zero",
        "model.logit_cap": 5.0, "attention.variant": "fox", "attention.gate.activation": "silu"}),
    "labels": Task(TRAINING, "fp32", {**LABELLED, "train.label_mean": "sequence"}),
    "values": Task(TRAINING, "bf16", {**LABELLED, "model.head.outputs": 3}),
    "gradients": Task(GRADIENTS, "fp32", {"attention.variant": "softmax_sink"}, ("--dump-gradients", "out")),
    "windows": Task(EVALUATION, "bf16", {}, ("--eval", "--lengths", "8,16,48")),
    "suffixes": Task(EVALUATION, "fp32", {"eval.mode": "suffix"}, ("--eval", "--lengths", "8,16,48")),
    "documents": Task(EVALUATION, "fp32", {"eval.start": "document", "data.val": "documents.bin"},
                      ("--eval", "--lengths", "8,16,48")),
    "diagnostics": Task(EVALUATION, "fp32", {"attention.variant": "lssar_softplus_gated"},
                        ("--diagnostics", "--lengths", "16,200")),
    "passkey": Task(EVALUATION, "bf16", {}, ("--passkey", "--lengths", "128,100")),
    "benchmarks": Task(EVALUATION, "fp32", {}, ("--tasks", "a,b")),
    "texts": Task(EVALUATION, "fp32", {}, ("--tasks", "words,a,whole")),
    "predictions": Task(EVALUATION, "fp32", {**LABELLED, "model.head.outputs": 2}, ("--predict", "out")),
    "losses_of_tokens": Task(EVALUATION, "bf16", LABELLED, ("--per-token-losses", "out")),
    "losses_of_suffixes": Task(EVALUATION, "fp32", {"eval.mode": "suffix", "data.val": ["val.bin", "train_000001.bin"]},
                               ("--per-token-losses", "out")),
    "text": Task(OTHER, "fp32", {}, ("--generate", "It was")),
    # those of make check-kind
    **{f"kind_{name}": Task(TRAINING, "fp32", {"attention.variant": name})
       for name in os.environ.get("KIND_NAMES", "").split()},
}

# How much results may differ, {kind of task: (fp32, bf16)}: u times the terms of a sum, in both orders. Each of 6 steps
# adds as much. In bf16 it is two roundings, because a sum in another order rounds what is stored to a neighbour.
U, U16 = 2**-24, 2**-8
REORDERED = {TRAINING: (6 * 16 * U, 2 * U16), GRADIENTS: (16 * U, 2 * U16)}  # 6 or 12 micro batches, then 2 to 4 ranks
REGROUPED = {TRAINING: (6 * 96 * U, 2 * U16), GRADIENTS: (96 * U, 2 * U16)}  # 3 x 64 rows beside 6 x 32 or 12 x 16
RESHAPED = {EVALUATION: (64 * U, 2 * U16)}  # OpenBLAS may sum the 64 channels of other shapes in another kernel
STORED = {TRAINING: (0, 2 * U16), GRADIENTS: (0, 2 * U16)}  # GELU is recomputed from what is stored


def without_shares(lines):
  """Of predictions that are right: which of two logits is the largest may depend on a rounding to bf16."""
  return [{key: value for key, value in line.items() if not key.startswith(("accuracy", "exact"))} for line in lines]


class Way(NamedTuple):
  of: str = "plain"  # the way with which it is compared; "": none
  flags: tuple = ()
  changes: dict = {}
  environment: dict = {}
  kinds: tuple = KINDS
  bounds: dict = {}


STEPS = TRAINING, GRADIENTS
TWO, THREE, FOUR = (("--gpus", count) for count in "234")
ORDERS = "late", "random", *(("random2", "random3") if os.environ.get("FULL") else ())  # see emulation/streams.h
MICRO_1, WHOLE = {"batch.micro": 1}, {"train.zero_stage": 0}
NEXT = {key: value.replace("labels", "next") for key, value in LABELLED.items()}  # labels that are the next tokens
CHOOSE = {"PLUSGPT_MATMUL": "choose", "XDG_CACHE_HOME": "cold"}  # each process measures; all must use the choice of one
WAYS = {
    "plain": Way(of=""),
    "again": Way(),
    "threads": Way(changes={"threads": 3}),
    **{order: Way(environment={"PLUSGPT_STREAMS": order}) for order in ORDERS},
    "gelu": Way(changes={"train.recompute": "gelu"}, kinds=STEPS, bounds=STORED),
    "block": Way(changes={"train.recompute": "block"}, kinds=STEPS),
    "micro_1": Way(changes=MICRO_1, kinds=STEPS, bounds=REGROUPED),
    "micro_4": Way(changes={"batch.micro": 4}, kinds=STEPS, bounds=REGROUPED),
    "batch_1": Way(changes={"eval.batch": 1}, kinds=(EVALUATION,), bounds=RESHAPED),
    "batch_16": Way(changes={"eval.batch": 16}, kinds=(EVALUATION,), bounds=RESHAPED),
    "next": Way(changes=NEXT, kinds=(TRAINING,)),
    "resumed": Way(flags=("--resume", "runs/plain/step_00000004"), kinds=(TRAINING,)),
    "2_ranks": Way(flags=TWO, bounds=REORDERED),
    "3_ranks": Way(flags=THREE, bounds=REORDERED),
    "4_ranks": Way("micro_1", FOUR, MICRO_1, kinds=STEPS, bounds=REORDERED),
    **{f"2_{order}": Way("2_ranks", TWO, environment={"PLUSGPT_STREAMS": order}) for order in ORDERS},
    "2_next": Way("2_ranks", TWO, NEXT, kinds=(TRAINING,)),
    "2_whole": Way("2_ranks", TWO, WHOLE, kinds=STEPS),
    "4_whole": Way("4_ranks", FOUR, {**MICRO_1, **WHOLE}, kinds=STEPS),
    "2_whole_late": Way("2_whole", TWO, WHOLE, {"PLUSGPT_STREAMS": "late"}, STEPS),
    "2_resumed": Way("2_ranks", (*TWO, "--resume", "runs/2_whole/step_00000004"), kinds=(TRAINING,)),
    "4_whole_resumed": Way("4_ranks", (*FOUR, "--resume", "runs/4_ranks/step_00000004"), {**MICRO_1, **WHOLE},
                           kinds=(TRAINING,)),
    "2_cold": Way("", TWO, environment=CHOOSE),
    "2_warm": Way("2_cold", TWO, {**WHOLE, "checkpoint.every": 0}, CHOOSE),
    "2_cold_resumed": Way("2_cold", (*TWO, "--resume", "runs/2_cold/step_00000004"), {},
                          {**CHOOSE, "XDG_CACHE_HOME": "new"}, (TRAINING,)),
}


class Invariance(RankRuns):
  def check(self, task, precision):
    for folder in ("runs", "cold", "new"):
      shutil.rmtree(self.path(folder), ignore_errors=True)
    results = {}
    for name, way in WAYS.items():
      if task.kind in way.kinds and not way.changes.keys() & task.settings.keys():
        result = results[name] = self.result(name, task, way, precision)
        if way.of:
          with self.subTest(way=name, precision=precision):
            self.compare(result, results[way.of], way.bounds.get(task.kind, (0, 0))[precision == "bf16"])

  def compare(self, found, expected, bound):
    for part in found:
      if bound == 0 or "files" not in part:
        rounds = part == "lines" and bound >= U16
        both = (without_shares(each[part]) if rounds else each[part] for each in (found, expected))
        self.assert_close(*both, bound, part)

  def result(self, run, task, way, precision):
    """All that a task leaves and says."""
    settings = {**COMMON, "name": run, "precision": precision, **task.settings, **way.changes}
    changes = {key.replace(".", "__"): value for key, value in settings.items()}
    with mock.patch.dict(os.environ, way.environment):
      said = self.ok(*task.flags, *way.flags, **changes).stdout
    result = {}
    if os.path.exists(self.path("runs", run)):
      result["lines"] = self.steady(run)
      for line in result["lines"]:
        if "data" in line.get("of", {}):
          line.update(dict.fromkeys(("id", "series")))  # as of other label files
          line["of"]["data"] = [file for file in line["of"]["data"] if not file["name"].startswith("next")]
          line["of"].pop("label_mean", None)  # of labels, all tokens
          line.pop("window_labels", None)
    if task.kind == TRAINING:
      for step in self.steps(run):
        result[f"files of step {step}"] = [self.digest(self.checkpoint(step, name, run=run)) for name in FILES[:3]]
    elif task.kind == GRADIENTS:
      result["out"] = {name: data for name, (_, _, data) in read_safetensors(self.path("out")).items()}
    elif "out" in task.flags:
      result["out"] = self.bytes_of("out")[128:]
    elif task.kind == OTHER:
      result["text"] = said.partition("weights:")[2]
    if "out" in task.flags:
      os.remove(self.path("out"))
    if way.environment.get("XDG_CACHE_HOME") == "cold":
      result["choices"] = [line[:3] for line in self.choices("cold")]  # the next run has nothing left to choose,
      self.assertEqual(len(set(map(tuple, result["choices"]))), len(result["choices"]))  # and one rank has written
    return result


def test_of(task):
  def test(self):
    outputs = task.settings.get("model.head.outputs", 0)
    for name, tokens in SHARDS.items():
      labels = some_values(outputs)(list(tokens)) if outputs else some(list(tokens))
      self.write(f"labels_{name}.bin", label_file(labels, outputs or 1))
      self.write(f"next_{name}.bin", label_file(following(list(tokens))))
    self.write("a.bin", task_file(questions(30)))
    self.write("b.bin", task_file([("Why", [" me", " you or me"], 0)] * 5))
    self.write("words.bin", text_file([(f"passage {number} of", " " + "worst"[number % 5:], 1) for number in range(9)]))
    self.write("whole.bin", text_file([("\n", "the best of times " * count, 4 * count) for count in (1, 9, 20)]))
    self.write("documents.bin", shard(TEXT * 10))  # each begins with a full stop
    self.write("documents.json", json.dumps({"tokens": 10 * len(TEXT), "bytes": 10 * len(TEXT), "tokenizer": "t.json",
                                             "vocab": 256, "end_of_text": ord(".")}))
    for precision in ("fp32", "bf16") if os.environ.get("FULL") else [task.precision]:
      self.check(task, precision)
  return test


for name, task in TASKS.items():
  setattr(Invariance, "test_" + name, test_of(task))
