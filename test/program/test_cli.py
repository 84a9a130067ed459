"""Bad input of every sort, through the real ./train: exit code 2, a text that names the key or file and the value,
nothing that looks like a crash, and nothing written.
"""
import itertools
import json
import os
import re
import shutil
import subprocess
import time

from support.workspace import TEXT, TRAIN, Workspace, read_safetensors, shard, write_safetensors


class BadShards(Workspace):
  """test/data/data_test.cpp has every damage: here are those that only ./train can name by its settings."""

  def test_one_of_each_kind(self):
    os.mkdir(self.path("folder"))
    self.write("truncated.bin", shard(TEXT * 6)[:-2])
    self.write("text.bin", TEXT * 20)
    self.write("short.bin", shard(TEXT[:16]))
    self.write("bad.bin", shard(list(TEXT) + [300] + list(TEXT)))
    for changes, names in (
        ({"data__train": "truncated.bin"}, ["data.train", "truncated.bin", str(len(TEXT * 6))]),
        ({"data__train": "folder"}, ["data.train", "folder"]),
        ({"data__train": "nowhere/*.bin"}, ["data.train", r"nowhere/\*\.bin"]),
        ({"data__train": "short.bin"}, ["data.train", "short.bin", "context"]),
        ({"data__train": None}, ["data.train"]),
        ({"data__val": ["val.bin", "text.bin"]}, ["data.val", "text.bin", "20240520"]),
        ({"data__val": ["val.bin", "bad.bin"]}, ["bad.bin", "300", "vocab"]),
        ({"data__val": "short.bin"}, ["data.val", "short.bin"]),
        ({"data__val": None}, ["data.val"]),
        ({"eval__lengths": [64], "eval__tokens": 63}, ["eval.tokens", "64"]),
        ({"model__vocab": 100}, ["train_000000.bin", "model.vocab", "100"])):
      with self.subTest(**changes):
        self.bad(names=names, **changes)

  def test_a_dry_run_reads_all_tokens(self):
    self.assertRegex(self.ok("--dry-run").stdout,
                     "data.train: 960 of 960 tokens read, all .*\ndata.val: 800 of 800 tokens")
    for name, tokens in (("train_000001.bin", list(TEXT * 30)), ("val.bin", list(TEXT * 20000))):
      tokens[-2] = 300
      self.write(name, shard(tokens))
      self.bad("--dry-run", names=[f"{name} holds token 300 at position {len(tokens) - 2}, but"])
      self.write(name, shard(TEXT * 10))


class BadConfig(Workspace):
  """test/settings/config_errors_test.cpp has every value and text: here they are printed, and nothing is written."""

  def test_one_of_each_kind(self):
    for config, names in (
        ('{\n "name": "x",\n "seed": }', ["config.json", "line 3|:3"]), ("[]", ["config.json"]),
        ('{"a": ' * 5000, ["config.json"]), ('{"seed": 1,\n "seed": 2}', ["seed", "twice"])):
      self.bad(config=config, names=names)
    for changes, names in (
        ({"model__chanels": 16}, ["model.chanels", 'did you mean "(model\\.)?channels"']),
        ({"model__layers": "four"}, ["model.layers", "four", "config.json"]),
        ({"optimizer__lr": -1}, ["optimizer.lr"]),
        ({"attention__kind": "lsar"}, ["attention.kind", "lsar", "softmax", 'did you mean "lssar"', "config.json"]),
        ({"model__heads": 3}, ["model.channels", "model.heads", "16", "3", "head_dim"]),
        ({"batch__micro": 3}, ["batch.tokens", "64", "micro", "3"]),
        ({"train__tokens": 1000}, ["train.steps", "train.tokens"]),
        ({"name": "a/b"}, ["name"]),
        ({"model__position": "learned", "eval__lengths": [16, 32]}, ["eval.lengths", "32", "learned", "16"])):
      self.bad(names=names, **changes)
    text = json.dumps({"name": "x", "sed": 1})
    self.bad(config=text.encode("utf-8-sig"), names=["sed", "seed"])  # it is read
    for encoding in ("utf-16", "utf-16-be", "utf-32"):
      self.bad(config=text.encode(encoding), names=["is UTF-(16|16BE|32) text; .*iconv", "config.json"])
    self.bad("--set", "model.layers=four", names=["model.layers", "four", "--set"])
    self.bad("--eval", "--lengths", "32", model__position="learned", names=["--lengths", "32", "learned", "16"])

  def test_no_configuration(self):
    for arguments, part in ((["absent.json"], "absent.json"), ([], "CONFIG|--help"), (["."], r"config\.json")):
      self.assertRegex(self.train(*arguments, code=2).stderr, part)

  def test_long_lists_take_no_longer_than_they_are(self):
    start = time.monotonic()
    self.ok("--print-config", config='{"_comment": [' + ",".join(["{}"] * 300000) + "]}")
    self.assertLess(time.monotonic() - start, 10)  # quadratic time would be half a minute

  def test_more_memory_than_there_is(self):
    large = {"model__channels": 16384, "model__layers": 200, "model__heads": 64}
    self.bad(**large, names=["memory", "TiB"])
    self.bad("--dry-run", **large, names=["memory", "TiB"])
    self.bad(batch__micro=65535, batch__tokens=65535 * 16, model__layers=12, model__channels=2048, model__heads=16,
             names=["memory", "batch.micro"])

  def test_bad_lengths_flag(self):
    for lengths in ("abc", "16,", "0", "-16", "16;32", "1e9"):
      with self.subTest(lengths=lengths):
        self.bad("--eval", "--lengths", lengths, names=["--lengths"])


