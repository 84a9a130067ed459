"""Bad input of every sort, through the real ./train: exit code 2, a text that names the key or file and the value,
nothing that looks like a crash, and nothing written.
"""
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import time

from support.workspace import TEXT, TRAIN, Workspace, read_safetensors, shard, write_safetensors


class BadShards(Workspace):
  def test_damage(self):
    whole = shard(TEXT * 6)
    for what, name, content, names in (
        ("truncated", "train_000000.bin", whole[:-2], [str(len(TEXT * 6))]),
        ("truncated within the header", "val.bin", shard(TEXT)[:1000], []),
        ("empty", "val.bin", b"", []),
        ("oversized", "train_000001.bin", whole + b"\0\0", []),
        ("wrong magic", "train_000000.bin", shard(TEXT * 6, magic=20240521), ["20240521", "20240520"]),
        ("not a shard at all", "val.bin", TEXT * 20, ["20240520"]),
        ("wrong version", "train_000000.bin", shard(TEXT * 6, version=2), ["version"]),
        ("negative count", "train_000000.bin", shard(TEXT * 6, count=-5), ["-5"]),
        ("huge count", "train_000000.bin", shard(TEXT * 6, count=2**31 - 1), ["2147483647"]),
        ("token out of range", "train_000000.bin", shard([256] + list(TEXT * 6)), ["256", "vocab"])):
      with self.subTest(what):
        kept = self.bytes_of(name)
        self.write(name, content)
        self.bad(names=["data.val" if name == "val.bin" else "data.train", name, *names])
        self.write(name, kept)

  def test_token_in_the_middle_out_of_range(self):
    # Found as the shard is read: the run may have begun, but it ends without a checkpoint.
    tokens = list(TEXT * 6)
    for position in range(100, len(tokens), 50):
      tokens[position] = 60000
    self.write("train_000000.bin", shard(tokens))
    self.bad(names=["train_000000.bin", "60000", "vocab"], wrote_nothing=False)
    self.assertFalse(os.path.exists(self.model()))

  def test_token_in_the_validation_shard_out_of_range(self):
    self.write("val.bin", shard(list(TEXT) + [300] + list(TEXT)))
    self.bad(names=["val.bin", "300", "vocab"], wrote_nothing=False)
    self.assertFalse(os.path.exists(self.model()))

  def test_a_dry_run_reads_all_tokens(self):
    self.assertRegex(self.ok("--dry-run").stdout, "data.train: 960 of 960 tokens read, all .*\ndata.val: 800 of 800 tokens")
    for name, tokens in (("train_000001.bin", list(TEXT * 30)), ("val.bin", list(TEXT * 20000))):
      tokens[-2] = 300
      self.write(name, shard(tokens))
      self.bad("--dry-run", names=[f"{name} holds token 300 at position {len(tokens) - 2}, but"])
      self.write(name, shard(TEXT * 10))

  def test_smaller_vocabulary_than_the_shard(self):
    self.bad(names=["train_000000.bin", "model.vocab", "100"], model__vocab=100)

  def test_glob_without_match(self):
    self.bad(names=["data.train", r"nowhere/\*\.bin"], data__train="nowhere/*.bin")
    self.bad(names=["data.val", "absent.bin"], data__val=["val.bin", "absent.bin"])

  def test_a_folder(self):
    os.mkdir(self.path("folder"))
    self.bad(names=["data.train", "folder"], data__train="folder")

  def test_no_data_named(self):
    self.bad(names=["data.train"], data__train=None)
    self.bad(names=["data.val"], data__val=None)

  def test_shorter_than_a_window(self):
    self.write("train_short.bin", shard(TEXT[:16]))
    self.bad(names=["data.train", "train_short.bin", "context"], data__train="train_short.bin")
    self.write("val.bin", shard(TEXT[:60]))
    self.bad(names=["data.val", "val.bin", "64"], eval__lengths=[16, 64])

  def test_budget_below_a_window(self):
    self.bad(names=["eval.tokens", "64"], eval__lengths=[64], eval__tokens=63)


