#!/usr/bin/env python3
"""Fills the tables of the documents (PAGES below) from measured files, so that no number in them is typed by hand.

    python3 scripts/readme_tables.py quickstart bench/results/quickstart_cpu.json    mean and range over the seeds
    python3 scripts/readme_tables.py answers runs/a runs/b ...                 losses by context, diagnostics, passkey,
                                                                               means over seeds; passkey: the same
    python3 scripts/readme_tables.py length bench/results/length_cpu.json      what sweep.py --results wrote
    python3 scripts/readme_tables.py variants bench/results/length_long_cpu.json    the losses beside each variant
    COMMAND | python3 scripts/readme_tables.py torch -                         any Markdown, from standard input

A block lies between <!-- table:NAME --> and <!-- /table --> in one of them. bench_table.py writes those of speed.
"""
import glob
import os
import re
import statistics
import sys

import expected
import metrics
import report
import results
import section_sweep
from common import run as run_main, stop

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGES = ("README.md", "bench/README.md", "bench/TORCH.md", "bench/LOG.md", "docs/results/*.md")


def replace_block(name, content):
  """content: the new text of the block, or what makes it of the old one."""
  block = re.compile(r"(<!-- table:%s -->\n)(.*?)(<!-- /table -->)" % re.escape(name), re.DOTALL)
  for path in (path for page in PAGES for path in sorted(glob.glob(os.path.join(ROOT, page)))):
    with open(path, encoding="utf-8") as file:
      text = file.read()
    if found := block.search(text):
      new = content(found[2]) if callable(content) else content
      with open(path, "w", encoding="utf-8") as file:
        file.write(text[:found.start(2)] + new.strip() + "\n" + text[found.end(2):])
      return
  stop(f"no block <!-- table:{name} --> ... <!-- /table --> in {', '.join(PAGES)}")


def with_losses(result):
  """Returns what makes the table of variants from its old text: the last two columns become the mean losses at the
  shortest and the longest length, or "-" where the result has no run of a name in the first column."""
  def mean(name, length):
    found = [run["losses"][length] for run in result["runs"]
             if name in run["labels"].values() and length in run["losses"]]
    return f"{statistics.mean(found):.2f}" if found else "-"

  def row(line):
    if not line.startswith("| `"):
      return line
    first, what, *_ = line.strip("| ").split(" | ")
    names = re.findall("`(.*?)`", first)
    losses = [[mean(name, str(length)) for name in names]
              for length in (min(result["lengths"]), max(result["lengths"]))]
    shown = ["-" if set(means) == {"-"} else ", ".join(means) for means in losses]
    return f"| {first} | {what} | " + " | ".join(shown) + " |"

  return lambda old: "\n".join(map(row, old.strip().split("\n")))


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
    losses, *differences, note = section_sweep.texts(result)
    if name == "quickstart":
      losses, note = expected.table(result)[0], section_sweep.note(result)
    if name == "variants":
      content = with_losses(result)
    else:
      content = "\n\n".join([losses, *(differences if result["chart"] != "lengths" else []), note])
  else:
    runs = [metrics.Run(folder) for folder in sources]
    content = report.answers(runs) + "\n\n" + made_by(runs) + " " + report.CAPTION
  replace_block(name, content)


if __name__ == "__main__":
  run_main(main, "the table is as it was")
