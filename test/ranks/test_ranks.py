"""Several ranks: what they compute is what one computes, and whatever happens to one of them ends the run with a word.

On the CPU ranks are processes, started by --gpus N or as torchrun, mpirun and srun would. FULL=1 kills more often.
"""
import os
import re
import shutil
import signal
import socket
import struct
import time
import unittest

from support.runs import AGAIN, LARGE, Runs
from support.workspace import CRASH, read_safetensors, write_safetensors

ENDLESS = {"optimizer__schedule": "constant", "train__steps": 1000000, "checkpoint__every": 0, "log__every": 1000000,
           "eval__every": 0}


class Several(Runs):
  """128 tokens a step: 4 micro batches, so 1, 2 or 4 ranks."""

  def setUp(self):
    super().setUp()
    self.changes.update(batch__tokens=128, optimizer__lr=1e-3)  # a low rate: training amplifies rounding

  def assert_close(self, run, other, kind, bound=1e-5):
    """Equal but for the rounding of sums in float32; windows in another order would differ by percents."""
    ours, theirs = self.metrics(run, kind), self.metrics(other, kind)
    self.assertEqual([(line["step"], line.get("length")) for line in ours],
                     [(line["step"], line.get("length")) for line in theirs])
    for mine, other in zip(ours, theirs):
      for key in {"loss", "grad_norm"} & mine.keys():
        self.assertLess(abs(mine[key] / other[key] - 1), bound, (key, mine, other))

  def set(self, variable, value):
    os.environ[variable] = str(value)
    self.addCleanup(os.environ.pop, variable, None)

  def impatient(self, seconds):
    self.set("PLUSGPT_PATIENCE", seconds)

  def ranks(self):
    """rank -> process id, of the ranks that this test's launcher has started."""
    found = {}
    for process in filter(str.isdigit, os.listdir("/proc")):
      try:
        with open(f"/proc/{process}/comm") as name:
          rank = re.fullmatch(r"train rank (\d+)\n", name.read())
        if rank and os.readlink(f"/proc/{process}/cwd") == os.path.realpath(self.folder):
          found[int(rank[1])] = int(process)
      except OSError:  # gone, or not ours
        pass
    return found

  def ended(self, process, seconds=20):
    """None of its ranks is left, too."""
    said = super().ended(process, seconds)
    self.assertEqual(self.ranks(), {})
    return said

  def started_by_hand(self, environments, *flags, **changes):
    """A process for each environment, as launchers of several machines start them."""
    keep = {key: value for key, value in os.environ.items()
            if not re.match("RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_|OMPI_|PMIX_|SLURM_|TORCHELASTIC_", key)}
    processes = []
    for environment in environments:
      before = dict(os.environ)
      os.environ.clear()
      os.environ.update({**keep, **environment})
      try:
        processes.append(self.start(*flags, **changes))
      finally:
        os.environ.clear()
        os.environ.update(before)
    return processes


