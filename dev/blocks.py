"""Fills a block of the documents, <!-- table:NAME --> to <!-- /table -->."""
import glob
import os
import re

from root import ROOT
from lib.common import stop

PAGES = ("README.md", "dev/bench/README.md", "dev/bench/TORCH.md", "dev/bench/LOG.md", "docs/gpu.md",
         "docs/results/*.md")


def replace_block(name, content):
  """content: the new text of the block, or what makes it of the old one."""
  block = re.compile(r"(<!-- table:%s -->\n)(.*?)(<!-- /table -->)" % re.escape(name), re.DOTALL)
  for path in (path for page in PAGES for path in sorted(glob.glob(os.path.join(ROOT, page)))):
    with open(path, encoding="utf-8") as file:
      text = file.read()
    if found := block.search(text):
      new = content(found[2]) if callable(content) else content
      with open(path, "w", encoding="utf-8") as file:
        file.write(text[:found.start(2)] + new.strip() + "\n" + text[found.end(2):])
      return
  stop(f"no block <!-- table:{name} --> ... <!-- /table --> in {', '.join(PAGES)}")
