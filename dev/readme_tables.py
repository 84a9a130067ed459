#!/usr/bin/env python3
"""Fills the tables of the documents (PAGES, blocks.py) from measured files, so that no number in them is typed by hand.

    python3 dev/readme_tables.py quickstart docs/results/quickstart_cpu.json   mean and range over the seeds
    python3 dev/readme_tables.py answers runs/a runs/b ...                  losses by context, diagnostics, passkey,
                                                                            means over seeds; passkey: the same
    python3 dev/readme_tables.py length dev/bench/results/length_cpu.json   what sweep.py --results wrote
    python3 dev/readme_tables.py variants dev/bench/results/length_long_cpu.json    the losses beside each variant
    python3 dev/readme_tables.py gpu gpu_out                                all that gpu_session.sh has measured; its
                                                                            .json go to dev/bench/results/
    python3 dev/readme_tables.py plans ./train                              plan_tables.py's, of memory on a GPU
    COMMAND | python3 dev/readme_tables.py torch -                          any Markdown, from standard input

A block lies between <!-- table:NAME --> and <!-- /table --> in one of them. bench_table.py writes those of speed.
"""
import os
import re
import shutil
import statistics
import sys

import root  # noqa: F401: the path of the next ones
import bench_table
from blocks import replace_block
import expected
from lib import metrics
import plan_tables
import report
from lib import results, section_sweep
from lib.common import read_json, run as run_main, stop


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


def sweep_tables(result, exact=False):
  """exact: with the exact windows."""
  losses, *differences, note = section_sweep.texts(result)
  if section_sweep.measured_by("accuracy", result):
    losses, of_windows, *differences = differences  # accuracies instead of losses
    differences = exact * [of_windows] + differences
  return "\n\n".join([losses, *(differences if result["chart"] != "lengths" else []), note])


def from_gpu(folder):
  """Fills the blocks NAME_gpu of all that gpu_session.sh has left in its folder. Returns their names."""
  text = lambda name: open(os.path.join(folder, name), encoding="utf-8").read()
  files = set(os.listdir(folder)) if os.path.isdir(folder) else stop(f"{folder} is not a folder of gpu_session.sh")
  if "summary.md" not in files or text("summary.md").startswith("A REHEARSAL"):
    stop(f"{folder} has no results of a GPU: its summary.md is missing, or a rehearsal's")
  made = {"speed": bench_table.speed, "peers": bench_table.peers, "front": bench_table.front, "runs": sweep_tables}
  sources = {"speed": "gpu.json" if "gpu.json" in files else "quick.json", "peers": "peers_gpu.json",
             "front": "peers_gpu.json", "runs": "runs.json", "far": "far.md", "session": "summary.md"}
  filled = [name for name, file in sources.items() if file in files]
  for name in filled:
    path = os.path.join(folder, sources[name])
    replace_block(name + "_gpu", made[name](read_json(path)) if name in made else text(sources[name]))
    if name in made and sources[name] != "quick.json":
      shutil.copy(path, os.path.join(bench_table.RESULTS, "runs_gpu.json" if name == "runs" else sources[name]))
  return filled


def main():
  if len(sys.argv) < 3:
    print(__doc__)
    sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
  name, sources = sys.argv[1], sys.argv[2:]
  if name == "gpu":
    print("filled: " + ", ".join(from_gpu(sources[0])))
    return
  if name == "plans":
    for block in plan_tables.TABLES:
      replace_block(block, plan_tables.table(sources[0], block))
    return
  if sources == ["-"]:
    content = sys.stdin.read()
  elif sources[0].endswith(".json"):
    result = results.read(sources[0])
    if name == "variants":
      content = with_losses(result)
    elif name == "quickstart":
      content = expected.table(result)[0] + "\n\n" + section_sweep.note(result)
    else:
      content = sweep_tables(result, exact=name == "recall_copy")  # a string is copied if all of it is
  else:
    runs = [metrics.Run(folder) for folder in sources]
    content = report.answers(runs) + "\n\n" + made_by(runs) + " " + report.CAPTION
  replace_block(name, content)


if __name__ == "__main__":
  run_main(main, "the table is as it was")
