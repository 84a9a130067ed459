"""Runs of several ranks that real launchers start: mpirun of Open MPI and of MPICH, srun, and scripts/slurm.sh as a
batch job. Each is skipped where it is not installed; Slurm is a cluster of this test, in a temporary folder."""
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from unittest import mock

from support.runs import ENDLESS, RankRuns
from support.workspace import ROOT, TRAIN, Workspace

PATH = os.environ["PATH"] + ":/usr/sbin"
SLURM_CONF = """
ClusterName=test
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
NodeName=localhost NodeAddr=127.0.0.1 CPUs=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES
PartitionName=grace Nodes=ALL GraceTime=30
PartitionName=cancel Nodes=ALL PreemptMode=CANCEL
PartitionName=first Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


def needs(package, *programs):
  missing = [program for program in programs if not shutil.which(program, path=PATH)]
  return unittest.skipIf(missing, f"no {', '.join(missing)}: apt-get install {package}")


class Launched(RankRuns):
  def launched(self, *launcher):
    """A short run that `launcher` starts is the same as with --gpus 2."""
    self.run_ok("--gpus", "2", name="expected", train__steps=5)
    process = self.start(before=launcher, train__steps=5)
    code, _, errors = self.ended(process, 30)
    self.assertEqual((code, errors), (0, ""))
    self.assertEqual(self.outcome(5), self.outcome(5, "expected"))


class Mpirun(Launched):
  @needs("openmpi-bin", "mpirun.openmpi")
  def test_open_mpi(self):
    self.launched("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2")

  @needs("mpich", "mpirun.mpich")
  def test_mpich(self):
    self.launched("mpirun.mpich", "-n", "2")


@needs("munge slurm-wlm", "munged", "slurmctld", "slurmd", "srun")
class Slurm(Launched):
  @classmethod
  def setUpClass(cls):
    folder = tempfile.mkdtemp(prefix="plusgpt_slurm_")
    cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
    os.chmod(folder, 0o755)  # munged wants its socket where everybody may reach it
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    with open(f"{folder}/slurm.conf", "w") as file:
      file.write(SLURM_CONF.format(user=getpass.getuser(), folder=folder, ports=[s.getsockname()[1] for s in free]))
    for s in free:
      s.close()
    with open(f"{folder}/key", "wb") as file:
      os.fchmod(file.fileno(), 0o400)
      file.write(os.urandom(128))
    os.mkdir(f"{folder}/state")
    os.mkdir(f"{folder}/spool")
    environment = mock.patch.dict(os.environ, SLURM_CONF=f"{folder}/slurm.conf", PATH=PATH)
    environment.start()
    cls.addClassCleanup(environment.stop)
    cls.log = open(f"{folder}/log", "w+")
    cls.addClassCleanup(cls.log.close)
    files = [f"--{name}={folder}/munge{end}" for name, end in (("socket", ""), ("pid-file", ".pid"),
                                                               ("seed-file", ".seed"), ("log-file", ".log"))]
    for command in (["munged", "-F", f"--key-file={folder}/key", *files], ["slurmctld", "-D", "-c"],
                    ["slurmd", "-D", "-N", "localhost"]):
      process = subprocess.Popen(command, stdout=cls.log, stderr=cls.log)
      cls.addClassCleanup(lambda process=process: (process.terminate(), process.wait()))
      if command[0] == "munged":
        cls.wait(lambda: os.path.exists(f"{folder}/munge"))
    cls.addClassCleanup(subprocess.run, ["scancel", "--quiet", "--user", getpass.getuser()])
    cls.wait(lambda: subprocess.run(["sinfo", "-h", "-p", "all", "-o", "%t"], capture_output=True).stdout == b"idle\n")

  @classmethod
  def wait(cls, what):
    end = time.monotonic() + 20
    while not what():
      if time.monotonic() > end:
        cls.log.seek(0)
        raise unittest.SkipTest("Slurm does not start here: " + cls.log.read()[-1000:])
      time.sleep(0.05)

  def test_srun(self):
    self.launched("srun", "-n", "2")

  def slurm(self, *command):
    return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True, timeout=30).stdout

  def submit(self, partition="all", **changes):
    """scripts/slurm.sh as a batch job of two ranks; returns its number."""
    self.write_config("config.json", **{**self.changes, **changes})
    job = self.slurm("sbatch", "--parsable", f"--partition={partition}", "--nodes=1", "--ntasks-per-node=2",
                     "--gpus-per-node=0", "--output=job.txt", f"--export=ALL,TRAIN={TRAIN}",
                     os.path.join(ROOT, "scripts/slurm.sh"), "config.json").strip()
    self.addCleanup(subprocess.run, ["scancel", "--quiet", job])
    return job

  def until(self, what):
    end = time.monotonic() + 40
    while not what():
      if time.monotonic() > end:
        self.fail(self.slurm("scontrol", "show", "jobs") + self.text_of("job.txt"))
      time.sleep(0.05)

  def until_it_is(self, job, *facts):
    self.until(lambda: all(fact in self.slurm("scontrol", "show", "job", job) for fact in facts))

  def test_a_batch_job(self):
    """Stopped as before its time limit, then by a requeue, it continues each time and ends as if nothing had been."""
    job = self.submit(**ENDLESS)
    for restarts, stop in enumerate((["scancel", "--batch", "--signal=USR1"], ["scontrol", "requeue"]), 1):
      before = self.lines()[-1]["step"] if self.lines() else 0
      self.until(lambda: self.lines() and self.lines()[-1]["step"] > before + 100)
      self.slurm(*stop, job)
      self.until_it_is(job, "JobState=PENDING", f"Restarts={restarts}")
      self.assertEqual(self.steps()[-1], self.lines()[-1]["step"])
      last = self.steps()[-1] + 20
      if restarts == 2:
        self.write_config("config.json", **{**self.changes, **ENDLESS, "train__steps": last})
      self.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # by itself after two minutes
    self.until_it_is(job, "JobState=COMPLETED", "ExitCode=0:0")
    self.assertEqual(len(self.lines("start")), 3)
    self.run_ok("--gpus", "2", **{**ENDLESS, "name": "straight", "train__steps": last})
    self.assertEqual(self.outcome(last), self.outcome(last, "straight"))

  def test_a_batch_job_ends(self):
    job = self.submit(**ENDLESS)
    self.until(lambda: len(self.lines()) > 100)
    self.slurm("scancel", job)
    self.until_it_is(job, "JobState=CANCELLED")
    self.until(lambda: self.steps() == [self.lines()[-1]["step"]])
    failed = self.submit(modell__layers=3)
    self.until_it_is(failed, "JobState=FAILED", "ExitCode=2:0", "Restarts=0")
    self.assertIn("did you mean", self.text_of("job.txt"))

  def test_a_preempted_batch_job(self):
    """Requeued by Slurm, and by itself in a grace time or where Slurm would cancel it."""
    for partition in "all", "grace", "cancel":
      with self.subTest(partition=partition):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        job = self.submit(partition, **ENDLESS)
        self.until(lambda: len(self.lines()) > 10)
        other = self.slurm("sbatch", "--parsable", "--partition=first", "--ntasks=2", "--output=none",
                           "--wrap=sleep 60")
        self.until_it_is(job, "JobState=PENDING", "Restarts=1")
        self.assertEqual(self.steps(), [self.lines()[-1]["step"]])
        self.slurm("scancel", job, other.strip())
        self.until(lambda: not self.slurm("squeue", "--noheader"))


class Requeues(Workspace):
  """scripts/slurm.sh with programs in place of Slurm's, which say what Slurm 22.05 said."""

  def test_unless_the_job_was_cancelled(self):
    running, ending = "JobState=RUNNING Reason=None PreemptTime=", "JobState=COMPLETING Reason="
    for code, stop, said, requeues in (
        (143, "", running + "None", 1), (143, "", running + "2026-11-29T17:46:28", 1), (0, "", running + "None", 0),
        (143, "", "JobState=SIGNALING", 1),  # by --signal
        (2, "", running + "None", 0), (143, "kill $PPID", ending + "None PreemptTime=None", 0),  # scancel
        (143, "kill $PPID", ending + "TimeLimit PreemptTime=None", 1), (143, "kill $PPID", ending + "None", 0),
        (143, "kill $PPID", ending + "None PreemptTime=2026-11-29T17:46:48", 1), (143, "", ending + "None", 0)):
      with self.subTest(code=code, said=said), \
           mock.patch.dict(os.environ, SLURM_JOB_ID="7", PATH=f"{self.folder}:{PATH}"):
        self.write("srun", f"#!/bin/bash\n{stop}\nsleep 0.2\nexit {code}\n".encode())
        self.write("scontrol", f"#!/bin/bash\necho $* >> calls\n[ $1 = requeue ] || echo '{said}'\n".encode())
        self.write("calls", b"")
        for name in ("srun", "scontrol"):
          os.chmod(self.path(name), 0o755)
        done = subprocess.run(["bash", os.path.join(ROOT, "scripts/slurm.sh"), "x"], cwd=self.folder, timeout=30)
        self.assertEqual(done.returncode, code)
        self.assertEqual(self.text_of("calls").count("requeue 7"), requeues)
