"""docs/gpu.md has this program's plans, as dev/readme_tables.py writes them. Standard library only."""
import os
import re
import shutil

from support.scripts import ScriptTest
from support.workspace import ROOT, SCRIPTS, TRAIN


class PlanTables(ScriptTest):
  def test_the_page_has_the_programs_plans(self):
    shutil.copytree(SCRIPTS, self.path("scripts"))
    shutil.copytree(os.path.join(ROOT, "dev"), self.path("dev"), ignore=shutil.ignore_patterns("bench", "ptx", "test"))
    os.symlink(os.path.join(ROOT, "configs"), self.path("configs"))
    with open(os.path.join(ROOT, "docs/gpu.md"), encoding="utf-8") as file:
      page = file.read()
    os.mkdir(self.path("docs"))
    self.write("docs/gpu.md", re.sub("(<!-- table:plan_.*-->\n)[^<]*", r"\1old\n", page))
    self.run_script(self.path("dev/readme_tables.py"), "plans", TRAIN)
    self.assertEqual(self.text_of("docs/gpu.md"), page)
