#!/usr/bin/env python3
"""Draws one or several runs over each other, and prints their losses as Markdown tables.

    python3 scripts/plot.py runs/a runs/b [--out FILE.png] [--brief] [--unit bits_per_byte]
                            [--baseline runs/b] [--csv DIR] [--latex DIR]

The picture shows the loss by step, by length and by position, differences, tasks, the loss of the
same targets by context, gradient norm, learning rate and speed; --brief draws only the first two.
docs/comparing.md says what is compared with what. Without --out the picture is RUN/loss.png of the
first run.
"""
import functools

from lib import sections
from lib.section_answers import TASKS
from lib.section_losses import CONTEXTS, LENGTHS, SETTINGS, UNITS
from lib.section_training import CURVES, SPEED, STABILITY, draw_losses
from lib.common import ArgumentParser, run as run_main


def main():
  parser = ArgumentParser(description=__doc__)
  sections.add_arguments(parser, "loss.png")
  parser.add_argument("--brief", action="store_true", help="draw the losses only")
  parser.add_argument("--unit", choices=UNITS, default="nats", help="of losses by length and position [nats]")
  sections.add_baseline(parser)
  args = parser.parse_args()
  runs = sections.read_runs(args.runs, CURVES, LENGTHS, CONTEXTS)
  view = sections.View(runs, args.baseline, args.unit)

  def draw(found):
    panels = [functools.partial(draw_losses, view)] if CURVES.content(view)[1] else []
    others = [*found["lengths"], *found["contexts"]]
    for section in (TASKS, STABILITY, SPEED):
      others += section.content(view)[1]
    panels += others[:1] if args.brief else others
    return sections.figure(view, panels, others[0] if others else None)
  sections.show(view, args, (LENGTHS, CONTEXTS, SETTINGS), "loss.png", draw)


if __name__ == "__main__":
  run_main(main, "no picture was drawn")
