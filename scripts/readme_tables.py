#!/usr/bin/env python3
"""Fills the tables of the documents (PAGES below) from measured files, so that no number in them is typed by hand.

    python3 scripts/readme_tables.py quickstart bench/results/quickstart_cpu.json    mean and range over the seeds
    python3 scripts/readme_tables.py answers runs/a runs/b ...                 losses by context, diagnostics, passkey, means over
                                                                               seeds; passkey: the same
    python3 scripts/readme_tables.py length bench/results/length_cpu.json      what sweep.py --results wrote
    COMMAND | python3 scripts/readme_tables.py torch -                         any Markdown, from standard input

A block lies between <!-- table:NAME --> and <!-- /table --> in one of them. bench_table.py writes those of speed.
"""
import os
import re
import sys

import expected
import metrics
import report
import results
import sweep
from common import run as run_main, stop

PAGES = ("README.md", "bench/README.md", "bench/TORCH.md", "bench/LOG.md")


def replace_block(name, content):
  root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
  block = re.compile(r"(<!-- table:%s -->\n).*?(<!-- /table -->)" % re.escape(name), re.DOTALL)
  for path in (os.path.join(root, page) for page in PAGES):
    if not os.path.exists(path):
      continue
    with open(path, encoding="utf-8") as file:
      text = file.read()
    if block.search(text):
      with open(path, "w", encoding="utf-8") as file:
        file.write(block.sub(lambda found: found[1] + content.strip() + "\n" + found[2], text))
      return
  stop(f"no block <!-- table:{name} --> ... <!-- /table --> in {', '.join(PAGES)}")


def made_by(runs):
  values = [", ".join(sorted({str(run.start.get(key)) for run in runs})) for key in ("commit", "device")]
  return f"{', '.join(sorted({str(run.step()) for run in runs}))} steps, commit {values[0]}, {values[1]}."


def main():
  if len(sys.argv) < 3:
    print(__doc__)
    sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
  name, sources = sys.argv[1], sys.argv[2:]
  if sources == ["-"]:
    content = sys.stdin.read()
  elif sources[0].endswith(".json"):
    result = results.read(sources[0])
    losses, *differences, note = sweep.texts(result)
    if name == "quickstart":
      losses, note = expected.table(result)[0], sweep.note(result)
    content = "\n\n".join([losses, *(differences if result["chart"] != "lengths" else []), note])
  else:
    runs = [metrics.Run(folder) for folder in sources]
    content = report.answers(runs) + "\n\n" + made_by(runs) + " " + report.CAPTION
  replace_block(name, content)


if __name__ == "__main__":
  run_main(main, "the table is as it was")
