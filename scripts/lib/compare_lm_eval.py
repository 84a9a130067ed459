"""compare.py lm_eval: does ./train --tasks give the log-likelihoods and accuracies of lm-eval?

The first --limit examples of each file go through scripts/prepare_tasks.py and ./train, and through
lm-eval with its own definition of the task, which opens the checkpoint in transformers. It reads
the rows from a file too, so nothing comes from the network. The checkpoint must hold the tokenizer
(generate.tokenizer_dir). Both compute in fp32. Bounds: 1e-3 for a log-likelihood, of a text for
each of its words; accuracies must be equal, perplexities and bits per byte of texts to 1e-3.
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
SHARED = ("hellaswag", "arc_easy", "arc_challenge", "piqa", "sciq", "mmlu", "mmlu_continuation",
          "lambada_openai", "wikitext")
MEASURES = {"acc": 1e-9, "acc_norm": 1e-9, "word_perplexity": 1e-3, "bits_per_byte": 1e-3}  # relative


def definition(task, rows):
  """lm-eval's own file for the task."""
  folder, name = task.split("_")[0], task
  if folder == "mmlu":
    name = f"mmlu_{rows[0]['subject']}"
    folder = os.path.join("mmlu", "continuation" if task == "mmlu_continuation" else "default")
  return os.path.join(os.path.dirname(lm_eval.__file__), "tasks", folder, f"{name}.yaml")


def write_task(task, rows, dev, folder):
  """lm-eval's task "compared", with the rows in files."""
  split = prepare_tasks.TASKS[task].split
  paths = {}
  for name, content in {split: rows, **({"dev": dev} if dev else {})}.items():
    paths[name] = os.path.join(folder, f"{name}.jsonl")
    with open(paths[name], "w") as file:
      file.writelines(json.dumps(row) + "\n" for row in content)
  description = {
      "include": definition(task, rows), "task": "compared", "dataset_path": "json",
      "dataset_name": None, "dataset_kwargs": {"data_files": paths, "cache_dir": folder},
      "training_split": None, "validation_split": split if split == "validation" else None,
      "fewshot_split": "dev" if dev else split}
  with open(os.path.join(folder, "task.yaml"), "w") as file:  # JSON is YAML
    json.dump(description, file)


def theirs(args, model, task, rows, dev, folder):
  """({"acc": ..}, log-likelihoods of all completions in order)"""
  write_task(task, rows[:args.limit], dev, folder)
  found = lm_eval.simple_evaluate(model=model, tasks=["compared"], log_samples=True,
                                  task_manager=TaskManager(include_path=folder),
                                  num_fewshot=args.shots, bootstrap_iters=0)
  samples = sorted(found["samples"]["compared"], key=lambda sample: sample["doc_id"])
  measures = {key.split(",")[0]: value for key, value in found["results"]["compared"].items()}
  measures.setdefault("word_perplexity", measures.get("perplexity"))  # lambada's is of a word
  answers = [response[0] for sample in samples for response in sample["resps"]]
  return measures, [answer[0] if isinstance(answer, (list, tuple)) else answer for answer in answers]


def ours(args, task, rows, dev, folder):
  """The same by ./train."""
  made = prepare_tasks.examples(task, rows[:args.limit], dev, args.shots)
  prepare_tasks.write(args, task, made, os.path.join(folder, f"{task}.bin"))
  settings = {"name": "compared", "precision": "fp32", "task.dir": folder,
              "task.samples": "samples.jsonl", "task.limit": 0, "task.max_length": 0}
  checkpoint = os.path.abspath(args.checkpoint)
  common.train(args.train, checkpoint, "--tasks", task, settings=settings, folder=folder)
  values = []
  with open(os.path.join(folder, "samples.jsonl")) as lines:
    for row in map(json.loads, lines):
      values += [(value, row.get("words", 1)) for value in row["loglikelihood"]]
  return common.metrics_of(folder, "compared")[-1], values


def compare(args, model, task, path):
  """A row of the table."""
  rows, dev = prepare_tasks.rows_of([path]), prepare_tasks.rows_of(args.dev)
  with tempfile.TemporaryDirectory() as folder:
    mine, values = ours(args, task, rows, dev, folder)
    other, others = theirs(args, model, task, rows, dev, folder)
  if len(values) != len(others):
    raise common.Failure(f"{task}: {len(values)} log-likelihoods here, {len(others)} by lm-eval")
  worst = max(abs(a - b) / words for (a, words), b in zip(values, others))
  wanted = [key for key in MEASURES if None not in (mine.get(key), other.get(key))]
  good = worst <= BOUND and wanted
  for key in wanted:
    a, b = mine[key], other[key]
    good = good and (abs(a / b - 1) <= MEASURES[key] if b else a == 0)
  cells = [f"{mine[key]:.4f} / {other[key]:.4f}" if key in wanted else "-" for key in MEASURES]
  return task, str(mine["n"]), f"{worst:.1e}", *cells, "equal" if good else "DIFFERENT"


def table(args):
  args.tokenizer, args.tokenizer_dir = "gpt2", args.checkpoint
  pairs = [text.partition("=")[::2] for text in args.tasks]
  for task, path in pairs:
    if task not in SHARED or not path:
      tasks = ", ".join(SHARED)
      raise common.UserError(f"{task}={path}: give TASK=FILE, where TASK is {tasks}")
  if not os.path.exists(os.path.join(args.checkpoint, "vocab.json")):
    raise common.UserError(f"{args.checkpoint} holds no tokenizer; name the folder step_N of "
                           "a run that was trained with generate.tokenizer_dir")
  model = HFLM(pretrained=args.checkpoint, trust_remote_code=True, dtype="float32",
               device="cpu", batch_size=8)
  columns = ("task", "examples", "largest difference of a log-likelihood", "acc: ours / lm-eval",
             *[*MEASURES][1:])
  return columns, (compare(args, model, *pair) for pair in pairs)
