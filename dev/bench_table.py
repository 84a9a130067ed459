#!/usr/bin/env python3
"""Makes tables of what `make bench` and bench_peers.py have measured.

    python3 dev/bench_table.py --collect [--out FILE] build/cpu/kernels.json ...
                                                                     joins what the benchmark programs wrote to
                                                                     dev/bench/results/cpu.json, or gpu.json, or
                                                                     FILE, and prints the summary
    python3 dev/bench_table.py --compare OLD.json NEW.json           figures that differ by 3% or more
    python3 dev/bench_table.py --brief dev/bench/results/gpu.json    tokens/s of the steps, in a line
    python3 dev/bench_table.py dev/bench/results/gpu.json            fills the block speed_gpu of dev/bench/README.md
    python3 dev/bench_table.py dev/bench/results/peers_gpu.json      fills its block peers_gpu, and
                                                                     front_gpu of README.md
    python3 dev/bench_table.py dev/bench/results/peers_cpu.json      fills its block peers_cpu
"""
import json
import os
import platform
import re
import statistics
import subprocess
import sys

from root import ROOT
from blocks import replace_block
from lib import tables
from lib.common import read_json, run as run_main, stop

RESULTS = os.path.join(ROOT, "dev/bench/results")
ATTENTION_PARTS = ("evaluation", "forward", "backward")


def of_columns(items, columns):
  """A table with a row for each item. columns: {title: the function, or the format of fields, for its cell}."""
  cell = lambda item, text: text.format(**item) if isinstance(text, str) else text(item)
  return tables.markdown([*columns], [[cell(item, text) for text in columns.values()] for item in items])


def write(path, result):
  """JSON with a line for every row of a list, so that two files can be compared."""
  lists = {key: value for key, value in result.items() if isinstance(value, list)}
  head = json.dumps({key: value for key, value in result.items() if key not in lists})[1:-1]
  parts = [f'"{key}": [\n  ' + ",\n  ".join(json.dumps(row) for row in rows) + "\n]" for key, rows in lists.items()]
  os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
  with open(path, "w", encoding="utf-8") as file:
    file.write("{" + ",\n".join([head] + parts) + "}\n")


def driver():
  done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                        text=True)
  return done.stdout.split("\n")[0].strip()


def processor():
  with open("/proc/cpuinfo", encoding="utf-8") as file:
    found = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
  return found[1].strip() if found else platform.machine()  # on ARM it has no names


def with_ceilings(result, ceilings):
  """The result with every floor, and every share of a measured peak, by these ceilings."""
  def floor(part, precision):
    part["floor_s"] = max(part["bytes"] / ceilings["copy"], part["flops"] / ceilings[precision])

  for kernel in result["kernels"]:
    floor(kernel, kernel["type"])
  for row in result["attention"]:
    for what in ATTENTION_PARTS:
      floor(row[what], row["type"])
  for step in result["steps"]:
    if step["peak_from"] == "measured":
      step["peak_flops"] = ceilings[step["precision"]]
      step["mfu"] = step["tokens_per_s"] * step["flops_per_token"] / step["peak_flops"]
  return {**result, "ceilings": ceilings}


def collect(paths):
  """One result from those of several programs. Each has measured the ceilings: the best of them are the machine's."""
  parts = [read_json(path) for path in paths]
  result = {"command": "make bench"}
  for part in parts:
    if (part["device"], part["commit"]) != (parts[0]["device"], parts[0]["commit"]):
      stop(f"{paths[0]} and {paths[parts.index(part)]} come from different machines or commits: run make bench again")
    for key, value in part.items():
      result.setdefault(key, value)
  if result["gpu"]:
    result["driver"] = driver()
  else:
    result["device"] = processor()
  return with_ceilings(result, {key: max(part["ceilings"][key] for part in parts) for key in parts[0]["ceilings"]})


def missing(result):
  """Launches of the steps whose kernels have no line in the kernels' table."""
  known = {launch for kernel in result["kernels"] for launch in kernel["launches"]}
  return sorted({kernel["name"] for step in result["steps"] for kernel in step["kernels"]} - known - {"upload"})


def where(result):
  return "{device}, {how}, commit {commit}".format(**result, how=(
      "driver {driver}, CUDA {cuda}" if result["gpu"] else "{processors} threads").format(**result))


def ceilings(result):
  c = result["ceilings"]
  return (f"Ceilings measured first: copy {c['copy'] / 1e9:,.0f} GB/s, matrix products {c['fp32'] / 1e12:.3g} TFLOP/s "
          f"in float32 and {c['bf16'] / 1e12:.3g} in bf16.")


def memory(row):
  return f"{row['memory_bytes'] / 2**20:,.0f} MiB"


