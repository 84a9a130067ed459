"""scripts/trial.sh, as far as it goes without a system. Standard library only."""
import os
import shutil
import subprocess

from support.scripts import SCRIPTS
from support.workspace import Folder


class Trial(Folder):
  def trial(self, *args):
    stand_ins = {"id": "echo 0", "git": "true", "debootstrap": "mkdir $4; echo E: no archive; false",
                 "unshare": 'while [ "$1" != bash ]; do shift; done; exec "$@"'}
    for name, body in stand_ins.items():
      self.write(name, f"#!/bin/bash\n{body}\n")
      os.chmod(self.path(name), 0o755)
    os.makedirs(self.path("tmp"), exist_ok=True)
    env = {**os.environ, "PATH": self.path() + ":" + os.environ["PATH"], "TMPDIR": self.path("tmp")}
    os.makedirs(self.path("scripts"), exist_ok=True)  # its logs are beside it
    script = shutil.copy(os.path.join(SCRIPTS, "trial.sh"), self.path("scripts"))
    return subprocess.run(["bash", script, *args], text=True, capture_output=True, env=env)

  def test_what_is_out_of_reach_is_skipped_and_nothing_stays(self):
    done = self.trial("noble", "trixie", "test")
    self.assertEqual((done.returncode, done.stderr), (1, ""))  # nothing ran
    self.assertEqual(done.stdout.split("\n")[1:],
                     ["noble is skipped: E: no archive", "trixie is skipped: E: no archive", ""])
    self.assertEqual(os.listdir(self.path("tmp")), [])

  def test_unknown_systems_are_named(self):
    done = self.trial("sarge")
    self.assertEqual((done.returncode, done.stderr), (2, 'trial.sh: unknown argument "sarge" (--help)\n'))
