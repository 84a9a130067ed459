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

from support.workspace import ROOT, TRAIN, Workspace, read_safetensors, write_safetensors

try:
  import transformers
except ImportError:
  transformers = None

SOURCE = os.path.join(ROOT, "scripts/lib/modeling_plusgpt.py")
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
    same = json.dumps(config)
    for text in ("", "[]", "{", same[:-1] + ', "x": [0, Infinity]}', same[:-1] + ', "n_head": 2}', same):
      self.write(self.checkpoint(1, "config.json"), text)
      if text != same:
        self.bad("--dry-run", init=init, optimizer__warmup_steps=0, **GPT2, wrote_nothing=False,
                 names=["init: ", "config.json"])
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


def transposed(tensor, first=0, count=None):
  """A tensor [rows, columns] of a file -> [count, rows]: `count` of its columns."""
  kind, (rows, columns), data = tensor
  count, values = count or columns, struct.unpack(f"<{rows * columns}f", data)
  return kind, [count, rows], struct.pack(f"<{rows * count}f", *(values[row * columns + first + column]
                                                                for column in range(count) for row in range(rows)))


class Llama(Trained):
  BLOCK = {"model__position": "rope", "model__norm": "rmsnorm", "model__mlp": "swiglu", "model__bias": False,
           "optimizer__warmup_steps": 0}

  def in_our_names(self, tensors):
    ours = {"wte.weight": tensors["model.embed_tokens.weight"], "ln_f.weight": tensors["model.norm.weight"],
            **{name: tensor for name, tensor in tensors.items() if name == "lm_head.weight"}}
    for layer in (0, 1):
      there, here = f"model.layers.{layer}.", f"h.{layer}."
      ours[here + "ln_1.weight"] = tensors[there + "input_layernorm.weight"]
      ours[here + "ln_2.weight"] = tensors[there + "post_attention_layernorm.weight"]
      for name, parts in {"attn.c_attn": ("self_attn.q", "self_attn.k", "self_attn.v"), "attn.c_proj": ("self_attn.o",),
                          "mlp.c_fc": ("mlp.gate", "mlp.up"), "mlp.c_proj": ("mlp.down",)}.items():
        pieces = [tensors[f"{there}{part}_proj.weight"] for part in parts]
        kind, (outputs, inputs), _ = pieces[0]
        data = b"".join(data for _, _, data in pieces)
        ours[f"{here}{name}.weight"] = transposed((kind, [outputs * len(pieces), inputs], data))
    return ours

  def test_opens_as_transformers_llama(self):
    for tied in (True, False):
      folder, config = self.trained(**self.BLOCK, model__tied=tied)
      own = config.pop("plusgpt")
      self.assertEqual(config, {
          "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 16,
          "intermediate_size": 64, "max_position_embeddings": 16, "vocab_size": 256, "hidden_act": "silu",
          "rms_norm_eps": 1e-5, "rope_theta": 10000, "attention_bias": False, "mlp_bias": False,
          "initializer_range": 0.02, "tie_word_embeddings": tied, "torch_dtype": "float32", "bos_token_id": None,
          "eos_token_id": None})
      self.assertEqual(own["model"]["mlp_ratio"], 4)
      self.assertEqual(sorted(os.listdir(folder)),
                       ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"])
      tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
      self.assertEqual("lm_head.weight" in tensors, not tied)
      self.assertEqual(len(tensors), 2 + 2 * 9 + (not tied))
      self.assertEqual(tensors["model.layers.1.self_attn.v_proj.weight"][1], [16, 16])
      self.assertEqual(tensors["model.layers.0.mlp.down_proj.weight"][1], [16, 64])

  def test_reads_such_a_folder(self):
    folder, _ = self.trained(**self.BLOCK, model__tied=False)
    ours = self.in_our_names(read_safetensors(os.path.join(folder, "model.safetensors")))
    moments = read_safetensors(os.path.join(folder, "optimizer.safetensors"))
    self.assertEqual({name: shape for name, (_, shape, _) in ours.items()},
                     {name[2:]: shape for name, (_, shape, _) in moments.items() if name.startswith("m.")})
    write_safetensors(self.path("ours", "model.safetensors"), ours)
    written, losses = [], []
    for name, init in (("theirs", folder), ("mine", "ours")):
      done = self.ok("--overwrite", **{**GPT2, **self.BLOCK, "model__tied": False, "name": name, "init": init})
      self.assertEqual(done.stderr, "")
      written.append(self.bytes_of(self.checkpoint(1, "model.safetensors", run=name)))
    self.assertEqual(written[0], written[1])
    # what the folder cannot be here is named
    config = self.json_of(folder, "config.json")
    del config["plusgpt"]
    run = {**GPT2, **self.BLOCK, "model__tied": False, "name": "again", "init": "theirs"}
    write_safetensors(self.path("theirs", "model.safetensors"),
                      read_safetensors(os.path.join(folder, "model.safetensors")))
    for change, warning in (({}, "^$"), ({"rms_norm_eps": 1e-6}, "rms_norm_eps = 1e-06, but here it is 1e-05"),
                            ({"hidden_act": "gelu"}, "hidden_act"), ({"rope_theta": 500}, "model.rope_base = 500"),
                            ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "rope_base = 500000"),
                            ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type"),
                            ({"num_key_value_heads": 1}, "num_key_value_heads")):
      self.write("theirs/config.json", json.dumps({**config, **change}))
      self.assertRegex(self.ok("--dry-run", **run).stderr, warning)
    for change, problem in (({"model__bias": True}, "is missing"), ({"model__mlp": "gelu"}, "has shape"),
                            ({"model__norm": "layernorm", "model__bias": True}, "h.0.ln_1.bias .* is missing")):
      self.bad("--dry-run", names=["does not fit", problem], wrote_nothing=False, **{**run, **change})
    done = self.ok("--dry-run", **{**run, "model__tied": True})
    self.assertIn("lm_head.weight differs from wte.weight", done.stderr)

  def test_anything_else_keeps_our_names(self):
    for change in ({"attention__window": 4}, {"model__logit_cap": 5}, {"model__rope_fraction": 0.5},
                   {"attention__layers": [{}, {"rotated": False}]}, {"model__mlp": "relu2"}):
      folder, config = self.trained(**{**self.BLOCK, **change})
      self.assertEqual(config["architectures"], ["PlusGPTLMHeadModel"])
      self.assertIn("wte.weight", read_safetensors(os.path.join(folder, "model.safetensors")))


