"""The tables of docs/gpu.md that say what fits: plans of ./train --dry-run for GPUs that need not be here.
readme_tables.py writes them, and a test compares them with the program's. Standard library only.
"""
import os
import re
import subprocess

from root import ROOT
from lib.common import stop
from lib.tables import markdown

CONFIGS = os.path.join(ROOT, "configs")
# GiB in all, as CUDA reports them: RTX 4060, RTX 3060, RTX 4090; L40S and RTX 6000 Ada, whose ECC takes some.
CARDS = {"8 GB": 7.6, "12 GB": 11.7, "24 GB": 23.6, "48 GB": 44.4}
RECOMPUTE = {"": "", ", `block`": " train.recompute=block"}
LONG = "plan.memory=80GiB eval.lengths=8192,16384,32768,65536,131072 eval.tokens=2621440"
SHAPES = {"124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280), "1.5B": (48, 25, 1600),
          "2.7B": (32, 32, 2560), "6.7B": (32, 32, 4096)}
# name: ({row: its configuration and settings}, {column: its settings})
TABLES = {
    "plan_cards": (
        {f"{size}, {precision}{note}": f"{config} precision={precision}{recompute}"
         for size, config in (("124M", "gpt2_124m_softmax"), ("350M", "gpt2_350m")) for precision in ("bf16", "fp32")
         for note, recompute in RECOMPUTE.items()},
        {card: f"plan.memory={gib}GiB" for card, gib in CARDS.items()}),
    "plan_contexts": (
        {"softmax": "gpt2_1.5b", **{f"lssar{note}": f"gpt2_1.5b attention.variant=lssar{recompute}" for note, recompute
                                    in {**RECOMPUTE, ", `gelu`": " train.recompute=gelu"}.items()}},
        {f"context {context}": f"model.context={context} {LONG}" for context in (4096, 8192)}),
    "plan_ranks": (
        {f"{name}: {layers}, {heads}, {channels}":
         f"gpt2_1.5b model.layers={layers} model.heads={heads} model.channels={channels}"
         for name, (layers, heads, channels) in SHAPES.items()},
        {gpus + note: f"plan.memory=9999GiB eval.every=0 plan.ranks={gpus.split()[0]} batch.micro={micro}{recompute}"
         for gpus, micro in (("1 GPU", 16), ("8 GPUs", 16), ("64 GPUs", 8)) for note, recompute in RECOMPUTE.items()})}


def cell(train, config, *settings):
  """Micro batch and GiB in all; "-" if the run does not fit."""
  flags = [flag for key in settings for flag in ("--set", key)]
  done = subprocess.run([train, f"{CONFIGS}/{config}.json", "--dry-run", *flags], capture_output=True, text=True)
  if done.returncode == 2 and done.stderr.startswith("memory: "):
    return "-"
  found = re.search(r" in all +(\S+) GiB .* micro batch (\d+)", done.stdout)
  return f"{found[2]}, {found[1]}" if found else stop(f"no plan of {config}: {done.stderr}")


def table(train, name):
  rows, columns = TABLES[name]
  return markdown(["", *columns], [[row, *(cell(train, *f"{first} {second}".split()) for second in columns.values())]
                                   for row, first in rows.items()])
