"""Evaluation: memory far beyond the trained length grows with the length, not its square; weights fit their model."""
import re
import subprocess
import sys

from support.workspace import TEXT, TRAIN, Workspace, shard

PEAK = """import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)"""


class Memory(Workspace):
  def peak(self, length, variant, question):
    """The peak memory, in bytes, of an evaluation or diagnostics of one window of that length."""
    command = [TRAIN, "config.json", question, "--lengths", str(length), "--set", f"attention.variant={variant}"]
    # Started by a small Python: Linux counts the memory of the process from which a program was started as the
    # program's, and this one may have loaded much by now.
    done = subprocess.run([sys.executable, "-I", "-c", PEAK, *command], cwd=self.folder, capture_output=True, text=True)
    self.assertEqual(done.returncode, 0, done.stderr)
    return int(done.stdout.split()[-1]) * 1024

  def test_linear_in_the_length(self):
    self.write("val.bin", shard(TEXT * (8300 // len(TEXT) + 1)))
    self.ok("--print-config", model__layers=1, model__channels=64, model__heads=1, eval__tokens=8192,
            diagnostics__tokens=8192)  # leaves config.json
    for variant, question in (("softmax", "--eval"), ("lssar_softplus_gated", "--eval"),
                              ("lssar_softplus_gated", "--diagnostics")):
      at = {length: self.peak(length, variant, question) for length in (2048, 4096, 8192)}
      print(f"{variant}: " + ", ".join(f"{bytes >> 20} MiB at {length}" for length, bytes in at.items()))
      loss = self.metrics(kind="eval")[-1]
      self.assertEqual((loss["length"], loss["of"]["tokens"]), (8192, 8192))
      self.assertLess(at[8192], 2**28 / 2, "a T x T matrix of floats would be 256 MiB")
      growth = (at[8192] - at[4096]) / (at[4096] - at[2048])
      self.assertAlmostEqual(growth, 2, delta=0.5, msg=f"{variant}: {at}; 4 would be quadratic")

  def test_a_plan_of_an_evaluation_is_what_it_takes(self):
    self.write("val.bin", shard(TEXT * (8300 // len(TEXT) + 1)))
    self.ok("--print-config", model__channels=128, eval__tokens=8192, diagnostics__tokens=8192,
            passkey__form="compact", passkey__trials=1, passkey__depths=2)
    for question in "--eval", "--passkey", "--diagnostics":
      planned, taken = [], []
      for length in 2048, 8192:
        said = self.train("config.json", question, "--dry-run", "--lengths", str(length)).stdout
        number, unit = re.search(r"in all +([\d.]+) (MiB|GiB)", said).groups()
        planned.append(float(number) * 2**(20 if unit == "MiB" else 30))
        taken.append(self.peak(length, "softmax", question))
      growth = [there - here for here, there in (planned, taken)]
      print(f"{question}: planned {growth[0] / 2**20:.1f} MiB, taken {growth[1] / 2**20:.1f} MiB")
      # What a question keeps on the host for each token is not planned.
      self.assertAlmostEqual(growth[1] / growth[0], 1, delta=0.25, msg=f"{question}: {planned}, {taken}")


  def test_a_step_of_65536_tokens(self):
    self.write("train.bin", shard(TEXT * (65537 // len(TEXT) + 1)))
    self.ok(data__train="train.bin", model__layers=1, model__context=2**16, batch__tokens=2**16, batch__micro=1,
            attention__window=32, train__steps=1, eval__every=0)
    self.assertEqual(self.metrics(kind="train")[-1]["tokens"], 2**16)


class Weights(Workspace):
  def test_are_not_used_in_another_model(self):
    lssar = {"attention__variant": "lssar"}
    self.ok(**lssar)
    for flags in (("--eval",), ("--generate", "It")):
      self.bad(*flags, "--resume", names=["attention.kind", '"lssar" in the checkpoint', "runs/tiny/config.json"],
               wrote_nothing=False)
      self.bad(*flags, "--resume", **lssar, model__heads=4, names=["model.heads", "runs/tiny"], wrote_nothing=False)
    self.assertEqual(self.metrics(kind="eval"), [])
    first = self.ok("--eval", "--resume", **lssar)
    self.assertEqual(first.stderr, "")
    again = self.train("runs/tiny/config.json", "--eval", "--resume")
    results = lambda done: done.stdout[done.stdout.index("continuing"):]  # the free memory is printed before it
    self.assertEqual(results(again), results(first))
    # The same model under another name, or with settings that matter only at the beginning.
    named = {"attention__kind": "lssar", "attention__qk_norm": "l2", "attention__scale": "logd_logn"}
    self.ok("--eval", "--resume", **named, attention__gate__bias_init=1)
    # init allows another model, with a warning.
    init = {"init": "runs/tiny/step_00000004", "name": "other"}
    for flags in (("--eval",), ("--dry-run",)):
      self.assertEqual(self.ok(*flags, **lssar, **init).stderr, "")
      self.assertIn('attention.kind = "lssar" (here "softmax")', self.ok(*flags, **init).stderr)

  def test_are_evaluated_with_another_attention(self):
    """As docs/evaluating.md has it: a second stage that changes nothing has the losses of the first, one that
    sharpens has others."""
    for plain, sharpened in (("lssa", "lssar"), ("softmax", "softmaxr")):
      self.ok(name=plain, attention__variant=plain)
      losses = {}
      for name, settings in {"none": {"attention__variant": plain},
                             "idle": {"attention__variant": sharpened, "attention__power": 1, "attention__offset": 0},
                             "power": {"attention__variant": sharpened, "attention__power": 3}}.items():
        self.ok("--eval", init=f"runs/{plain}/step_00000004", name=f"{plain}_{name}", precision="fp32", **settings)
        losses[name] = self.metrics(kind="eval", run=f"{plain}_{name}")[-1]["loss"]
      self.assertAlmostEqual(losses["idle"], losses["none"], delta=1e-6)
      self.assertNotAlmostEqual(losses["power"], losses["none"], delta=1e-5)
