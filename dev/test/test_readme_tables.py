"""The documents have the tables that the scripts make of the results that are kept, and this program's plans of memory.
Standard library only.
"""
import glob
import os
import re
import shutil

from support.scripts import ScriptTest
from support.workspace import ROOT, SCRIPTS, TRAIN

# Blocks of what is not kept: runs, programs' output of a GPU and of PyTorch, and a table that nothing writes.
BY_HAND = {"answers", "passkey", "passkey_lssar", "far_gpu", "session_gpu", "runs_gpu", "newton", "checkpoint",
           "torch"}
LOSSES = re.compile(r"^(\| `.* \|)[^|]*\|[^|]*\|$", re.MULTILINE)  # the last columns of the table of variants


class ReadmeTables(ScriptTest):
  def setUp(self):
    super().setUp()
    shutil.copytree(SCRIPTS, self.path("scripts"))
    shutil.copytree(os.path.join(ROOT, "dev"), self.path("dev"), ignore=shutil.ignore_patterns("ptx", "test"))
    shutil.copytree(os.path.join(ROOT, "docs"), self.path("docs"))
    os.symlink(os.path.join(ROOT, "configs"), self.path("configs"))
    shutil.copy(os.path.join(ROOT, "README.md"), self.folder)

  def pages(self):
    return {os.path.relpath(path, self.folder): self.text_of(path)
            for path in glob.glob(self.path("**/*.md"), recursive=True)}

  def test_no_number_is_typed_by_hand(self):
    def blank(block):
      if block[2] in BY_HAND:
        return block[0]
      inside = LOSSES.sub(r"\1 old | old |", block[3]) if block[2] == "variants" else "old\n"
      return block[1] + inside + "<!-- /table -->"

    before = self.pages()
    for page, text in before.items():
      self.write(page, re.sub(r"(<!-- table:(\w+) -->\n)(.*?)<!-- /table -->", blank, text, flags=re.DOTALL))
    self.run_script(self.path("dev/readme_tables.py"), "results")
    self.run_script(self.path("dev/readme_tables.py"), "plans", TRAIN)
    results = glob.glob(self.path("dev/bench/results/peers_*.json"))
    self.run_script(self.path("dev/bench_table.py"), *results, *(self.path(f"dev/bench/results/{name}.json")
                                                                 for name in ("cpu", "gpu")))
    after = self.pages()
    for page, text in before.items():
      with self.subTest(page=page):
        self.assertEqual(after[page].split(), text.split())