def steps_table(result):
  softmax = next((step["tokens_per_s"] for step in result["steps"] if step["variant"] == "softmax"), None)
  phases = ("forward", "output layer", "backward", "update", "host")
  table = of_columns(result["steps"], {
      "attention": "{variant}", "tokens/s": "{tokens_per_s:,.0f}",
      "of softmax": lambda step: f"{step['tokens_per_s'] / softmax:.1%}" if softmax else "-",
      "peak": "{mfu:.1%}", "ms a step (least to most)": "{ms:.1f} ({ms_least:.1f} to {ms_most:.1f})",
      **{phase: "{phases_ms[%s]:.1f}" % phase for phase in phases},
      "gaps": lambda step: f"{max(0, step['gaps_ms']):.1f}", "memory": memory})
  step = result["steps"][0]
  peak = "the data sheet's" if step["peak_from"] == "data sheet" else "the measured"
  return (f"{table}\n\n{step['config']}, {step['precision']}, steps of {step['tokens']:,} tokens, {step['micro']} "
          f"sequences of {step['context']} at a time. Peak: share of {peak} {step['peak_flops'] / 1e12:.3g} TFLOP/s. "
          "Phases are those of the median step, in ms; gaps are its time less that of its kernels.")


def launches_table(step):
  shown = [kernel for kernel in step["kernels"] if kernel["share"] >= 0.01]
  small = [kernel for kernel in step["kernels"] if kernel["share"] < 0.01]
  others = {key: sum(kernel[key] for kernel in small) for key in ("calls", "ms", "share")}
  shown += [{"name": "all others", **others}] if others["share"] > 0 else []
  return of_columns(shown, {"kernel": "{name}", "calls a step": "{calls:.0f}", "ms a step": "{ms:.1f}",
                            "share": "{share:.1%}"})


def attention_table(rows):
  """TFLOP/s by length; a row for each kind and head size."""
  unit, name = (1e12, "TFLOP/s") if max(row["forward"]["flops_per_s"] for row in rows) > 1e12 else (1e9, "GFLOP/s")
  measured = {}  # {(kind, D): {T: row}}
  for row in rows:
    measured.setdefault((row["kind"], row["D"]), {})[row["T"]] = row

  def rates(T):
    flops = lambda row: " / ".join(f"{row[what]['flops_per_s'] / unit:.0f}" for what in ("forward", "backward"))
    return lambda which: flops(measured[which][T]) if T in measured[which] else "-"
  return of_columns(measured, {
      f"attention, training forward / backward, {name} at T =": lambda which: "%s, D %d" % which,
      **{T: rates(T) for T in sorted({row["T"] for row in rows})}})


def speed(result):
  first = result["steps"][0]
  return "\n\n".join([where(result) + ". " + ceilings(result), steps_table(result),
                      f"Where the time of {first['variant']}'s step goes:", launches_table(first),
                      attention_table(result["attention"])])


def slowest(result):
  """The launches that lose most against their floors, once each."""
  lost = sorted(result["kernels"], key=lambda kernel: kernel["floor_s"] - kernel["s"])[:5]
  return of_columns(lost, {"furthest from the floor": "{name}", "us": lambda k: f"{k['s'] * 1e6:.0f}",
                           "floor": lambda k: f"{k['floor_s'] / k['s']:.0%}"})


def figures(result):
  """Everything that is measured in seconds, under a name."""
  times = {f"step, {step['variant']}": step["ms"] / 1e3 for step in result["steps"]}
  times.update({kernel["name"]: kernel["s"] for kernel in result["kernels"]})
  times.update({f"{row['kind']} {what}, D {row['D']}, T {row['T']}": row[what]["s"]
                for row in result["attention"] for what in ATTENTION_PARTS})
  return times


def comparison(old, new):
  before, after = figures(old), figures(new)
  changed = [name for name in after if name in before and not 0.97 < after[name] / before[name] < 1.03]
  return (f"{len(changed)} of {len(after)} figures differ by 3% or more between {where(old)} and {where(new)}:\n\n" +
          of_columns(changed, {
              "what": str, "ms before": lambda name: f"{before[name] * 1e3:.4g}",
              "ms now": lambda name: f"{after[name] * 1e3:.4g}",
              "now / before": lambda name: f"{after[name] / before[name]:.2f}"}))


def front(result):
  """Of what bench_peers.py measured, whole steps alone: for the front page."""
  ours = (result["ours"] or {"steps": {}})["steps"]
  rates = [(f"plusgpt, {variant}", ours[variant]) for variant in ("softmax", "lssar") if variant in ours]
  rates += [(f"PyTorch {result['torch'].split('+')[0]}: {row['name']}", row["tokens_per_s"])
            for row in result["steps"] if "missing" not in row]
  of = f", commit {result['ours']['commit']}" if result["ours"] else ""
  return of_columns(rates, {f"{result['model']}, bf16, one {result['device']}{of}": lambda row: row[0],
                            "tokens/s": lambda row: f"{row[1]:,.0f}"})


