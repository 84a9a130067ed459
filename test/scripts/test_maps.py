"""scripts/maps.py: attention's weights where torch and transformers are, and their picture where matplotlib is."""
import os
import sys
import unittest

from support.scripts import ScriptTest, drawing_python
from support.workspace import Workspace

import maps  # from SCRIPTS

try:
  import numpy
except ImportError:
  numpy = None
try:
  import torch  # noqa: F401
  import transformers  # noqa: F401
except ImportError:
  torch = None

TEXT = b"It was the best of times, it was"


def sharpened(a, offset=1.0, power=15.0):
  """LSSAR's second stage in float64, of weights [T, T]."""
  rows = numpy.arange(1, len(a) + 1)[:, None]
  r = numpy.maximum(rows * a - numpy.where(rows <= 3, 0, offset), 0)
  w = (r / r.max(1, keepdims=True)) ** power
  return w / w.sum(1, keepdims=True)


@unittest.skipUnless(torch and numpy, "needs torch, transformers and numpy")
class Weights(Workspace):
  def maps_of(self, **changes):
    self.ok("--overwrite", **changes)
    self.assertEqual(maps.checkpoint_of(self.path("runs/tiny")), self.checkpoint(4))
    return maps.maps_of(self.checkpoint(4), list(TEXT))

  def test_before_and_after_sharpening(self):
    found, documents = self.maps_of(attention__layers=["lssar", "softmax"], attention__variant="lssar")
    self.assertEqual(list(found), ["layer 1, before sharpening", "layer 1, sharpened", "layer 2"])
    self.assertEqual(documents, [])
    before, after, softmax = found.values()
    self.assertEqual(before.shape, (2, len(TEXT), len(TEXT)))
    for P in before, after, softmax:
      self.assertLess(abs(P.sum(2) - 1).max(), 1e-5)
      self.assertEqual(numpy.triu(P, 1).max(), 0)
    for a, P in zip(before.astype("float64"), after):
      self.assertLess(abs(P - sharpened(a)).max(), 1e-3)  # a power of 15 of rounded numbers

  def test_documents(self):
    found, documents = self.maps_of(attention__documents="separate", data__separator=ord(" "))
    self.assertEqual(documents, [i for i, letter in enumerate(TEXT) if letter == ord(" ")])
    for P in found.values():
      self.assertEqual(P[:, documents[0]:, :documents[0]].max(), 0)

  def test_gpt2_without_a_file_of_its_own(self):
    found, _ = self.maps_of(model__position="learned", model__context=64, batch__micro=1)
    self.assertFalse(os.path.exists(self.checkpoint(4, "modeling_plusgpt.py")))
    self.assertEqual(list(found), ["layer 1", "layer 2"])
    self.assertLess(abs(found["layer 1"].sum(2) - 1).max(), 1e-5)


class Picture(ScriptTest):
  @unittest.skipUnless(numpy, "needs numpy")
  def test_sinks(self):
    P = numpy.tri(8) / numpy.arange(1, 9)[:, None]
    self.assertEqual(maps.sinks_of(P), [])  # of equal weights the first has 0.25 on average
    P[2:, 0] += 1
    self.assertEqual(maps.sinks_of(P / P.sum(1, keepdims=True)), [0])
    P[:] = 0
    P[5:, 3] = 1  # rows whose weights are all 0 do not count
    self.assertEqual(maps.sinks_of(P), [3])

  def test_picture(self):
    if drawing_python() != sys.executable:
      self.skipTest("no matplotlib here")
    P = numpy.tri(6)[None].repeat(3, 0) / numpy.arange(1, 7)[:, None]
    maps.draw({"layer 1": P, "layer 2": P}, [3], list("$a_b\n$"), self.path("x.png"), "runs/x")
    self.assertEqual(self.bytes_of("x.png")[:4], b"\x89PNG")

  def test_bad_input(self):
    self.run_script("maps.py", self.folder, "--text", "x", code=2)
    self.assert_error("neither a checkpoint nor a run")
    self.run_script("maps.py", self.folder, code=2)
    self.assert_error("--text", "--shard")
    os.mkdir(self.path("step_00000001"))
    self.write("step_00000001/model.safetensors", "")
    self.write("step_00000001/config.json", '{"vocab_size": 300}')
    self.run_script("maps.py", self.folder, "--text", "xy", code=2)
    self.assert_error("has no tokenizer; take tokens from a shard")
