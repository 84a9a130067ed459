"""How runs of several ranks start and end: ranks that die, fail, stop or disagree end the run with one message.

On the CPU, ranks are processes, started by --gpus N or as torchrun, mpirun and srun do.
"""
import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import threading
import time

from support.runs import AGAIN, ENDLESS, LARGE, PATIENCE, RankRuns, send, torchrun
from support.workspace import CRASH


class Ends(RankRuns):
  def test_a_rank_is_killed(self):
    for victim in (2, 0):
      with self.subTest(victim=victim):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        process = self.under_way("--gpus", "4", **ENDLESS)
        os.kill(self.ranks()[victim], signal.SIGKILL)
        code, _, errors = self.ended(process)
        self.assertEqual(code, 1)
        self.assertRegex(errors, rf"^rank {victim} \(process \d+\) was ended by signal 9")
        self.assertEqual(errors.count("\n"), 1, errors)

  def test_a_rank_without_a_parent_is_killed(self):
    for victim in (1, 0):
      with self.subTest(victim=victim):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        processes = self.started_by_hand(torchrun(2), **ENDLESS)
        self.wait_for(processes[0], lambda: len(self.lines()) > 10)
        processes[victim].kill()
        code, _, errors = self.ended(processes[1 - victim])
        self.assertEqual(code, 1)
        self.assertRegex(errors, rf"^rank {victim} has died")

  def test_the_parent_is_killed(self):
    process = self.under_way("--gpus", "3", **{**ENDLESS, "batch__tokens": 96})
    self.assertEqual(sorted(self.ranks()), [0, 1, 2])
    for one in self.ranks().values():  # Ctrl-C reaches the parent alone
      self.assertEqual(os.getpgid(one), one)
    process.kill()
    end = time.monotonic() + 2
    while self.ranks() and time.monotonic() < end:
      time.sleep(0.01)
    self.assertEqual(self.ended(process)[0], -signal.SIGKILL)

  def test_signals(self):
    process = self.under_way("--gpus", "2", **ENDLESS)
    process.send_signal(signal.SIGUSR1)
    self.wait_for(process, lambda: len(self.steps()) == 1)
    self.wait_for(process, lambda: len(self.lines()) > self.steps()[0] + 5)
    output = self.stop(process)
    last = self.lines()[-1]["step"]
    self.assertEqual(self.steps()[-1], last)
    self.assertEqual(len(self.steps()), 2)
    self.assertIn(f"asked to stop after {last}", output)

  def test_a_request_to_save_that_comes_early(self):
    def ready():  # it ignores the signal or has started ranks; before that, the signal ends it
      status = self.text_of(f"/proc/{process.pid}/status")
      return int(re.search(r"SigIgn:\t(\w+)", status)[1], 16) >> signal.SIGUSR1 - 1 & 1 or self.ranks()
    for attempt in range(5):
      name = f"early{attempt}"
      process = self.start("--gpus", "2", name=name, **ENDLESS)
      self.wait_for(process, ready, pause=0)
      while not self.lines(run=name):
        for one in (process.pid, *self.ranks().values()):
          send(one, signal.SIGUSR1)
        self.assertIsNone(process.poll())
      self.stop(process)

  def test_a_signal_to_any_rank_stops_all(self):
    processes = self.started_by_hand(torchrun(2), **{**ENDLESS, **LARGE})
    self.wait_for(processes[0], lambda: len(self.lines()) > 10)
    processes[1].terminate()
    while processes[1].poll() is None:
      pass
    self.assertTrue(self.steps())  # rank 0 has saved: a launcher may kill it when rank 1 dies
    for process in processes:
      self.assertEqual(process.wait(PATIENCE), -signal.SIGTERM)
    self.assertEqual(self.steps(), [self.lines()[-1]["step"]])
    process = self.under_way("--gpus", "2", name="other", **ENDLESS)
    os.kill(self.ranks()[1], signal.SIGINT)
    self.assertEqual(self.ended(process)[::2], (-signal.SIGINT, ""))

  def test_threads_that_compute_take_no_signal(self):
    """One thread of a process takes them, and not the first, which multiplies too: a kernel of oneDNN uses the stack
    pointer for its workspace, where a handler would write."""
    process = self.under_way("--gpus", "2", "--set", "threads=2", **ENDLESS)
    watched = sum(1 << number - 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1))
    for rank in self.ranks().values():
      blocked = {}
      for thread in os.listdir(f"/proc/{rank}/task"):
        mask = re.search(r"^SigBlk:\s*(\w+)", self.text_of(f"/proc/{rank}/task/{thread}/status"), re.M)[1]
        blocked[int(thread)] = int(mask, 16) & watched
      self.assertEqual(blocked.pop(rank), watched)
      self.assertEqual(sorted(blocked.values()), [0] + [watched] * (len(blocked) - 1))
      self.assertGreater(len(blocked), 2)  # that of the signals, of the ranks' messages, and a second that computes
    self.stop(process)

  def test_a_closed_terminal(self):
    process = self.under_way("--gpus", "2", **ENDLESS)
    self.stop(process, signal.SIGHUP)
    self.assertEqual(self.steps(), [self.lines()[-1]["step"]])

  def test_second_signal_aborts(self):
    process = self.under_way("--gpus", "2", lines=2,
                             **{**ENDLESS, "eval__every": 1, "eval__tokens": 500, "eval__batch": 1})
    os.kill(self.ranks()[0], signal.SIGSTOP)  # only its parent can end it now
    for sign, pause in (signal.SIGTERM, 0.2), (signal.SIGTERM, AGAIN), (signal.SIGINT, 0):
      self.assertIsNone(process.poll())
      process.send_signal(sign)
      time.sleep(pause)
    self.assertEqual(self.ended(process)[0], -signal.SIGINT)

  def test_one_request_to_all_processes(self):
    """As `timeout`, scancel and service managers send it, and repeated while the run is ending."""
    process = self.under_way("--gpus", "2", lines=2, **{**ENDLESS, **LARGE})
    for _ in range(3):
      for one in [*self.ranks().values(), process.pid]:
        send(one, signal.SIGTERM)
      time.sleep(0.05)
    code, output, errors = self.ended(process)
    self.assertEqual((code, errors), (-signal.SIGTERM, ""), output)
    self.assertEqual(self.steps(), [self.lines()[-1]["step"]])

  def test_ctrl_z(self):
    self.impatient(2)
    process = self.under_way("--gpus", "2", **ENDLESS)
    process.send_signal(signal.SIGTSTP)
    for one in [process.pid, *self.ranks().values()]:
      self.wait_for(process, lambda: b"State:\tT" in self.bytes_of(f"/proc/{one}/status"))
    steps = len(self.lines())
    time.sleep(3)  # longer than ranks wait for each other
    self.assertEqual(len(self.lines()), steps)
    process.send_signal(signal.SIGCONT)
    self.wait_for(process, lambda: len(self.lines()) > steps + 10)
    self.stop(process)

  def test_a_stopped_rank(self):
    self.impatient(2)
    process = self.under_way("--gpus", "3", **{**ENDLESS, "batch__tokens": 96})
    os.kill(self.ranks()[1], signal.SIGSTOP)
    process.terminate()  # a run that hangs does not react to it either
    code, _, errors = self.ended(process)
    self.assertEqual(code, 1)
    self.assertRegex(errors, r"^rank 1 has died \(no heartbeat for 2 seconds")
    self.assertEqual(errors.count("\n"), 1, errors)

  def test_rank_0_is_stopped(self):
    self.impatient(2)
    process = self.under_way("--gpus", "2", **ENDLESS)
    os.kill(self.ranks()[0], signal.SIGSTOP)
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:  # signals that are not handled do not keep the run alive
      process.send_signal(signal.SIGUSR1)
      time.sleep(0.5)
    code, _, errors = self.ended(process)
    self.assertEqual(code, 1)
    self.assertRegex(errors, r"^rank 0 has died \(no heartbeat for 2 seconds[^\n]*\n$")

  def test_rank_0_without_a_parent_is_stopped(self):
    self.impatient(2)
    first, second = self.started_by_hand(torchrun(2), **ENDLESS)
    self.wait_for(first, lambda: len(self.lines()) > 10)
    first.send_signal(signal.SIGSTOP)
    self.assertEqual(second.wait(PATIENCE), 1)
    self.assertRegex(second.communicate()[1], r"^rank 0 has died \(no heartbeat")

  def test_the_timeout_of_rank_0_counts(self):
    processes = []
    for environment, timeout in zip(torchrun(2), (1000, 2)):
      processes += self.started_by_hand([{**environment, "PLUSGPT_TIMEOUT": str(timeout)}], **ENDLESS)
    self.wait_for(processes[0], lambda: len(self.lines()) > 10)
    time.sleep(3)
    processes[0].terminate()
    self.assertEqual([process.wait(PATIENCE) for process in processes], [-signal.SIGTERM] * 2)

  def test_a_job_that_was_stopped_as_a_whole_continues(self):
    self.impatient(2)
    process = self.under_way("--gpus", "2", **ENDLESS)
    everyone = [*self.ranks().values(), process.pid]
    for sign, pause in ((signal.SIGSTOP, 4), (signal.SIGCONT, 0)):
      for one in everyone:
        os.kill(one, sign)
      time.sleep(pause)
    before = len(self.lines())
    self.wait_for(process, lambda: len(self.lines()) > before + 10)
    self.stop(process)

  def test_a_rank_ends_before_the_others(self):
    self.impatient(2)
    environments = torchrun(2)
    first, = self.started_by_hand(environments[:1], **ENDLESS)
    second, = self.started_by_hand(environments[1:], "--print-config", **ENDLESS)
    self.assertEqual([first.wait(PATIENCE), second.wait(PATIENCE)], [1, 0])
    self.assertRegex(first.communicate()[1], "^rank 1 has ended its program and rank 0 has not; start all ranks with")

  def test_ranks_wait_for_the_slow_one(self):
    """Rank 0 saves and generates text when the others have nothing left to do."""
    self.impatient(1)
    self.run_ok("--gpus", "2", train__steps=1)
    began = time.monotonic()
    self.run_ok("--gpus", "2", "--generate", "It was", "--resume", train__steps=1, generate__tokens=60000)
    self.assertGreater(time.monotonic() - began, 1.5)

  def test_rank_0_prints_the_error_of_another_rank(self):
    # Rank 1 has a path to its data where no file is.
    environments = torchrun(2)
    first, = self.started_by_hand(environments[:1], **ENDLESS)
    second, = self.started_by_hand(environments[1:], "--set", "data.train=none.bin", **ENDLESS)
    self.assertEqual(second.wait(PATIENCE), 2)
    code, _, errors = self.ended(first)
    self.assertEqual(code, 2)
    self.assertRegex(errors, r"^rank 1: .*none\.bin")
    self.assertEqual(second.communicate()[1], "")


