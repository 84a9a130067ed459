"""The tools around the benchmarks, where a fault would make a number wrong or waste a GPU's time: bench_table.py and
readme_tables.py on what has been measured, bench_peers.py if there is PyTorch, gpu_session.sh with the programs of the
CPU build. PYTHON_TORCH names a Python with PyTorch. Standard library only.
"""
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
RESULTS = os.path.join(DEV, "bench/results")
PARTS = {"kernels": "kernels", "attention": "attention", "step": "steps"}  # programs' files, and what each holds


class Tables(ScriptTest):
  """In a copy of dev/ and scripts/, because results and README.md are found relative to it."""

  def setUp(self):
    super().setUp()
    shutil.copytree(SCRIPTS, self.path("scripts"))
    shutil.copytree(DEV, self.path("dev"), ignore=shutil.ignore_patterns("ptx", "test"))
    self.cpu, self.gpu = (self.path(f"dev/bench/results/{name}.json") for name in ("cpu", "gpu"))
    self.measured = self.json_of(self.cpu)

  def table(self, *args, code=0):
    return self.run_script(self.path("dev/bench_table.py"), *args, code=code)

  def fill(self, *args, code=0):
    return self.run_script(self.path("dev/readme_tables.py"), *args, code=code)

  def collect(self, *args, code=0, **of_step):
    head = {key: value for key, value in self.measured.items() if not isinstance(value, list)}
    head["ceilings"] = {key: value / 2 for key, value in head["ceilings"].items()}
    parts = {name: {**head, key: self.measured[key]} for name, key in PARTS.items()}
    parts["step"].update({"ceilings": self.measured["ceilings"], **of_step})
    return self.table("--collect", *args, *(self.write(name + ".json", json.dumps(part))
                                            for name, part in parts.items()), code=code)

  def test_parts_are_joined_by_the_best_ceilings(self):
    summary = self.collect("--out", self.path("again.json"))
    self.assertEqual({**self.json_of("again.json"), "device": self.measured["device"]}, self.measured)
    self.assertRegex(summary, r"\| softmax \| 31,290 \| 100\.0% \|.*\n")
    self.collect(code=2, commit="def5678")
    self.assert_error("step.json", "different", "make bench")

  def test_what_has_changed(self):
    self.measured["kernels"][0]["s"] /= 2
    self.measured["steps"][0]["ms"] *= 1.02  # too little for a line
    text = self.table("--compare", self.cpu, self.write("new.json", json.dumps(self.measured)))
    self.assertRegex(text, r"^1 of \d+ figures differ by 3% or more")
    self.assertRegex(text, r"\| 0\.50 \|\n$")

  def test_results_of_a_gpu_fill_their_tables(self):
    """Those that are kept leave the documents as they are, from a folder as gpu_session.sh leaves it."""
    shutil.copytree(os.path.join(ROOT, "docs"), self.path("docs"))
    shutil.copy(os.path.join(ROOT, "README.md"), self.folder)
    pages = "README.md", "dev/bench/README.md", "dev/bench/LOG.md", "docs/results/far_keys.md"
    before = {page: self.text_of(page) for page in pages}
    block = lambda page, name: re.search(f"<!-- table:{name} -->\n(.*?)<!-- /table", before[page], re.DOTALL)[1]
    os.mkdir(self.out)
    self.write("out/summary.md", "A REHEARSAL with build/cpu")
    self.fill("gpu", self.out, code=2)
    self.assert_error("has no results of a GPU")
    for name in ("gpu", "peers_gpu"):
      os.rename(self.path(f"dev/bench/results/{name}.json"), self.path(f"out/{name}.json"))
    self.write("out/summary.md", block("dev/bench/LOG.md", "session_gpu"))
    head, _, *rows = [line.strip("| \n").split(" | ") for line in block(pages[-1], "far_gpu").splitlines()]
    self.write("out/far.md", "| variant | precision, kernels | kernel | whole |\n|---|---|---|---|\n" + "".join(
        f"| {row[0]} | {column} | {cell.replace('/', ' | ')} |\n" for row in rows
        for column, cell in zip(head[1:], row[1:]) if cell != "-"))
    self.assertEqual(self.fill("gpu", self.out), "filled: speed, peers, front, far, session\n")
    self.assertEqual(self.json_of(self.gpu), self.json_of("out/gpu.json"))
    for page in pages:
      self.assertEqual(self.text_of(page).split(), before[page].split())

  def test_answers_of_runs_are_means_over_seeds(self):
    of = {"data": [{"name": "v", "tokens": 9, "xxh64": "v"}], "windows": 4, "tokens_asked": 64}
    for seed, loss in ((1, 1.25), (2, 1.75)):
      suffix = {"type": "eval", "mode": "suffix", "step": 8, "length": 32, "loss": loss, "context_of": 64,
                "suffix": 8, "of": of}
      key = {"type": "passkey", "step": 8, "form": "compact", "length": 16, "trials": 2, "depths": [0, 1],
             "exact": [0.5, 1.0], "distance": [1.0, 2.0]}
      self.make_run(f"run_{seed}", [lines(seed=seed)[0], suffix, key])
    self.write("README.md", "<!-- table:answers -->\nold\n<!-- /table -->")
    self.fill("answers", self.path("run_1"), self.path("run_2"))
    self.assertEqual(self.text_of("README.md").splitlines()[1:4], [
        "| run | context 32 | passkey at 16 |", "|---|---|---|", "| run_* (2 seeds) | 1.500±3.177 | 75.0% |"])


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
    with open(os.path.join(RESULTS, "cpu.json"), encoding="utf-8") as file:
      measured = json.load(file)
    part, measured["device"] = {"flops_per_s": 2e12}, "CPU"
    measured["attention"] = [{"kind": kind, "D": 16, "T": 32, "forward": part, "backward": {"flops_per_s": 3e12}}
                             for kind in ("softmax", "lssar")]
    ours = self.write("cpu.json", json.dumps(measured))
    table = self.peers("--tiny", "--out", self.path("peers.json"), "--ours", ours)
    result = self.json_of("peers.json")
    self.assertEqual((len(result["steps"]), len(result["attention"])), (7, 2 * 14))  # two lengths
    missing = {row["name"]: row["missing"] for row in result["steps"] + result["attention"] if "missing" in row}
    for name in "LSSA FlexAttention", "LSSAR FlexAttention":
      self.assertRegex(missing.pop(name), "FlexAttention does not support backward on CPU")
    self.assertEqual(set(missing.values()) - {"not installed"}, set(), missing)
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
  """In rehearsals with programs of the CPU build."""

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

  def built(self, *programs):
    """Real ones, in a folder of their own; make, which finds them up to date, is a stand-in."""
    os.makedirs(self.path("build"), exist_ok=True)
    for name in programs:
      program = os.path.join(os.path.dirname(os.path.realpath(TRAIN)), name)
      if not os.access(program, os.X_OK):
        self.skipTest(f"make BACKEND=cpu test builds {name}")
      os.symlink(program, self.path("build/" + name))

  def rows(self, part):
    return re.findall(rf"^\| {part} \| (.*?) \| \d+ \| (.*) \| .* \|$", self.text_of(f"out/{part}.md"), re.MULTILINE)

  def test_the_first_ten_minutes(self):
    """The trainer comes first, and a program that hangs and crashes, or is missing, hides nothing else."""
    self.built("train", "test_hopper", "test_gate")
    self.program("build/test_matmul", """case $1 in *T.D*) echo "[       OK ] T.A (1 ms)" ;;
  *T.C*) echo "[ RUN      ] T.D"; kill -9 $$ ;; *) echo "[ RUN      ] T.C"; exec sleep 60 ;; esac""")
    self.session("--rehearse", "first", code=1, FIRST_TESTS="matmul gate kernels", TEST_SECONDS="10")
    speed = r"[\d,]+ tokens/s .*, loss 5\.\d+ to [45]\.\d+"
    expected = [("machine", ".*"), ("build the trainer", "built"), ("ten steps, softmax", speed),
                ("build lssar's trainer hopper matmul", "built"), ("test_hopper", r"\d+ passed"),
                ("test_matmul", r"1 passed, 0 FAILED; HUNG in T.C; CRASHED in T.D"), ("ten steps, lssar", speed),
                ("dry run, bf16", "one step: loss 5.*"), ("dry run, fp32", "one step: loss 5.*"),
                ("build the rest", "built"), ("test_gate", r"\d+ passed"), ("test_kernels", "NOT BUILT"),
                ("make bench QUICK=1", "FAILED, exit .*|")]
    found = self.rows("first")
    self.assertEqual([name for name, _ in found], [name for name, _ in expected])
    for (name, result), (_, pattern) in zip(found, expected):
      self.assertRegex(result, f"^(?:{pattern})$", name)
    with tarfile.open(os.path.join(self.out, "first.tar.gz")) as archive:
      self.assertIn("logs/metrics_softmax.jsonl", archive.getnames())

  def test_a_visit(self):
    self.session("--prepared", self.path("nothing"), "visit", code=2)
    self.assert_error("has no train: bash dev/gpu_prepare.sh")
    self.built("test_hopper", "test_gate")
    self.session("--rehearse", "visit", VISIT="tests")
    self.assertEqual([name for name, _ in self.rows("visit")], ["test_gate", "test_hopper"])
    for _, result in self.rows("visit"):
      self.assertRegex(result, r"^[1-9]\d* tests?\.$")