def torchrun(ranks):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
  return [{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": port} for rank in range(ranks)]


class Same(Several):
  def test_losses_on_1_2_and_4_ranks(self):
    for changes in ({}, {"train__zero_stage": 0, "attention__variant": "lssar_softplus_gated", "data__shuffle": False}):
      with self.subTest(**changes):
        for count in (1, 2, 4):
          self.run_ok("--overwrite", "--gpus", str(count), name=f"ranks{count}", train__steps=20, **changes)
        for count in (2, 4):
          for kind in ("train", "val"):
            self.assert_close(f"ranks{count}", "ranks1", kind)
          self.assertEqual([entry["device"] for entry in self.metrics(f"ranks{count}", "start")], [f"{count} x CPU"])

  def test_zero_changes_no_bit(self):
    # A million parameters: every rank owns some of every bucket.
    for count in (2, 4):
      for changes in ({"precision": "fp32"}, {"precision": "bf16", "attention__gate__activation": "sigmoid"}):
        with self.subTest(ranks=count, **changes):
          changes = {**LARGE, "train__steps": 6, "checkpoint__every": 3, **changes}
          for name, zero in (("off", 0), ("on", 1)):
            self.run_ok("--overwrite", "--gpus", str(count), name=name, train__zero_stage=zero, **changes)
          self.assertEqual(self.outcome(6, "on"), self.outcome(6, "off"))
          # A checkpoint does not know who wrote it: what one began, the other continues.
          for begun, zero in (("on", 0), ("off", 1)):
            self.run_ok("--gpus", str(count), "--overwrite", "--resume", f"runs/{begun}/step_00000003", name="other",
                        **{**changes, "train__zero_stage": zero})
            self.assertEqual(self.outcome(6, "other"), self.outcome(6, begun))

  def test_zero_takes_less_memory(self):
    def moments(*flags):
      return float(re.search(r"moments +([\d.]+) MiB", self.run_ok("--dry-run", *flags, **LARGE).stdout)[1])
    alone, shared = moments(), moments("--gpus", "4")
    self.assertLess(shared, alone / 3)

  def test_gradients(self):
    for zero in (0, 1):
      self.run_ok("--gpus", "2", "--dump-gradients", f"two{zero}.safetensors", train__zero_stage=zero, **LARGE)
    self.run_ok("--dump-gradients", "one.safetensors", **LARGE)
    self.assertEqual(self.bytes_of(self.path("two0.safetensors")), self.bytes_of(self.path("two1.safetensors")))
    one, two = (read_safetensors(self.path(name + ".safetensors")) for name in ("one", "two1"))
    for name, (_, _, data) in one.items():
      a, b = memoryview(data).cast("f"), memoryview(two[name][2]).cast("f")
      most = max(map(abs, a))
      self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 1e-5 * most, name)

  def test_evaluation(self):
    self.run_ok(name="model", train__steps=10)
    for count in (1, 2, 3):
      self.ok("--eval", "--lengths", "8,16,48", "--gpus", str(count), name=f"ranks{count}",
              init="runs/model/step_00000010", eval__batch=2)
    for count in (2, 3):
      self.assert_close(f"ranks{count}", "ranks1", "eval", 1e-6)
      for mine, other in zip(self.metrics(f"ranks{count}", "eval"), self.metrics("ranks1", "eval")):
        self.assertEqual(mine["tokens"], other["tokens"])
        self.assertTrue(all(abs(x / y - 1) < 1e-6 for x, y in zip(mine["by_position"], other["by_position"])))

  def test_only_rank_0_speaks(self):
    changes = {"generate__every": 20, "generate__prompt": "It", "optimizer__warmup_steps": 100}
    done = [self.run_ok("--gpus", count, "--overwrite", **changes) for count in "12"]
    lines = [[line for line in each.stdout.split("\n") if line and "iB" not in line] for each in done]  # no memory
    self.assertEqual(len(lines[0]), len(lines[1]), lines)
    self.assertEqual(done[0].stderr, done[1].stderr)
    self.assertIn("warmup_steps", done[1].stderr)

  def test_what_libraries_print(self):
    said = "NCCL INFO rank {} of 2, maxCTAs 8\n".format
    self.set("NCCL_DEBUG", "INFO")
    done = self.run_ok("--gpus", "2", train__steps=3)
    self.assertEqual((done.stdout.count(said(0)), done.stderr.count(said(1))), (1, 1), done)
    self.assertNotIn(said(1), done.stdout)
    self.set("NCCL_DEBUG_FILE", "elsewhere")
    self.assertEqual(self.run_ok("--gpus", "2", "--overwrite", train__steps=3).stderr, "")
    for variable in ("CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_MASK"):
      self.set(variable, "1")
      self.assertIn(said(1), self.run_ok("--gpus", "2", "--overwrite", train__steps=3).stderr)
      del os.environ[variable]
    self.set("CUBLASLT_LOG_MASK", "1")
    self.set("CUBLASLT_LOG_FILE", "elsewhere")
    self.assertEqual(self.run_ok("--gpus", "2", "--overwrite", train__steps=3).stderr, "")

  def test_calls_that_answer_before_their_end(self):
    self.impatient(2)  # and the ranks' health is asked for every 0.2 s
    self.run_ok("--gpus", "2", name="blocking", train__steps=60)
    self.set("NCCL_COMM_BLOCKING", 0)
    self.run_ok("--gpus", "2", train__steps=60)
    self.assertEqual(self.outcome(60), self.outcome(60, "blocking"))


class Products(Several):
  """Each rank measures algorithms for its matrix products by itself: all must use rank 0's from the first step on."""

  def setUp(self):
    super().setUp()
    self.choosing()
    self.changes.update(train__steps=12, checkpoint__every=4, eval__every=3, eval__lengths=[16, 48], eval__batch=3,
                        generate__every=5)

  def two(self, *flags, **changes):
    self.run_ok("--gpus", "2", "--overwrite", *flags, **changes)
    return self.outcome(12)

  def test_cold_and_warm(self):
    combinations = [{"train__zero_stage": zero, "checkpoint__every": every} for zero in (0, 1) for every in (0, 4)]
    for shape in ({"batch__micro": 4}, {"batch__micro": 2, "train__recompute": "block", "precision": "bf16"}):
      for first in combinations:
        with self.subTest(**shape, **first):
          shutil.rmtree(self.path("cache"), ignore_errors=True)
          cold = self.two(**shape, **first)
          shapes = [line[:3] for line in self.choices()]
          self.assertEqual(len(shapes), len(set(map(tuple, shapes))))  # rank 0 alone has written
          for warm in combinations:
            self.assertEqual(self.two(**shape, **warm), cold)
          self.assertEqual([line[:3] for line in self.choices()], shapes)  # there was nothing left to choose

  def test_resumed(self):
    expected = self.two()
    os.rename(self.path("runs/tiny"), self.path("runs/before"))
    for changes in ({}, {"eval__lengths": [32]}):  # products that the checkpoint does not know
      outcomes = []
      for cache in ("cold", "warm"):
        if cache == "cold":
          shutil.rmtree(self.path("cache"))
        outcomes.append(self.two("--resume", "runs/before/step_00000008", **changes))
      self.assertEqual(*outcomes)
      self.assertEqual(outcomes[0][1], expected[1])

  def test_evaluation(self):
    self.two()
    lines = []
    for name in ("cold", "warm"):
      self.ok("--eval", "--lengths", "8,40", "--gpus", "2", name=name, init="runs/tiny/step_00000012", eval__batch=2)
      lines.append(self.metrics(name, "eval"))
    self.assertEqual(*lines)


class Continued(Several):
  def test_killed_while_saving(self):
    changes = {**LARGE, "eval__every": 10}
    expected = self.straight("--gpus", "2", **changes)
    self.kill_while_saving("--gpus", "2", **changes)
    done = self.run_ok("--gpus", "2", "--resume", **changes)
    self.assertIn("runs/tiny/step_00000010", done.stdout)
    self.assertEqual(self.outcome(), expected)

  def test_killed_at_random_moments(self):
    def kill(process, chance):
      """A rank or the launcher."""
      try:
        os.kill(self.ranks().get(chance.randrange(3), process.pid), signal.SIGKILL)
      except ProcessLookupError:  # it was done
        pass

    self.kill_at_random_moments("--gpus", "2", seed=5, longest=1 / 2, kill=kill, codes=(0, 1, -signal.SIGKILL),
                                errors=r"^(rank \d \(process \d+\) was ended by signal 9.*\n)?$")  # no damaged checkpoint

  def test_on_another_number_of_ranks(self):
    self.run_ok(name="straight")
    for first, second, micro in ((2, 1, 2), (1, 4, None), (4, 2, 2)):  # None: as many as fit, 8 on one rank
      with self.subTest(first=first, second=second):
        self.changes["batch__micro"] = micro
        self.run_ok("--overwrite", "--gpus", str(first), train__steps=40)
        os.rename(self.path("runs/tiny/step_00000040"), self.path("gone" + str(first)))
        os.rename(self.path("runs/tiny/step_00000030"), self.path("gone too" + str(first)))
        done = self.run_ok("--resume", "--gpus", str(second))
        self.assertIn("runs/tiny/step_00000020", done.stdout)
        for kind in ("train", "val"):
          self.assert_close("tiny", "straight", kind)
        for key in ("tokens", "data"):
          self.assertEqual(self.state(40)[key], self.state(40, "straight")[key])

  def test_a_named_micro_batch_that_does_not_divide(self):
    self.changes["batch__micro"] = 8
    self.run_ok(train__steps=40)
    shutil.rmtree(self.path("runs/tiny/step_00000040"))
    self.run_bad("--resume", "--gpus", "2", names=["8 x 16 x 2 = 256", "or batch.micro = 0"])
    self.run_bad("--resume", "--gpus", "2", names=["batch.micro: 8 in the checkpoint, 4 now .0 takes"], batch__micro=4)
    self.run_ok("--resume", "--gpus", "2", batch__micro=0)

  def test_beginnings_ends_and_damage(self):
    done = self.run_ok("--gpus", "2", "--resume")
    self.assertRegex(done.stdout, "no checkpoint yet")
    expected = self.outcome()
    done = self.run_ok("--gpus", "2", "--resume")
    self.assertRegex(done.stdout, "finished")
    self.write("runs/tiny/step_00000040/model.safetensors", b"")
    done = self.run_ok("--gpus", "2", "--resume")
    self.assertEqual(done.stderr.count("skipped the damaged checkpoint"), 1)
    self.assertEqual(self.outcome(), expected)
    self.run_bad("--gpus", "2", names=["runs/tiny", "--resume", "--overwrite"])

  def test_spikes(self):
    changes = {"optimizer__skip_spikes": 1e-6, "optimizer__schedule": "constant", "optimizer__lr": 0.0}
    for count in "12":
      self.run_ok("--gpus", count, name="ranks" + count, **changes)
    skips = [[line["step"] for line in self.metrics("ranks" + count, "skip")] for count in "12"]
    self.assertTrue(skips[0])
    self.assertEqual(*skips)

  def test_divergence(self):
    changes = {**self.changes, "eval__every": 0, "checkpoint__every": 0}
    self.run_ok(name="first", train__steps=1)
    tensors = read_safetensors(self.model("first", 1))
    dtype, shape, data = tensors["h.1.ln_2.weight"]
    tensors["h.1.ln_2.weight"] = (dtype, shape, data[:8] + struct.pack("<f", float("nan")) + data[12:])
    write_safetensors(self.path("start/model.safetensors"), tensors)
    for precision in ("fp32", "bf16"):
      texts = []
      for count in "12":
        done = self.call("--gpus", count, "--set", "init=start", **{**changes, "precision": precision})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^step 1: .*first parameter that is not finite is h\.1\.ln_2\.weight")
        texts.append(done.stderr)
      self.assertEqual(*texts)
      done = self.call("--gpus", "2", **{**changes, "precision": precision, "optimizer__lr": 1000.0,
                                         "optimizer__grad_clip": 0, "optimizer__warmup_steps": 0})
      self.assertEqual(done.returncode, 1)
      self.assertRegex(done.stderr, r"^step \d+: .*the (first|largest) .* is (that of )?[hwl]\S+\. ")


class Ends(Several):
  def test_a_rank_is_killed(self):
    for victim in (2, 0):
      with self.subTest(victim=victim):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        process = self.start("--gpus", "4", **ENDLESS)
        self.wait_for(process, lambda: len(self.lines()) > 10)
        os.kill(self.ranks()[victim], signal.SIGKILL)
        code, _, errors = self.ended(process)
        self.assertEqual(code, 1)
        self.assertRegex(errors, rf"^rank {victim} \(process \d+\) was ended by signal 9")
        self.assertEqual(errors.count("\n"), 1, errors)

  def test_a_rank_is_killed_where_nobody_looks_after_it(self):
    for victim in (1, 0):
      with self.subTest(victim=victim):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        processes = self.started_by_hand(torchrun(2), **ENDLESS)
        self.wait_for(processes[0], lambda: len(self.lines()) > 10)
        processes[victim].kill()
        code, _, errors = self.ended(processes[1 - victim])
        self.assertEqual(code, 1)
        self.assertRegex(errors, rf"^rank {victim} has died")

  def test_the_launcher_is_killed(self):
    process = self.start("--gpus", "3", **{**ENDLESS, "batch__tokens": 96})
    self.wait_for(process, lambda: len(self.lines()) > 10)
    self.assertEqual(sorted(self.ranks()), [0, 1, 2])
    process.kill()
    end = time.monotonic() + 2
    while self.ranks() and time.monotonic() < end:
      time.sleep(0.01)
    self.assertEqual(self.ended(process)[0], -signal.SIGKILL)

  def test_signals(self):
    process = self.start("--gpus", "2", **ENDLESS)
    self.wait_for(process, lambda: len(self.lines()) > 10)
    process.send_signal(signal.SIGUSR1)
    self.wait_for(process, lambda: len(self.steps()) == 1)
    self.wait_for(process, lambda: len(self.lines()) > self.steps()[0] + 5)
    process.terminate()
    code, output, errors = self.ended(process)
    self.assertEqual((code, errors), (0, ""))
    last = self.lines()[-1]["step"]
    self.assertEqual(self.steps()[-1], last)
    self.assertEqual(len(self.steps()), 2)
    self.assertIn(f"asked to stop after {last}", output)

  def test_a_request_to_save_that_comes_early(self):
    def ready():  # ignores the signal, or has started ranks: its first instructions, where it would die, are over
      status = self.bytes_of(f"/proc/{process.pid}/status").decode()
      return int(re.search(r"SigIgn:\t(\w+)", status)[1], 16) >> signal.SIGUSR1 - 1 & 1 or self.ranks()
    for attempt in range(5):
      name = f"early{attempt}"
      process = self.start("--gpus", "2", name=name, **ENDLESS)
      self.wait_for(process, ready, pause=0)
      while not self.lines(run=name):
        for one in (process.pid, *self.ranks().values()):
          os.kill(one, signal.SIGUSR1)
        self.assertIsNone(process.poll())
      process.terminate()
      self.assertEqual(self.ended(process)[::2], (0, ""))

  def test_a_signal_to_any_rank_stops_all(self):
    processes = self.started_by_hand(torchrun(2), **ENDLESS)
    self.wait_for(processes[0], lambda: len(self.lines()) > 10)
    processes[1].terminate()
    for process in processes:
      self.assertEqual(process.wait(20), 0)
    self.assertEqual(self.steps(), [self.lines()[-1]["step"]])

  def test_second_signal_aborts(self):
    process = self.start("--gpus", "2", **{**ENDLESS, "eval__every": 1, "eval__tokens": 500, "eval__batch": 1})
    self.wait_for(process, lambda: len(self.lines()) > 2)
    os.kill(self.ranks()[0], signal.SIGSTOP)  # deaf: only the launcher can end it
    process.send_signal(signal.SIGINT)
    time.sleep(AGAIN)
    process.send_signal(signal.SIGINT)
    self.assertEqual(self.ended(process)[0], -signal.SIGINT)

  def test_one_request_to_all_processes(self):
    """As `timeout`, scancel and service managers send it, and again while the run is ending."""
    process = self.start("--gpus", "2", **{**ENDLESS, **LARGE})
    self.wait_for(process, lambda: len(self.lines()) > 2)
    for _ in range(3):
      for one in [*self.ranks().values(), process.pid]:
        try:
          os.kill(one, signal.SIGTERM)
        except ProcessLookupError:
          pass
      time.sleep(0.05)
    code, output, errors = self.ended(process)
    self.assertEqual((code, errors), (0, ""), output)
    self.assertEqual(self.steps(), [self.lines()[-1]["step"]])

  def test_ctrl_z(self):
    self.impatient(2)
    process = self.start("--gpus", "2", **ENDLESS)
    self.wait_for(process, lambda: len(self.lines()) > 10)
    process.send_signal(signal.SIGTSTP)
    for one in [process.pid, *self.ranks().values()]:
      self.wait_for(process, lambda: b"State:\tT" in self.bytes_of(f"/proc/{one}/status"))
    steps = len(self.lines())
    time.sleep(3)  # longer than ranks wait for each other
    self.assertEqual(len(self.lines()), steps)
    process.send_signal(signal.SIGCONT)
    self.wait_for(process, lambda: len(self.lines()) > steps + 10)
    process.terminate()
    self.assertEqual(self.ended(process)[0], 0)

  def test_a_stopped_rank(self):
    self.impatient(2)
    process = self.start("--gpus", "3", **{**ENDLESS, "batch__tokens": 96})
    self.wait_for(process, lambda: len(self.lines()) > 10)
    os.kill(self.ranks()[1], signal.SIGSTOP)
    process.terminate()  # which a run that hangs does not hear either
    code, _, errors = self.ended(process)
    self.assertEqual(code, 1)
    self.assertRegex(errors, r"^rank 1 has died \(no sign of life for 2 seconds")
    self.assertEqual(errors.count("\n"), 1, errors)

  def test_rank_0_is_stopped(self):
    self.impatient(2)
    process = self.start("--gpus", "2", **ENDLESS)
    self.wait_for(process, lambda: len(self.lines()) > 10)
    os.kill(self.ranks()[0], signal.SIGSTOP)
    end = time.monotonic() + 12
    while process.poll() is None and time.monotonic() < end:  # what nobody hears does not keep the run alive
      process.send_signal(signal.SIGUSR1)
      time.sleep(0.5)
    code, _, errors = self.ended(process, 1)
    self.assertEqual(code, 1)
    self.assertRegex(errors, r"^rank 0 has died \(no sign of life for 2 seconds[^\n]*\n$")

  def test_rank_0_is_stopped_where_nobody_looks_after_it(self):
    self.impatient(2)
    first, second = self.started_by_hand(torchrun(2), **ENDLESS)
    self.wait_for(first, lambda: len(self.lines()) > 10)
    first.send_signal(signal.SIGSTOP)
    self.assertEqual(second.wait(20), 1)
    self.assertRegex(second.communicate()[1], r"^rank 0 has died \(no sign of life")

  def test_the_patience_of_rank_0_counts(self):
    processes = []
    for environment, patience in zip(torchrun(2), (1000, 2)):
      processes += self.started_by_hand([{**environment, "PLUSGPT_PATIENCE": str(patience)}], **ENDLESS)
    self.wait_for(processes[0], lambda: len(self.lines()) > 10)
    time.sleep(3)
    processes[0].terminate()
    self.assertEqual([process.wait(20) for process in processes], [0, 0])

  def test_a_job_that_was_stopped_as_a_whole_goes_on(self):
    self.impatient(2)
    process = self.start("--gpus", "2", **ENDLESS)
    self.wait_for(process, lambda: len(self.lines()) > 10)
    everybody = [*self.ranks().values(), process.pid]
    for sign, pause in ((signal.SIGSTOP, 4), (signal.SIGCONT, 0)):
      for one in everybody:
        os.kill(one, sign)
      time.sleep(pause)
    before = len(self.lines())
    self.wait_for(process, lambda: len(self.lines()) > before + 10)
    process.terminate()
    self.assertEqual(self.ended(process)[::2], (0, ""))

  def test_a_rank_ends_before_the_others(self):
    self.impatient(2)
    environments = torchrun(2)
    first, = self.started_by_hand(environments[:1], **ENDLESS)
    second, = self.started_by_hand(environments[1:], "--print-config", **ENDLESS)
    self.assertEqual([first.wait(20), second.wait(20)], [1, 0])
    self.assertRegex(first.communicate()[1], "^rank 1 has ended its program and rank 0 has not; start all ranks with")

  def test_ranks_wait_for_the_slow_one(self):
    """Rank 0 saves and writes texts while the others have nothing left to do."""
    self.impatient(1)
    self.run_ok("--gpus", "2", train__steps=1)
    began = time.monotonic()
    self.run_ok("--gpus", "2", "--generate", "It was", "--resume", train__steps=1, generate__tokens=60000)
    self.assertGreater(time.monotonic() - began, 1.5)

  def test_an_error_of_one_rank_is_said_by_rank_0(self):
    # Rank 1 looks for its data where there are none.
    environments = torchrun(2)
    first, = self.started_by_hand(environments[:1], **ENDLESS)
    second, = self.started_by_hand(environments[1:], "--set", "data.train=none.bin", **ENDLESS)
    self.assertEqual(second.wait(20), 2)
    code, _, errors = self.ended(first)
    self.assertEqual(code, 2)
    self.assertRegex(errors, r"^rank 1: .*none\.bin")
    self.assertEqual(second.communicate()[1], "")


class Starts(Several):
  def test_environments(self):
    self.run_ok("--gpus", "2", name="expected", train__steps=5)
    expected = self.outcome(5, "expected")
    environments = {
        "torchrun": [dict(e, TORCHELASTIC_USE_AGENT_STORE="True") for e in torchrun(2)],
        "mpirun": [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"job{os.getpid()}"} for r in range(2)],
        "srun": [{"SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(r), "SLURM_STEP_ID": "0",
                  "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"} for r in range(2)]}
    for name, environment in environments.items():
      with self.subTest(name):
        processes = self.started_by_hand(environment[::-1], name=name, train__steps=5)  # rank 1 is there first
        said = [(process.wait(20), *process.communicate()) for process in processes]
        self.assertEqual([(code, errors) for code, _, errors in said], [(0, "")] * 2)
        self.assertEqual(said[0][1], "")  # rank 1
        self.assertEqual(self.outcome(5, name), expected)

  def test_refused(self):
    self.bad("--gpus", "3", names=["batch.tokens = 128", "micro x context x ranks = 2 x 16 x 3 = 96", "96 or 192"],
             **self.changes)
    self.bad("--gpus", "65", names=["--gpus 65", "64", "all"])
    self.bad("--gpus", "2", "--set", "modell.layers=3", names=["modell.layers", "did you mean"])
    self.ok("--gpus", "all", "--dry-run")
    environment = torchrun(2)
    process, = self.started_by_hand([{**environment[0], "RANK": "2"}])
    self.assertEqual(process.wait(20), 2)
    self.assertRegex(process.communicate()[1], 'RANK = "2"')
    processes = self.started_by_hand(environment, "--gpus", "2")
    self.assertEqual([process.wait(20) for process in processes], [2, 2])
    self.assertRegex(processes[0].communicate()[1], "--gpus 2, but RANK, WORLD_SIZE say")

  def pair(self, flags=(), folder=None, **changes):
    """Rank 0 as always, rank 1 with other flags and changes, or in another folder: what the two and rank 0 say."""
    environments = torchrun(2)
    first, = self.started_by_hand(environments[:1], *([] if folder is None else ["--resume"]), train__steps=10)
    home, self.folder = self.folder, folder or self.folder
    second, = self.started_by_hand(environments[1:], *flags, **{"train__steps": 10, **changes})
    self.folder = home
    return first.wait(20), second.wait(20), first.communicate()[1]

  def test_all_ranks_must_be_started_alike(self):
    self.run_ok(name="other", train__steps=1)
    for changes, texts in (
        ({"train__steps": 9, "seed": 7, "model__layers": 3, "batch__tokens": 64, "eval__every": 3, "precision": "bf16",
          "attention__kind": "lssar"},
         ["train.steps: 9 here, 10 at rank 0", "seed: 7 here", "model.layers: 3", "batch.tokens: 64 here",
          "eval.every: 3", 'precision: "bf16"', 'attention.kind: "lssar" here, "softmax" at rank 0']),
        ({"flags": ["--dry-run", "--resume"], "init": "runs/other/step_00000001", "data__train": "train_000001.bin"},
         ["--dry-run: given here, not given at rank 0", "--resume: \"latest\" here", "data.train, shard 2: none here"]),
        ({"init": "runs/other/step_00000001"}, [r"init, .*: \w{16} here, none at rank 0"])):
      *codes, errors = self.pair(**changes)
      self.assertEqual(codes, [2, 2], errors)
      self.assertRegex(errors, "^rank 1: ranks: this rank was started differently from rank 0; give every rank the same")
      for text in texts:
        self.assertRegex(errors, "\n  " + text)
      self.assertNotRegex(errors, CRASH)
      self.assertFalse(os.path.exists(self.path("runs/tiny")))
    self.assertEqual(self.pair(threads=2, log__every=7, data__train="./train*.bin"), (0, 0, ""))

  def test_all_ranks_must_see_the_same_files(self):
    other = self.path("other")
    shutil.copytree(self.folder, other)
    os.remove(os.path.join(other, "val.bin"))
    shutil.copy(self.path("val.bin"), other)
    self.run_ok(train__steps=10, checkpoint__every=5)
    shutil.rmtree(self.path("runs/tiny/step_00000010"))
    shutil.copytree(self.path("runs"), os.path.join(other, "runs"))
    *codes, errors = self.pair(["--resume"], other, init="nowhere")  # which a run that goes on does not read
    self.assertEqual((codes, errors), ([0, 0], ""))
    shutil.rmtree(self.path("runs/tiny/step_00000010"))
    self.run_ok("--overwrite", name="changed", seed=3, train__steps=5)
    shutil.rmtree(os.path.join(other, "runs/tiny/step_00000005"))
    shutil.copytree(self.path("runs/changed/step_00000005"), os.path.join(other, "runs/tiny/step_00000005"))
    *codes, errors = self.pair(["--resume"], other)
    self.assertEqual(codes, [1, 1])
    self.assertRegex(errors, "^rank 1: checkpoint: .*step_00000005: .* all ranks must see the same runs/")
    with open(os.path.join(other, "train_000001.bin"), "r+b") as file:  # the same size, other content
      file.seek(1200)
      file.write(b"a")
    *codes, errors = self.pair(["--resume"], other)
    self.assertEqual(codes, [2, 2])
    self.assertRegex(errors, r'data\.train, shard 2: "train_000001.bin" of \d+ tokens \(\w+\) here, "train_000001.bin"')

  def test_information_needs_no_ranks(self):
    for environment in (torchrun(2)[1], {"RANK": "x"}):
      for flag in ("--help", "--version"):
        process, = self.started_by_hand([environment], flag)
        self.assertEqual(process.wait(5), 0)

  def test_an_address_that_nobody_knows(self):
    self.impatient(1)
    process, = self.started_by_hand([{**torchrun(2)[1], "MASTER_ADDR": "nobody.invalid"}])
    self.assertEqual(process.wait(40), 1)
    self.assertRegex(process.communicate()[1], 'rank 1 cannot find rank 0: MASTER_ADDR = "nobody.invalid": ')

  def test_strangers_are_turned_away(self):
    environment = torchrun(2)
    first, = self.started_by_hand(environment[:1], train__steps=3)
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"plusgpt2" + b"\xff" * 200, b""):
      end = time.monotonic() + 20
      while True:
        try:
          stranger = socket.create_connection(("127.0.0.1", int(environment[0]["MASTER_PORT"])))
          break
        except ConnectionRefusedError:
          self.assertLess(time.monotonic(), end)
          time.sleep(0.01)
      with stranger:
        try:
          stranger.sendall(text)
          stranger.shutdown(socket.SHUT_WR)
          self.assertEqual(stranger.recv(10), b"")
        except OSError:  # turned away before it was done
          pass
    second, = self.started_by_hand(environment[1:], train__steps=3)
    self.assertEqual([first.wait(20), second.wait(20)], [0, 0])


if __name__ == "__main__":
  unittest.main()
