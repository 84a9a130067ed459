"""The tools around the benchmarks, where a fault would make a number wrong or waste a GPU's time: bench_table.py,
readme_tables.py, bench_peers.py if there is PyTorch, gpu_session.sh with stand-ins for a GPU's programs.
PYTHON_TORCH names a Python with PyTorch. Standard library only.
"""
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

from scripts.test_report import lines
from support.scripts import ROOT, SCRIPTS, ScriptTest
from support.workspace import TRAIN

DEV = os.path.join(ROOT, "dev")
STEP = {"config": "configs/x.json", "variant": "softmax", "precision": "fp32", "micro": 16, "context": 128,
        "tokens": 2048, "flops_per_token": 5e6,
        "ms": 100, "ms_least": 90, "ms_most": 120, "tokens_per_s": 20480, "mfu": 0.25,
        "peak_flops": 4e11, "peak_from": "measured", "gaps_ms": 2,
        "phases_ms": {"forward": 30, "output layer": 10, "backward": 50, "update": 9, "host": 1},
        "memory_bytes": 3 * 2**20,
        "kernels": [{"name": "matmul", "calls": 51, "ms": 97.5, "share": 0.9949},
                    {"name": "tiny", "calls": 2, "ms": 0.5, "share": 0.0051}]}
KERNEL = {"name": "mlp forward", "type": "fp32", "s": 1e-3, "least": 9e-4, "most": 2e-3, "bytes": 1e6, "flops": 1e8,
          "floor_s": 2.5e-4, "launches": ["matmul"]}
PART = {"s": 1e-3, "least": 9e-4, "most": 2e-3, "flops_per_s": 2e12, "bytes": 1e6, "flops": 1e8, "floor_s": 5e-4}
ATTENTION = {"kind": "softmax", "type": "fp32", "B": 1, "T": 128, "H": 2, "D": 32, "evaluation": PART, "forward": PART,
             "backward": {**PART, "flops_per_s": 3e12}}
HEAD = {"device": "CPU", "gpu": False, "processors": 2, "commit": "abc1234", "command": "bench",
        "ceilings": {"copy": 4e10, "fp32": 4e11, "bf16": 3e11}}


