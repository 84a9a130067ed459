"""scripts/plot.py: how it treats damaged metrics, and where it puts the picture."""
import json
import os
import shutil
import subprocess
import sys
import unittest

from scripts.test_scripts import SCRIPTS, ScriptTest

import plot  # from SCRIPTS

CONFIG = {"model": {"context": 16}, "eval": {"lengths": [16]}}
GOOD = [{"type": "start", "config": CONFIG},
        *({"type": "train", "step": step, "loss": 5.0 / step, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 100.0}
          for step in range(1, 9)),
        {"type": "val", "step": 8, "length": 16, "loss": 1.5, "tokens": 64}]
DAMAGED = ['{"type":"start","config":null}', '{"type":"start","config":[]}', '{"type":"start","config":"model"}', '{"type":"start"}', "[]", "7", "null",
           '"start"', "[" * 100000, '{"type":["train"],"step":1,"loss":1}', '{"type":"train","step":"a","loss":1}',
           '{"type":"train","step":true,"loss":1}', '{"type":"train","step":-1,"loss":1}',
           '{"type":"train","step":1' + "0" * 400 + ',"loss":1}', '{"type":"train","step":2,"loss":1e400}',
           '{"type":"train","step":2,"loss":Infinity}', '{"type":"val","step":8,"length":16,"loss":1e308}', '{"type":"train","step":2,"loss":NaN}',
           '{"type":"train","step":2,"loss":"1"}', '{"type":"train","step":2,"loss":1' + "0" * 400 + "}",
           '{"type":"val","step":8,"length":"16","loss":1}', '{"type":"val","step":8,"length":0,"loss":1}',
           '{"type":"val","step":8,"length":[16],"loss":1}', '{"type":"eval","step":8,"length":16,"loss":{}}',
           '{"type":"eval","step":8,"length":"16","loss":null,"by_position":7}', '{"type":"val","st']
ODD = ['{"type":"train","step":9,"loss":1.0,"grad_norm":Infinity,"lr":"x","tokens_per_s":[]}',
       *('{"type":"eval","step":3,"length":16,"loss":2.0,"by_position":%s}' % bins for bins in ('{"a":1}', "[]", "[1,null]"))]


def drawing_python():
  for python in (sys.executable, "/usr/bin/python3"):
    if subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode == 0:
      return python
  return None


class Plot(ScriptTest):
  def make_run(self, name, lines=()):
    os.makedirs(self.path(name))
    self.write(os.path.join(name, "metrics.jsonl"), "".join(json.dumps(line) + "\n" for line in GOOD) + "\n".join(lines))
    return self.path(name)

  def draw(self, *args, code=0, **options):
    python = drawing_python()
    if not python:
      self.skipTest("no matplotlib")
    done = subprocess.run([python, os.path.join(SCRIPTS, "plot.py"), *args], capture_output=True, text=True, timeout=120,
                          **options)
    self.assertEqual(done.returncode, code, done.stderr)
    self.assertNotIn("Traceback", done.stderr)
    return done.stdout

  def test_damaged_lines_are_skipped(self):
    good, damaged = plot.Run(self.make_run("good")), plot.Run(self.make_run("damaged", DAMAGED))
    for what in ("config", "latest", "train", "lines", "curve", "by_length", "by_position"):
      self.assertEqual(getattr(damaged, what), getattr(good, what), what)

  def test_odd_values_are_drawn_around(self):
    self.draw(self.make_run("odd", DAMAGED[:-1] + ODD))
    self.assertTrue(os.path.exists(self.path("odd/loss.png")))

  def test_odd_configurations(self):
    for config in ({"model": 3, "eval": 4}, {"model": {"context": "16"}}, {}):
      with self.subTest(config):
        folder = self.make_run("odd")
        self.write("odd/metrics.jsonl", json.dumps({"type": "start", "config": config}) + "\n" +
                   "".join(json.dumps(line) + "\n" for line in GOOD[1:]))
        self.draw(folder)
        shutil.rmtree(folder)

  def test_loss_by_position(self):
    line = lambda step, length, bins: json.dumps(
        {"type": "eval", "step": step, "length": length, "loss": 2.0, "tokens": 64, "by_position": bins})
    folder = self.make_run("run", [line(4, 40, [3.0] * 40), line(8, 40, [2.0] * 40), line(8, 70, [1.5] * 35)])
    self.assertEqual(plot.Run(folder).by_position, {40: (8, [2.0] * 40), 70: (8, [1.5] * 35)})
    self.assertEqual(plot.Run(self.make_run("odd", ODD)).by_position, {})
    self.draw(folder, self.path("odd"))

  def test_names_that_look_like_formulas(self):
    self.draw(self.make_run("$\\frac$"))

  def test_the_picture_is_where_it_says(self):
    folder = self.make_run("run")
    os.mkdir(self.path("pictures"))
    for out, path in (("p3", "p3.png"), ("p.svg", "p.svg"), ("pictures", "pictures/loss.png"),
                      ("pictures/", "pictures/loss.png")):
      self.assertIn(f"picture: {path}\n", self.draw(folder, "--out", out, cwd=self.dir))
      os.remove(self.path(path))
    self.draw(folder, "--out", "p.xyz", code=2)

  def test_runs_of_one_name_are_told_apart(self):
    runs = [plot.Run(self.make_run(name)) for name in ("a/run", "b/run", "other")]
    plot.distinguish(runs)
    self.assertEqual([run.label for run in runs], ["a/run", "b/run", "other"])
    plot.distinguish(runs[:1])
    self.assertEqual(runs[0].label, "run")


if __name__ == "__main__":
  unittest.main()
