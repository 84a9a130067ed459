"""Good input through the real ./train: exactly the documented files and lines, the same bits every time, losses that
can be computed beforehand, and text.
"""
import array
import json
import math
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time

from support.workspace import (CONFIG, CRASH, ROOT, TEXT, TRAIN, VOLATILE, Workspace, floats, read_safetensors, shard,
                               write_safetensors)

EVALUATION = {"type", "time", "id", "series", "weights", "step", "tokens", "mode", "length", "loss", "stderr",
              "perplexity", "bits_per_byte", "accuracy", "accuracy_stderr", "exact", "exact_stderr", "last_loss", "of",
              "position_edges", "by_position", "accuracy_by_position", "window_losses"}


class Training(Workspace):
  def test_files_and_lines(self):
    done = self.ok(eval__lengths=[16, 64])
    self.assertRegex(done.stdout, r"step\s+4/4 \| loss \d+\.\d+ \| norm \d+\.\d+ \| lr \d\.\d+e-\d+ \| .* ms \| "
                                  r".* tok/s")
    start, *rest = self.metrics()
    self.assertEqual(set(start), {"type", "time", "commit", "command", "config", "identity", "device", "versions",
                                  "parameters", "flops_per_token"})
    elements = sum(math.prod(shape) for _, shape, _ in read_safetensors(self.model()).values())
    self.assertEqual(start["parameters"], elements)
    self.assertGreater(start["flops_per_token"], 6 * start["parameters"])
    self.assertEqual(start["type"], "start")
    self.assertEqual(start["config"]["model"]["channels"], 16)
    self.assertEqual(start["config"]["optimizer"]["beta2"], 0.95)
    train = [entry for entry in rest if entry["type"] == "train"]
    val = [entry for entry in rest if entry["type"] == "val"]
    self.assertEqual(len(train) + len(val), len(rest))
    self.assertEqual([entry["step"] for entry in train], [1, 2, 3, 4])
    self.assertEqual([entry["tokens"] for entry in train], [64, 128, 192, 256])
    for entry in train:
      self.assertEqual(set(entry), {"type", "step", "loss", "grad_norm", "lr", "tokens", *VOLATILE})
      self.assertTrue(0 < entry["loss"] < 10)
      self.assertTrue(min(entry[key] for key in ("grad_norm", "tokens_per_s", "ms")) > 0)
      self.assertAlmostEqual(entry["ms"] * entry["tokens_per_s"] / (1e3 * 64), 1, delta=1e-3)
    # Warmup over 2 steps, then a cosine to 0 over the other 2.
    for entry, rate in zip(train, [5e-3, 1e-2, 1e-2, 5e-3]):
      self.assertAlmostEqual(entry["lr"], rate, places=8)
    self.assertEqual([(entry["step"], entry["length"]) for entry in val],
                     [(step, length) for step in (0, 2, 4) for length in (16, 64)])
    for entry in val:
      self.assertEqual(set(entry), EVALUATION)
      self.assertEqual((entry["tokens"], entry["of"]["tokens"]), (64 * entry["step"], 256))
    self.assertLess(val[-2]["loss"], val[0]["loss"])
    self.assertAlmostEqual(val[0]["loss"], math.log(256), delta=0.2)
    self.assertEqual(self.json_of("runs/tiny/config.json"), start["config"])
    self.assertEqual(self.json_of(self.checkpoint(4, "config.json"))["model_type"], "plusgpt")

  def test_times_are_those_of_a_clock(self):
    self.ok(train__steps=20, eval__every=0, model__channels=64, batch__tokens=1280)
    first, *train = self.metrics(kind="train")
    passed = 1e3 * (train[-1]["time"] - first["time"])
    for measured in (sum(entry["ms"] for entry in train), sum(1e3 * 1280 / entry["tokens_per_s"] for entry in train)):
      self.assertTrue(0.2 * passed < measured < passed + 2, (measured, passed))  # the rest is the lines' own

  def test_names_and_shapes(self):
    self.ok(train__steps=1, model__position="learned", model__head_dim=12, model__mlp_ratio=2)
    C, A, W = 16, 24, 32
    expected = {"wte.weight": [256, C], "wpe.weight": [16, C], "ln_f.weight": [C], "ln_f.bias": [C]}
    for layer in ("h.0.", "h.1."):
      expected.update({layer + name: shape for name, shape in {
          "ln_1.weight": [C], "ln_1.bias": [C], "attn.c_attn.weight": [C, 3 * A], "attn.c_attn.bias": [3 * A],
          "attn.c_proj.weight": [A, C], "attn.c_proj.bias": [C], "ln_2.weight": [C], "ln_2.bias": [C],
          "mlp.c_fc.weight": [C, W], "mlp.c_fc.bias": [W], "mlp.c_proj.weight": [W, C],
          "mlp.c_proj.bias": [C]}.items()})
    tensors = read_safetensors(self.model(step=1))
    self.assertEqual({name: t[1] for name, t in tensors.items()}, expected)
    self.assertEqual({t[0] for t in tensors.values()}, {"F32"})

  def test_resolved_config_gives_the_same_run(self):
    self.ok()
    first = self.bytes_of(self.model())
    self.ok("--overwrite", config=self.text_of("runs/tiny/config.json"))
    self.assertEqual(first, self.bytes_of(self.model()))

  def test_seed_and_shuffle_matter(self):
    losses = {}
    for flags in (("seed=1",), ("seed=2",), ("seed=1", "data.shuffle=false")):
      self.ok("--overwrite", *(part for flag in flags for part in ("--set", flag)))
      losses[flags] = tuple(entry["loss"] for entry in self.metrics(kind="train"))
    self.assertEqual(len(set(losses.values())), 3)

  def test_tokens_instead_of_steps(self):
    self.ok(train__steps=None, train__tokens=130)
    self.assertEqual(len(self.metrics(kind="train")), 3)

  def test_without_evaluation_or_checkpoint(self):
    self.ok(eval__every=0, checkpoint__at_end=False)
    self.assertEqual(self.metrics(kind="val"), [])
    self.assertEqual([name for name in os.listdir(self.path("runs/tiny")) if name.startswith("step_")], [])

  def test_divergence_ends_the_run(self):
    # A learning rate that sends the weights to infinity: the error names it, and metrics.jsonl stays valid JSON.
    done = self.call(optimizer__lr=1000.0, optimizer__grad_clip=0, optimizer__warmup_steps=0,
                     optimizer__schedule="constant", train__steps=50, eval__every=0)
    self.assertEqual(done.returncode, 1, done.stdout)
    self.assertRegex(done.stderr, "diverged.*optimizer.lr")
    self.assertNotRegex(done.stderr, CRASH)
    text = self.text_of("runs/tiny/metrics.jsonl")
    self.assertNotRegex(text, r"(?i)\b-?(nan|inf|infinity)\b")
    self.assertIn(None, [self.metrics(kind="train")[-1][key] for key in ("loss", "grad_norm")])


