#!/usr/bin/env python3
"""Fills the tables of README.md from measured files, so that no number in them is typed by hand.

    python3 scripts/readme_tables.py quickstart runs/quickstart_softmax ...    loss by length, from metrics.jsonl
    python3 scripts/readme_tables.py speed bench/results/step_cpu.json         what make bench wrote
    python3 scripts/readme_tables.py variants bench/results/variants_cpu.json  what compare_variants.py wrote
    COMMAND | python3 scripts/readme_tables.py torch -                         any Markdown, from standard input

A block is what stands between <!-- table:NAME --> and <!-- /table --> in README.md.
"""
import json
import os
import re
import sys

import compare_variants
import plot


def variants(result):
  return (compare_variants.table(result) + f"\n\n{len(result['seeds'])} seeds, {result['steps']} steps of {result['tokens_per_step']} "
          f"tokens ({result['config']}, commit {result['commit']}).")


def speed(result):
  lines = [f"{result['tokens_per_s']:,.0f} tokens/s: {result['ms']:.0f} ms for a step of {result['tokens']:,} tokens, "
           f"{result['precision']}, {result['threads']} threads ({result['config']}, commit {result['commit']}).", "",
           "| kernel | calls a step | ms a step | share |", "|---|---|---|---|"]
  small = {"name": "all others", "calls": 0, "ms": 0.0, "share": 0.0}
  for kernel in result["kernels"] + [small]:
    if kernel["share"] < 0.01 and kernel is not small:
      for key in ("calls", "ms", "share"):
        small[key] += kernel[key]
    elif kernel["share"] > 0:
      lines.append("| {name} | {calls:.0f} | {ms:.1f} | {share:.1%} |".format(**kernel))
  return "\n".join(lines)


def main():
  if len(sys.argv) < 3:
    print(__doc__)
    sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
  name, sources = sys.argv[1], sys.argv[2:]
  if sources == ["-"]:
    content = sys.stdin.read()
  elif sources[0].endswith(".json"):
    with open(sources[0], encoding="utf-8") as file:
      result = json.load(file)
    content = variants(result) if "losses" in result else speed(result)
  else:
    content = plot.table([plot.Run(folder) for folder in sources])
  path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md")
  with open(path, encoding="utf-8") as file:
    text = file.read()
  block = re.compile(r"(<!-- table:%s -->\n).*?(<!-- /table -->)" % re.escape(name), re.DOTALL)
  if not block.search(text):
    sys.exit(f"readme_tables.py: README.md has no block <!-- table:{name} --> ... <!-- /table -->")
  with open(path, "w", encoding="utf-8") as file:
    file.write(block.sub(lambda found: found[1] + content.strip() + "\n" + found[2], text))


if __name__ == "__main__":
  main()
