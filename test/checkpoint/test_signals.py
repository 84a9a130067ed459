"""Signals to a run: it saves and stops, or saves and continues, with the bits of a run without them."""
import os
import shutil
import signal
import subprocess
import time

from support.runs import AGAIN, PATIENCE, Runs
from support.workspace import TEXT, TRAIN, default_signals, shard


class Signals(Runs):
  def setUp(self):
    super().setUp()
    self.changes.update(optimizer__schedule="constant", train__steps=1000000, checkpoint__every=0, log__every=1000)

  def test_stop(self):
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
      with self.subTest(sign=sign):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        output = self.stop(self.under_way(lines=20), sign)
        last = self.lines()[-1]["step"]
        self.assertEqual(self.steps(), [last])
        self.assertIn(f"step_{last:08d}", output)
        self.run_ok("--resume", train__steps=last + 7)
        self.assertEqual(self.outcome(last + 7), self.straight(step=last + 7, train__steps=last + 7))

  def test_ctrl_c_leaves_a_loop(self):
    """Also if the program that reads the output has died of it before the run has saved."""
    for reader in ("", "| cat > /dev/null"):
      with self.subTest(reader=reader):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        self.write_config("loop.json", train__steps=1000000, log__every=1, eval__every=0, checkpoint__every=0,
                          batch__tokens=6400)
        script = f'for name in tiny other; do "{TRAIN}" loop.json --set name=$name {reader}; done'
        process = subprocess.Popen(["bash", "-c", script], cwd=self.folder, start_new_session=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=default_signals)
        self.wait_for(process, lambda: len(self.lines()) > 2)
        os.killpg(process.pid, signal.SIGINT)
        try:
          errors = process.communicate(timeout=PATIENCE)[1]
        finally:
          if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        self.assertEqual(self.steps(), [self.lines()[-1]["step"]])
        self.assertFalse(os.path.exists(self.path("runs/other")))
        if not reader:
          self.assertEqual((process.returncode, errors), (-signal.SIGINT, ""))

  def test_reader_of_the_output_ends(self):
    for flags in ((), ("--gpus", "2")):
      name = f"run{len(flags)}"
      process = self.under_way(*flags, name=name, log__every=1)
      process.stdout.close()
      self.assertEqual((process.wait(20), process.stderr.read()), (-signal.SIGPIPE, ""))
      self.assertEqual(self.steps(name), [self.lines(run=name)[-1]["step"]])

  def test_reader_of_the_output_ends_before_a_slow_step_does(self):
    """A run that is asked to stop saves, also if it prints when a signal would be another request (base/signals.h)."""
    process = self.under_way(lines=0, log__every=1, batch__tokens=32 * 500, eval__every=0)  # a step takes 0.3 s
    process.stdout.close()
    for sign, pause in (signal.SIGTERM, 0.05), (signal.SIGSTOP, AGAIN), (signal.SIGCONT, 0):
      process.send_signal(sign)
      time.sleep(pause)
    self.assertEqual((process.wait(PATIENCE), process.stderr.read()), (-signal.SIGTERM, ""))
    self.assertEqual(self.steps(), [self.lines()[-1]["step"]])

  def test_nohup(self):
    for flags in ((), ("--gpus", "2")):
      process = self.under_way(*flags, lines=5, before=["nohup"], name=f"run{len(flags)}")
      process.send_signal(signal.SIGHUP)
      self.wait_for(process, lambda: len(self.lines(run=f"run{len(flags)}")) > 50)
      process.terminate()
      self.assertEqual(self.ended(process)[0], -signal.SIGTERM)

  def test_save_and_continue(self):
    process = self.start()
    for count in (1, 2):
      before = len(self.lines())
      self.wait_for(process, lambda: len(self.lines()) > before + 5)
      process.send_signal(signal.SIGUSR1)
      self.wait_for(process, lambda: len(self.steps()) == count)
      self.wait_for(process, lambda: len(self.lines()) > self.steps()[-1])
    self.stop(process)
    step = self.steps()[0]
    self.run_ok("--resume", f"runs/tiny/step_{step:08d}", name="other", train__steps=step + 5)
    self.assertEqual(self.outcome(step + 5, "other"), self.straight(step=step + 5, train__steps=step + 5))

  def test_second_signal_aborts(self):
    process = self.start(batch__tokens=32 * 1000000, eval__every=0)  # a step that takes minutes
    self.wait_for(process, lambda: self.lines("start"))
    time.sleep(0.1)
    for sign, pause in ((signal.SIGTERM, 0.2), (signal.SIGTERM, AGAIN), (signal.SIGINT, 0)):
      self.assertIsNone(process.poll())
      process.send_signal(sign)
      time.sleep(pause)
    process.communicate(timeout=30)
    self.assertEqual(process.returncode, -signal.SIGINT)

  def test_stopped_between_evaluations(self):
    self.write("val.bin", shard(TEXT * 1000))
    for mode in ("windows", "suffix"):
      with self.subTest(mode):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        changes = dict(eval__mode=mode, eval__tokens=30000, eval__lengths=[8, 16, 32], eval__every=4, train__steps=8)
        expected = self.straight(step=8, **changes)
        process = self.start(**changes)
        self.wait_for(process, lambda: len(self.lines("val")) == 4)
        self.stop(process)
        self.assertEqual(self.steps(), [4])
        self.assertIn(len(self.lines("val")), (4, 5))  # the other lengths are evaluated by the run that continues
        self.run_ok("--resume", **changes)
        self.assertEqual(self.outcome(8), expected)

  def test_signals_within_an_evaluation(self):
    self.write("val.bin", shard(TEXT * 1000))
    for count in "12":
      with self.subTest(ranks=count):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        changes = dict(eval__tokens=120000, eval__batch=1, eval__lengths=[8], eval__every=4, train__steps=6)
        self.run_ok("--gpus", count, name="straight", **changes)
        process = self.start("--gpus", count, **changes)
        self.wait_for(process, lambda: len(self.lines()) == 4)
        process.send_signal(signal.SIGUSR1)
        self.wait_for(process, lambda: self.steps() == [4])
        self.assertIn("asked to stop after 4", self.stop(process))
        self.assertEqual([entry["step"] for entry in self.lines("val")], [0])
        self.run_ok("--gpus", count, "--resume", **changes)
        self.assertEqual(self.outcome(6), self.outcome(6, "straight"))

  def test_stopped_while_writing_a_text(self):
    process = self.start(generate__every=3, generate__tokens=1000000, eval__every=0)
    self.wait_for(process, lambda: len(self.lines()) == 3)
    time.sleep(0.2)
    self.stop(process)
    self.assertEqual(self.steps(), [3])
