"""dev/trial.sh, as far as it goes with a stand-in for a system. Standard library only."""
import os
import shutil
import subprocess

from support.workspace import ROOT, Folder


class Trial(Folder):
  def trial(self, *args, **others):
    stand_ins = {"id": "echo 0", "git": "true", "debootstrap": "mkdir $4; echo E: no archive; false",
                 "unshare": 'while [ "$1" != bash ]; do shift; done; exec "$@"', **others}
    for name, body in stand_ins.items():
      self.write(name, f"#!/bin/bash\n{body}\n")
      os.chmod(self.path(name), 0o755)
    os.makedirs(self.path("tmp"), exist_ok=True)
    env = {**os.environ, "PATH": self.path() + ":" + os.environ["PATH"], "TMPDIR": self.path("tmp")}
    os.makedirs(self.path("dev"), exist_ok=True)  # its logs are beside it
    script = shutil.copy(os.path.join(ROOT, "dev/trial.sh"), self.path("dev"))
    return subprocess.run(["bash", script, *args], text=True, capture_output=True, env=env)

  def test_what_is_out_of_reach_is_skipped_and_nothing_stays(self):
    done = self.trial("noble", "trixie", "test")
    self.assertEqual((done.returncode, done.stderr), (1, ""))  # nothing ran
    self.assertEqual(done.stdout.split("\n")[1:],
                     ["noble is skipped: E: no archive", "trixie is skipped: E: no archive", ""])
    self.assertEqual(os.listdir(self.path("tmp")), [])

  def test_a_row_for_each_command(self):
    inside = """
while [ "$1" != chroot ]; do shift; done
case "${*:3}" in *g++*) echo 12.3.0 ;; *quickstart.sh) exit 7 ;; *test.sh) echo "5 passed, 0 failed" ;; esac"""
    for args, code, rows in ((("trixie", "quickstart", "test"), 1,
                              ["trixie 12.3.0 root quickstart 7", "trixie 12.3.0 root test 0 5 passed, 0 failed"]),
                             (("--user", "noble", "test"), 0, ["noble 12.3.0 trial test 0 5 passed, 0 failed"])):
      done = self.trial(*args, debootstrap="mkdir -p $4/etc", mount="true", tar="true", env=inside)
      self.assertEqual((done.returncode, done.stderr), (code, ""))
      found = [" ".join(line.split()[:-1]) for line in done.stdout.splitlines()[1:]]  # without the seconds
      self.assertEqual(found, rows)

  def test_unknown_systems_are_named(self):
    done = self.trial("sarge")
    self.assertEqual((done.returncode, done.stderr), (2, 'trial.sh: unknown argument "sarge" (--help)\n'))