class BadFlags(Workspace):
  def test_unknown_flags(self):
    self.bad("--dryrun", names=["--dryrun", 'did you mean "?--dry-run'])
    self.bad("--generat", "x", names=["--generat", "--generate"])
    self.bad("--xyzzy", names=["--xyzzy"])
    self.bad("other.json", names=["one configuration at a time"])
    for key, flags in (("seed", ["--seed", "3"]), ("train.steps", ["--steps", "5"]),
                       ("optimizer.warmup_steps", ["--warmup-steps", "5"])):
      self.bad(*flags, names=[f"{flags[0]} is unknown; a setting is given as --set {key}=VALUE\n$"])
    self.bad("--optimizer.lr=1e-3", names=["given as --set optimizer.lr=1e-3\n$"])
    self.bad("--lr", "1e-3", "--help", names=["--lr is unknown; .* --set optimizer.lr"])
    self.bad("--tokens", names=["--set batch.tokens=VALUE or --set train.tokens=VALUE or "])
    self.bad("--", "-", "--=", names=["- is unknown"])

  def test_words_that_miss_a_sign(self):
    self.bad("--eval", "--lengths", "128", "256", names=["--lengths takes one list, with commas: --lengths 128,256\n$"])
    self.bad("optimizer.lr=3", names=["needs --set: --set optimizer.lr=3\n$"])
    self.bad("--set", "optimizer.lr", "1e-3", names=['has no "="; write --set optimizer.lr=VALUE\n$'])

  def test_control_characters(self):
    for flags in (("--resume", "a\x1b]0;title\x07"), ("--set", "seed=3\nsaved runs/fake"), ("--eval\x1b[2J",),
                  ("generate.prompt=a\nb",)):
      self.bad(*flags, names=[re.escape(json.dumps(flags[-1])) + " has control characters\n$"])
    self.ok("--generate", "a\nb", "--set=generate.stop=\n", "--set", "generate.prompt=\n")

  def test_missing_values(self):
    self.bad("--set", names=["--set"])
    self.bad("--generate", names=["--generate"])
    self.bad("--dump-gradients", names=["--dump-gradients"])

  def test_random_weights_where_there_are_checkpoints(self):
    self.ok()
    before = self.run_files()
    for flags in (["--eval"], ["--generate", "a"], ["--eval", "--gpus", "2"]):
      self.bad(*flags, names=["runs/tiny has checkpoints", "give --resume, or --set init=DIR"], wrote_nothing=False)
    self.assertEqual(before, self.run_files())
    for way_out in (["--resume"], ["--set", "init=runs/tiny/step_00000004"], ["--set", "name=other"]):
      self.ok("--eval", *way_out)

  def test_number_of_gpus(self):
    self.bad("--gpus", "many", names=["--gpus", "many"])
    self.bad("--gpus", "0", names=["--gpus 0"])

  def test_existing_run_is_not_overwritten(self):
    self.ok()
    before = self.run_files()
    self.bad(names=["runs/tiny", "--overwrite"], wrote_nothing=False)
    self.bad("--set", "seed=7", names=["runs/tiny", "--overwrite"], wrote_nothing=False)
    self.assertEqual(before, self.run_files())
    self.ok("--overwrite", "--set", "seed=7")
    self.assertNotEqual(before[os.path.relpath(self.model(), self.folder)], self.bytes_of(self.model()))
    self.assertEqual([entry["step"] for entry in self.metrics(kind="train")], [1, 2, 3, 4])

  def test_empty_values_and_flags_with_values(self):
    self.bad("--dump-gradients", "", names=["--dump-gradients"])
    self.bad("--encode", "vocabulary", names=["CONFIG excludes --encode"])
    self.bad("--eval", "--lengths", "", names=["--lengths"])
    self.bad("--encode", "", names=["--encode: needs the folder"])
    for flag in ("--eval", "--dry-run", "--print-config", "--overwrite", "--remeasure"):
      for value in ("false", "true"):
        self.bad(f"{flag}={value}", names=[f"{flag}={value}: the flag takes no value"])

    for flag in ("--dump-gradients", "--predict", "--per-token-losses", "--tasks", "--generate-file", "--lengths",
                 "--gpus", "--set", "--resume", "--encode"):
      self.bad(f"{flag}=", "--overwrite", names=[flag])  # which does not become the value
      if flag != "--resume":
        self.bad(flag, "--overwrite", names=[f"{flag} needs a value, but is followed by --overwrite; .* {flag}=--over"])
    self.assertFalse([name for name in os.listdir(self.folder) if name.startswith("-")])
    self.ok("--set", "train.steps=1")
    for flag in ("--generate=", "--generate=--resume"):
      done = self.train("runs/tiny", flag, "--set", "generate.tokens=1")
      self.assertEqual(done.stdout.count("--resume"), flag.count("--resume"))

  def test_flags_that_need_or_exclude_others(self):
    self.bad("--lengths", "16", names=["--lengths", "--eval", "--passkey"])
    modes = (["--eval"], ["--passkey"], ["--tasks", "a"], ["--generate", "a"], ["--generate-file", "a"], ["--dry-run"],
             ["--print-config"], ["--dump-gradients", "x"])
    for one, other in itertools.combinations(modes, 2):
      if other == ["--dry-run"] and one[0] in ("--eval", "--passkey", "--tasks"):
        continue  # a plan of it
      self.bad(*one, *other, names=[one[0], other[0], "excludes"])

  def test_output_that_cannot_be_written(self):
    self.ok("--print-config")
    for arguments in (["config.json", "--print-config"], ["--help"]):
      with open("/dev/full", "w") as full:
        done = subprocess.run([TRAIN, *arguments], cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True)
      self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
      self.assertIn("standard output", done.stderr)

  def test_closed_input_and_output(self):
    self.ok("--print-config")
    for flags in ("--encode .", "config.json --print-config", "config.json --generate x",
                  "config.json --generate-file x"):
      done = subprocess.run(["sh", "-c", f'exec "{TRAIN}" {flags} >&-'], cwd=self.folder,
                            capture_output=True, text=True)
      self.assertEqual((done.returncode, done.stderr), (1, "standard output is closed\n"))
    done = subprocess.run(["sh", "-c", f'exec "{TRAIN}" config.json <&- >&- 2>&-'], cwd=self.folder)
    self.assertEqual(done.returncode, 0)
    self.assertRegex(self.bytes_of("runs/tiny/.lock"), rb"^pid \d+\n$")
    self.assertEqual(len(self.metrics(kind="train")), 4)

  def test_samples_that_cannot_be_made(self):
    self.bad(generate__every=2, generate__tokenizer="gpt2", names=["generate.tokenizer_dir"])
    self.bad(generate__every=2, generate__prompt="zzz", model__vocab=122, names=["generate.tokenizer", "122"])
    self.bad("--generate", "x", model__vocab=50257, names=["generate.tokenizer", "256 tokens", "model.vocab = 50257"])
    self.ok("--generate", "x", model__vocab=264)

  def test_only_what_runs_is_checked(self):
    long = {"eval__lengths": [999999]}
    self.bad(**long, names=["eval.lengths"])
    self.ok("--generate", "h", **long)
    self.ok("--dump-gradients", "gradients.safetensors", **long)
    self.ok("--eval", "--lengths", "16", **long)

  def test_gradients_that_are_not_numbers(self):
    done = self.call("--dry-run", attention__gate={"activation": "exp", "bias_init": 1e6})
    self.assertEqual(done.returncode, 1, done.stdout)
    self.assertIn("training cannot start from here", done.stderr)

  def test_gradients_into_a_folder_that_is_not_there(self):
    self.bad("--dump-gradients", "absent/gradients.safetensors", names=["absent"])