class Tables(ScriptTest):
  """In a copy of dev/ and scripts/, because results and README.md are found relative to it."""

  def setUp(self):
    super().setUp()
    shutil.copytree(SCRIPTS, self.path("scripts"))
    shutil.copytree(DEV, self.path("dev"), ignore=shutil.ignore_patterns("bench", "ptx", "test"))
    self.cpu, self.gpu = (self.path(f"dev/bench/results/{name}.json") for name in ("cpu", "gpu"))
    self.parts = {"kernels": {**HEAD, "kernels": [KERNEL]}, "attention": {**HEAD, "attention": [ATTENTION]},
                  "step": {**HEAD, "steps": [dict(STEP), {**STEP, "variant": "lssar", "tokens_per_s": 10240}]}}

  def readme(self, *blocks):
    self.write("README.md", "\n".join(f"<!-- table:{name} -->\nold\n<!-- /table -->" for name in blocks))

  def filled(self):
    return re.findall(r"<!-- table:\w+ -->\n(.*?)\n<!-- /table", self.text_of("README.md"), re.DOTALL)

  def table(self, *args, code=0):
    return self.run_script(self.path("dev/bench_table.py"), *args, code=code)

  def fill(self, *args, code=0):
    return self.run_script(self.path("dev/readme_tables.py"), *args, code=code)

  def collect(self, *args, code=0):
    paths = [self.write(name + ".json", json.dumps(part)) for name, part in self.parts.items()]
    return self.table("--collect", *args, *paths, code=code)

  def test_parts_are_joined_by_the_best_ceilings(self):
    summary = self.collect()
    result = self.json_of(self.cpu)
    self.assertEqual((result["kernels"], result["command"], result["commit"]), ([KERNEL], "make bench", "abc1234"))
    self.assertEqual(result["attention"][0]["backward"]["flops_per_s"], 3e12)
    for row in ("| lssar | 10,240 | 50.0% | 12.8% | 100.0 (90.0 to 120.0) |", "| mlp forward | 1000 | 25% |",
                "bench_kernels lacks: tiny"):
      self.assertIn(row, summary)
    self.parts["step"]["ceilings"] = {"copy": 1e10, "fp32": 8e11, "bf16": 1e11}
    summary = self.collect()
    self.assertEqual(self.json_of(self.cpu)["ceilings"], {"copy": 4e10, "fp32": 8e11, "bf16": 3e11})
    self.assertIn("| mlp forward | 1000 | 12% |", summary)  # its FLOPs would take half as long
    self.assertIn("| softmax | 20,480 | 100.0% | 12.8% |", summary)
    self.parts["kernels"]["kernels"] = [{**KERNEL, "launches": ["matmul", "tiny"]}]
    self.parts["step"]["steps"][0].update(peak_from="data sheet", peak_flops=1e12, mfu=0.1024)
    summary = self.collect()
    for row in ("| softmax | 20,480 | 100.0% | 10.2% |", "share of the data sheet's 1 TFLOP/s", "every launch"):
      self.assertIn(row, summary)
    self.parts["step"]["commit"] = "def5678"
    self.collect(code=2)
    self.assert_error("step.json", "different", "make bench")

  def test_the_tables_of_speed_and_what_has_changed(self):
    self.readme("speed_cpu")
    self.collect()
    self.table(self.cpu)
    speed, = self.filled()
    for line in ("| softmax | 20,480 | 100.0% |", "| matmul | 51 | 97.5 | 99.5% |", "| all others | 2 | 0.5 | 0.5% |",
                 "| softmax, D 32 | 2 / 3 |", "2 threads, commit abc1234", "the measured 0.4 TFLOP/s"):
      self.assertIn(line, speed)
    shutil.copy(self.cpu, self.gpu)
    self.table(self.gpu, code=2)
    self.assert_error("no block <!-- table:speed_gpu -->")
    new = copy.deepcopy(self.json_of(self.cpu))
    new["kernels"][0]["s"], new["steps"][0]["ms"] = 0.5e-3, 101
    text = self.table("--compare", self.cpu, self.write("new.json", json.dumps(new)))
    self.assertIn("| mlp forward | 1 | 0.5 | 0.50 |", text)
    self.assertNotIn("step, softmax", text)  # 1% is too little for a line

  def test_all_results_of_a_gpu_fill_their_tables(self):
    self.readme("speed_gpu", "far_gpu", "session_gpu", "peers_gpu")
    os.mkdir(self.out)
    self.write("out/summary.md", "A REHEARSAL with build/cpu")
    self.fill("gpu", self.out, code=2)
    self.assert_error("has no results of a GPU")
    for name in ("summary", "far"):
      self.write(f"out/{name}.md", f"| {name} | bf16, hopper | 1e-3 | 2e-3 |\n")
    self.collect("--out", self.path("out/quick.json"))
    self.assertFalse(os.path.exists(self.cpu))
    self.assertEqual(self.fill("gpu", self.out), "filled: speed, far, session\n")
    os.makedirs(os.path.dirname(self.gpu), exist_ok=True)
    self.assertFalse(os.path.exists(self.gpu))  # a quick one is not kept
    os.rename(self.path("out/quick.json"), self.path("out/gpu.json"))
    self.fill("gpu", self.out)
    self.assertEqual(self.json_of(self.gpu), self.json_of("out/gpu.json"))
    self.assertEqual(self.filled()[1].splitlines()[2], "| far | - | - | - | 1e-3/2e-3 |")
    self.assertEqual(self.filled()[2:], ["| summary | bf16, hopper | 1e-3 | 2e-3 |", "old"])

  def test_answers_of_runs_are_means_over_seeds(self):
    of = {"data": [{"name": "v", "tokens": 9, "xxh64": "v"}], "windows": 4, "tokens_asked": 64}
    for seed, loss in ((1, 1.25), (2, 1.75)):
      suffix = {"type": "eval", "mode": "suffix", "step": 8, "length": 32, "loss": loss, "context_of": 64,
                "suffix": 8, "of": of}
      key = {"type": "passkey", "step": 8, "form": "compact", "length": 16, "trials": 2, "depths": [0, 1],
             "exact": [0.5, 1.0]}
      self.make_run(f"run_{seed}", [lines(seed=seed)[0], suffix, key])
    self.readme("answers")
    self.fill("answers", self.path("run_1"), self.path("run_2"))
    self.assertEqual(self.filled()[0].splitlines()[:3], [
        "| run | context 32 | passkey at 16 |", "|---|---|---|", "| run_* (2 seeds) | 1.500±3.177 | 75.0% |"])

  def test_peers_beside_ours(self):
    self.readme("peers_gpu", "front_gpu")
    step = {"tokens_per_s": 400000, "least": 390000, "most": 410000, "micro": 32, "memory_bytes": 2**30}
    row = {"name": "sdpa flash", "kind": "softmax", "D": 64, "T": 1024, "forward": 2e14, "backward": 1e14,
           "repeats": False}
    peers = {"device": "H200", "torch": "2.9", "model": "GPT-2 124M",
             "ours": {"commit": "abc", "steps": {"softmax": 600000}, "attention": {"softmax 64 1024": [4e14, 3e14]}},
             "steps": [{"name": "sdpa flash", "variant": "softmax", **step},
                       {"name": "LSSAR eager", "variant": "lssar", "missing": "out of memory"}],
             "attention": [row, {**row, "T": 2048}]}
    self.table(self.write("peers_gpu.json", json.dumps(peers)))
    table, front = self.filled()
    for line in ("| sdpa flash | 400,000 (390,000 to 410,000) | 32 | 1,024 MiB | 600,000 | 1.50 |",
                 "| LSSAR eager | out of memory |", "| sdpa flash | 64 | 2048 | 200 | 100 | no | - | - | - | - |",
                 "| sdpa flash | 64 | 1024 | 200 | 100 | no | 400 | 300 | 2.00 | 3.00 |"):
      self.assertIn(line, table)
    self.assertTrue(front.startswith("| GPT-2 124M, bf16, one H200, commit abc | tokens/s |"), front)
    self.assertTrue(front.endswith("| plusgpt, softmax | 600,000 |\n| PyTorch 2.9: sdpa flash | 400,000 |"), front)

  def test_peers_in_turns(self):
    self.readme("peers_cpu")
    fp32 = {"plusgpt": [50, 40, 60], "eager": [100, 60, 150]}  # ratios 2, 1.5, 2.5
    bf16 = {"plusgpt": [30, 50, 40], "eager": [60, 80, 90]}  # our best 30, 40, 40, PyTorch's 60, 60, 90
    result = {"device": "A CPU", "threads": 2, "torch": "2.9", "commit": "abc", "products": "a library",
              "step_ms": {"a model": {"fp32": fp32, "bf16": bf16}}}
    self.table(self.write("peers_cpu.json", json.dumps(result)))
    for line in ("| plusgpt | 50.0 (40.0 to 60.0) |  | 40.0 (30.0 to 50.0) |  |",
                 "| PyTorch, eager | 100.0 (60.0 to 150.0) | 2.00 (1.50 to 2.50) | 80.0 (60.0 to 90.0) | "
                 "2.00 (1.60 to 2.25) |", "Our best takes 0.50 (0.44 to 0.67) of the time of PyTorch's best."):
      self.assertIn(line, self.filled()[0])