class Init(Trained):
  """`init` of files as others write them."""

  def setUp(self):
    super().setUp()
    folder, _ = self.trained()
    self.whole = os.path.relpath(folder, self.folder)
    self.tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
    self.changes = {**GPT2, "name": "again", "init": "init", "optimizer__warmup_steps": 0}

  def write_init(self, tensors, file="model.safetensors"):
    write_safetensors(self.path("init", file), tensors)

  def said(self, tensors):
    self.write_init(tensors)
    return self.ok("--dry-run", **self.changes).stderr

  def refused(self, *names):
    self.bad("--dry-run", names=names, wrote_nothing=False, **self.changes)

  def test_tensors_without_a_place(self):
    """They are known to change nothing, or named."""
    kind, shape, data = wte = self.tensors["wte.weight"]
    mask, number = ("U8", [1, 1, 16, 16], bytes(256)), ("F32", [], bytes(4))
    for prefix in ("", "transformer."):
      prefixed = {prefix + name: tensor for name, tensor in self.tensors.items()}
      self.assertEqual(self.said({**prefixed, "lm_head.weight": wte, prefix + "h.1.attn.bias": mask,
                                  prefix + "h.0.attn.masked_bias": number}), "")
    for head in ((kind, shape, data[:-4] + bytes(4)), (kind, [128, 16], data[:len(data) // 2])):
      for config in (None, {"tie_word_embeddings": True}):  # the values count
        if config:
          self.write("init/config.json", json.dumps(config))
        self.assertRegex(self.said({**self.tensors, "lm_head.weight": head}),
                         "^warning: init: init: lm_head.weight differs from wte.weight, .*will change\n$")
    self.write("init/config.json", '{"tie_word_embeddings": false}')
    self.assertEqual(self.said({**self.tensors, "lm_head.weight": wte}), "")
    for name, tensor in {"h.2.attn.bias": mask, "h.0.attn.bias": self.tensors["h.0.attn.c_attn.bias"],
                         "h.0.mlp.bias": mask, "lm_head.bias": number, "score.weight": wte,
                         "h.2.ln_1.bias": number, "h.0.attn.rotary_emb.inv_freq": number}.items():
      self.write_init({**self.tensors, name: tensor})
      self.refused(f'"{name}" .* is not a parameter of this model')
    self.write_init({**self.tensors, "lm_head.weight": wte, "transformer.lm_head.weight": wte})
    self.refused('"lm_head.weight" is there twice')

  def test_gpt2_in_a_model_of_other_attention(self):
    self.write_init(self.tensors)
    self.write("init/config.json", '{"model_type": "gpt2"}')
    self.changes["attention__kind"] = "relu"
    self.assertIn('trained with attention.kind = "softmax" (here "relu")', self.ok("--dry-run", **self.changes).stderr)

  def test_several_files(self):
    names = list(self.tensors)
    parts = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    for file, some in parts.items():
      self.write_init({name: self.tensors[name] for name in some}, file)
    listed = {name: file for file, some in parts.items() for name in some}

    def index(text):
      text = text if isinstance(text, str) else json.dumps({"weight_map": text})
      self.write("init/model.safetensors.index.json", text)
    index(listed)
    for init in ("init", self.whole):
      self.ok("--eval", **{**self.changes, "init": init})
    self.assertEqual(*(line["loss"] for line in self.metrics("again", "eval")))
    for text, said in (("[]", "has no weight_map"), ('{"weight_map": {}}', "has no weight_map"),
                       ("{", "not valid JSON"),
                       *(({**listed, names[0]: file}, f"file of tensor .*{names[0]}.* beside it")
                         for file in ("../a.safetensors", "/a.safetensors", "", "..", "a.bin", 3, None)),
                       ({**listed, names[0]: "c.safetensors"}, "c.safetensors"),
                       ({**listed, names[0]: "b.safetensors"}, f"lists tensor .*{names[0]}.* none of that name"),
                       ({**listed, "lm_head.weight": "a.safetensors"}, "lists tensor .*lm_head.weight"),
                       ({name: listed[name] for name in names[:3]}, "is missing")):
      index(text)
      self.refused(said)
    index(listed)
    self.write_init({name: self.tensors[name] for name in names[2:]}, "b.safetensors")
    self.refused(f"{names[2]}.* is there twice, also in init/a.safetensors")

  def test_other_folders(self):
    os.makedirs(self.path("init"))
    for file, said in (("pytorch_model.bin", r'from_pretrained\("init"\).save_pretrained'),
                       ("x.gguf", 'gguf_file="x.gguf"'), ("model.fp16.safetensors", "call it model.safetensors")):
      self.write(os.path.join("init", file), "")
      self.refused(f"{file}.*{said}")
      self.changes["init"] = "init/" + file
      self.refused(file)
      self.changes["init"] = "init"
      os.remove(self.path("init", file))
    for init, said in (("runs/tiny", "a run; name one of its checkpoints, as runs/tiny/step_00000001"),
                       ("runs/tiny/step_00000001/model.safetensors", "name the folder"), ("gone", "no such folder"),
                       ("init", "name one, as")):
      self.changes["init"] = init
      self.refused(said)

  def test_parameters_of_another_variant_are_made(self):
    for changes, made in (({"attention__gate": {"activation": "sigmoid"}}, ["attn.c_gate.weight", "attn.c_gate.bias"]),
                          ({"attention__sink": "learned", "attention__layers": ["softmax", "lssa"]}, ["attn.sink"]),
                          ({"attention__scale": "ssmax"}, ["attn.ssmax_scale"]),
                          ({"attention__bias": "fox"}, ["attn.c_decay.weight", "attn.c_decay.bias"])):
      changes = {**self.changes, **changes, "init": self.whole, "optimizer__lr": 0}
      done, weights = self.ok("--overwrite", **changes), []
      for name in ("again", "fresh"):
        if name == "fresh":
          self.ok("--overwrite", **{**changes, "name": name, "init": ""})
        weights.append(read_safetensors(self.checkpoint(1, "model.safetensors", run=name)))
      new = set(weights[0]) - set(self.tensors)
      self.assertEqual({name.split(".", 2)[2] for name in new}, set(made))
      for name, tensor in weights[0].items():
        self.assertEqual(tensor, (weights[1] if name in new else self.tensors)[name], name)
        listed = re.search("^warning: init: the weights lack .*", done.stderr, re.MULTILINE)[0]
        self.assertEqual(name in listed, name in new)
      self.assertIn("the optimizer's moments, the data order and the steps begin anew", done.stdout)
      self.bad(names=[made[0] + ".* is missing"], wrote_nothing=False, **{**changes, "init_missing": "refuse"})
      del changes["init"]
      self.bad("--resume", names=["another run with these weights .*init=.*with new moments"], wrote_nothing=False,
               **{**changes, "name": "tiny"})

  def test_other_parameters_are_not_made(self):
    for name in ("h.1.mlp.c_fc.weight", "h.0.attn.c_attn.bias", "h.1.attn.c_proj.weight", "wpe.weight", "ln_f.bias"):
      self.write_init({other: tensor for other, tensor in self.tensors.items() if other != name})
      self.refused(f"{name} .* is missing")
    self.changes["attention__gate"] = {"activation": "sigmoid"}
    self.write_init({**self.tensors, **{f"h.{layer}.attn.c_gate.bias": ("F32", [16], bytes(64)) for layer in (0, 1)}})
    self.refused("h.0.attn.c_gate.weight .* is missing")
    self.bad("--resume", "--eval", names=["init cannot take them either: h.0.attn.c_attn.weight has another shape"],
             wrote_nothing=False, **{**GPT2, "model__head_dim": 4})
    self.bad("--resume", names=["without --resume\\), which cannot take these weights"], wrote_nothing=False,
             **{**GPT2, "optimizer__warmup_steps": 0, "model__position": "rope"})


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
