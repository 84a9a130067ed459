#!/usr/bin/env python3
"""SummScreen (FD): summaries of television scripts, by ROUGE.

    python3 scripts/summscreen.py prompts validation.jsonl > prompts.jsonl
    ./train runs/NAME --generate-file prompts.jsonl --set generate.temperature=0 --set generate.tokens=256 \\
        --set 'generate.stop="\\n"' > answers.jsonl
    python3 scripts/summscreen.py score answers.jsonl

prompts takes the rows of SCROLLS' summ_screen_fd (tau/scrolls on the Hugging Face hub) and makes lm-eval's prompts;
rows of one id are references for one prompt. score needs rouge-score, and prints the mean F-measure of ROUGE-1, -2 and
-L in %, of the reference that fits best, and the mean length of the answers: a model that ends at once scores 0.
"""
import argparse
import json
import sys

from lib.common import ArgumentParser, UserError, run
from prepare_tasks import rows_of

KINDS = ("rouge1", "rouge2", "rougeL")
PROMPT = "%s\n\nQuestion: What is a summary of the preceding text?\nAnswer:"


def prompts(files):
  found = {}
  for number, row in enumerate(rows_of(files)):
    try:
      line = found.setdefault(row["id"], {"id": row["id"], "prompt": PROMPT % row["input"], "references": []})
      line["references"].append(row["output"])
    except (KeyError, TypeError) as error:
      raise UserError("row %d is not one of summ_screen_fd, with id, input and output: %s" % (number, error))
  for line in found.values():
    print(json.dumps(line))


def score(files):
  try:
    from rouge_score import rouge_scorer
  except ImportError as error:
    raise UserError("%s: %s -m pip install rouge-score" % (error, sys.executable))
  scorer, sums, words, answers = rouge_scorer.RougeScorer(KINDS), dict.fromkeys(KINDS, 0), 0, rows_of(files)
  for number, row in enumerate(answers):
    try:
      best = scorer.score_multi(row["references"], row["completion"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
      raise UserError("row %d is not an answer of --generate-file to a line of `prompts`: %s" % (number, error))
    words += len(row["completion"].split())
    for kind in KINDS:
      sums[kind] += best[kind].fmeasure
  if not answers:
    raise UserError("%s: there are no answers" % " ".join(files))
  print("  ".join("%s %.2f" % (kind, 100 * sums[kind] / len(answers)) for kind in KINDS) +
        "  %.1f words an answer, %d answers" % (words / len(answers), len(answers)))


def main():
  parser = ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  commands = parser.add_subparsers(dest="command", required=True)
  for name, what in (("prompts", "make the prompts of the data set's files"), ("score", "score answers")):
    commands.add_parser(name, help=what).add_argument("files", nargs="+", metavar="FILE")
  args = parser.parse_args()
  {"prompts": prompts, "score": score}[args.command](args.files)


if __name__ == "__main__":
  run(main, "nothing is left behind")