class BadConfig(Workspace):
  def test_no_configuration(self):
    for arguments, part in ((["absent.json"], "absent.json"), ([], "CONFIG|--help"), (["."], r"config\.json")):
      self.assertRegex(self.train(*arguments, code=2).stderr, part)

  def test_malformed_json(self):
    for third_line in ('"seed": 1,,\n}', '"seed": }', '"seed": 01\n}'):
      self.bad(config='{\n "name": "x",\n ' + third_line, names=["config.json", "line 3|:3"])
    for text in ("", "{", '{"name": "x"', '{"name": "x"} {}', "[1", "\xff\xfe{}", '{"a": ' * 5000, "nonsense"):
      self.bad(config=text, names=["config.json"])

  def test_not_an_object(self):
    for text in ("[]", "3", '"softmax"', "null", '{"model": 3}', '{"model": []}', '{"attention": {"gate": "sigmoid"}}'):
      self.bad(config=text, names=["config.json"])

  def test_key_given_twice(self):
    self.bad(config='{"seed": 1,\n "seed": 2}', names=["seed", "twice"])

  def test_unknown_keys(self):
    self.bad(modle={"layers": 2}, names=["modle", 'did you mean "model"'])
    self.bad(model__chanels=16, names=["model.chanels", 'did you mean "(model\\.)?channels"'])
    self.bad(attention__gate__activaton="relu", names=["attention.gate.activaton", "activation"])
    self.bad(qwertyuiop=1, names=["qwertyuiop"])
    self.bad("--set", "optimizer.learning=1", names=["optimizer.learning"])
    self.bad("--set", "model.layer=1", names=["model.layer", 'did you mean "model.layers"'])

  def test_wrong_types(self):
    self.bad(model__layers="four", names=["model.layers", "four", "config.json"])
    self.bad(model__layers=2.5, names=["model.layers", "2.5"])
    self.bad(model__layers=True, names=["model.layers", "true"])
    self.bad(data__shuffle="yes", names=["data.shuffle", "yes"])
    self.bad(data__train=7, names=["data.train", "7"])
    self.bad(optimizer__lr=[1e-3], names=["optimizer.lr"])
    self.bad(eval__lengths="long", names=["eval.lengths", "long"])
    self.bad(eval__lengths=[16, "x"], names=["eval.lengths", "x"])
    self.bad(name=5, names=["name", "5"])
    self.bad("--set", "model.layers=four", names=["model.layers", "four", "--set"])
    self.bad("--set", "data.shuffle=maybe", names=["data.shuffle", "maybe"])
    self.bad("--set", "optimizer.lr=fast", names=["optimizer.lr", "fast"])
    self.bad("--set", "model.layers", names=["model.layers", "="])

  def test_out_of_range(self):
    for key, values in {
        "model.layers": (0, -2, 10**30), "model.heads": (0,), "model.vocab": (0, 100000), "model.context": (0,),
        "model.rope_base": (0,), "model.head_dim": (1000,), "optimizer.lr": (-1, 1e300), "optimizer.beta1": (1,),
        "optimizer.beta2": (1.5,), "optimizer.weight_decay": (-0.1,), "optimizer.grad_clip": (-1,),
        "optimizer.final_lr_fraction": (2,), "train.steps": (-1,), "train.zero_stage": (2,), "batch.tokens": (0,),
        "batch.micro": (-3,), "threads": (-1,), "seed": (-1,), "eval.every": (-1,), "eval.lengths": ([0], [-16]),
        "generate.temperature": (-1,), "checkpoint.keep": (0,)}.items():
      for value in values:
        with self.subTest(key=key, value=value):
          self.bad(names=[re.escape(key)], **{key.replace(".", "__"): value})

  def test_long_lists_take_no_longer_than_they_are(self):
    start = time.monotonic()
    self.ok("--print-config", config='{"_comment": [' + ",".join(["{}"] * 300000) + "]}")
    self.assertLess(time.monotonic() - start, 10)  # quadratic time would be half a minute

  def test_unknown_choices(self):
    self.bad(attention__kind="lsar", names=["attention.kind", "lsar", "softmax", 'did you mean "lssar"', "config.json"])
    self.bad(attention__variant="soft", names=["attention.variant", "soft", "softmax"])
    self.bad(model__position="absolute", names=["model.position", "absolute", "learned"])
    self.bad(optimizer__schedule="cosin", names=["optimizer.schedule", 'did you mean "cosine"'])
    self.bad(precision="fp8", names=["precision", "fp8", "bf16"])
    self.bad(generate__tokenizer="byte", names=["generate.tokenizer", "bytes"])

  def test_impossible_shapes(self):
    self.bad(model__heads=3, names=["model.channels", "model.heads", "16", "3", "head_dim"])
    self.bad(model__head_dim=7, names=["head_dim", "7", "even|odd"])
    self.bad(model__channels=12, model__heads=2, names=["model.channels", "12", "8"])
    self.bad(model__mlp_ratio=3.3, names=["mlp_ratio", "3.3", "8"])

  def test_impossible_batch(self):
    self.bad(batch__tokens=80, names=["batch.tokens", "80", "micro", "context"])
    self.bad(batch__tokens=65, batch__micro=None, names=["batch.tokens", "65", "context"])
    self.bad(batch__micro=3, names=["batch.tokens", "64", "micro", "3"])

  def test_lengths_beyond_learned_positions(self):
    self.bad(model__position="learned", eval__lengths=[16, 32], names=["eval.lengths", "32", "learned", "16"])
    self.bad("--eval", "--lengths", "32", model__position="learned", names=["--lengths", "32", "learned", "16"])

  def test_steps_and_tokens(self):
    self.bad(train__tokens=1000, names=["train.steps", "train.tokens"])

  def test_more_memory_than_there_is(self):
    large = {"model__channels": 16384, "model__layers": 200, "model__heads": 64}
    self.bad(**large, names=["memory", "TiB"])
    self.bad("--dry-run", **large, names=["memory", "TiB"])
    self.bad(batch__micro=65535, batch__tokens=65535 * 16, model__layers=12, model__channels=2048, model__heads=16,
             names=["memory", "batch.micro"])

  def test_name_must_stay_below_runs(self):
    for name in ("a/b", "..", ".", "/tmp/x"):
      with self.subTest(name=name):
        self.bad(name=name, names=["name"])

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
    for key, flags in (("seed", ["--seed", "3"]), ("train.steps", ["--steps", "5"]), ("optimizer.warmup_steps", ["--warmup-steps", "5"])):
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
    for flags in (("--resume", "a\x1b]0;title\x07"), ("--set", "seed=3\nsaved runs/fake"), ("--eval\x1b[2J",), ("generate.prompt=a\nb",)):
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

  def test_flags_that_need_or_exclude_others(self):
    self.bad("--lengths", "16", names=["--lengths", "--eval", "--passkey"])
    modes = (["--eval"], ["--passkey"], ["--tasks", "a"], ["--generate", "a"], ["--generate-file", "a"], ["--dry-run"], ["--print-config"], ["--dump-gradients", "x"])
    for one, other in itertools.combinations(modes, 2):
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
    for flags in ("--encode .", "config.json --print-config", "config.json --generate x", "config.json --generate-file x"):
      done = subprocess.run(["sh", "-c", f'exec "{TRAIN}" {flags} >&-'], cwd=self.folder, capture_output=True, text=True)
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

  def test_other_tensors(self):
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

  def test_another_size_of_model(self):
    write_safetensors(self.path("start", "model.safetensors"), self.tensors)
    self.bad(names=["model.safetensors", "wte.weight|channels"], init="start", model__channels=32)
    self.bad(names=["model.safetensors", "wpe.weight"], init="start", model__position="learned")

  def test_damaged_files(self):
    write_safetensors(self.path("start", "model.safetensors"), self.tensors)
    whole = self.bytes_of("start/model.safetensors")
    length = struct.unpack("<Q", whole[:8])[0]
    header = whole[8:8 + length]
    damaged = {
        "empty": b"", "short": whole[:5], "no data": whole[:8 + length], "truncated": whole[:-1],
        "longer": whole + b"\0", "huge header": struct.pack("<Q", 2**63) + whole[8:],
        "header beyond the file": struct.pack("<Q", len(whole)) + whole[8:],
        "not JSON": whole[:8] + b"x" * length + whole[8 + length:], "JSON list": struct.pack("<Q", 2) + b"[]",
        "offsets beyond the file": whole[:8] + re.sub(rb"\[0, \d", b"[0, 9", header) + whole[8 + length:],
    }
    for name, content in damaged.items():
      with self.subTest(name):
        self.write("start/model.safetensors", content)
        self.bad(names=["model.safetensors"], init="start")
