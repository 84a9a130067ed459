"""compare.py lm_eval: does ./train --tasks give the log-likelihoods and accuracies that lm-eval gives?

The first --limit examples of each file go through scripts/prepare_tasks.py and ./train, and through lm-eval with its
own definition of the task, which opens the checkpoint in transformers. lm-eval reads the rows from a file too, so
nothing comes from the network. The checkpoint must hold the tokenizer (generate.tokenizer_dir). Both compute in fp32.
Bounds: 1e-3 for a log-likelihood, of a text for each of its words; accuracies must be equal, perplexities and bits per
byte of texts to 1e-3.
"""
import json
import os
import tempfile

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lib import common
import prepare_tasks

BOUND = 1e-3
SHARED = ("hellaswag", "arc_easy", "arc_challenge", "piqa", "sciq", "mmlu", "mmlu_continuation", "lambada_openai",
          "wikitext")
MEASURES = {"acc": 1e-9, "acc_norm": 1e-9, "word_perplexity": 1e-3, "bits_per_byte": 1e-3}  # relative bounds


def definition(task, rows):
  """lm-eval's own file for the task."""
  tasks = os.path.join(os.path.dirname(lm_eval.__file__), "tasks")
  if task.startswith("mmlu"):
    return os.path.join(tasks, "mmlu", "continuation" if "_" in task else "default", f"mmlu_{rows[0]['subject']}.yaml")
  return os.path.join(tasks, task.split("_")[0], f"{task}.yaml")


def theirs(arguments, model, task, rows, dev, folder):
  """({"acc": ..}, log-likelihoods of all completions in order)"""
  split = prepare_tasks.TASKS[task].split
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
  measures = {key.split(",")[0]: value for key, value in found["results"]["compared"].items()}
  measures["word_perplexity"] = measures.get("word_perplexity", measures.get("perplexity"))  # lambada's is of a word
  answers = [response[0] for sample in samples for response in sample["resps"]]
  return measures, [answer[0] if isinstance(answer, (list, tuple)) else answer for answer in answers]


def ours(arguments, task, rows, dev, folder):
  """The same by ./train."""
  made = prepare_tasks.examples(task, rows[:arguments.limit], dev, arguments.shots)
  prepare_tasks.write(arguments, task, made, os.path.join(folder, f"{task}.bin"))
  settings = {"name": "compared", "precision": "fp32", "task.dir": folder, "task.samples": "samples.jsonl",
              "task.limit": 0, "task.max_length": 0}
  checkpoint = os.path.abspath(arguments.checkpoint)
  common.train(arguments.train, checkpoint, "--tasks", task, settings=settings, folder=folder)
  with open(os.path.join(folder, "samples.jsonl")) as lines:
    values = [(value, row.get("words", 1)) for row in map(json.loads, lines) for value in row["loglikelihood"]]
  return common.metrics_of(folder, "compared")[-1], values


def compare(arguments, model, task, path):
  """A row of the table."""
  rows, dev = prepare_tasks.rows_of([path]), prepare_tasks.rows_of(arguments.dev)
  with tempfile.TemporaryDirectory() as folder:
    mine, values = ours(arguments, task, rows, dev, folder)
    other, others = theirs(arguments, model, task, rows, dev, folder)
  if len(values) != len(others):
    raise common.Failure(f"{task}: {len(values)} log-likelihoods here, {len(others)} by lm-eval")
  worst = max(abs(a - b) / words for (a, words), b in zip(values, others))
  wanted = [key for key in MEASURES if mine.get(key) is not None and other.get(key) is not None]
  good = worst <= BOUND and wanted and all(abs(mine[key] / other[key] - 1) <= MEASURES[key] if other[key] else
                                           mine[key] == 0 for key in wanted)
  cells = [f"{mine[key]:.4f} / {other[key]:.4f}" if key in wanted else "-" for key in MEASURES]
  return task, str(mine["n"]), f"{worst:.1e}", *cells, "equal" if good else "DIFFERENT"


def table(arguments):
  arguments.tokenizer, arguments.tokenizer_dir = "gpt2", arguments.checkpoint
  pairs = [text.partition("=")[::2] for text in arguments.tasks]
  for task, path in pairs:
    if task not in SHARED or not path:
      raise common.UserError(f"{task}={path}: give TASK=FILE, where TASK is {', '.join(SHARED)}")
  if not os.path.exists(os.path.join(arguments.checkpoint, "vocab.json")):
    raise common.UserError(f"{arguments.checkpoint} holds no tokenizer; name the folder step_N of a run that was "
                           "trained with generate.tokenizer_dir")
  model = HFLM(pretrained=arguments.checkpoint, trust_remote_code=True, dtype="float32", device="cpu", batch_size=8)
  columns = ("task", "examples", "largest difference of a log-likelihood", "acc: ours / lm-eval",
             *[*MEASURES][1:])
  return columns, (compare(arguments, model, *pair) for pair in pairs)