class Starts(RankRuns):
  def test_environments(self):
    self.run_ok("--gpus", "2", name="expected", train__steps=5)
    expected = self.outcome(5, "expected")
    environments = {
        "torchrun": [dict(e, TORCHELASTIC_USE_AGENT_STORE="True") for e in torchrun(2)],
        "mpirun": [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(r),
                    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": f"job{os.getpid()}"} for r in range(2)],
        "mpich": [{"PMI_RANK": str(r), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(r), "MPI_LOCALNRANKS": "2"}
                  for r in range(2)],
        "srun": [{"SLURM_PROCID": str(r), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(r), "SLURM_STEP_ID": "0",
                  "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"} for r in range(2)]}
    with contextlib.suppress(OSError):  # a machine without IPv6
      socket.create_server(("::1", 0), family=socket.AF_INET6).close()
      environments["ipv6"] = [dict(e, MASTER_ADDR="::1") for e in torchrun(2)]
    for name, environment in environments.items():
      with self.subTest(name):
        processes = self.started_by_hand(environment[::-1], name=name, train__steps=5)  # rank 1 starts first
        said = [(process.wait(PATIENCE), *process.communicate()) for process in processes]
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
    self.assertEqual(process.wait(PATIENCE), 2)
    self.assertRegex(process.communicate()[1], 'RANK = "2"')
    processes = self.started_by_hand(environment, "--gpus", "2")
    self.assertEqual([process.wait(PATIENCE) for process in processes], [2, 2])
    self.assertRegex(processes[0].communicate()[1], "--gpus 2, but RANK, WORLD_SIZE say")

  def pair(self, flags=(), folder=None, **changes):
    """Starts rank 0 as usual, and rank 1 with other flags and changes or in another folder: both exit codes, and what
    rank 0 writes to standard error."""
    environments = torchrun(2)
    first, = self.started_by_hand(environments[:1], *([] if folder is None else ["--resume"]), train__steps=10)
    home, self.folder = self.folder, folder or self.folder
    second, = self.started_by_hand(environments[1:], *flags, **{"train__steps": 10, **changes})
    self.folder = home
    return first.wait(PATIENCE), second.wait(PATIENCE), first.communicate()[1]

  def test_all_ranks_must_be_started_alike(self):
    self.run_ok(name="other", train__steps=1)
    for changes, texts in (
        ({"train__steps": 9, "seed": 7, "model__layers": 3, "batch__tokens": 64, "eval__every": 3, "precision": "bf16",
          "attention__kind": "lssar"},
         ["train.steps: 9 here, 10 at rank 0", "seed: 7 here", "model.layers: 3", "batch.tokens: 64 here",
          "eval.every: 3", 'precision: "bf16"', 'attention.kind: "lssar" here, "softmax" at rank 0']),
        ({"flags": ["--dry-run", "--resume"], "init": "runs/other/step_00000001"},
         ["--dry-run: given here, not given at rank 0", "--resume: \"latest\" here"]),
        ({"data__train": "train_000001.bin"}, ["data.train, shard 2: none here"]),
        ({"flags": ["--diagnostics"]}, ["--diagnostics: given here, not given at rank 0"]),
        ({"init": "runs/other/step_00000001"}, [r"init, .*: \w{16} here, none at rank 0"])):
      *codes, errors = self.pair(**changes)
      self.assertEqual(codes, [2, 2], errors)
      self.assertRegex(errors,
                       "^rank 1: ranks: this rank was started differently from rank 0; give every rank the same")
      for text in texts:
        self.assertRegex(errors, "\n  " + text)
      self.assertNotRegex(errors, CRASH)
      self.assertFalse(os.path.exists(self.path("runs/tiny")))
    self.assertEqual(self.pair(threads=2, log__every=7, data__train="./train*.bin"), (0, 0, ""))
    environments = torchrun(2)
    environments[1]["PLUSGPT_MATMUL"] = "choose"
    processes = self.started_by_hand(environments)
    self.assertEqual([process.wait(PATIENCE) for process in processes], [2, 2])
    self.assertIn("PLUSGPT_MATMUL: choose here, not set at rank 0", processes[0].communicate()[1])

  def test_all_ranks_must_see_the_same_files(self):
    other = self.path("other")
    shutil.copytree(self.folder, other)
    os.remove(os.path.join(other, "val.bin"))
    shutil.copy(self.path("val.bin"), other)
    self.run_ok(train__steps=10, checkpoint__every=5)
    self.remove_checkpoints(10)
    shutil.copytree(self.path("runs"), os.path.join(other, "runs"))
    *codes, errors = self.pair(["--resume"], other, init="nowhere")  # a resumed run does not read init
    self.assertEqual((codes, errors), ([0, 0], ""))
    self.remove_checkpoints(10)
    with open(os.path.join(other, "train_000001.bin"), "r+b") as file:  # the same size, other content
      file.seek(1200)
      file.write(b"a")
    *codes, errors = self.pair(["--resume"], other)
    self.assertEqual(codes, [2, 2])
    self.assertRegex(errors, r'data\.train, shard 2: "train_000001.bin" of \d+ tokens \(\w+\) here, "train_000001.bin"')
    self.run_ok("--overwrite", name="changed", seed=3, train__steps=5)
    shutil.rmtree(os.path.join(other, "runs/tiny/step_00000005"))
    shutil.copytree(self.path("runs/changed/step_00000005"), os.path.join(other, "runs/tiny/step_00000005"))
    *codes, errors = self.pair(["--resume"], other)
    self.assertEqual(codes, [1, 1])
    self.assertRegex(errors, "^rank 1: checkpoint: .*step_00000005: .* all ranks must see the same runs/")

  def test_information_needs_no_ranks(self):
    for environment in (torchrun(2)[1], {"RANK": "x"}):
      for flag in ("--help", "--version"):
        process, = self.started_by_hand([environment], flag)
        self.assertEqual(process.wait(PATIENCE), 0)

  def test_an_unknown_address(self):
    self.impatient(1)
    process, = self.started_by_hand([{**torchrun(2)[1], "MASTER_ADDR": "nobody.invalid"}])
    self.assertEqual(process.wait(PATIENCE), 1)
    self.assertRegex(process.communicate()[1], 'rank 1 cannot find rank 0: MASTER_ADDR = "nobody.invalid": ')

  def test_a_rank_that_reaches_itself(self):
    def echo():
      with contextlib.suppress(OSError):
        while True:
          connection, _ = server.accept()
          with connection:
            connection.sendall(connection.recv(4096))
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, daemon=True).start()
    self.impatient(1)
    process, = self.started_by_hand([{**torchrun(2)[1], "MASTER_PORT": str(server.getsockname()[1])}])
    self.assertEqual(process.wait(PATIENCE), 1)
    self.assertRegex(process.communicate()[1], "rank 1 could not connect to rank 0")
    server.close()

  def test_connections_of_other_programs_are_closed(self):
    environment = torchrun(2)
    first, = self.started_by_hand(environment[:1], train__steps=3)
    hellos = [b"plusgpt2" + struct.pack("ii", rank, 2) + bytes(64) for rank in (-1, 0, 2, 5)]
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"plusgpt2" + b"\xff" * 200, b"", *hellos):
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
        except OSError:  # closed before everything was sent
          pass
    second, = self.started_by_hand(environment[1:], train__steps=3)
    self.assertEqual([first.wait(PATIENCE), second.wait(PATIENCE)], [0, 0])
