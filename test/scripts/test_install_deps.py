"""scripts/install_deps.sh, with stand-ins for Debian's programs. Standard library only."""
import os
import re
import subprocess

from support.scripts import SCRIPTS
from support.workspace import Folder

SCRIPT = os.path.join(SCRIPTS, "install_deps.sh")


class InstallDeps(Folder):
  def setUp(self):
    super().setUp()
    with open(SCRIPT) as file:
      needed, optional = re.findall(r"^(?:packages|optional)=\(([^)]*)\)", file.read(), re.M)
    self.packages, self.optional = needed.split(), optional.split()
    os.mkdir(self.path("bin"))
    for name, body in {"id": "echo 0", "g++": "echo 12", "dpkg-query": 'grep -qx "$4" installed && echo "installed "',
                       "apt-cache": 'grep -qx "$2" known && echo "  Candidate: 1" || echo "  Candidate: (none)"',
                       "apt-get": 'echo "$@" >>calls; case "$1" in update) cp archive known ;; esac'}.items():
      os.chmod(self.write("bin/" + name, f"#!/bin/sh\n{body}\n"), 0o755)

  def calls(self, missing, known, archive):
    """What apt-get is called with where these packages are missing, in lists that know some and can learn others."""
    installed = [name for name in self.packages + self.optional if name not in missing]
    for name, lines in (("installed", installed), ("known", known), ("archive", archive), ("calls", [])):
      self.write(name, "".join(line + "\n" for line in lines))
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True, cwd=self.folder,
                          env={**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"]})
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    return [line.replace("-y -q --no-install-recommends ", "") for line in self.text_of("calls").splitlines()]

  def test_what_is_missing_is_installed(self):
    one, two, wished = *self.packages[:2], self.optional[0]
    for missing, known, archive, calls in (
        ([], [], [], []),
        ([one, two], [one, two], [], [f"install {one} {two}"]),
        ([one], [], [one], ["update -q", f"install {one}"]),  # the lists are old
        ([one, wished], [one], [one], ["update -q", f"install {one}"]),  # the archive lacks what is only wished for
        ([wished], [], [], ["update -q"])):
      with self.subTest(missing=missing, known=known):
        self.assertEqual(self.calls(missing, known, archive), calls)
