#!/usr/bin/env python3
"""Fills the tables of the documents (PAGES, blocks.py) from measured files, so that no number in them is typed by hand.

    python3 dev/readme_tables.py answers runs/a runs/b ...                  losses by context, diagnostics, passkey,
                                                                            means over seeds; passkey: the same
    python3 dev/readme_tables.py results                                    all of what sweep.py --results wrote to
                                                                            dev/bench/results/ (RESULTS, SHORT)
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

import root  # first: the path of the next ones
import bench_table
from blocks import replace_block
import cost_by_length
import expected
from lib import metrics
import plan_tables
import report
from lib import results, section_sweep, tables, variants
from lib.common import read_json, run as run_main, stop

# {block: the results that its table shows in full}
RESULTS = {"quickstart": "docs/results/quickstart_cpu.json", "variants": "dev/bench/results/length_long_cpu.json",
           "gates": "dev/bench/results/gates_cpu.json", "lr": "dev/bench/results/lr_cpu.json",
           "block": "dev/bench/results/block_cpu.json", "muon": "dev/bench/results/muon_cpu.json",
           "outputs": "dev/bench/results/outputs_cpu.json"}
# {block: {name of results in dev/bench/results/: {column of the table: column of these results}}}
SHORT = {
    "length": {"length_long": {"128": "128", "2048": "2048"},
               "length_long_suffix": {"last targets, 256": "256", "last targets, 2048": "2048"},
               "length": {"250 steps, 128": "128", "250 steps, 2048": "2048"}},
    "power": {"softmaxr": {"128": "128", "512": "512", "2048": "2048"},
              "softmaxr_suffix": {"last targets, 256": "256", "last targets, 2048": "2048"}},
    "power_copy": {"recall_copy_power": {"copy, 10 to 50": "10 to 50 letters", "copy, 200": "200"}},
    "documents": {"documents": {"512": "512", "8192": "8192"},
                  "documents_suffix": {"last targets, 512": "512", "last targets, 8192": "8192"},
                  "documents_long": {"long documents, 512": "512", "long documents, 8192": "8192"}},
    "recall": {"recall_mqar": {"4 pairs": "64, 4 pairs", "16 pairs": "256, 16 pairs"},
               "recall_flipflop": {"bit, 128": "128", "bit, sparse": "128, sparse", "bit, 512": "512"},
               "recall_copy": {"copy, 10 to 50": "10 to 50 letters", "copy, 200": "200"},
               "recall_induction": {"induction, 32": "32", "induction, 128": "128"},
               "recall_stack": {"stack, 128": "128", "stack, 512": "512"}}}


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


def narrow(text):
  return re.sub(r"(?<=[\d%]) ± (?=[\d<])", "±", text)


def sweep_tables(result):
  losses, *differences, note = section_sweep.texts(result)
  return narrow("\n\n".join([losses, *(differences if result["chart"] != "lengths" else []), note]))


def short_table(block):
  """A row for each of the first results': means with their intervals of all results, accuracies where labels have them,
  each row at its best rate."""
  head, rows, notes = [], {}, []
  for name, columns in SHORT[block].items():
    result = results.read(os.path.join(bench_table.RESULTS, name + "_cpu.json"))
    notes.append(f"{name}_cpu.json: {result['steps']} steps of {result['tokens_per_step']} tokens, {result['commit']}")
    grid = results.Grid(result)
    accuracies = result["best_of"] and grid.has("accuracy")
    digits = "{:.2f}" if accuracies else "{:.3f}"
    values = grid.by_seed("accuracy" if accuracies else "loss")
    for row in grid.rows:
      rows.setdefault(row, [row]).extend(
          narrow(variants.mean_text(values.loc[row, column].dropna(), digits, len(result["seeds"])))
          for column in columns.values())
    head += columns
  what = "accuracy" if accuracies else "loss, nats per token"
  return "\n\n".join([tables.markdown([f"{what} at", *head], [*rows.values()]),
                      f"{len(result['seeds'])} seeds. {metrics.INTERVAL}. {'; '.join(notes)}."])


def from_results():
  """Fills the blocks of all results that are kept."""
  for name, path in RESULTS.items():
    result = results.read(os.path.join(root.ROOT, path))
    replace_block(name, with_losses(result) if name == "variants" else sweep_tables(result) if name != "quickstart" else
                  expected.table(result)[0] + "\n\n" + section_sweep.note(result))
  for name in SHORT:
    replace_block(name, short_table(name))
  replace_block("cost", cost_by_length.table(read_json(cost_by_length.FILE)))


def far_table(text):
  """Of test_far's lines: a row for each variant, the errors of a kernel and, behind a slash, of the whole by column."""
  cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
  columns = ["fp32, general", "bf16, general", "bf16, tensor", "bf16, hopper"]
  found = {(variant, column): f"{kernel}/{whole}" for variant, column, kernel, whole in cells}
  rows = sorted({variant for variant, *_ in cells} - {"variant"})
  return tables.markdown(["variant", *columns], [[row, *(found.get((row, column), "-") for column in columns)]
                                                 for row in rows])


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
    replace_block(name + "_gpu", made[name](read_json(path)) if name in made
                  else far_table(text("far.md")) if name == "far" else text(sources[name]))
    if name in made and sources[name] != "quick.json":
      shutil.copy(path, os.path.join(bench_table.RESULTS, "runs_gpu.json" if name == "runs" else sources[name]))
  return filled


def main():
  if sys.argv[1:] == ["results"]:
    from_results()
    return
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
  else:
    runs = [metrics.Run(folder) for folder in sources]
    content = narrow(report.answers(runs)) + "\n\n" + made_by(runs) + " " + report.CAPTION
  replace_block(name, content)


if __name__ == "__main__":
  run_main(main, "the table is as it was")
