#!/usr/bin/env python3
"""Fills the tables of README.md from measured files, so that no number in them is typed by hand.

    python3 scripts/readme_tables.py quickstart runs/quickstart_softmax ...    loss by length, from metrics.jsonl
    COMMAND | python3 scripts/readme_tables.py speed -                         any Markdown, from standard input

A block is what stands between <!-- table:NAME --> and <!-- /table --> in README.md.
"""
import os
import re
import sys

import plot


def main():
  if len(sys.argv) < 3:
    sys.exit(__doc__)
  name, sources = sys.argv[1], sys.argv[2:]
  content = sys.stdin.read() if sources == ["-"] else plot.table([plot.Run(folder) for folder in sources])
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
