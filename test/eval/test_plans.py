"""--dry-run with --eval, --passkey, --tasks or --diagnostics, and the share of evaluations in a run's plan."""
import os
import re
import resource

from eval.test_tasks import task_file
from support.workspace import TEXT, Workspace, shard

COMPACT = {"passkey__form": "compact", "passkey__trials": 3, "passkey__depths": 3}
ELSEWHERE = {"plan__memory": "80GiB", "data__train": "absent.bin", "data__val": "absent.bin"}


def forward(parameters, keys, layers=2, channels=16):
  """FLOP of a token's forward pass: 2 for each parameter, and as many for each channel of q . k, of the weights times
  v, and of a mean over keys and queries."""
  return 2 * parameters + 2 * layers * keys * channels


class EvaluationPlans(Workspace):
  def planned(self, *flags, **changes):
    """FLOP and tokens, as printed."""
    said = self.ok(*flags, "--dry-run", **changes).stdout
    self.assertIn("\n  in all ", said)
    return re.search(r"\nthe evaluation: ([\d.e+]+) FLOP for (\S+) tokens(.*)\n", said).groups()

  def test_work(self):
    self.write("a.bin", task_file([("Why", [" me", " you"], 0)] * 5))
    self.ok(task__dir=".")
    before = self.files()
    parameters = self.metrics(kind="start")[0]["parameters"]
    tables = 256 * 16  # of tokens, which make logits
    for plan in {}, ELSEWHERE:
      flops, tokens, _ = self.planned("--eval", "--resume", "--lengths", "16,48", **plan)
      self.assertEqual(tokens, "496")  # 16 windows of 16, 5 of 48
      of = 256 * forward(parameters, 16) + 240 * forward(parameters, 48)
      self.assertAlmostEqual(float(flops), of, delta=0.006 * of)
      flops, tokens, _ = self.planned("--passkey", "--resume", "--lengths", "128", **COMPACT, **plan)
      self.assertEqual(tokens, "1.54K")  # 12 prompts
      of = 12 * 128 * forward(parameters - tables, 128)
      self.assertAlmostEqual(float(flops), of, delta=0.006 * of)
      flops, tokens, hours = self.planned("--tasks", "a", "--resume", task__dir=".", plan__tflops=1e-6, **plan)
      self.assertEqual(tokens, "160")  # 10 completions in windows of the context
      of = 160 * forward(parameters, 16)
      self.assertAlmostEqual(float(flops), of, delta=0.006 * of)
      hours = re.fullmatch(r", (\S+) hours at 1e-06 TFLOP/s a rank", hours)[1]
      self.assertAlmostEqual(float(hours) * 3.6e9, of, delta=0.006 * of)
      self.planned("--diagnostics", "--resume", **plan)
    self.planned("--passkey", "--resume", passkey__examples="examples.jsonl", **COMPACT, eval__lengths=[128])
    self.assertEqual(self.planned("--eval", "--resume", "--gpus", "3")[1], "288")  # in rounds of 3 batches of 2
    self.assertEqual([name for name in self.files() if name != "config.json"],
                     [name for name in before if name != "config.json"])

  def test_what_is_refused(self):
    for plan in {}, ELSEWHERE:
      self.bad("--tasks", "gone", "--dry-run", task__dir=".", names=["gone"], **plan)
      self.bad("--passkey", "--dry-run", generate__tokenizer="gpt2", generate__tokenizer_dir="gone",
               names=["generate.tokenizer_dir"], **plan)
      self.bad("--generate", "x", "--dry-run", names=["excludes"], **plan)
    self.bad("--eval", "--dry-run", "--resume", names=["runs/tiny"])
    self.bad("--eval", "--dry-run", plan__memory="1MiB", names=["does not fit on a GPU with 1.0 MiB"])

  def share(self, **changes):
    said = self.ok("--dry-run", **changes).stdout
    found = re.search(r"\nits evaluations: [\d.e+]+ FLOP for \S+ tokens, ([\d.]+)% of the steps' work\n", said)
    return found and float(found[1]) / 100

  def test_share_of_a_run(self):
    """Against the processor's time in runs, which a busy machine changes less than seconds."""
    self.write("val.bin", shard(TEXT * 90))
    model = {"model__layers": 4, "model__channels": 64, "model__context": 64, "batch__tokens": 1024,
             "batch__micro": 16, "eval__every": 10, "eval__tokens": 8192, "eval__lengths": [64, 256],
             "optimizer__schedule": "constant"}

    def seconds(**changes):
      before = resource.getrusage(resource.RUSAGE_CHILDREN)
      self.ok("--overwrite", **{**model, **changes})
      after = resource.getrusage(resource.RUSAGE_CHILDREN)
      return after.ru_utime - before.ru_utime

    alone = seconds(train__steps=40, eval__every=0) - seconds(train__steps=1, eval__every=0)
    both = seconds(train__steps=40) - seconds(train__steps=1, eval__every=0)
    measured, planned = both / alone - 1, self.share(train__steps=40, **model)
    print(f"evaluations take {measured:.2f} of the steps' time, {planned:.2f} planned")
    self.assertLess(planned / 2, measured)
    self.assertLess(measured, planned * 2)

  def test_checkpoints(self):
    changes = {"model__channels": 64, "checkpoint__every": 2, "checkpoint__keep": 3}
    said = self.ok("--dry-run", **changes).stdout
    planned, most = re.search(r"\nits checkpoints: ([\d.]+) MiB each, up to (\d+) on disk\n", said).groups()
    self.assertEqual(most, "4")
    self.ok(**changes)
    sizes = sum(os.path.getsize(os.path.join(folder, name))
                for folder, _, names in os.walk(self.path("runs/tiny/step_00000004")) for name in names)
    self.assertAlmostEqual(float(planned) * 2**20, sizes, delta=0.1 * sizes)
    self.assertNotIn("checkpoints:", self.ok("--dry-run", checkpoint__every=0, checkpoint__at_end=False).stdout)

  def test_how_often_a_run_evaluates(self):
    once = self.share(eval__every=4)  # after steps 0 and 4
    for steps, every, times in ((4, 2, 3), (4, 3, 3), (5, 1, 6), (4, 100, 2)):
      share = self.share(train__steps=steps, eval__every=every)
      self.assertAlmostEqual(share, once / 2 * times * 4 / steps, delta=0.01)
    self.assertIsNone(self.share(eval__every=0))
    self.assertAlmostEqual(self.share(eval__every=4, **ELSEWHERE), once, delta=0.01)
    self.ok()
    self.assertEqual(len(self.metrics(kind="val")), 3)
