"""The files of a step_N folder for Hugging Face transformers, read without that library: scripts/compare.py
transformers opens the folders with it. test_runs.py tests that runs start from such files. Standard library only, but
for a comparison of tokens where transformers is installed.
"""
import ast
import json
import math
import os
import py_compile
import re
import struct
import subprocess

from support.workspace import ROOT, TRAIN, Workspace, read_safetensors

try:
  import transformers
except ImportError:
  transformers = None

SOURCE = os.path.join(ROOT, "scripts", "modeling_plusgpt.py")
GPT2 = {"model__position": "learned", "train__steps": 1, "eval__every": 0}


class Trained(Workspace):
  def trained(self, **changes):
    """The folder of a model, and its config.json."""
    self.ok("--overwrite", **{**GPT2, **changes})
    return self.checkpoint(1), self.json_of(self.checkpoint(1, "config.json"))


class Interchange(Trained):
  def test_gpt2_opens_as_transformers_gpt2(self):
    folder, config = self.trained(model__mlp_ratio=3.5)
    own = config.pop("plusgpt")
    self.assertEqual(config, {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 2, "n_embd": 16,
        "n_inner": 56, "n_positions": 16, "n_ctx": 16, "vocab_size": 256, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
        "resid_pdrop": 0.0, "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": None,
        "eos_token_id": None})
    self.assertEqual(set(own), {"model", "attention"})
    self.assertEqual(sorted(os.listdir(folder)),
                     ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"])

  def test_everything_else_brings_its_model(self):
    folder, config = self.trained(model__position="rope")
    self.assertEqual((config["model_type"], config["architectures"]), ("plusgpt", ["PlusGPTLMHeadModel"]))
    path = os.path.join(folder, "modeling_plusgpt.py")
    self.assertEqual(self.bytes_of(path), self.bytes_of(SOURCE))
    py_compile.compile(path, cfile=self.path("compiled"), doraise=True)
    classes = {node.name for node in ast.parse(self.bytes_of(path)).body if isinstance(node, ast.ClassDef)}
    self.assertEqual(set(config["auto_map"]), {"AutoConfig", "AutoModelForCausalLM"})
    for name in config["auto_map"].values():
      module, _, cls = name.partition(".")
      self.assertEqual(module, "modeling_plusgpt")
      self.assertIn(cls, classes)

  def test_the_model_finds_its_settings(self):
    _, config = self.trained(attention__variant="lssar_softplus_gated")
    text = self.text_of(SOURCE)
    attention, model = config["plusgpt"]["attention"], config["plusgpt"]["model"]
    for pattern, there in ((r"\bsettings\.(\w+)", attention), (r"gate\.(\w+)", attention["gate"]),
                           (r'\bmodel"?\]?\["(\w+)"\]', model), (r"\bconfig\.(?!json)(\w+)", config)):
      names = set(re.findall(pattern, text))
      self.assertGreater(len(names), 2, pattern)
      self.assertLessEqual(names, set(there), pattern)

  def test_which_models_are_gpt2(self):
    for changes in ({"model__position": "rope"}, {"model__position": "none"}, {"model__head_dim": 4},
                    {"attention__qk_norm": "rms"}, {"attention__scale": "logn"}, {"attention__scale": 0.5},
                    {"attention__kind": "relu"}, {"attention__sink": "one"},
                    {"attention__gate__activation": "tanh"}, {"attention__layers": ["softmax", "lssa"]}):
      with self.subTest(**changes):
        folder, config = self.trained(**changes)
        self.assertEqual(config["model_type"], "plusgpt")
        self.assertIn("modeling_plusgpt.py", os.listdir(folder))
    # Settings of other kinds of attention change nothing.
    _, config = self.trained(attention__power=3, attention__gate__bias=False)
    self.assertEqual(config["model_type"], "gpt2")

  def test_end_of_text_follows_the_vocabulary(self):
    for vocab, token in ((50257, 50256), (50304, 50256), (50256, None), (60000, None)):
      _, config = self.trained(generate__tokenizer="gpt2", model__vocab=vocab, model__channels=8, model__layers=1)
      self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (token, token))

  def test_safetensors_follow_the_specification(self):
    """No gaps, no overlaps, nothing after the data; the header is aligned, and metadata values are text."""
    folder, _ = self.trained(attention__gate__activation="sigmoid", attention__sink="learned")
    for name in ("model.safetensors", "optimizer.safetensors"):
      data = self.bytes_of(os.path.join(folder, name))
      size = struct.unpack("<Q", data[:8])[0]
      header = json.loads(data[8:8 + size])
      self.assertEqual((data[8:9], (8 + size) % 8), (b"{", 0))
      for value in header.pop("__metadata__", {}).values():
        self.assertIsInstance(value, str)
      end = 0
      for tensor in sorted(header.values(), key=lambda tensor: tensor["data_offsets"]):
        self.assertEqual(set(tensor), {"dtype", "shape", "data_offsets"})
        self.assertEqual(tensor["dtype"], "F32")
        self.assertEqual(tensor["data_offsets"], [end, end + 4 * math.prod(tensor["shape"])])
        end = tensor["data_offsets"][1]
      self.assertEqual(len(data), 8 + size + end)
    names = set(read_safetensors(os.path.join(folder, "model.safetensors")))
    self.assertLessEqual({"wte.weight", "wpe.weight", "h.1.attn.c_gate.weight", "h.1.attn.sink"}, names)

  def test_settings_that_tensors_do_not_show(self):
    """A folder of GPT-2 with settings that compute something else: a warning for each setting."""
    folder, config = self.trained()
    init = os.path.relpath(folder, self.folder)
    self.assertEqual(self.ok("--dry-run", init=init, optimizer__warmup_steps=0, **GPT2).stderr, "")
    config["activation_function"] = "gelu_pytorch_tanh"  # the same under another name
    for key, value in {"activation_function": "relu", "layer_norm_epsilon": 1e-6, "scale_attn_weights": False,
                       "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False, "n_head": 4}.items():
      for said in (value, [value], None):
        self.write(self.checkpoint(1, "config.json"), json.dumps({**config, key: said}))
        self.assertRegex(self.ok("--dry-run", init=init, optimizer__warmup_steps=0, **GPT2).stderr,
                         rf"^warning: init: runs/.*config.json says {key} = .*, but here it is .*\n$")
    for text in ("", "[]", "{", json.dumps(config), "\xff"):
      self.write(self.checkpoint(1, "config.json"), text)
      self.assertEqual(self.ok("--dry-run", init=init, optimizer__warmup_steps=0, **GPT2).stderr, "")

  def test_a_run_continues_without_the_modelling_file(self):
    run = {"train__steps": 4, "checkpoint__every": 2, "model__position": "rope"}
    self.ok(**run)
    expected = self.bytes_of(self.model())
    path = self.checkpoint(2, "modeling_plusgpt.py")
    files = self.json_of(self.checkpoint(2, "state.json"))["files"]
    self.assertEqual(files["modeling_plusgpt.py"]["bytes"], os.path.getsize(path))
    for change in (lambda: open(path, "a").close(), lambda: self.write(path, "# mine"), lambda: os.remove(path)):
      change()
      done = self.ok("--resume", "runs/tiny/step_00000002", **run)
      self.assertEqual(done.stderr, "")
      self.assertEqual(self.bytes_of(self.model()), expected)


class Tokenizer(Trained):
  def setUp(self):
    super().setUp()
    self.changes = {"generate__tokenizer": "gpt2", "generate__tokenizer_dir": "gpt2",
                    "model__vocab": len(self.write_vocabulary("gpt2", encodes=False))}

  def test_a_checkpoint_holds_the_tokenizer(self):
    for position in ("learned", "rope"):
      folder, _ = self.trained(**{**self.changes, "model__position": position})
      for name, source in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        self.assertEqual(self.bytes_of(os.path.join(folder, name)), self.bytes_of("gpt2", source))
      about = self.json_of(folder, "tokenizer_config.json")
      self.assertEqual((about["tokenizer_class"], about["add_prefix_space"]), ("GPT2Tokenizer", False))
      self.assertEqual({about[f"{name}_token"] for name in ("bos", "eos", "unk")}, {"<|endoftext|>"})
      if not transformers:
        continue
      text = "hello world  hello\n\n\u20ac1 he'll\t<|endoftext|>hello"
      done = subprocess.run([TRAIN, "--encode", self.path("gpt2")], input=text.encode(), capture_output=True)
      if b"without PCRE2" not in done.stderr:
        transformers.logging.set_verbosity_error()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.assertEqual([tokenizer.eos_token_id, *tokenizer.encode(text)], list(memoryview(done.stdout).cast("H")))

  def test_a_run_without_its_tokenizer(self):
    """A warning and no files; but what is damaged is an error before anything is written."""
    merges = self.bytes_of("gpt2/vocab.bpe")
    self.write("gpt2/vocab.bpe", "#version: 0.2\nh")
    self.bad(names=["gpt2/vocab.bpe"], **{**GPT2, **self.changes})
    self.write("gpt2/vocab.bpe", merges)
    for change, problem in (({"generate__tokenizer_dir": "gone"}, '"gone" is not a folder'),
                            ({"model__vocab": 267}, "has 268 tokens, but model.vocab is 267")):
      done = self.ok("--overwrite", **{**GPT2, **self.changes, **change})
      self.assertIn("warning: checkpoints will hold no tokenizer: generate.tokenizer_dir", done.stderr)
      self.assertIn(problem, done.stderr)
      self.assertNotIn("vocab.json", os.listdir(self.path("runs/tiny/step_00000001")))
