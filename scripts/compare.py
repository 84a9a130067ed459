#!/usr/bin/env python3
"""Does ./train compute what other programs compute? A table; exit 1 if a difference is too large.

    python3 -m venv .venv && .venv/bin/pip install torch numpy transformers 'lm-eval[hf]'
    .venv/bin/python scripts/compare.py torch SHARD.bin [--variants softmax,lssar] [--bf16]
                                              [--set key=value]...
    .venv/bin/python scripts/compare.py transformers [--only TEXT] [--kinds FILE.cuh...]
    .venv/bin/python scripts/compare.py lm_eval runs/NAME/step_N hellaswag=hellaswag_val.jsonl

compare_torch.py, compare_transformers.py and compare_lm_eval.py say what is compared and how close
it must be.
"""
import importlib
import os
import sys

from lib import common

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"  # only files on this disk
PACKAGES = {"torch": "torch numpy", "transformers": "torch transformers numpy",
            "lm_eval": "'lm-eval[hf]' torch transformers"}


def parse_arguments():
  parser = common.ArgumentParser(description=__doc__)
  shared = common.ArgumentParser(add_help=False)
  shared.add_argument("--train", default="./train", help="the program [./train]")
  shared.add_argument("--kinds", nargs="+", default=[], metavar="FILE.cuh",
                      help="files of kinds that the program was built with (make KINDS=...); "
                      "transformers: these alone")
  commands = parser.add_subparsers(dest="command", required=True)

  def command(name, what):
    return commands.add_parser(name, parents=[shared], help=what).add_argument

  add = command("torch", "gradients and losses of PyTorch")
  add("shard", help="token shard, e.g. the quick start's training shard; "
      "--set model.vocab=50257 for GPT-2 tokens")
  add("--variants", default="softmax",
      help="attention variants, separated by commas, or all [softmax]")
  add("--positions", default="rope,learned",
      help="some of rope, learned and none, separated by commas [rope,learned]")
  add("--steps", type=int, default=50, help="steps to train [50]")
  add("--bf16", action="store_true", help="show bf16 as well")
  add("--set", action="append", default=[], metavar="KEY=VALUE", help="as ./train's, for both sides")
  add("--verbose", action="store_true", help="print the error of every gradient tensor")
  add = command("transformers", "checkpoints, both ways, of Hugging Face transformers")
  add("--only", type=str, default="", metavar="TEXT", help="only models whose name contains this")
  add = command("lm_eval", "log-likelihoods and accuracies of lm-eval")
  add("checkpoint", metavar="runs/NAME/step_N")
  add("tasks", nargs="+", metavar="TASK=FILE",
      help="hellaswag, arc_easy, arc_challenge, piqa, sciq, mmlu (rows of one subject), "
      "mmlu_continuation, lambada_openai or wikitext, and its authors' file")
  add("--limit", type=int, default=200, help="examples of each [200]")
  add("--shots", type=int, default=0, metavar="K",
      help="mmlu: solved examples before each question [0]")
  add("--dev", nargs="+", default=[], metavar="FILE", help="mmlu: files with these examples")
  return parser.parse_args()


def main():
  args = parse_arguments()
  try:
    import torch
    comparison = importlib.import_module("lib.compare_" + args.command)
  except ImportError as error:
    common.stop(f"{error}; pip install {PACKAGES[args.command]}")
  from lib import formula
  for path in args.kinds:
    formula.add_file(path)
  torch.set_num_threads(1)  # the products are small: more threads wait longer than they compute
  columns, rows = comparison.table(args)
  print(f"| {' | '.join(columns)} | verdict |\n" + "|---" * (len(columns) + 1) + "|", flush=True)
  good = True
  for *cells, verdict in rows:
    print(f"| {' | '.join(cells)} | {verdict} |", flush=True)
    good &= verdict in ("equal", "-")
  sys.exit(0 if good else 1)


if __name__ == "__main__":
  common.run(main, "the table is not complete")
