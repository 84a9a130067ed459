"""What scripts/compare.py trains, which ./train must accept, with stand-ins for its packages. Standard library only."""
import os
import subprocess
import sys

from support.scripts import SCRIPTS
from support.workspace import TRAIN, Workspace


class Settings(Workspace):
  CHECK = """
import sys
from unittest import mock
for name in "numpy", "torch", "torch.nn", "torch.nn.functional", "transformers", "lib.compare_torch":
  sys.modules[name] = mock.MagicMock()
from lib import common, compare_transformers
program, folder = sys.argv[1:]
for name, settings in compare_transformers.cases(common.variants(program)):
  compare_transformers.Trainer(program, folder, settings).call("--print-config")
  print(name)
"""

  def test_those_compared_with_transformers(self):
    done = subprocess.run([sys.executable, "-c", self.CHECK, TRAIN, self.folder], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": SCRIPTS}, timeout=120)
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertIn("lssar, rope\n", done.stdout)
