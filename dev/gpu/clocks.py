#!/usr/bin/env python3
"""Says at which clock a GPU worked, from nvidia-smi's log of timestamp, clocks.sm, clocks.mem, power.draw,
temperature.gpu and the reasons of the clock:  clocks.py FILE.csv"""
import csv
import sys

LEAST_WATTS = 400  # below, the GPU is idle or nearly so

with open(sys.argv[1], newline="") as file:
  rows = [row for row in csv.reader(file) if len(row) == 6 and row[1].strip()[:1].isdigit() and "N/A" not in row[3]]
numbers = [(float(row[1].split()[0]), float(row[3].split()[0])) for row in rows]
busy = sorted(clock for clock, watts in numbers if watts >= LEAST_WATTS)
if busy:
  tenths = ", ".join(f"{busy[len(busy) * part // 10]:.0f}" for part in (1, 5, 9))
  print(f"clock above {LEAST_WATTS} W: {tenths} MHz (a tenth, half, nine tenths of the time below), at most "
        f"{max(watts for _, watts in numbers):.0f} W, reasons {' '.join(sorted({row[5].strip() for row in rows}))}")
else:
  print(f"the GPU never took {LEAST_WATTS} W")