class BadInit(Workspace):
  def setUp(self):
    super().setUp()
    self.ok("--set", "name=first", "--set", "train.steps=1")
    self.tensors = read_safetensors(self.model("first", 1))
    shutil.rmtree(self.path("runs"))

  def test_absent(self):
    self.bad(names=["init", "start", "model.safetensors"], init="start")
    os.mkdir(self.path("start"))
    self.bad(names=["init", "start", "model.safetensors"], init="start")

  def test_other_tensors_and_a_damaged_file(self):
    """test/checkpoint/safetensors_test.cpp has more of the second."""
    attention, bias = "h.0.attn.c_attn.weight", "ln_f.bias"
    dtype, shape, data = self.tensors[attention]
    for changes, names in (
        ({"h.1.ln_2.bias": None}, ["h.1.ln_2.bias", "missing|not there|lacks"]),
        ({"h.2.ln_1.bias": self.tensors["h.1.ln_1.bias"]}, ["h.2.ln_1.bias"]),
        ({attention: (dtype, shape[::-1], data)}, [attention, "16", "48"]),
        ({bias: ("I32", *self.tensors[bias][1:])}, [bias, "I32", "BF16"])):
      with self.subTest(names):
        tensors = {name: tensor for name, tensor in {**self.tensors, **changes}.items() if tensor}
        write_safetensors(self.path("start", "model.safetensors"), tensors)
        self.bad(names=["model.safetensors", *names], init="start")
    self.write("start/model.safetensors", self.bytes_of("start/model.safetensors")[:-1])
    self.bad(names=["model.safetensors", "cut short"], init="start")

  def test_what_a_checkpoint_says_of_itself(self):
    """Damage ends the run; other attention is warned of, whatever the context divides."""
    start = {"model__context": 24, "batch__tokens": 48, "train__steps": 1, "optimizer__warmup_steps": 0}
    self.ok("--set", "name=first", **start, attention__variant="lssar")
    start["init"] = "runs/first/step_00000001"
    self.assertIn('attention.kind = "lssar" (here "softmax")', self.ok("--overwrite", **start).stderr)
    self.assertEqual(self.ok("--overwrite", **start, attention__variant="lssar").stderr, "")
    weights = bytearray(self.bytes_of(start["init"] + "/model.safetensors"))
    weights[-3] ^= 1
    self.write(start["init"] + "/model.safetensors", bytes(weights))
    self.bad(names=["init", "has the checksum", "state.json"], wrote_nothing=False, **start)
    os.remove(self.path(start["init"], "state.json"))
    self.ok("--overwrite", **start)

  def test_another_size_of_model(self):
    write_safetensors(self.path("start", "model.safetensors"), self.tensors)
    self.bad(names=["model.safetensors", "wte.weight|channels"], init="start", model__channels=32)
    self.bad(names=["model.safetensors", "wpe.weight"], init="start", model__position="learned")
