#!/usr/bin/env python3
"""Does ./train --tasks give the log-likelihoods and accuracies that lm-eval gives for the same checkpoint?

    python3 -m venv .venv && .venv/bin/pip install "lm-eval[hf]" torch transformers
    .venv/bin/python scripts/compare_lm_eval.py runs/NAME/step_N hellaswag=hellaswag_val.jsonl piqa=piqa_val.jsonl

The first --limit examples of each file go through scripts/prepare_tasks.py and ./train, and through lm-eval with its own
definition of the task, which opens the checkpoint in transformers. lm-eval reads the rows from a file too, so nothing comes
from the network. The checkpoint must hold the tokenizer (generate.tokenizer_dir). Both compute in fp32. A log-likelihood that
differs by more than 1e-3, or another accuracy, is a failure (exit 1). mmlu: the rows must be of one subject.
"""
import argparse
import json
import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"  # only files on this disk are opened
import common
import prepare_tasks

try:
  import lm_eval
  import torch
  from lm_eval.models.huggingface import HFLM
  from lm_eval.tasks import TaskManager
except ImportError as error:
  common.stop(f"{error}; pip install 'lm-eval[hf]' torch transformers")

BOUND = 1e-3
SHARED = ("hellaswag", "arc_easy", "arc_challenge", "piqa", "sciq", "mmlu", "mmlu_continuation")


def definition(task, rows):
  """lm-eval's own file for the task."""
  tasks = os.path.join(os.path.dirname(lm_eval.__file__), "tasks")
  if task.startswith("mmlu"):
    return os.path.join(tasks, "mmlu", "continuation" if "_" in task else "default", f"mmlu_{rows[0]['subject']}.yaml")
  return os.path.join(tasks, task.split("_")[0], f"{task}.yaml")


def theirs(arguments, model, task, rows, dev, folder):
  """({"acc": ..}, log-likelihoods of all completions in order)"""
  split = prepare_tasks.TASKS[task][3]
  files = {split: rows[:arguments.limit], **({"dev": dev} if dev else {})}
  for name, content in files.items():
    with open(os.path.join(folder, f"{name}.jsonl"), "w") as file:
      file.writelines(json.dumps(row) + "\n" for row in content)
  paths = {name: os.path.join(folder, f"{name}.jsonl") for name in files}
  with open(os.path.join(folder, "task.yaml"), "w") as file:  # JSON is YAML
    json.dump({"include": definition(task, rows), "task": "compared", "dataset_path": "json", "dataset_name": None,
               "dataset_kwargs": {"data_files": paths, "cache_dir": folder}, "training_split": None,
               "validation_split": split if split == "validation" else None, "fewshot_split": "dev" if dev else split},
              file)
  found = lm_eval.simple_evaluate(model=model, tasks=["compared"], task_manager=TaskManager(include_path=folder),
                                  num_fewshot=arguments.shots, log_samples=True, bootstrap_iters=0)
  samples = sorted(found["samples"]["compared"], key=lambda sample: sample["doc_id"])
  accuracies = {key.split(",")[0]: value for key, value in found["results"]["compared"].items() if key.startswith("acc")}
  return accuracies, [response[0][0] for sample in samples for response in sample["resps"]]


def ours(arguments, task, rows, dev, folder):
  """The same by ./train."""
  made = prepare_tasks.examples(task, rows[:arguments.limit], dev, arguments.shots)
  prepare_tasks.write(arguments, task, made, os.path.join(folder, f"{task}.bin"))
  settings = ("name=compared", "precision=fp32", f"task.dir={folder}", "task.samples=samples.jsonl", "task.limit=0",
              "task.max_length=0")
  flags = [word for setting in settings for word in ("--set", setting)]
  common.train(arguments.train, os.path.abspath(arguments.checkpoint), "--tasks", task, *flags, folder=folder)
  with open(os.path.join(folder, "runs/compared/metrics.jsonl")) as lines:
    line = json.loads(list(lines)[-1])
  with open(os.path.join(folder, "samples.jsonl")) as lines:
    return line, [value for sample in lines for value in json.loads(sample)["loglikelihood"]]


def compare(arguments, model, task, path):
  """Prints a row of the table; whether both are equal."""
  rows, dev = prepare_tasks.rows_of([path]), prepare_tasks.rows_of(arguments.dev)
  with tempfile.TemporaryDirectory() as folder:
    mine, values = ours(arguments, task, rows, dev, folder)
    other, others = theirs(arguments, model, task, rows, dev, folder)
  if len(values) != len(others):
    raise common.Failure(f"{task}: {len(values)} log-likelihoods here, {len(others)} by lm-eval")
  worst = max(abs(a - b) for a, b in zip(values, others))
  wanted = {"acc", "acc_norm"} & other.keys()
  good = worst <= BOUND and all(abs(mine[key] - other[key]) < 1e-9 for key in wanted) and "acc" in wanted
  cells = [f"{mine[key]:.4f} / {other[key]:.4f}" if key in wanted else "-" for key in ("acc", "acc_norm")]
  print(f"| {task} | {mine['n']} | {worst:.1e} | {' | '.join(cells)} | {'equal' if good else 'DIFFERENT'} |", flush=True)
  return good


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("checkpoint", metavar="runs/NAME/step_N")
  parser.add_argument("tasks", nargs="+", metavar="TASK=FILE", help=f"TASK: {', '.join(SHARED)}")
  parser.add_argument("--limit", type=int, default=200, help="examples of each [200]")
  parser.add_argument("--shots", type=int, default=0, metavar="K", help="mmlu: solved examples before each question [0]")
  parser.add_argument("--dev", nargs="+", default=[], metavar="FILE", help="mmlu: files with these examples")
  parser.add_argument("--train", default="./train", help="the program [./train]")
  arguments = parser.parse_args()
  arguments.tokenizer, arguments.tokenizer_dir = "gpt2", arguments.checkpoint
  pairs = [text.partition("=")[::2] for text in arguments.tasks]
  for task, path in pairs:
    if task not in SHARED or not path:
      raise common.UserError(f"{task}={path}: give TASK=FILE, where TASK is {', '.join(SHARED)}")
  if not os.path.exists(os.path.join(arguments.checkpoint, "vocab.json")):
    raise common.UserError(f"{arguments.checkpoint} holds no tokenizer; name the folder step_N of a run that was trained with "
                           "generate.tokenizer_dir")
  torch.set_num_threads(1)
  model = HFLM(pretrained=arguments.checkpoint, trust_remote_code=True, dtype="float32", device="cpu", batch_size=8)
  print("| task | examples | largest difference of a log-likelihood | acc: ours / lm-eval | acc_norm | |")
  print("|---" * 6 + "|", flush=True)
  sys.exit(0 if all([compare(arguments, model, task, path) for task, path in pairs]) else 1)


if __name__ == "__main__":
  common.run(main, "nothing was kept")
