"""What the real ./train answers without writing to runs/: dry runs, plans, dumps, flags that only print."""
import array
import math
import os
import re
import shutil

from support.workspace import Workspace, floats, read_safetensors, shard, write_safetensors


class WritesNothing(Workspace):
  def nothing_new(self, before):
    self.assertEqual([name for name in self.files() if name != "config.json"], before)

  def test_flags_that_write_nothing(self):
    before = self.files()
    done = self.ok("--dry-run")
    self.assertRegex(done.stdout + done.stderr, "(?i)parameters")
    self.assertRegex(done.stdout, r"\n  in all .* in reserve; micro batch 2 \(up to 4 fits\)\n"
                                  r"attention: the kernels of general\n")
    self.assertRegex(self.ok("--dry-run", batch__micro=None).stdout, r" in reserve; micro batch 4\n")
    self.nothing_new(before)
    done = self.ok("--print-config", "--set", "optimizer.beta2=0.99")
    self.assertRegex(done.stdout, r"(?m)^optimizer\.beta2\s+0\.99\s+--set")
    self.assertRegex(done.stdout, r"(?m)^model\.layers\s+2\s+config\.json")
    self.assertRegex(done.stdout, r"(?m)^model\.head_dim\s+8\s+channels / heads")
    self.assertRegex(done.stdout, r"(?m)^optimizer\.beta1\s+0\.9\s+default")
    self.nothing_new(before)
    done = self.ok("--generate", "It was")
    self.assertIn("It was", done.stdout)
    self.nothing_new(before)

  def test_a_plan_for_another_device(self):
    before = self.files()
    large = {"model__channels": 1600, "model__heads": 25, "model__layers": 48, "model__context": 8192,
             "model__vocab": 50257, "batch__tokens": 2**19, "batch__micro": None, "eval__lengths": [8192, 131072],
             "eval__tokens": 131072, "data__train": "absent.bin", "data__val": "absent.bin",
             "optimizer__warmup_steps": 0}
    done = self.ok("--dry-run", plan__memory="80GiB", train__recompute="block", **large)
    self.assertRegex(done.stdout,
                     r"(?s)^memory\n.*of host memory, not counted below\n  in all +56\.\d GiB of 80.0 GiB free, "
                     r"2.4 GiB in reserve; micro batch 16\nplanned for a GPU with 80.0 GiB, 1 rank, bf16, "
                     r"1555972800 parameters, 13.1107 GFLOP a token of training: nothing was allocated")
    self.assertEqual(done.stderr, "")
    size = lambda text: float(re.search(r"in all +([\d.]+) GiB", text)[1])
    needs = [self.ok("--dry-run", plan__memory="80GiB", plan__ranks=ranks, train__recompute="block",
                     **{**large, "batch__micro": 1, "eval__lengths": lengths}).stdout
             for ranks, lengths in ((1, [8192]), (1, [8192, 131072]), (8, [8192, 131072]))]
    self.assertIn("8 ranks", needs[2])
    masters_and_moments = 12 * 1555972800 / 2**30  # shared by the ranks
    saved = size(needs[1]) - size(needs[2])
    nccl = 147 / 2**10  # buffers of several ranks
    self.assertAlmostEqual(saved, masters_and_moments * 7 / 8 - nccl, delta=0.11)  # of two rounded numbers
    self.assertLess(size(needs[0]) + 1, size(needs[1]))  # an evaluation at 16 times the length takes more than a step
    for context, micro in ((2**16, 8), (2**17, 8), (2**20, 2)):  # gpt2_124m
      done = self.ok("--dry-run", plan__memory="140GiB", model__layers=12, model__heads=12, model__channels=768,
                     model__vocab=50257, model__context=context, batch__tokens=8 * context, batch__micro=None,
                     eval__lengths=[context], eval__tokens=context, train__recompute="block")
      self.assertRegex(done.stdout, rf"in all .* of 140.0 GiB free, .* in reserve; micro batch {micro}\n")
    self.bad("--dry-run", plan__memory="24GiB", **large,
             names=["does not fit on a GPU with 24.0 GiB", "no length fits: use a smaller model"])
    for size in ("80GB", "80", "999999999PiB"):
      self.bad("--dry-run", plan__memory=size, names=[f'plan.memory = "{size}"', "80GiB"])
    self.bad(plan__memory="80GiB", names=['plan.memory = "80GiB"', "--dry-run"])
    self.bad("--eval", plan__memory="80GiB", names=["--dry-run"])
    self.bad("--dry-run", plan__memory="80GiB", precision="fp32", attention__window=4,
             names=["attention.window", "GPU"])
    self.ok("--dry-run", plan__memory="80GiB", attention__window=4, attention__bias="fox")  # lacks such kernels itself
    self.assertRegex(self.ok("--dry-run", plan__ranks=2).stderr, "plan.ranks = 2 has no effect: it needs plan.memory")
    done = self.ok("--dry-run", plan__tflops=1)
    self.assertRegex(done.stdout, r"\nthe run: [\d.e+]+ FLOP in \d+ steps, [\d.e-]+ hours at 1 TFLOP/s a rank\n")
    self.nothing_new(before)

  def test_the_steps_of_a_plan(self):
    """Those that the run has yet to make: all with the weights of another one, fewer if it continues."""
    self.ok(train__steps=4, checkpoint__every=2, optimizer__schedule="constant")
    weights = "runs/tiny/step_00000004"
    for plan in {}, {"plan__memory": "80GiB", "data__train": "absent.bin"}:
      for flags, steps, left in (((), 10, 10), (("--set", f"init={weights}"), 10, 10),
                                 (("--set", f"init={weights}"), 4, 4), (("--resume",), 10, 6),
                                 (("--resume", "runs/tiny/step_00000002", "--set", "name=other"), 10, 8),
                                 (("--resume", "--set", "optimizer.schedule_start=4"), 10, 6)):
        done = self.ok("--dry-run", *flags, train__steps=steps, optimizer__schedule="constant", **plan)
        self.assertRegex(done.stdout, rf"\nthe run: [\d.e+]+ FLOP in {left} steps\n", (flags, plan))

  def test_a_plan_checks_weights(self):
    self.ok()
    plan = {"plan__memory": "80GiB", "data__train": "absent.bin"}
    for flags, names, changes in ((("--resume",), ["train.steps = 2", "has made 4 steps"], {"train__steps": 2}),
                                  (("--resume",), ["belong to another model", "model.layers"], {"model__layers": 3}),
                                  ((), ["init", "another model", "missing there"],
                                   {"model__layers": 3, "init": "runs/tiny/step_00000004"})):
      self.bad("--dry-run", *flags, names=names, wrote_nothing=False, **plan, **changes)

  def test_outputs_do_not_replace_what_is_read(self):
    self.ok()
    for path in ("config.json", "val.bin", "runs/tiny/metrics.jsonl", "runs/tiny/config.json",
                 "runs/tiny/step_00000004/model.safetensors"):
      before = self.bytes_of(path)
      self.bad("--per-token-losses", path, "--resume", names=["would be lost"], wrote_nothing=False)
      self.assertEqual(self.bytes_of(path), before)

  def test_a_dry_run_checks_what_a_run_refuses(self):
    """With plan.memory, what needs no data."""
    gpt2 = {"generate__tokenizer": "gpt2"}
    os.mkdir(self.path("broken"))
    self.write("broken/vocab.bpe", "#version: 0.2\nh")
    for plan in {}, {"plan__memory": "80GiB", "data__train": "absent.bin", "data__val": "absent.bin"}:
      for names, changes in ((["generate.tokenizer_dir"], {**gpt2, "generate__every": 1}),
                             (["folder \"broken\""], {**gpt2, "generate__tokenizer_dir": "broken"}),
                             (['init = "gone"'], {"init": "gone"})):
        self.bad("--dry-run", names=names, **changes, **plan)
      done = self.ok("--dry-run", generate__tokenizer_dir="gone", **gpt2, **plan)
      self.assertIn('checkpoints will hold no tokenizer: generate.tokenizer_dir = "gone"', done.stderr)

  def test_validation_on_what_is_trained_on(self):
    os.link(self.path("val.bin"), self.path("train_000002.bin"))
    os.symlink("train_000001.bin", self.path("val2.bin"))
    self.assertEqual(self.ok("--dry-run", data__train="train_000000.bin", data__val=["val.bin", "val2.bin"]).stderr, "")
    done = self.ok("--dry-run", "--gpus", "2", data__val=["val.bin", "val2.bin"])
    self.assertRegex(done.stderr, r"^warning: data.train and data.val both contain val.bin, val2.bin, or a copy: .*\n$")

  def test_validation_on_a_copy_of_what_is_trained_on(self):
    shutil.copy(self.path("train_000001.bin"), self.path("val2.bin"))
    changed = self.bytes_of("val2.bin")
    self.write("val3.bin", changed[:-2] + b"z\0")
    warning = r"^warning: data.train and data.val both contain val2.bin, or a copy: .*\n$"
    for flags in ([], ["--eval", "--resume"]):
      self.assertRegex(self.ok(*flags, data__val=["val2.bin", "val3.bin"]).stderr, warning)

  def test_lines_about_the_data(self):
    done = self.ok("--dry-run", data__train="train_000000.bin", eval__tokens=1000000)
    self.assertIn("\ndata: 1 shard, 41 windows", done.stdout)
    self.assertIn("\ndata.val, of 800 tokens: 784 are evaluated at length 16\n", done.stdout)
    self.assertEqual(done.stderr, "")
    done = self.ok("--dry-run")
    self.assertIn("\ndata: 2 shards, ", done.stdout)
    self.assertNotIn("are evaluated", done.stdout)
    done = self.ok("--dry-run", data__val="train_00000?.bin", model__context=256, eval__lengths=[256, 16],
                   batch__tokens=256, batch__micro=1, eval__tokens=1000000)
    self.assertIn("\ndata.val, of 960 tokens: 768 are evaluated at length 256, 944 are evaluated at length 16\n",
                  done.stdout)
    self.assertRegex(done.stderr, r"^warning: data.train: 190 of 960 tokens \(20%\) are in no window of 256 tokens")

  def test_help_and_version(self):
    for flag, words in (("--help", ["--set", "--resume", "--dry-run", "optimizer.lr", "attention.variant"]),
                        ("--version", ["plusgpt"])):
      said = self.train(flag).stdout
      for word in words:
        self.assertIn(word, said)
      flags = said.split("Configuration keys")[0]
      self.assertNotIn("Excludes", flags)
      self.assertLessEqual(max(map(len, flags.splitlines())), 125)
    self.assertEqual(self.files(), ["train_000000.bin", "train_000001.bin", "val.bin"])

  def test_gradients(self):
    before = self.files()
    self.ok("--dump-gradients", "gradients.safetensors")
    self.assertFalse(os.path.exists(self.path("runs")))
    gradients = read_safetensors(self.path("gradients.safetensors"))
    os.remove(self.path("gradients.safetensors"))
    self.nothing_new(before)
    self.ok()
    model = read_safetensors(self.model())
    self.assertEqual({name: t[:2] for name, t in gradients.items()}, {name: t[:2] for name, t in model.items()})
    norm = math.sqrt(sum(x * x for _, _, data in gradients.values() for x in floats(data)))
    self.assertAlmostEqual(self.metrics(kind="train")[0]["grad_norm"], norm, delta=1e-4 * norm)


  def test_kinds_gradients_match_finite_differences(self):
    """Of the loss, by the parameters that a kind's policy has a part in: sharpened ones, those of make check-kind."""
    for kind in ("lssar", "softmaxr", *os.environ.get("KIND_NAMES", "").split()):
      settings = {"name": kind, "attention__variant": kind, "precision": "fp32", "model__init_std": 0.3,
                  "train__steps": 1, "optimizer__lr": 1e-3}
      self.ok(**settings)
      weights = read_safetensors(self.model(run=kind, step=1))

      def loss(changed):
        write_safetensors(self.path("init", "model.safetensors"), {**weights, **changed})
        said = self.ok("--dump-gradients", "gradients.safetensors", init="init", **settings).stdout
        return float(re.search(r"^loss (\S+) ", said, re.MULTILINE)[1])

      loss({})
      for name, (dtype, shape, data) in read_safetensors(self.path("gradients.safetensors")).items():
        if not re.search(r"\.0\.attn\.(c_attn\.weight|score\.)", name):
          continue
        gradient, norm, far = floats(data), math.hypot(*floats(data)), 1e-2 if ".score." in name else 1e-3
        moved = lambda far: (dtype, shape, array.array("f", (
            w + far * g / norm for w, g in zip(floats(weights[name][2]), gradient))).tobytes())
        slopes = [(loss({name: moved(far)}) - loss({name: moved(-far)})) / (2 * far) for far in (far, far / 2)]
        # the error of a difference falls with the square of the distance; a loss has 24 bits
        bound = abs(slopes[0] - slopes[1]) + 2**-20 / far + 1e-3 * norm
        self.assertAlmostEqual((4 * slopes[1] - slopes[0]) / 3, norm, delta=bound, msg=f"{kind}: {name}")
