#!/usr/bin/env python3
"""Does ./train compute what other programs compute? A table of differences; exit 1 if one is beyond its bound.

    python3 -m venv .venv && .venv/bin/pip install torch numpy transformers 'lm-eval[hf]'
    .venv/bin/python scripts/compare.py torch SHARD.bin [--variants softmax,lssar] [--bf16] [--set key=value]...
    .venv/bin/python scripts/compare.py transformers [--only TEXT] [--kinds FILE.cuh...]
    .venv/bin/python scripts/compare.py lm_eval runs/NAME/step_N hellaswag=hellaswag_val.jsonl piqa=piqa_val.jsonl

compare_torch.py, compare_transformers.py and compare_lm_eval.py say what is compared and how close it must be.
"""
import argparse
import importlib
import os
import sys

from lib import common

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"  # only files on this disk are opened
PACKAGES = {"torch": "torch numpy", "transformers": "torch transformers numpy",
            "lm_eval": "'lm-eval[hf]' torch transformers"}


def parse_arguments():
  parser = common.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  shared = common.ArgumentParser(add_help=False)
  shared.add_argument("--train", default="./train", help="the program [./train]")
  shared.add_argument("--kinds", nargs="+", default=[], metavar="FILE.cuh",
                      help="files of kinds that the program was built with (make KINDS=...); transformers: these alone")
  commands = parser.add_subparsers(dest="command", required=True)
  one = commands.add_parser("torch", parents=[shared], help="gradients and losses of PyTorch")
  one.add_argument("shard",
                   help="token shard, e.g. the quick start's training shard; --set model.vocab=50257 for GPT-2 tokens")
  one.add_argument("--variants", default="softmax", help="attention variants, separated by commas, or all [softmax]")
  one.add_argument("--positions", default="rope,learned",
                   help="some of rope, learned and none, separated by commas [rope,learned]")
  one.add_argument("--steps", type=int, default=50, help="steps to train [50]")
  one.add_argument("--bf16", action="store_true", help="show bf16 as well")
  one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as ./train's, for both sides")
  one.add_argument("--verbose", action="store_true", help="print the error of every gradient tensor")
  one = commands.add_parser("transformers", parents=[shared],
                            help="checkpoints, both ways, of Hugging Face transformers")
  one.add_argument("--only", type=str, default="", metavar="TEXT", help="only models whose name contains this")
  one = commands.add_parser("lm_eval", parents=[shared], help="log-likelihoods and accuracies of lm-eval")
  one.add_argument("checkpoint", metavar="runs/NAME/step_N")
  one.add_argument("tasks", nargs="+", metavar="TASK=FILE", help="hellaswag, arc_easy, arc_challenge, piqa, sciq, "
                   "mmlu (rows of one subject), mmlu_continuation, lambada_openai or wikitext, and its authors' file")
  one.add_argument("--limit", type=int, default=200, help="examples of each [200]")
  one.add_argument("--shots", type=int, default=0, metavar="K", help="mmlu: solved examples before each question [0]")
  one.add_argument("--dev", nargs="+", default=[], metavar="FILE", help="mmlu: files with these examples")
  return parser.parse_args()


def main():
  arguments = parse_arguments()
  try:
    import torch
    comparison = importlib.import_module("lib.compare_" + arguments.command)
  except ImportError as error:
    common.stop(f"{error}; pip install {PACKAGES[arguments.command]}")
  from lib import formula
  for path in arguments.kinds:
    formula.add_file(path)
  torch.set_num_threads(1)  # the products are small: more threads wait for each other longer than they compute
  columns, rows = comparison.table(arguments)
  print(f"| {' | '.join(columns)} | verdict |\n" + "|---" * (len(columns) + 1) + "|", flush=True)
  good = True
  for *cells, verdict in rows:
    print(f"| {' | '.join(cells)} | {verdict} |", flush=True)
    good &= verdict in ("equal", "-")
  sys.exit(0 if good else 1)


if __name__ == "__main__":
  common.run(main, "the table is not complete")