class Peers(ScriptTest):
  """With the PyTorch of PYTHON_TORCH, or else of this Python."""
  python = os.environ.get("PYTHON_TORCH") or sys.executable

  @classmethod
  def setUpClass(cls):
    done = subprocess.run([cls.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    cls.has_torch = tuple(map(int, re.findall(r"\d+", done.stdout)[:2])) >= (2, 5)

  def peers(self, *args, code=0):
    return self.run_script(os.path.join(DEV, "bench_peers.py"), *args, code=code, python=self.python,
                           env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})

  def need_torch(self):
    if not self.has_torch:
      self.skipTest("there is no PyTorch 2.5 or later (PYTHON_TORCH)")

  def test_what_is_needed(self):
    self.peers(code=2)
    self.assert_error("finds no GPU" if self.has_torch else "PyTorch 2.5 or later is needed")

  def test_all_peers_run(self):
    self.need_torch()
    rows = [{**ATTENTION, "kind": kind, "D": 16, "T": 32} for kind in ("softmax", "lssar")]
    ours = self.write("cpu.json", json.dumps({**HEAD, "steps": [STEP], "attention": rows}))
    table = self.peers("--tiny", "--out", self.path("peers.json"), "--ours", ours)
    result = self.json_of("peers.json")
    self.assertEqual((len(result["steps"]), len(result["attention"])), (7, 2 * 12))  # two lengths
    missing = {row["name"]: row["missing"] for row in result["steps"] + result["attention"] if "missing" in row}
    for name in "LSSA FlexAttention", "LSSAR FlexAttention":
      self.assertRegex(missing.pop(name), "FlexAttention does not support backward on CPU")
    self.assertEqual(set(missing.values()) - {"package not installed"}, set(), missing)
    self.assertRegex(table, r"\| LSSAR eager \| 16 \| 32 \|.*\| 2 \| 3 \|")

  def test_flex_attention_is_our_formula(self):
    """The results of FlexAttention, and gradients, which it lacks on the CPU, of its score_mod on a matrix in full."""
    self.need_torch()
    code = """if True:
      import sys, warnings
      from types import SimpleNamespace
      warnings.simplefilter("ignore")
      import torch, bench_peers
      from lib import formula

      def in_full(q, k, v, score_mod, block_mask, scale, return_lse):
        at = torch.meshgrid(*map(torch.arange, (*q.shape[:3], k.shape[2])), indexing="ij")
        z = score_mod(q @ k.mT, *at).masked_fill(at[3] > at[2], -torch.inf)
        return z.softmax(-1) @ v, z.logsumexp(-1)

      LSSA = SimpleNamespace(kind="lssa", qk_norm="l2", scale="logd_logn")
      for T, D in (32, 16), (150, 24):
        torch.manual_seed(T)
        q, k, v, dout = (torch.randn(2, 3, T, D, dtype=torch.float64) for _ in range(4))
        for attend, settings in (bench_peers.flex_lssa, LSSA), (bench_peers.flex_lssar, bench_peers.LSSAR):
          def exact(q, k, v):
            return formula.weights(formula.scores(q, k, settings, T), settings, T) @ v
          print((attend(q, k, v) - exact(q, k, v)).abs().max().item())
          whole, bench_peers.flex_attention = bench_peers.flex_attention, in_full
          ours, theirs = (torch.autograd.grad(run(*x), x, dout) for run in (exact, attend)
                          for x in [[y.clone().requires_grad_() for y in (q, k, v)]])
          bench_peers.flex_attention = whole
          print(max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(ours, theirs)))"""
    done = subprocess.run([self.python, "-c", code], text=True, capture_output=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": DEV, "OMP_NUM_THREADS": "1"})
    self.assertEqual(done.returncode, 0, done.stderr)
    errors = [float(line) for line in done.stdout.split()]
    self.assertEqual(len(errors), 8)
    self.assertLess(max(errors), 1e-10)  # float64; the power and its offset lose up to four digits


class GpuSession(ScriptTest):
  """With stand-ins for make and for the test programs."""

  def setUp(self):
    super().setUp()
    self.program("bin/make", "")
    for name in ("include/gtest/gtest.h", "lib/libgtest.a", "lib/libgtest_main.a"):
      self.write_deep("deps/" + name, "!<arch>\n")
    self.environment = {**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"], "OUT": self.out,
                        "BUILD": self.path("build"), "SCRATCH": self.path("scratch"), "DEPS": self.path("deps")}

  def write_deep(self, name, text=""):
    os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
    return self.write(name, text)

  def program(self, name, script):
    os.chmod(self.write_deep(name, "#!/bin/sh\n" + script + "\n"), 0o755)

  def session(self, *args, code=0, **environment):
    self.run_script(os.path.join(DEV, "gpu_session.sh"), *args, code=code, python="bash",
                    env={**self.environment, **environment})

  def test_refusals(self):
    self.program("bin/nvidia-smi", "exit 9")
    for args, part in (([], "name the parts"), (["runs"], "--train GLOB"), (["tests"], "there is no GPU here")):
      self.session(*args, code=2)
      self.assert_error(part)
    self.assertFalse(os.path.exists(self.out))
    self.write_deep("out/summary.md", "| part |")
    self.session("--rehearse", "tests", code=2)
    self.assert_error("rehearsals and results of a GPU must not mix")

  def test_a_signal_ends_a_part_with_its_programs(self):
    pid = self.path("pid")
    self.program("build/test_far", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60")
    command = ["bash", os.path.join(DEV, "gpu_session.sh"), "--rehearse", "far", "bench"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=self.environment) as session:
      while not os.path.exists(pid):
        self.assertIsNone(session.poll())
        time.sleep(0.1)
      self.session("--rehearse", "far", code=2)
      self.assert_error("another session works in")
      session.send_signal(signal.SIGTERM)
      self.assertEqual(session.wait(timeout=60), 130)
    self.assertRegex(self.text_of("out/summary.md"), r"(?m)^\| far \| \d+ s \| STOPPED by a signal")
    self.assertFalse(os.path.exists(f"/proc/{self.text_of(pid).strip()}"))

  def test_what_a_sanitizer_says(self):
    clean = 'echo "========= ERROR SUMMARY: 0 errors"'
    finds = 'case "$*" in *racecheck*kernels*) echo "RACECHECK SUMMARY: 1 hazard"; exit 99 ;; esac\n'
    for script, code, said, times in (
        (clean, 0, r"\| sanitize \| \d+ s \| done \| 18 of 18 runs without a finding \|\n$", 1),
        (finds + clean, 1, r"FAILED \| racecheck test_kernels: FOUND RACECHECK SUMMARY: 1 hazard; 17 of 18 runs", 1),
        ('echo "========= Error: Device not supported"; exit 1', 1,
         r"(?:mem|race|sync)check was refused: =* Error: Device not supported", 3)):
      self.program("bin/compute-sanitizer", script)
      self.session("--rehearse", "sanitize", code=code)
      self.assertEqual(len(re.findall(said, self.output)), times, self.output)

  def test_the_first_ten_minutes(self):
    """The trainer comes first, and what fails, hangs or crashes hides nothing else."""
    if not os.access(TRAIN, os.X_OK):
      self.skipTest("make builds it")
    os.mkdir(self.path("build"))
    os.symlink(os.path.realpath(TRAIN), self.path("build/train"))
    self.write("quick.json", json.dumps({"steps": [STEP]}))
    self.program("bin/make", 'case "$*" in *QUICK=1*) cp "$BUILD/../quick.json" "$BUILD" ;; '
                             '*/test_*) echo "make: error: not today"; exit 2 ;; esac')
    self.write_deep("build/test/hopper_test.cu.o")
    self.program("bin/cuobjdump", "echo IADD3")
    self.program("build/test_matmul", 'echo "[       OK ] T.A (1 ms)"')
    self.program("build/test_hopper", """failed=0
for case in "A passes" "B fails" "C hangs" "D crashes"; do
  case $1 in *=\\*-*T.${case% *}* | *=T.[!${case% *}]) continue ;; esac  # left out, or another one is asked for
  echo "[ RUN      ] T.${case% *}"
  case $case in *passes) echo "[       OK ] T.A (1 ms)" ;; *fails) echo "[  FAILED  ] T.B (1 ms)"; failed=1 ;;
    *hangs) exec sleep 60 ;; *) kill -9 $$ ;; esac
done
exit $failed""")
    self.session("--rehearse", "first", code=1, FIRST_TESTS="matmul gate", TEST_SECONDS="4")
    failed, speed = "FAILED, exit 2: make: error: not today", r"[\d,]+ tokens/s .*, loss 5\.\d+ to [45]\.\d+"
    expected = [("machine", ".*"), ("build the trainer", "built"), ("ten steps, softmax", speed),
                ("build lssar's trainer hopper matmul", failed),
                ("test_hopper", "1 passed, 1 FAILED; HUNG in T.C; CRASHED in T.D; 1 of the first 1 fail alone too"),
                ("test_matmul", "1 passed"), ("ten steps, lssar", speed), ("dry run, bf16", "one step: loss 5.*"),
                ("dry run, fp32", "one step: loss 5.*"), ("build the rest", failed), ("test_gate", "NOT BUILT"),
                ("make bench QUICK=1", "softmax 20,480 tokens/s")]
    rows = re.findall(r"^\| first \| (.*?) \| \d+ \| (.*) \| .* \|$", self.text_of("out/first.md"), re.MULTILINE)
    self.assertEqual([row[0] for row in rows], [row[0] for row in expected])
    for (name, result), (_, pattern) in zip(rows, expected):
      self.assertRegex(result, f"^{pattern}$", name)
    with tarfile.open(self.out + ".tar.gz") as archive:
      self.assertIn("out/first.tar.gz", archive.getnames())
    with tarfile.open(os.path.join(self.out, "first.tar.gz")) as archive:
      self.assertLessEqual({"logs/sass_hopper_test.txt", "logs/metrics_softmax.jsonl"}, set(archive.getnames()))
    self.session("--rehearse", "first", code=1, FIRST_TESTS="matmul", FIRST_SECONDS="5")
    self.assertRegex(self.output, r"test_hopper \| 0 \| NOT RUN \| no time was left \|")

  def test_a_visit_with_programs_built_elsewhere(self):
    self.session("--prepared", self.path("nothing"), "visit", code=2)
    self.assert_error("has no train: bash dev/gpu_prepare.sh")
    self.program("bin/make", 'echo "make was called"; exit 1')
    self.program("bin/nvidia-smi", """case $1 in -L) echo "GPU 0: H200" ;;
  --query-gpu=timestamp*) echo "timestamp, clocks.sm"
    for mhz in 1500 1600 1700; do echo "now, $mhz MHz, 2600 MHz, 690.5 W, 60, SW power cap"; done
    echo "now, 300 MHz, 2600 MHz, 90 W, 30, idle"; exec sleep 60 ;;
  *) echo "H200, 580" ;; esac""")
    for name, script in {"train": "", "test_attention": 'echo "[  PASSED  ] 14 tests."', "test_hopper": "exec sleep 60",
                         "test_kernels": 'echo "x:9: Failure"; exit 1', "bench_step": 'echo "| lssar | 543,210 |"',
                         "train_gpt2cu": 'for n in 1 2 3 4 5 6 7; do echo "step $n | $n$n tok/s"; done'}.items():
      self.program("visit/" + name, script)
    subprocess.run("tar -cJf programs.tar.xz train bench_step && rm train bench_step", shell=True, check=True,
                   cwd=self.path("visit"))
    self.session("--prepared", self.path("visit"), "visit", code=1, VISIT="steps llm.c tests", VISIT_SECONDS="20")
    self.assertNotIn("make was called", self.output)
    rows = re.findall(r"^\| visit \| (\S+) \| \d+ \| (.*?) \|", self.text_of("out/visit.md"), re.MULTILINE)
    self.assertEqual(rows[:5], [("steps", "1 lines of a table"), ("llm.c", "72 tokens/s, mean of 2 steps"),
                                ("test_attention", "14 tests."), ("test_hopper", "STOPPED: "),
                                ("test_kernels", "STOPPED: no time was left")])
    self.assertRegex(self.output, r"\| clock above 400 W: 1500, 1600, 1700 MHz .*, at most 690 W, reasons .*power cap")

  def test_the_last_rows_of_every_kind_after_a_build_that_fails(self):
    self.program("build/test_far", 'echo "| fox | bf16, hopper | 1e-3 | 2e-3 |"; echo "x:9: Failure"; exit 1')
    self.program("bin/make", 'case "$*" in *" train") exit 2 ;; esac')
    self.session("--rehearse", "tests", "far", code=1)
    self.assertRegex(self.output, r"\| tests \| \d+ s \| FAILED \| the build failed \|\n\| far \| \d+ s \| FAILED \| "
                                  r"1 rows, exit 1, 1 beyond the bound \|")
