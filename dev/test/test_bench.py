"""The tools around the benchmarks: bench_table.py, bench_peers.py if there is PyTorch, gpu_session.sh with stand-ins
for a GPU's programs. PYTHON_TORCH names a Python with PyTorch. Standard library only.
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
        "peak_flops": 4e11, "peak_from": "measured", "kernels_ms": 98, "launches": 9, "gaps_ms": 2, "event_us": 0,
        "phases_ms": {"forward": 30, "output layer": 10, "backward": 50, "update": 9, "host": 1},
        "memory": {"parameters": 2**20}, "memory_bytes": 3 * 2**20,
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
    self.write("README.md", "before\n<!-- table:speed_cpu -->\nold\n<!-- /table -->\nafter\n")
    softmax, lssar = dict(STEP), {**STEP, "variant": "lssar", "tokens_per_s": 10240}
    self.parts = {"kernels": {**HEAD, "kernels": [KERNEL]}, "attention": {**HEAD, "attention": [ATTENTION]},
                  "step": {**HEAD, "steps": [softmax, lssar]}}

  def test_a_processor_that_has_no_name(self):
    code = ("import io, bench_table; bench_table.open = lambda *_, **__: io.StringIO('CPU part : 0xd4f')\n"
            "print(bench_table.processor())")
    done = subprocess.run([sys.executable, "-c", code], cwd=DEV, capture_output=True, text=True)
    self.assertEqual(done.stdout.strip(), os.uname().machine, done.stderr)

  def table(self, *args, code=0):
    return self.run_script(self.path("dev/bench_table.py"), *args, code=code)

  def collect(self, code=0):
    paths = [self.write(name + ".json", json.dumps(part)) for name, part in self.parts.items()]
    return self.table("--collect", *paths, code=code)

  def result(self):
    return self.json_of("dev/bench/results/cpu.json")

  def test_parts_are_joined(self):
    summary = self.collect()
    result = self.result()
    self.assertEqual(result["kernels"], [KERNEL])
    self.assertEqual(result["attention"][0]["backward"]["flops_per_s"], 3e12)
    self.assertEqual([step["variant"] for step in result["steps"]], ["softmax", "lssar"])
    self.assertEqual((result["command"], result["commit"]), ("make bench", "abc1234"))
    self.assertRegex(summary, r"\| lssar \| 10,240 \| 50\.0% \| 12\.8% \| 100\.0 \(90\.0 to 120\.0\) \|")
    self.assertRegex(summary, r"\| mlp forward \| 1000 \| 25% \|")

  def test_all_results_of_a_gpu_fill_their_tables(self):
    self.collect()
    self.write("README.md", "".join(f"<!-- table:{name}_gpu -->\nold\n<!-- /table -->\n"
                                    for name in ("speed", "far", "session", "peers")))
    os.mkdir(self.out)
    fill = lambda code=0: self.run_script(self.path("dev/readme_tables.py"), "gpu", self.out, code=code)
    self.write("out/summary.md", "A REHEARSAL with build/cpu")
    fill(code=2)
    self.assert_error("has no results of a GPU")
    for name in ("summary", "far"):
      self.write(f"out/{name}.md", f"| {name} | new |\n")
    shutil.copy(self.path("dev/bench/results/cpu.json"), self.path("out/quick.json"))
    self.assertEqual(fill(), "filled: speed, far, session\n")
    self.assertFalse(os.path.exists(self.path("dev/bench/results/gpu.json")))  # a quick one is not kept
    os.rename(self.path("out/quick.json"), self.path("out/gpu.json"))
    fill()
    self.assertEqual(self.json_of("dev/bench/results/gpu.json"), self.result())
    with open(self.path("README.md"), encoding="utf-8") as file:
      speed, far, session, peers = re.findall(r"_gpu -->\n(.*?)\n<!-- /table", file.read(), re.DOTALL)
    self.assertIn("| lssar | 10,240 |", speed)
    self.assertEqual((far, session, peers), ("| far | new |", "| summary | new |", "old"))

  def test_a_quick_measurement_does_not_replace_the_kept_one(self):
    paths = [self.write(name + ".json", json.dumps(part)) for name, part in self.parts.items()]
    self.table("--collect", "--out", self.path("quick.json"), *paths)
    self.assertFalse(os.path.exists(self.path("dev/bench")))
    self.assertEqual(self.table("--brief", self.path("quick.json")), "softmax 20,480 tokens/s, lssar 10,240 tokens/s\n")
    done = subprocess.run(["make", "-n", "bench", "QUICK=1", "BACKEND=cpu"], cwd=ROOT, capture_output=True, text=True)
    self.assertIn("--collect --out build/cpu/quick.json build/cpu/kernels.json", done.stdout)
    self.assertIn("bench_attention softmax,lssar 64 128 --json", done.stdout)

  def test_the_best_ceilings_are_the_machine_s(self):
    self.parts["step"]["ceilings"] = {"copy": 1e10, "fp32": 8e11, "bf16": 1e11}
    summary = self.collect()
    self.assertEqual(self.result()["ceilings"], {"copy": 4e10, "fp32": 8e11, "bf16": 3e11})
    self.assertRegex(summary, r"\| mlp forward \| 1000 \| 12% \|")  # its FLOPs would take half as long
    self.assertRegex(summary, r"\| softmax \| 20,480 \| 100\.0% \| 12\.8% \|")
    del self.parts["step"]["steps"][1]  # of one kind alone, as with make ATTN=softmax
    self.parts["step"]["steps"][0].update(peak_from="data sheet", peak_flops=1e12, mfu=0.1024)
    summary = self.collect()
    self.assertRegex(summary, r"\| softmax \| 20,480 \| 100\.0% \| 10\.2% \|")
    self.assertIn("share of the data sheet's 1 TFLOP/s", summary)

  def test_a_launch_that_no_line_measures_is_named(self):
    self.assertIn("bench_kernels lacks: tiny", self.collect())
    self.parts["kernels"]["kernels"] = [{**KERNEL, "launches": ["matmul", "tiny"]}]
    self.assertIn("every launch", self.collect())

  def test_parts_of_different_commits_are_refused(self):
    self.parts["step"]["commit"] = "def5678"
    self.collect(code=2)
    self.assert_error("step.json", "different", "make bench")

  def test_the_readme_is_filled(self):
    self.collect()
    self.table("dev/bench/results/missing.json", code=2)
    self.assert_error("dev/bench/results/missing.json")
    self.table(self.path("dev/bench/results/cpu.json"))
    text = self.text_of("README.md")
    self.assertRegex(text, r"(?s)^before\n<!-- table:speed_cpu -->\n.*<!-- /table -->\nafter\n$")
    for line in ("| softmax | 20,480 | 100.0% |", "| matmul | 51 | 97.5 | 99.5% |", "| all others | 2 | 0.5 | 0.5% |",
                 "| softmax, D 32 | 2 / 3 |", "2 threads, commit abc1234", "the measured 0.4 TFLOP/s"):
      self.assertIn(line, text)
    self.assertNotIn("old", text)
    shutil.move(self.path("dev/bench/results/cpu.json"), self.path("dev/bench/results/gpu.json"))
    self.table(self.path("dev/bench/results/gpu.json"), code=2)
    self.assert_error("no block <!-- table:speed_gpu -->")

  def test_answers_of_runs_are_means_over_seeds(self):
    of = {"data": [{"name": "v", "tokens": 9, "xxh64": "v"}], "windows": 4, "tokens_asked": 64}
    for seed, loss in ((1, 1.25), (2, 1.75)):
      suffix = {"type": "eval", "mode": "suffix", "step": 8, "length": 32, "loss": loss, "context_of": 64,
                "suffix": 8, "of": of}
      key = {"type": "passkey", "step": 8, "form": "compact", "length": 16, "trials": 2, "depths": [0, 1],
             "exact": [0.5, 1.0]}
      os.mkdir(self.path(f"run_{seed}"))
      self.write(f"run_{seed}/metrics.jsonl", "\n".join(map(json.dumps, [lines(seed=seed)[0], suffix, key])))
    self.write("README.md", "<!-- table:answers -->\nold\n<!-- /table -->\n")
    self.run_script(self.path("dev/readme_tables.py"), "answers", self.path("run_1"), self.path("run_2"))
    self.assertEqual(self.text_of("README.md").splitlines()[1:4], [
        "| run | context 32 | passkey at 16 |", "|---|---|---|", "| run_* (2 seeds) | 1.500 ± 3.177 | 75.0% |"])
    os.mkdir(self.path("asked"))
    self.write("asked/metrics.jsonl", "\n".join(map(json.dumps, [lines()[0], key])))
    self.run_script(self.path("dev/readme_tables.py"), "answers", self.path("asked"))
    self.assertIn("\n8 steps, commit abc, CPU. ± is", self.text_of("README.md"))

  def test_what_has_changed(self):
    self.collect()
    new = copy.deepcopy(self.result())
    new["kernels"][0]["s"] = 0.5e-3
    new["steps"][0]["ms"] = 101
    text = self.table("--compare", self.path("dev/bench/results/cpu.json"), self.write("new.json", json.dumps(new)))
    self.assertIn("| mlp forward | 1 | 0.5 | 0.50 |", text)
    self.assertNotIn("step, softmax", text)  # 1% is too little for a line
    self.assertIn("softmax 20,480 tokens/s, lssar 10,240 tokens/s", self.table("--brief", self.path("new.json")))

  def test_bad_input(self):
    self.table("--collect", self.write("broken.json", "{"), code=2)
    self.assert_error("broken.json")
    self.table("--what", code=2)
    self.assert_error("--what")
    self.assertIn("--collect", self.table("--help"))

  def test_peers_beside_ours(self):
    self.write("README.md", "<!-- table:peers_gpu -->\n<!-- /table -->\n<!-- table:front_gpu -->\n<!-- /table -->\n")
    step = {"tokens_per_s": 400000, "least": 390000, "most": 410000, "micro": 32, "memory_bytes": 2**30}
    row = {"name": "sdpa flash", "kind": "softmax", "D": 64, "T": 1024, "forward": 2e14, "backward": 1e14,
           "repeats": False}
    peers = {"device": "H200", "torch": "2.9", "model": "GPT-2 124M",
             "ours": {"commit": "abc", "steps": {"softmax": 600000}, "attention": {"softmax 64 1024": [4e14, 3e14]}},
             "steps": [{"name": "sdpa flash", "variant": "softmax", **step},
                       {"name": "LSSAR eager", "variant": "lssar", "missing": "out of memory"}],
             "attention": [row, {**row, "T": 2048}]}
    self.table(self.write("peers_gpu.json", json.dumps(peers)))
    text = self.text_of("README.md")
    self.assertIn("| sdpa flash | 400,000 (390,000 to 410,000) | 32 | 1,024 MiB | 600,000 | 1.50 |", text)
    self.assertIn("| LSSAR eager | out of memory |", text)
    self.assertIn("| plusgpt, softmax | 600,000 |\n| PyTorch 2.9: sdpa flash | 400,000 |\n<!--", text)
    self.assertIn("| sdpa flash | 64 | 1024 | 200 | 100 | no | 400 | 300 | 2.00 | 3.00 |", text)
    self.assertIn("| sdpa flash | 64 | 2048 | 200 | 100 | no | - | - | - | - |", text)

  def test_peers_in_turns(self):
    self.write("README.md", "<!-- table:peers_cpu -->\n<!-- /table -->\n")
    fp32 = {"plusgpt": [50, 40, 60], "eager": [100, 60, 150]}  # ratios 2, 1.5, 2.5
    bf16 = {"plusgpt": [30, 50, 40], "eager": [60, 80, 90]}  # our best 30, 40, 40, PyTorch's 60, 60, 90
    result = {"device": "A CPU", "threads": 2, "torch": "2.9", "commit": "abc", "products": "a library",
              "step_ms": {"a model": {"fp32": fp32, "bf16": bf16}}}
    self.table(self.write("peers_cpu.json", json.dumps(result)))
    text = self.text_of("README.md")
    self.assertIn("| plusgpt | 50.0 (40.0 to 60.0) |  | 40.0 (30.0 to 50.0) |  |", text)
    self.assertIn("| PyTorch, eager | 100.0 (60.0 to 150.0) | 2.00 (1.50 to 2.50) | 80.0 (60.0 to 90.0) | "
                  "2.00 (1.60 to 2.25) |", text)
    self.assertIn("Our best takes 0.50 (0.44 to 0.67) of the time of PyTorch's best.", text)


class Floors(ScriptTest):
  """dev/bench/floors.py, and what the documents quote of it."""

  def floors(self, *args):
    text = self.run_script(os.path.join(ROOT, "dev/bench/floors.py"), *args)
    rows = [line.split(" | ") for line in text.splitlines() if re.search(r" \| [\d.]+ \|$", line)]
    ms = [float(row[-1].strip(" |")) for row in rows]
    totals = [int(n) for n in re.findall(r": (\d+) ms, ", text)]
    self.assertEqual(len(totals), 3)
    self.assertAlmostEqual(sum(ms), totals[2], delta=0.5 + 0.05 * len(ms))
    self.assertAlmostEqual(sum(int(row[1]) * int(row[4]) for row in rows) / 1e3, totals[0],
                           delta=0.5 + sum(int(row[1]) for row in rows) * 0.5e-3)
    self.assertEqual(totals, sorted(totals))
    return text, dict(zip((row[0].strip("| ") for row in rows), ms)), re.findall(r"(\d+) K tokens/s", text)

  def test_the_documents_quote_it(self):
    text, _, (_, _, softmax) = self.floors()
    lssar = self.floors("--kind", "lssar")[2][2]
    self.assertIn(f"<!-- table:floors -->\n{text}<!-- /table -->", self.text_of(ROOT, "dev/bench/LOG.md"),
                  "python3 dev/bench/floors.py | python3 dev/readme_tables.py floors -")
    self.assertIn(f"{softmax} K tokens/s for softmax and {lssar} K for LSSAR",
                  self.text_of(ROOT, "dev/bench/README.md"))

  def test_lssar_and_other_sizes(self):
    _, softmax, _ = self.floors()
    _, lssar, _ = self.floors("--kind", "lssar")
    self.assertEqual(set(lssar) - set(softmax), {"rows: dO . O2, in the same launch"})
    self.assertGreater(lssar["attention"], 2 * softmax["attention"])  # two sweeps
    self.assertEqual({name for name in softmax if lssar[name] != softmax[name]},
                     {"attention", "attention, dK dV", "attention, dQ"})
    _, twice, _ = self.floors("--layers", "24")
    self.assertAlmostEqual(twice["MLP, dweight"], 2 * softmax["MLP, dweight"], delta=0.2)
    self.assertEqual(twice["logits"], softmax["logits"])


class Programs(ScriptTest):
  """The benchmark programs, where they have been built: JSON that bench_table.py reads."""

  def program(self, name):
    program = os.path.join(os.path.dirname(os.path.realpath(TRAIN)), name)
    if not os.access(program, os.X_OK):
      self.skipTest(f"make build/cpu/{name} builds it")
    return program

  def test_kernels(self):
    program = self.program("bench_kernels")
    path = self.path("kernels.json")
    subprocess.run([program, "--json", path, "sum_to"], check=True, stdout=subprocess.DEVNULL, timeout=120)
    result = self.json_of(path)
    kernel, = result["kernels"]
    self.assertEqual(kernel["launches"], ["sum_to_kernel"])
    self.assertLessEqual(kernel["least"], kernel["s"])
    self.assertGreater(min(result["ceilings"].values()), 1e8)
    bad = subprocess.run([program, "--what"], capture_output=True, text=True)
    self.assertEqual((bad.returncode, "--what" in bad.stderr), (2, True))


class Peers(ScriptTest):
  """With the PyTorch of PYTHON_TORCH, or else of this Python."""
  python = os.environ.get("PYTHON_TORCH") or sys.executable

  @classmethod
  def setUpClass(cls):
    done = subprocess.run([cls.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    cls.torch = "PyTorch " + done.stdout.strip() if done.returncode == 0 else "no PyTorch (PYTHON_TORCH)"
    cls.is_recent = tuple(map(int, re.findall(r"\d+", cls.torch)[:2])) >= (2, 5)

  def run_peers(self, *args, code=0):
    done = subprocess.run([self.python, os.path.join(DEV, "bench_peers.py"), *args], text=True,
                          capture_output=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=300)
    self.assertEqual(done.returncode, code, done.stderr)
    self.assertNotIn("Traceback", done.stderr)
    return done

  def test_the_machine_is_named_without_asking_a_gpu(self):
    """With a stand-in for PyTorch, so that it is tested everywhere."""
    code = """if True:
      import sys
      from unittest import mock
      for name in ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention",
                   "torch.nn.attention.flex_attention", "lib.formula"):
        sys.modules[name] = mock.MagicMock()
      import bench_peers, bench_table
      for tiny, cpu, name in (True, False, "CPU"), (False, True, bench_table.processor()):
        assert bench_peers.Machine(tiny, cpu).name == name != "", (tiny, cpu)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": DEV}, timeout=60)
    self.assertEqual((done.returncode, done.stderr), (0, ""))

  def test_without_a_recent_pytorch(self):
    if self.is_recent:
      self.skipTest(self.torch)
    self.assertIn("PyTorch 2.5 or later is needed", self.run_peers(code=2).stderr)

  def test_without_a_gpu(self):
    if not self.is_recent:
      self.skipTest(f"{self.torch}: 2.5 or later is needed")
    self.assertIn("finds no GPU", self.run_peers(code=2).stderr)

  def test_everything_runs(self):
    if not self.is_recent:
      self.skipTest(f"{self.torch}: 2.5 or later is needed")
    rows = [{**ATTENTION, "kind": kind, "D": 16, "T": 32} for kind in ("softmax", "lssar")]
    ours = self.write("cpu.json", json.dumps({**HEAD, "steps": [STEP], "attention": rows}))
    table = self.run_peers("--tiny", "--out", self.path("peers.json"), "--ours", ours).stdout
    result = self.json_of("peers.json")
    self.assertEqual(result["ours"]["commit"], "abc1234")
    self.assertEqual([row["name"] for row in result["steps"]],
                     ["sdpa flash", "sdpa cuDNN", "sdpa flash, deterministic", "sdpa cuDNN, deterministic",
                      "LSSAR eager", "LSSAR compiled", "LSSAR FlexAttention"])
    missing = {row["name"]: row["missing"] for row in result["steps"] + result["attention"] if "missing" in row}
    for name in "LSSA FlexAttention", "LSSAR FlexAttention":
      self.assertRegex(missing.pop(name), "FlexAttention does not support backward on CPU")
    self.assertEqual(set(missing.values()) - {"package not installed"}, set(), missing)
    for row in (row for row in result["steps"] if "missing" not in row):
      self.assertLessEqual(row["least"], row["tokens_per_s"])
    self.assertEqual(len(result["attention"]), 2 * 12)  # two lengths
    self.assertRegex(table, r"\| LSSAR eager \| 16 \| 32 \|.*\| 2 \| 3 \|")
    nothing = self.run_peers("--tiny", "--out", self.path("none.json"), "--minutes", "0").stdout
    self.assertGreaterEqual(nothing.count("no time left"), 2 * 8 + 7)  # FlashAttention may be missing anyway


  def test_flex_attention_is_our_formula(self):
    """The results of FlexAttention, and gradients, which it lacks on the CPU, of its score_mod on a matrix in full."""
    if not self.is_recent:
      self.skipTest(f"{self.torch}: 2.5 or later is needed")
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
  """With stand-ins for nvidia-smi, nvcc, make and compute-sanitizer, and with the headers of a folder alone."""

  def setUp(self):
    super().setUp()
    os.mkdir(self.path("bin"))
    self.program("nvidia-smi", 'case "$*" in -L) echo "GPU 0: of a test" ;; *compute_cap*) echo 9.0 ;; '
                               '*) echo "of a test, 1.2" ;; esac')
    self.program("nvcc", 'case "$*" in --list-gpu-arch) echo compute_80; echo compute_90 ;; esac')
    self.program("make", f'echo "$* $CPPFLAGS $LDFLAGS" >> {self.path("made")}')
    self.program("c++", f'exec {shutil.which(os.environ.get("CXX", "g++"))} -nostdinc "$@"')
    for header in ("nlohmann/json.hpp", "CLI/CLI.hpp", "gtest/gtest.h", "cublasLt.h", "nccl.h"):
      self.write_deep("deps/include/" + header)
    for library in ("gtest", "gtest_main"):
      self.write_deep(f"deps/lib/lib{library}.a", "!<arch>\n")
    self.clean = 'echo "========= ERROR SUMMARY: 0 errors"'

  def program(self, name, script):
    path = self.write(os.path.join("bin", name), "#!/bin/sh\n" + script + "\n")
    os.chmod(path, 0o755)

  def gtest_program(self, name, **what):
    """What looks like a GoogleTest program of the cases T.A to T.E; what: wrong, hangs or crashes = one of them."""
    self.write("build/" + name, f"""#!{sys.executable}
import os, signal, sys, time
chosen, _, skipped = sys.argv[1].split("=")[1].partition("-")
wrong = {what.get("wrong")!r}
for case in ("T.A", "T.B", "T.C", "T.D", "T.E"):
  if case in skipped.split(":") or chosen not in ("*", case):
    continue
  print("[ RUN      ]", case, flush=True)
  if case == {what.get("hangs")!r}:
    open({self.path("hangs")!r}, "w").close()
    time.sleep(60)
  if case == {what.get("crashes")!r}:
    os.kill(os.getpid(), signal.SIGSEGV)
  print("[  FAILED  ]" if case == wrong else "[       OK ]", case, "(1 ms)", flush=True)
sys.exit(wrong is not None and wrong not in skipped and chosen in ("*", wrong))
""")
    os.chmod(self.path("build/" + name), 0o755)

  def session(self, *args, code=0, **environment):
    environment = {**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"], "OUT": self.out,
                   "BUILD": self.path("build"), "SCRATCH": self.path("scratch"), "DEPS": self.path("deps"),
                   "CUDA_HOME": self.path("cuda"), "CXX": "c++", **environment}
    done = subprocess.run(["bash", os.path.join(DEV, "gpu_session.sh"), *args], capture_output=True, text=True,
                          env=environment, timeout=300)
    self.output, self.errors = done.stdout, done.stderr
    self.assertEqual(done.returncode, code, self.output + self.errors)

  def test_a_signal_ends_a_part_with_its_programs(self):
    pid = self.path("pid")
    program = self.write_deep("build/test_far", f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60\n")
    os.chmod(program, 0o755)
    environment = {**os.environ, "PATH": self.path("bin") + ":" + os.environ["PATH"], "OUT": self.out,
                   "BUILD": self.path("build"), "SCRATCH": self.path("scratch"), "DEPS": self.path("deps")}
    command = ["bash", os.path.join(DEV, "gpu_session.sh"), "--rehearse", "far", "bench"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as session:
      while not os.path.exists(pid):
        self.assertIsNone(session.poll())
        time.sleep(0.1)
      self.session("--rehearse", "far", code=2)
      self.assert_error("another session works in")
      session.send_signal(signal.SIGTERM)
      session.communicate(timeout=60)
      self.assertEqual(session.returncode, 130)
    with open(os.path.join(self.out, "summary.md"), encoding="utf-8") as file:
      self.assertRegex(file.read(), r"(?m)^\| far \| \d+ s \| STOPPED by a signal")
    with open(pid, encoding="utf-8") as file:
      self.assertFalse(os.path.exists(f"/proc/{file.read().strip()}"))
    self.session("tests", code=2)
    self.assert_error("rehearsals and results of a GPU must not mix")

  def test_what_is_missing_is_said(self):
    for args, part in ((["tests", "what"], '"what"'), ([], "name the parts"), (["runs"], "--train GLOB"),
                       (["runs", "--train"], "--train needs a value")):
      self.session(*args, code=2)
      self.assert_error(part)
    os.remove(self.path("bin/nvcc"))
    path = [folder for folder in os.environ["PATH"].split(":") if not os.path.exists(os.path.join(folder, "nvcc"))]
    self.session("tests", code=2, PATH=":".join([self.path("bin"), *path]), CUDA_HOME=self.path("cuda"))
    self.assert_error("there is no nvcc on the PATH or in %s/bin (CUDA_HOME)" % self.path("cuda"))
    self.program("nvidia-smi", "exit 9")
    for args in (["tests"], ["runs", "--train", "a", "--val", "b"]):
      self.session(*args, code=2)
      self.assert_error("there is no GPU here")
    self.assertFalse(os.path.exists(self.out))

  def test_what_a_sanitizer_says(self):
    finds = ('case "$*" in *racecheck*kernels* | *racecheck*hopper*) echo "RACECHECK SUMMARY: 1 hazard"; '
             'exit 99 ;; esac\n')
    refuses = 'echo "========= Error: Device not supported"; exit 1'
    for script, code, said, times in (
        (self.clean, 0, r"\| sanitize \| \d+ s \| done \| 18 of 18 runs without a finding \|\n$", 1),
        (finds + self.clean, 1,
         r"FAILED \| racecheck test_hopper: FOUND RACECHECK SUMMARY: 1 hazard \(proves nothing by "
         "itself: .*; racecheck test_kernels: FOUND RACECHECK SUMMARY: 1 hazard; 16 of 18 runs", 1),
        (refuses, 1, r"(?:mem|race|sync)check was refused: =* Error: Device not supported", 3)):
      self.program("compute-sanitizer", script)
      self.session("sanitize", code=code)
      self.assertEqual(len(re.findall(said, self.output)), times, self.output)
      self.assertEqual(self.files(), ["needs.md", "sanitize.log", "summary.md"])

  def test_a_rehearsal_of_the_first_ten_minutes(self):
    train = os.environ.get("TRAIN") or os.path.join(ROOT, "train")
    if not os.access(train, os.X_OK):
      self.skipTest("make builds it")
    os.mkdir(self.path("build"))
    os.symlink(os.path.realpath(train), self.path("build/train"))
    self.gtest_program("test_hopper")
    self.write("quick.json", json.dumps({"steps": [STEP]}))
    self.program("make", 'case "$*" in *QUICK=1*) cp "$BUILD/../quick.json" "$BUILD" ;; esac')
    self.session("--rehearse", "first", FIRST_TESTS="")
    for row in (r"test_hopper \| \d+ \| 5 passed \| ", r"dry run, bf16 \| \d+ \| one step: loss 5\.\d+ , norm",
                r"ten steps, lssar \| \d+ \| [\d,]+ tokens/s \(median of steps 4 to 10\), loss 5\.\d+ to [45]\.\d+ \|",
                r"make bench QUICK=1 \| \d+ \| softmax 20,480 tokens/s \|"):
      self.assertRegex(self.output, r"\| first \| " + row)
    self.assertIn("A REHEARSAL", self.output)
    self.assertEqual(self.files(), ["first.log", "first.md", "first.tar.gz", "needs.md", "quick.json", "summary.md"])
    with tarfile.open(self.out + ".tar.gz") as archive:
      self.assertIn("out/summary.md", archive.getnames())
    with tarfile.open(os.path.join(self.out, "first.tar.gz")) as archive:
      names = archive.getnames()
    for name in ("machine.txt", "test_hopper.log", "metrics_softmax.jsonl"):
      self.assertIn("logs/" + name, names)

  def test_what_fails_or_hangs_in_the_first_ten_minutes_hides_nothing_else(self):
    os.makedirs(self.path("build/test"))
    self.write("build/test/hopper_test.cu.o", "")
    self.gtest_program("test_hopper", wrong="T.B", hangs="T.C", crashes="T.D")
    self.gtest_program("test_matmul")
    self.program("cuobjdump", 'echo "IADD3 ; /* 0x0123456789abcdef */"')
    self.program("make", 'case "$*" in */test_* | *bench*) echo "make: error: not today"; exit 2 ;; esac')
    # Of test programs the limit is the moment at which one hangs, however long its beginning takes.
    self.program("timeout", f'''case $4 in */test_*) ;; *) exec {shutil.which("timeout")} "$@" ;; esac
echo "$3 $4" >> {self.path("limits")}
shift 3
"$@" & program=$!
while kill -0 $program 2>/dev/null; do
  [ ! -e {self.path("hangs")} ] || {{ rm {self.path("hangs")}; kill $program; exit 124; }}
  sleep 0.02
done
wait $program''')
    self.session("--rehearse", "first", code=1, FIRST_TESTS="matmul gate")
    with open(self.path("limits"), encoding="utf-8") as file:
      self.assertEqual(file.read().split()[:2], ["90", self.path("build/test_hopper")])
    self.assertRegex(self.output, r"build the trainer \| \d+ \| built \|")
    self.assertRegex(self.output,
                     r"build lssar's trainer hopper matmul \| \d+ \| FAILED, exit 2: make: error: not today \|")
    self.assertRegex(self.output,
                     r"test_hopper \| \d+ \| 2 passed, 1 FAILED; HUNG in T.C; CRASHED in T.D; 1 of the first 1 "
                     r"fail alone too \| T.B \|")
    for row in (r"test_matmul \| \d+ \| 5 passed \|  \|", r"test_gate \| 0 \| NOT BUILT \| ",
                r"build the rest \| \d+ \| FAILED, exit 2: make: error: not today \|"):
      self.assertRegex(self.output, r"\| first \| " + row)
    with tarfile.open(os.path.join(self.out, "first.tar.gz")) as archive:
      self.assertEqual(archive.extractfile("logs/sass_hopper_test.txt").read(), b"IADD3 ;\n")
    self.session("--rehearse", "first", code=1, FIRST_TESTS="matmul", FIRST_SECONDS="5")
    self.assertRegex(self.output, r"test_hopper \| 0 \| NOT RUN \| no time was left \|")
    self.assertRegex(self.output, r"ten steps, lssar \| 0 \| STOPPED: no time was left \|")

  def write_deep(self, name, text=""):
    os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
    return self.write(name, text)

  def made(self):
    with open(self.path("made"), encoding="utf-8") as file:
      return [" ".join(line.split()) for line in file]

  def test_the_trainer_is_built_and_run_before_anything_else(self):
    quick = self.path("build/quick")
    os.makedirs(quick)
    self.program("../build/quick/train", f'''echo "train $*" >> {self.path("made")}
run=runs/$(echo "$*" | sed -n 's/.* name=\\([a-z_]*\\) .*/\\1/p')
mkdir -p $run
for step in 1 2 3 4 5; do echo '{{"type": "train", "tokens_per_s": 9, "loss": 1}}'; done > $run/metrics.jsonl''')
    self.session("first", code=1, BUILD=self.path("build/cuda"), FIRST_TESTS="gate")
    first, trained, second, *others = self.made()
    self.assertIn(f"BUILD={quick} HEAD_DIM=64 NCCL=0 WITH_PTX= ATTN=softmax {quick}/train -I", first)
    self.assertRegex(trained, "^train .*gpt2_124m_softmax.json .*train.steps=10")
    self.assertIn(f"WITH_PTX= ATTN=softmax lssar -k {quick}/train {quick}/test_hopper -I", second)
    self.assertIn(f"{quick}/test_gate {quick}/bench_kernels", " ".join(others))
    self.assertRegex(self.output, r"ten steps, softmax \| \d+ \| 9 tokens/s \(median of steps 4 to 5\), loss 1.000")

  def test_what_the_machine_lacks_is_named_before_the_first_compile(self):
    os.remove(self.path("deps/include/gtest/gtest.h"))
    os.remove(self.path("deps/include/nccl.h"))
    header, library = map(self.write_deep, ("site/nvidia/nccl/include/nccl.h", "site/nvidia/nccl/lib/libnccl.so.2"))
    self.session("tests", "bench", code=1, PYTHONPATH=self.path("site"))
    for row in ("| gtest | bash scripts/install_deps.sh --tests, or DEPS=DIR | tests, far, sanitize, and the tests of",
                "| compute-sanitizer | all of the CUDA toolkit | sanitize |\n"):
      self.assertIn(row, self.output.split("=== tests")[0])
    self.assertNotIn("| nccl |", self.output)
    self.assertRegex(self.output, r"\| tests \| \d+ s \| FAILED \| LEFT OUT: gtest is missing \|")
    deps, links = self.path("deps"), self.path("scratch/lib")
    self.assertIn(f"bench -I{deps}/include -I{os.path.dirname(header)} -L{deps}/lib -Wl,-rpath,{deps}/lib -L{links} "
                  f"-Wl,-rpath,{os.path.dirname(library)}", self.made()[0])
    self.assertEqual(os.readlink(links + "/libnccl.so"), library)
    self.session("tests", code=1)
    self.assertIn("| nccl | libnccl-dev, or pip install nvidia-nccl-cu13 | several GPUs |", self.output)
    os.remove(self.path("deps/include/CLI/CLI.hpp"))
    self.session("tests", code=2)
    self.assert_error("there is no CLI/CLI.hpp: bash scripts/install_deps.sh installs it; without network name a "
                      "folder that has it in include/ (DEPS=DIR)")
    self.session("tests", code=2, DEPS=self.path("nowhere"))
    self.assert_error("DEPS: there is no folder " + self.path("nowhere"))

  def test_the_last_rows_of_every_kind(self):
    quick = self.path("build/quick")
    os.makedirs(quick)
    self.program("../build/quick/test_far", 'echo "$FULL $GTEST_TOTAL_SHARDS"\n'
                 'echo "| fox | bf16, hopper | 1e-3 | 2e-3 |"; echo "x:9: Failure"; exit 1')
    self.session("far", code=1, BUILD=self.path("build/cuda"))
    self.assertIn("\n1 1\n| fox |", self.output)
    self.assertIn("| variant | precision, kernels | kernel | whole |\n|---|---|---|---|\n| fox | bf16, hopper | 1e-3 |",
                  self.output)
    self.assertIn("| FAILED | 1 rows, exit 1, 1 beyond the bound |", self.output)
    self.program("nvcc", "echo compute_80")  # which makes PTX for a newer GPU
    self.session("far", code=1, BUILD=self.path("build/cuda"))
    self.assertEqual([line.split(" -I")[0] for line in self.made()],
                     [f"BUILD={quick} HEAD_DIM=64 NCCL=0 {ptx}{quick}/test_far" for ptx in ("WITH_PTX= ", "")])

  def test_a_build_that_fails_does_not_keep_other_parts_from_running(self):
    self.program("compute-sanitizer", self.clean)
    self.program("make", 'case "$*" in *train*) exit 2 ;; esac')
    self.session("tests", "sanitize", code=1)
    self.assertRegex(self.output, r"tests \| \d+ s \| FAILED \| the build failed \|\n\| sanitize \| \d+ s \| done \|")