def peers(result):
  """What bench_peers.py measured, beside ours where that is known."""
  ours = result.get("ours")

  def of_step(row):
    if "missing" in row:
      return [row["missing"], "", "", "", ""]
    mine = ours["steps"].get(row["variant"]) if ours else None
    return ["{tokens_per_s:,.0f} ({least:,.0f} to {most:,.0f})".format(**row), row["micro"], memory(row),
            *([f"{mine:,.0f}", f"{mine / row['tokens_per_s']:.2f}"] if mine else "--")]

  def of_attention(row):
    if "missing" in row:
      return [row["missing"], "", "", "", "", "", ""]
    rates = row["forward"], row["backward"]
    mine = ours["attention"].get(f"{row['kind']} {row['D']} {row['T']}") if ours else None
    beside = [f"{m / 1e12:.3g}" for m in mine] + [f"{m / rate:.2f}" for m, rate in zip(mine, rates)] if mine else "----"
    return [*(f"{rate / 1e12:.3g}" for rate in rates), "yes" if row["repeats"] else "no", *beside]
  return "\n\n".join([
      f"{result['device']}, PyTorch {result['torch']}, cuDNN {result.get('cudnn')}, {result['model']}. "
      "Ratio: ours / PyTorch's; ours: " + (f"commit {ours['commit']}." if ours else "not measured."),
      tables.markdown(["GPT-2 in PyTorch", "tokens/s (least to most)", "micro batch", "memory", "ours", "ratio"],
                      [[row["name"], *of_step(row)] for row in result["steps"]]),
      tables.markdown(["attention in PyTorch, TFLOP/s", "D", "T", "forward", "backward", "same bits",
                       "ours forward", "backward", "ratio forward", "backward"],
                      [[row["name"], row["D"], row["T"], *of_attention(row)] for row in result["attention"]])])


def cpu_peers(result):
  """Steps of small models in turns with PyTorch's, which bench_peers.py --cpu measured."""
  def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

  def cells(rows, name):
    for of_precision in rows.values():
      yield spread(of_precision[name], 1)
      yield "" if name == "plusgpt" else spread([other / mine for other, mine in
                                                 zip(of_precision[name], of_precision["plusgpt"])], 2)

  def best(rows, ours):
    """Of each turn, over precisions and modes."""
    return [min(turn) for turn in zip(*(times for of_precision in rows.values()
                                        for name, times in of_precision.items() if (name == "plusgpt") == ours))]

  parts = [f"{result['device']}, {result['threads']} threads, commit {result['commit']} ({result['products']}), "
           f"PyTorch {result['torch']}; medians of the turns (least to most)."]
  for model, rows in result["step_ms"].items():
    shares = [mine / other for mine, other in zip(best(rows, True), best(rows, False))]
    header = [model] + [title for precision in rows for title in (precision + ", ms a step", "PyTorch's time / ours")]
    parts += [tables.markdown(header, [[name if name == "plusgpt" else "PyTorch, " + name, *cells(rows, name)]
                                       for name in next(iter(rows.values()))]),
              f"Our best takes {spread(shares, 2)} of the time of PyTorch's best."]
  return "\n\n".join(part.strip() for part in parts)


def main():
  arguments = sys.argv[1:]
  if not arguments or arguments[0] in ("-h", "--help"):
    print(__doc__)
    sys.exit(0 if arguments else 2)
  if arguments[0] == "--collect":
    named = arguments[1:2] == ["--out"] and arguments[2:]
    path, parts = (arguments[2], arguments[3:]) if named else (None, arguments[1:])
    result = collect(parts)
    path = path or os.path.join(RESULTS, "gpu.json" if result["gpu"] else "cpu.json")
    write(path, result)
    print(f"\n## Summary: {where(result)}\n\n{ceilings(result)}\n\n{steps_table(result)}\n\n{slowest(result)}\n")
    absent = missing(result)
    print("every launch of the steps is among the kernels measured" if not absent else
          f"launches of the steps that bench_kernels lacks: {', '.join(absent)}")
    print(f"written to {os.path.relpath(path)}")
    return
  if arguments[0] == "--compare" and len(arguments) == 3:
    print(comparison(read_json(arguments[1]), read_json(arguments[2])))
    return
  if arguments[0] == "--brief" and len(arguments) == 2:
    print(", ".join(f"{step['variant']} {step['tokens_per_s']:,.0f} tokens/s"
                    for step in read_json(arguments[1])["steps"]))
    return
  if arguments[0].startswith("-"):
    stop(f"unknown arguments {' '.join(arguments)} (--help)")
  for path in arguments:
    result, name = read_json(path), os.path.splitext(os.path.basename(path))[0]
    if name.startswith("peers"):
      replace_block(name, (cpu_peers if "step_ms" in result else peers)(result))
      if "step_ms" not in result:
        replace_block("front_gpu", front(result))
    else:
      replace_block("speed_" + name, speed(result))


if __name__ == "__main__":
  run_main(main, "the tables are not complete")
