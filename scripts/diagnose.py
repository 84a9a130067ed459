#!/usr/bin/env python3
"""Draws the results of ./train --diagnostics for several runs, and prints them as a Markdown table.

    python3 scripts/diagnose.py runs/a runs/b [--out FILE.png] [--length 1024] [--csv DIR]

docs/evaluating.md says what the numbers are. All are of the last step with diagnostics, at the
trained length or the shortest that all runs have (--length: another). Without --out the picture is
RUN/diagnostics.png of the first run.
"""
from lib import sections
from lib.section_answers import DIAGNOSTICS, LEARNED
from lib.common import ArgumentParser, run


def main():
  parser = ArgumentParser(description=__doc__)
  sections.add_arguments(parser, "diagnostics.png")
  parser.add_argument("--length", type=int, metavar="T",
                      help="[the trained length, else the shortest that all runs have]")
  args = parser.parse_args()
  sections.show_one(DIAGNOSTICS, args, LEARNED, length=args.length)


if __name__ == "__main__":
  run(main, "nothing was written")