class Evaluation(Workspace):
  def setUp(self):
    super().setUp()
    self.write("val.bin", shard(TEXT[30:] * 20))

  def weights(self, value):
    """A model folder in which every tensor is `value`."""
    self.ok("--set", "name=first", "--set", "train.steps=1")
    tensors = read_safetensors(self.model("first", 1))
    shutil.rmtree(self.path("runs"))
    write_safetensors(self.path("start", "model.safetensors"),
                      {name: (dtype, shape, array.array("f", [value] * (len(data) // 4)).tobytes())
                       for name, (dtype, shape, data) in tensors.items()})

  def test_zero_weights_know_nothing(self):
    self.weights(0.0)
    self.ok("--eval", "--lengths", "5,16,100", init="start")
    for entry in self.metrics(kind="eval"):
      self.assertAlmostEqual(entry["loss"], math.log(256), places=5)
      for loss in entry["by_position"]:
        self.assertAlmostEqual(loss, math.log(256), places=5)

  def test_weights_that_are_not_finite(self):
    self.weights(math.nan)
    done = self.call("--eval", "--lengths", "16,32", init="start")
    self.assertEqual(done.returncode, 1)
    self.assertEqual(done.stdout.count("loss nan"), 2)
    self.assertIn("not finite", done.stderr)

  def test_init_reads_back(self):
    self.ok()
    trained = self.metrics(kind="val")[-1]["loss"]
    self.ok("--eval", name="again", init="runs/tiny/step_00000004")
    entry, = self.metrics("again", "eval")
    self.assertEqual(entry["loss"], trained)

  def test_init_in_other_types(self):
    self.ok()
    tensors = read_safetensors(self.model())
    other = {}
    for name, (_, shape, data) in tensors.items():
      halves = b"".join(data[at + 2:at + 4] for at in range(0, len(data), 4))  # bfloat16, truncated
      other["transformer." + name] = ("BF16", shape, halves)
    other["lm_head.weight"] = other["transformer.wte.weight"]
    other["transformer.h.0.attn.bias"] = ("F32", [1], b"\0\0\0\0")
    other["transformer.h.0.attn.masked_bias"] = ("F32", [], b"\0\0\0\0")
    write_safetensors(self.path("bf16/model.safetensors"), other)
    half = {name: ("F16", shape, struct.pack(f"<{len(data) // 4}e", *floats(data)))
            for name, (_, shape, data) in tensors.items()}
    write_safetensors(self.path("fp16/model.safetensors"), half)
    losses = {}
    for init in ("runs/tiny/step_00000004", "bf16", "fp16"):
      self.ok("--eval", name="again", init=init)
      losses[init] = self.metrics("again", "eval")[-1]["loss"]
    exact = losses.pop("runs/tiny/step_00000004")
    for init, loss in losses.items():
      self.assertAlmostEqual(loss, exact, delta=2e-2, msg=init)
    self.assertEqual(len(set(losses.values()) | {exact}), 3)

  def test_lines(self):
    done = self.ok("--eval", "--lengths", "16,100,1040", eval__tokens=1100)
    entries = self.metrics(kind="eval")
    self.assertEqual([entry["length"] for entry in entries], [16, 100, 1040])
    for entry in entries:
      self.assertEqual(set(entry), EVALUATION)
      self.assertEqual(len(entry["by_position"]), len(entry["position_edges"]) - 1)
      self.assertAlmostEqual(entry["perplexity"], math.exp(entry["loss"]), places=9)
      self.assertIsNone(entry["bits_per_byte"])
    self.assertEqual([entry["of"]["tokens"] for entry in entries], [1088, 1100, 1040])
    self.assertEqual([entry["of"]["windows"] for entry in entries], [68, 11, 1])
    self.assertEqual([len(entry["window_losses"]) for entry in entries], [68, 11, 1])
    means = entries[1]["window_losses"]
    self.assertAlmostEqual(entries[1]["stderr"], statistics.stdev(means) / math.sqrt(11), places=6)
    self.assertIn(f"loss {entries[1]['loss']:.4f} +- {entries[1]['stderr']:.4f} |", done.stdout)
    self.assertIsNone(entries[2]["stderr"])
    self.assertIn(f"loss {entries[2]['loss']:.4f} |", done.stdout)

  def test_suffixes(self):
    done = self.ok("--eval", "--lengths", "48,8,16", eval__mode="suffix", eval__batch=3, eval__tokens=500)
    entries = self.metrics(kind="eval")
    rows = done.stdout[done.stdout.index("\neval") + 1:].splitlines()
    self.assertEqual([entry["length"] for entry in entries], [8, 16, 48])
    for entry, row in zip(entries, rows):
      self.assertEqual(set(entry), EVALUATION - {"last_loss", "position_edges", "by_position", "accuracy_by_position"} |
                       {"context_of", "suffix", "difference"})
      self.assertEqual((entry["mode"], entry["context_of"], entry["suffix"]), ("suffix", 48, 8))
      self.assertEqual((entry["of"]["windows"], entry["of"]["tokens"]), (10, 80))  # 500 / 48, and 8 of each
      gaps = [a - b for a, b in zip(entry["window_losses"], entries[0]["window_losses"])]
      self.assertEqual(entry["difference"]["from"], 8)
      self.assertAlmostEqual(entry["difference"]["loss"], statistics.mean(gaps), delta=1.5e-6)  # the lists are rounded
      self.assertAlmostEqual(entry["difference"]["stderr"], statistics.stdev(gaps) / math.sqrt(10), delta=1.5e-6)
      self.assertIn("last 8 of 48, context %5d | loss %.4f +- " % (entry["length"], entry["loss"]), row)
      difference = "%+.4f +- %.4f from context 8 |" % (entry["difference"]["loss"], entry["difference"]["stderr"])
      self.assertEqual(difference in row, entry["length"] > 8)
    self.bad("--eval", "--lengths", "8,3000", eval__mode="suffix", eval__tokens=4000, names=["length 3000", "val.bin"],
             wrote_nothing=False)

  def test_suffixes_without_attention_are_flat(self):
    """Scores of 0 give relu no weight, so no token sees another, and more context changes nothing but rounding."""
    for scale in (0, "rsqrt_d"):
      changes = dict(attention__variant="relu", attention__scale=scale, name=f"scale_{scale}", eval__mode="suffix")
      self.ok(**changes)
      self.ok("--eval", "--resume", "--lengths", "8,16,75", **changes)
      for entry in self.metrics(f"scale_{scale}", "eval")[1:]:
        self.assertEqual(abs(entry["difference"]["loss"]) < 1e-6 * entry["loss"], scale == 0, entry)
        self.assertEqual(entry["difference"]["stderr"] < 1e-6 * entry["loss"], scale == 0, entry)

  def test_what_a_line_is_of(self):
    self.ok()
    self.write("val_2.bin", shard(TEXT * 20))
    self.ok("--eval", "--resume")
    self.ok("--eval", "--resume", "--set", "data.val=[\"val_2.bin\", \"val.bin\"]", "--set", "eval.tokens=2000")
    self.ok("--eval", "--set", "init=runs/tiny/step_00000004/", "--set", "eval.rope_scaling=ntk")
    self.ok("--eval", "--set", "name=random")
    val, random = self.metrics(kind="val")[-1], self.metrics("random", "eval")[0]
    same, other, init = self.metrics(kind="eval")
    data = self.json_of(self.checkpoint(4, "state.json"))["data"]["val"]
    self.assertEqual((val["of"], val["weights"]),
                     ({"data": data, "tokens_asked": 256, "tokens": 256, "windows": 16, "precision": "fp32",
                       "rope_scaling": "none"}, {"run": "tiny", "path": "runs/tiny"}))
    self.assertEqual(data[0]["name"], "val.bin")
    self.assertEqual(same["weights"], {"run": "tiny", "path": "runs/tiny/step_00000004",
                                       "xxh64": self.metrics(kind="start")[-2]["identity"]["checkpoint"]})
    rest = [key for key in val if key not in ("type", "time", "weights")]
    self.assertEqual([same[key] for key in rest], [val[key] for key in rest])
    self.assertEqual([(file["name"], file["tokens"]) for file in other["of"]["data"]],
                     [("val.bin", 20 * len(TEXT[30:])), ("val_2.bin", 20 * len(TEXT))])
    self.assertEqual((other["of"]["tokens_asked"], other["of"]["tokens"]), (2000, 2000))
    self.assertEqual((init["of"], random["of"]), (val["of"], val["of"]))  # scaling counts beyond the trained length
    self.assertNotEqual(init["weights"].pop("xxh64"), random["weights"].pop("xxh64"))
    self.assertEqual((init["weights"], random["weights"]), ({"run": "tiny", "path": "runs/tiny/step_00000004"},
                                                            {"run": "random", "path": "random"}))
    self.assertEqual([line["tokens"] for line in (val, same, other, init, random)], [256, 256, 256, 0, 0])

  def test_bits_per_byte(self):
    tokens = 20 * len(TEXT[30:])
    self.write("val.json", json.dumps({"tokens": tokens, "bytes": 3 * tokens, "tokenizer": "gpt2"}))
    done = self.ok("--set", "data.val=val*")  # which is not the shard's companion
    val = self.metrics(kind="val")[-1]
    self.assertAlmostEqual(val["bits_per_byte"], val["loss"] / math.log(2) / 3, places=12)
    self.assertIn(f"| {val['bits_per_byte']:.4f} bits per byte |", done.stdout)
    self.assertEqual(done.stderr, "")
    self.write("val.json", json.dumps({"tokens": tokens - 1, "bytes": 3 * tokens}))
    for ranks in "12":
      done = self.ok("--eval", "--resume", "--gpus", ranks)
      self.assertRegex(done.stderr, f'^warning: .*"tokens" is {tokens - 1}, but the shard has {tokens} .*val.json.*\n$')
      self.assertIsNone(self.metrics(kind="eval")[-1]["bits_per_byte"])

  def test_windows_end_with_the_shard(self):
    self.write("val.bin", shard(TEXT[:100]))
    self.ok("--eval", "--lengths", "7,32", eval__tokens=100000)
    self.assertEqual([entry["of"]["tokens"] for entry in self.metrics(kind="eval")], [98, 96])

  def test_flat_mean_and_last_loss_agree_with_positions(self):
    self.ok("--eval", "--lengths", "16,64")
    for entry in self.metrics(kind="eval"):
      edges = entry["position_edges"]
      sizes = [after - first for first, after in zip(edges, edges[1:])]
      mean = sum(size * loss for size, loss in zip(sizes, entry["by_position"])) / entry["length"]
      self.assertAlmostEqual(entry["loss"], mean, places=5)
      self.assertAlmostEqual(entry["last_loss"], entry["loss"], places=6)  # the last 1024 positions are all of them

  def test_appends(self):
    self.ok()
    before = self.bytes_of("runs/tiny/metrics.jsonl")
    self.ok("--eval", "--lengths", "32", init="runs/tiny/step_00000004")
    after = self.bytes_of("runs/tiny/metrics.jsonl")
    self.assertTrue(after.startswith(before))
    self.assertIn(b'"eval"', after[len(before):])

  def test_rope_scaling_matters_only_beyond_the_trained_length(self):
    losses = {}
    for scaling in ("none", "linear", "ntk", "yarn"):
      self.ok("--eval", "--lengths", "16,64", name=scaling, eval__rope_scaling=scaling)
      losses[scaling] = [entry["loss"] for entry in self.metrics(scaling, "eval")]
    self.assertEqual(len({loss[0] for loss in losses.values()}), 1)
    self.assertEqual(len({loss[1] for loss in losses.values()}), 4)

  def test_a_window_in_evaluations_alone(self):
    self.ok()
    for window, sinks in ((0, 0), (64, 0), (16, 0), (12, 4)):
      self.ok("--eval", "--resume", "--lengths", "16,64", "--set", f"eval.window={window}", "--set",
              f"eval.sink_tokens={sinks}")
    lines = self.metrics(kind="eval")
    short, long = [line["loss"] for line in lines[::2]], [line["loss"] for line in lines[1::2]]
    self.assertEqual(len(set(short)), 1)
    self.assertEqual(long[0], long[1])
    self.assertEqual(len(set(long)), 3)
    self.assertEqual([(line["of"].get("window"), line["of"].get("sink_tokens")) for line in lines[1::2]],
                     [(None, None), (64, 0), (16, 0), (12, 4)])
    self.assertNotIn("window", lines[-2]["of"])

  def test_a_family_of_kernels_is_the_runs(self):
    for command in ((), ("--dry-run",), ("--eval",)):
      for family in ("hopper", "hopper_heads", "tensor"):
        self.bad(*command, attention__family=family,
                 names=[f'attention.family = "{family}" is not in this build: it is for GPUs', "or use general"])
    self.bad(attention__family="hoper", names=['attention.family = "hoper"', 'did you mean "hopper"'])
    self.bad(attention__family="onednn", names=['lacks kernels for precision = "fp32"'])
    plan = {"plan__memory": "8GiB", "attention__window": 4}
    self.ok("--dry-run", attention__family="hopper_heads", **plan)
    self.bad("--dry-run", attention__family="general", **plan, names=["a window, a bias or separate documents"])

    done = self.ok(attention__family="general", checkpoint__every=2)
    self.assertIn("attention: the kernels of general\n", done.stdout)
    self.assertEqual(self.json_of("runs/tiny/config.json")["attention"]["family"], "general")
    self.bad("--resume", "runs/tiny/step_00000002", wrote_nothing=False, checkpoint__every=2,
             names=['attention.family: "general" in the checkpoint, "" now'])
    self.train("runs/tiny", "--eval", "--set", "attention.family=null")
    self.assertEqual(self.metrics(kind="eval")[-1]["loss"], self.metrics(kind="val")[-1]["loss"])

  def test_rope_scaling_stays_out_of_training(self):
    weights = []
    for scaling in ("none", "yarn"):
      self.ok(name=scaling, eval__lengths=[16, 64], eval__rope_scaling=scaling)
      weights.append(self.bytes_of(self.model(scaling)))
    self.assertEqual(weights[0], weights[1])


class Products(Workspace):
  """Algorithms of matrix products, measured once and kept in the user's cache folder."""

  def setUp(self):
    super().setUp()
    self.choosing()

  def weights(self, *flags):
    done = self.ok("--overwrite", *flags)
    said = re.findall(r"^matrix products: (\d+) algorithms for CPU from (.+), the oldest measured on (\S+)$",
                      done.stdout, re.MULTILINE)
    return self.bytes_of(self.model()), said

  def test_kept_between_runs(self):
    first, said = self.weights()
    self.assertEqual(said, [])
    lines = self.choices()
    self.assertTrue(all(re.fullmatch(r"\d{4}-\d\d-\d\d", line[4]) for line in lines), lines)
    lines[3][4] = "2001-02-03"
    lines.append(["GPU", *lines[0][1:4], "2000-01-01"])  # of no concern
    file = "cache/plusgpt/matmul.txt"
    self.write(file, "".join("\t".join(line) + "\n" for line in lines))
    second, said = self.weights()
    self.assertEqual(said, [(str(len(lines) - 1), self.path(file), "2001-02-03")])
    self.assertTrue(second == first)
    self.assertEqual(self.choices(), lines)

  def test_measured_anew(self):
    first, _ = self.weights()
    lines = self.choices()
    second, said = self.weights("--remeasure")
    self.assertEqual(said, [])
    self.assertFalse(second == first)
    self.assertEqual(self.choices()[:len(lines)], lines)
    self.assertEqual([line[:3] for line in self.choices()], [line[:3] for line in lines] * 2)
    third, said = self.weights()  # takes what was measured last
    self.assertEqual(said[0][0], str(len(lines)))
    self.assertTrue(third == second)

  def test_a_checkpoint_has_its_own(self):
    expected, _ = self.weights("--set", "checkpoint.every=2")
    os.remove(self.path("cache/plusgpt/matmul.txt"))
    shutil.move(self.path("runs/tiny"), self.path("runs/before"))
    start = "runs/before/step_00000002"
    for flags, same in (((), True), (("--remeasure",), False)):
      weights, said = self.weights("--resume", start, *flags)
      self.assertEqual([line[1] for line in said], [start] if same else [])
      self.assertEqual(weights == expected, same)

  def test_a_cache_that_cannot_be_used(self):
    self.write("cache", "no folder")
    self.weights()
    os.remove(self.path("cache"))
    os.makedirs(self.path("cache/plusgpt/matmul.txt"))
    self.weights()

  def test_an_unknown_choice(self):
    self.set("PLUSGPT_MATMUL", "chose")
    self.bad(names=["PLUSGPT_MATMUL", "chose"])

  def test_an_unknown_order_of_streams(self):
    self.set("PLUSGPT_STREAMS", "later")
    self.bad(names=["PLUSGPT_STREAMS=later", "at_once, late, or random"])


class Sweeps(Workspace):
  """scripts/sweep.py"""

  def setUp(self):
    super().setUp()
    self.write("base.json", json.dumps({key: value for key, value in CONFIG.items() if key != "name"}))
    self.sweep_file(axes={"attention.variant": ["softmax", "lssa"]}, chart="lengths", set={"eval.lengths": [16, 32]})

  def sweep_file(self, **entries):
    self.write("s.json", json.dumps({"config": "base.json", "seeds": [1, 2], **entries}))

  def start(self, *flags, train=TRAIN):
    return subprocess.Popen([sys.executable, os.path.join(ROOT, "scripts", "sweep.py"), "s.json", *flags],
                            cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, "TRAIN": train})

  def asked_only(self):
    """A ./train that says what its settings are, and trains nothing."""
    self.write("asked",
               f'#!/bin/sh\nfor last; do :; done\n[ "$last" = --print-config ] && exec "{TRAIN}" "$@"\nexit 1\n')
    os.chmod(self.path("asked"), 0o755)
    return self.path("asked")

  def sweep(self, *flags, train=TRAIN, code=0):
    """The table of losses."""
    process = self.start(*flags, train=train)
    output, errors = process.communicate(timeout=300)
    self.assertEqual(process.returncode, code, errors)
    self.assertNotIn("Traceback", errors)
    return output.partition("\n\n")[0]

  def test_evaluations_share_one_training(self):
    self.sweep_file(axes={"what": {"all keys": {"attention.variant": "softmax"},
                                   "last 4": {"attention.variant": "softmax", "eval.window": 4}}},
                    seeds=[1], chart="lengths", set={"eval.lengths": [16, 32], "optimizer.lr": 0.05})
    for flags in (), ("--set", "eval.mode=suffix"):
      self.sweep(*flags, "--results", "r.json")
      whole, window = (entry["losses"] for entry in self.json_of("r.json")["runs"])
      self.assertEqual(whole["16"], window["16"])  # at the trained length the window does not count
      self.assertNotEqual(whole["32"], window["32"])
    trained = [name for name in os.listdir(self.path("runs")) if os.path.exists(self.path(f"runs/{name}/config.json"))]
    self.assertEqual((len(trained), len([name for name in os.listdir(self.path("runs")) if "." not in name])), (1, 4))

  def test_a_rate_that_diverges(self):
    self.sweep_file(axes={"optimizer.lr": [100, 0.01], "optimizer.weight_decay": [0, 0.1]}, chart="lr", seeds=[1],
                    set={"train.steps": 100, "optimizer.grad_clip": 0, "eval.every": 1000})
    rows = [row.split(" | ") for row in self.sweep().splitlines()[2:]]
    for row in rows:
      self.assertEqual(row[1], "diverged")
      self.assertRegex(row[2], r"^\d\.\d{3}$")
    self.assertEqual([row.split(" | ") for row in self.sweep(train=self.asked_only()).splitlines()[2:]], rows)

  def test_killed_at_random_moments(self):
    self.sweep_file(axes={"attention.variant": ["softmax", "lssa"], "optimizer.lr": [0.01, 0.02]}, set={
        "train.steps": 60, "checkpoint.every": 10, "model.channels": 32})
    began = time.monotonic()
    expected = self.sweep("--set", "eval.every=60", "--results", "straight.json")
    duration, kills, chance = time.monotonic() - began, 5, random.Random(5)
    shutil.rmtree(self.path("runs"))
    while kills:
      process = self.start("--set", "eval.every=60", "--results", "killed.json")
      try:
        process.wait(chance.uniform(0.1, 0.4) * duration)
        if kills < 5:
          break  # complete
        duration /= 2  # the machine has become faster: it was never killed
        shutil.rmtree(self.path("runs"))
      except subprocess.TimeoutExpired:
        process.kill()  # the run saves and ends, perhaps while the next sweep waits for it
        kills -= 1
      finally:
        process.communicate()
    self.assertEqual(self.sweep("--set", "eval.every=60", "--results", "killed.json"), expected)
    straight, killed = ({**self.json_of(name), "command": None} for name in ("straight.json", "killed.json"))
    self.assertEqual(killed, straight)
    self.assertEqual(len(straight["runs"]), 8)


class Generation(Workspace):
  def test_learns_the_text(self):
    self.ok(train__steps=300, eval__every=0, model__channels=32, batch__tokens=128)
    done = self.ok("--generate", "it was the ", init="runs/tiny/step_00000300", model__channels=32,
                   generate__temperature=0, generate__tokens=24)
    self.assertRegex(done.stdout, "it was the (best of times|worst of times|age of)")

  def test_during_training(self):
    done = self.ok(generate__every=2, generate__prompt="it was")
    self.assertIn("it was", done.stdout)

  def test_no_other_line_comes_into_a_text(self):
    done = self.ok(generate__every=1, generate__prompt="it was", generate__tokens=100, checkpoint__every=1)
    saved = re.findall(r"(.?)saved runs/", done.stdout, re.DOTALL)
    self.assertGreater(len(saved), 3)
    self.assertEqual(set(saved), {"\n"})

  def test_missing_tokenizer(self):
    self.bad("--generate", "x", names=["tokenizer"], generate__tokenizer="gpt2")
    self.bad("--generate", "x", names=["tokenizer_dir", "absent"], generate__tokenizer="gpt2",
             generate__tokenizer_dir="absent")
    self.ok(generate__tokenizer="gpt2")  # checked only when text is generated

  def test_vocabulary_without_bytes(self):
    self.bad("--generate", "x", names=["vocab", "100"], model__vocab=100)
