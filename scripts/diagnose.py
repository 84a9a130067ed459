#!/usr/bin/env python3
"""Draws what ./train --diagnostics saw in runs, beside each other, and prints it as a Markdown table.

    python3 scripts/diagnose.py runs/a runs/b [--out FILE.png] [--length 1024]

The table has the share of attention that the first token gets, the sink rate, the mean of the largest activations,
the entropy relative to uniform weights, the gate's mean, the zeros, and the spikes in training. The picture shows by
layer the first token's share, the largest activation, entropy and zeros; how far attention reaches, at each length,
beside uniform weights (dotted); the gate's scores; and the first token's share by layer and head. All is of the last
step with diagnostics, at the trained length or the shortest that all runs have (--length: another). Without --out the
picture is RUN/diagnostics.png of the first run."""
import argparse

import sections
from section_answers import DIAGNOSTICS
from common import run


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  sections.add_arguments(parser, "diagnostics.png")
  parser.add_argument("--length", type=int, metavar="T",
                      help="[the trained length, else the shortest that all runs have]")
  args = parser.parse_args()
  sections.show_one(DIAGNOSTICS, args, length=args.length)


if __name__ == "__main__":
  run(main, "nothing was written")
