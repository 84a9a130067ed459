"""./train --diagnostics, diagnostics.every, log.groups_every."""
import math
import os
import struct

from support.scripts import SCRIPTS  # noqa: F401: on the path
from support.workspace import Workspace, floats, read_safetensors, shard, write_safetensors

from lib import metrics, section_answers  # from SCRIPTS
from lib.sections import View

HEAD = {"first", "first_raw", "sink_mass", "entropy", "entropy_norm", "zeros", "degenerate", "tiles", "max", "reach",
        "distance", "d50", "d90", "score", "gate", "out_abs", "out_below"}
LAYER = {"max", "median", "massive", "gate", "out_abs", "out_below", "zeros_by_position", "survivors", "heads"}
LINE = {"type", "step", "tokens", "length", "sequences", "start", "id", "weights", "of", "first_token", "sink_rate",
        "entropy", "entropy_norm", "m_act", "gate", "zeros", "layers"}


def norm(values):
  return math.sqrt(sum(x * x for x in values))


class Diagnostics(Workspace):
  def test_bad_input(self):
    ask = ("--diagnostics",)
    self.bad(*ask, names=["diagnostics.tokens = 10", "16 tokens"], diagnostics__tokens=10)
    self.bad(*ask, names=["diagnostics.start", "50256", "diagnostics.start=any"], diagnostics__start="document")
    self.bad(*ask, names=["diagnostics.start", "documnt", 'did you mean "document"'], diagnostics__start="documnt")
    self.bad(*ask, "--lengths", "2000", names=["2000", "data.val"])
    self.bad(*ask, "--lengths", "100", names=["--lengths = 100", "learned"], model__position="learned")
    self.bad(*ask, "--eval", names=["--eval", "--diagnostics"])
    self.bad("--diagnostics=1", names=["takes no value"])
    self.bad(*ask, "--resume", names=["runs/tiny"])
    self.bad(names=["diagnostics.tokens = 10"], diagnostics__tokens=10, diagnostics__every=2)  # before the first step
    self.bad(names=["diagnostics.every"], diagnostics__every=-1)
    self.bad(names=["log.groups_every"], log__groups_every=-1)

  def test_a_single_token(self):
    said = self.ok("--diagnostics", "--lengths", "1", diagnostics__tokens=1).stdout
    self.assertRegex(said, r" \| 1 window \| ")
    self.assertRegex(said, r"\n  mean \|           -        -      - \|")
    self.assertNotIn("nan", said)

  def shown(self, name):
    """{length: entropy} of the diagnostics that scripts show of a run."""
    rows = section_answers.diagnosed(View([metrics.Run(self.path("runs", name))]))
    return dict(zip(rows["length"], rows["entropy"]))

  def test_windows_are_named_and_not_mixed(self):
    self.ok("--diagnostics", "--lengths", "16,64")
    plain = self.shown("tiny")
    self.ok("--diagnostics", "--lengths", "16,64", eval__window=8)
    lines = self.metrics(kind="diagnostics")
    self.assertEqual([line.get("window") for line in lines], [None, None, None, 8])
    self.assertEqual(lines[3]["sink_tokens"], 0)
    self.assertNotEqual(lines[1]["entropy"], lines[3]["entropy"])
    self.assertEqual(self.shown("tiny"), plain)
    self.ok("--diagnostics", "--lengths", "16,64", name="trained", attention__window=8)
    self.assertEqual([line["window"] for line in self.metrics("trained", "diagnostics")], [8, 8])
    self.assertEqual([*self.shown("trained")], [16, 64])

  def test_a_fresh_model_is_uniform(self):
    done = self.ok("--diagnostics", "--lengths", "16,300", eval__tokens=1, data__train="absent")
    self.assertNotIn("eval.tokens", done.stdout)
    start, *lines = self.metrics()
    self.assertEqual([(line["length"], line["sequences"]) for line in lines], [(16, 49), (300, 2)])
    for line in lines:
      T = line["length"]
      self.assertEqual(set(line) - {"time"}, LINE)
      self.assertEqual((line["type"], line["step"], line["weights"]["path"], line["gate"]),
                       ("diagnostics", 0, "random", None))
      uniform = sum(1 / i for i in range(2, T + 1)) / (T - 1)
      self.assertAlmostEqual(line["first_token"], uniform, delta=0.02 * uniform)
      self.assertAlmostEqual(line["entropy_norm"], 1, delta=1e-3)
      self.assertEqual((line["zeros"], line["sink_rate"]), (0, 0))
      self.assertAlmostEqual(line["m_act"], sum(layer["max"][0] for layer in line["layers"]) / 2, delta=1e-6)
      for layer in line["layers"]:
        self.assertEqual(set(layer), LAYER)
        self.assertEqual(layer["max"], sorted(layer["max"], reverse=True))
        self.assertTrue(0 < layer["median"] < layer["max"][2] < 100, layer["max"])
        self.assertEqual(layer["out_abs"][0], layer["out_abs"][1])
        self.assertEqual(layer["zeros_by_position"], [0] * 8)
        self.assertEqual(layer["survivors"], [(T + 1) / 2, T // 2])  # softmax: every key that a row sees
        for head in layer["heads"]:
          self.assertEqual(set(head), HEAD)
          self.assertAlmostEqual(sum(head["reach"]), 1, delta=1e-5)
          self.assertEqual(len(head["reach"]), (T - 1).bit_length() + 1)
          self.assertAlmostEqual(head["distance"], T / 4, delta=0.02 * T)
          self.assertLess(head["d50"], head["d90"])

  def test_numbers_of_models_whose_weights_are_known(self):
    """Scores of random weights are almost 0; row i of T = 16 sees i keys. Layer 0, head 0."""
    self.ok(train__steps=1, optimizer__lr=0)
    tensors = read_safetensors(self.model(step=1))

    def changed(name, value, every=1):
      kind, shape, data = tensors[name]
      values = [value if at % every == 0 else x for at, x in enumerate(floats(data))]
      return {name: (kind, shape, struct.pack(f"<{len(values)}f", *values))}
    huge = changed("wte.weight", 1e4, 16)  # a channel of 16
    none = {**changed("h.0.attn.c_attn.weight", 0.0), **changed("h.0.attn.c_attn.bias", 0.0)}
    for name, change in (("huge", huge), ("none", none)):
      write_safetensors(self.path(f"{name}/model.safetensors"), {**tensors, **change})
    mean = lambda of: sum(map(of, range(2, 17))) / 15
    tenth = {"activation": "sigmoid", "weight_init": "zero", "bias_init": -math.log(9)}
    found = {}
    for name, changes, expected in (
        ("softmax", {}, {"first_raw": mean(lambda i: 1 / i), "sink_mass": 0, "entropy": mean(math.log), "max": 1,
                         "degenerate": 0, "massive": 0}),
        ("sink", {"attention__variant": "softmax_sink"},
         {"first_raw": mean(lambda i: 1 / (i + 1)), "sink_mass": mean(lambda i: 1 / (i + 1)), "max": 1 / 2}),
        ("sigmoid", {"attention__variant": "sigmoid"}, {"first_raw": 1 / 17, "sink_mass": 1 - 9 / 17, "max": 1 / 17}),
        ("gate", {"attention__gate": tenth}, {"gate": 0.1, "massive": 0}),
        ("few", {"attention__gate": {**tenth, "bias_init": -5}}, {"gate_below": [1, 1]}),
        ("some", {"attention__gate": {**tenth, "bias_init": -3}}, {"gate_below": [0, 1]}),
        ("huge", {"init": "huge"}, {"massive": 1 / 16}),
        ("none", {"init": "none", "attention__variant": "relu"}, {"degenerate": 1, "sink_mass": 1, "max": 0})):
      self.ok("--diagnostics", name=name, **changes)
      layer = self.metrics(name, "diagnostics")[0]["layers"][0]
      found[name] = {**layer, **layer["heads"][0]}
      mean_score, largest_score = layer["heads"][0]["score"]
      self.assertTrue(0 <= mean_score < largest_score < 1 or name == "none" and largest_score == 0, (name, mean_score))
      for key, value in expected.items():
        for one, other in zip(*([x] if not isinstance(x, list) else x for x in (found[name][key], value))):
          self.assertAlmostEqual(one, other, delta=3e-3, msg=f"{name} {key}")
    # A gate of 0.1 makes 0.01 of 0.1, and 0.001 of 0.01.
    self.assertAlmostEqual(found["gate"]["out_below"][1], found["softmax"]["out_below"][0], delta=3e-3)
    self.assertGreater(found["gate"]["out_below"][0], found["gate"]["out_below"][1])
    for key, share in ("d50", 0.5), ("d90", 0.9):  # bins of 0, 1, 2 to 3, 4 to 7, 8 to 15
      reach, edges = found["softmax"]["reach"], [0, 1, 2, 4, 8, 16]
      bin = next(bin for bin in range(5) if sum(reach[:bin + 1]) >= share)
      inside = (share - sum(reach[:bin])) / reach[bin]
      self.assertAlmostEqual(found["softmax"][key], edges[bin] + inside * (edges[bin + 1] - edges[bin]), delta=1e-3)

  def test_gates_and_lssar(self):
    self.ok("--diagnostics", attention__variant="lssar_softplus_gated")
    line, = self.metrics(kind="diagnostics")
    self.assertEqual(line["gate"], 1)  # softplus of the initial bias
    self.assertTrue(0.3 < line["zeros"] < 0.9, line["zeros"])
    for layer in line["layers"]:
      self.assertEqual(set(layer), LAYER | {"gate_below", "gate_shares"})
      for gate in (layer, *layer["heads"]):
        self.assertAlmostEqual(sum(gate["gate_shares"]), 1, delta=1e-5)
      self.assertNotEqual(*(head["out_abs"] for head in layer["heads"]))
      for n in range(2):  # heads have equally many elements
        of_heads = [head["out_abs"][n] for head in layer["heads"]]
        self.assertAlmostEqual(sum(of_heads) / len(of_heads), layer["out_abs"][n], delta=1e-5 * layer["out_abs"][n])
      self.assertTrue(1 <= layer["survivors"][0] <= 16)

  def test_layers_that_differ(self):
    self.ok("--diagnostics", attention__variant="lssar_softplus_gated",
            attention__layers=[{"rotated": False}, {"kind": "softmax", "gated": False}])
    line, = self.metrics(kind="diagnostics")
    self.assertEqual(line["gate"], 1)  # of the layer that has one
    gated, ungated = line["layers"]
    self.assertEqual((gated["gate"], ungated["gate"]), (1, None))
    self.assertTrue(all(head["zeros"] > 0 for head in gated["heads"]))
    self.assertTrue(all(head["zeros"] == 0 for head in ungated["heads"]))  # softmax has none

  def test_every_gate_position(self):
    for position in ("sdpa", "value", "key", "query", "output"):
      gate = {"activation": "sigmoid", "position": position, "weight_init": "zero"}
      self.ok("--diagnostics", name=position, attention__gate=gate)
      line, = self.metrics(position, "diagnostics")
      self.assertEqual(line["gate"], 0.5)
      for layer in line["layers"]:
        before, after = layer["out_abs"]
        self.assertAlmostEqual(after / before, 0.5, delta=1e-5)
        self.assertEqual("out_abs" in layer["heads"][0], position != "output")

  def test_gates_of_heads_that_share_keys_and_values(self):
    for position in ("value", "key", "query", "sdpa", "output"):
      for granularity in ("elementwise",) if position == "output" else ("elementwise", "headwise", "shared"):
        gate = {"activation": "sigmoid", "position": position, "granularity": granularity, "weight_init": "zero",
                "bias_init": -1}
        name = f"{position}_{granularity}"
        self.ok("--diagnostics", name=name, model__kv_heads=1, attention__gate=gate)
        line, = self.metrics(name, "diagnostics")
        self.assertAlmostEqual(line["gate"], 1 / (1 + math.e), delta=1e-5, msg=name)
        for layer in line["layers"]:
          before, after = layer["out_abs"]
          self.assertAlmostEqual(after / before, 1 / (1 + math.e), delta=1e-5, msg=name)
          if position in ("value", "key"):  # all heads have the one
            heads = [(head["gate"], head["out_abs"]) for head in layer["heads"]]
            self.assertEqual(heads, [(layer["gate"], layer["out_abs"])] * 2, name)

  def test_while_training_and_resumed(self):
    changes = {"diagnostics__every": 2, "log__groups_every": 2, "checkpoint__every": 2, "eval__every": 0}
    self.ok(**changes)
    first = self.steady()
    self.assertEqual([line["step"] for line in first if line["type"] == "diagnostics"], [0, 2, 4])
    self.assertEqual([line["step"] for line in first if line["type"] == "groups"], [2, 4])
    for line in first:
      if line["type"] == "diagnostics":
        self.assertEqual(line["tokens"], 64 * line["step"])
    self.ok("--resume", "runs/tiny/step_00000002", **changes)
    self.assertEqual(self.steady(), first)
    self.ok("--resume", **changes)  # nothing is missing
    self.assertEqual(self.steady(), first)
    self.ok("--diagnostics", "--resume", **changes)  # the same weights, the same line
    last = self.steady()[-1]
    self.assertEqual(last, [line for line in first if line["type"] == "diagnostics"][-1])
    self.ok(name="without", checkpoint__every=2, eval__every=0)  # training is not changed
    self.assertEqual(self.bytes_of(self.model()), self.bytes_of(self.model("without")))

  def test_kinds_learn_what_the_checkpoint_holds(self):
    """By layer and head: each tensor of as many numbers as heads, also those of the kinds of make check-kind."""
    sinks = {"attention__variant": "softmax_sink", "attention__scale": "ssmax"}
    logits = {"attention__bias": "fox", "attention__gate": {"activation": "sigmoid", "granularity": "headwise"}}
    for number, (flags, changes, names) in enumerate((
        ((), sinks, ["attn.ssmax_scale", "attn.sink"]),
        ((), {**sinks, "attention__layers": [{"bias": "alibi"}, "relu"]}, ["attn.ssmax_scale", "attn.sink"]),
        ((), logits, ["attn.c_decay.bias", "attn.c_gate.bias"]),
        ((), {**logits, "attention__gate": {"activation": "sigmoid"}}, ["attn.c_decay.bias"]),
        (("--gpus", "2"), {**sinks, "precision": "bf16"}, ["attn.ssmax_scale", "attn.sink"]),
        ((), {}, []),
        *(((), {"attention__variant": kind}, None) for kind in os.environ.get("KIND_NAMES", "").split()))):
      name = f"run{number}"
      done = self.ok(*flags, name=name, log__groups_every=2, diagnostics__every=4, **changes)
      expected = {}
      for tensor, (_, shape, data) in read_safetensors(self.model(name)).items():
        if shape == [2]:  # heads
          _, layer, part = tensor.split(".", 2)
          expected.setdefault(part, [None, None])[int(layer)] = list(floats(data))
      self.assertIn(names, (None, [*expected]))
      lines = [line for line in self.metrics(name) if line["type"] in ("groups", "diagnostics") and line["step"] == 4]
      self.assertEqual([line.get("learned", {}) for line in lines], [expected, expected])
      for part, layers in expected.items():
        self.assertGreater(len({value for heads in layers if heads for value in heads}), 1)  # they did learn
        table = " layer | %s of head 0, 1, ...\n" % part + "".join(
            f"{layer:6} |{''.join(' %8.4g' % value for value in heads)}\n"
            for layer, heads in enumerate(layers) if heads)
        self.assertIn(table, done.stdout)
      self.assertEqual(done.stdout.count("of head 0, 1"), 2 * len(expected))  # at steps 0 and 4

  def test_documents(self):
    tokens = [7] * 100
    for at in (3, 10, 40, 99):  # windows of 16 from 3, which holds 10 too, and from 40; the one from 99 is cut
      tokens[at] = 50256
    self.write("val.bin", shard(tokens))
    self.ok("--diagnostics", model__vocab=50257, generate=None, diagnostics__start="document")
    line, = self.metrics(kind="diagnostics")
    self.assertEqual((line["sequences"], line["start"]), (2, "document"))
    self.bad("--diagnostics", "--lengths", "98", wrote_nothing=False, model__vocab=50257, generate=None,
             diagnostics__start="document", names=["98 tokens in a row"])

  def test_weights_that_are_not_finite(self):
    self.ok()
    tensors = read_safetensors(self.model())
    kind, shape, data = tensors["ln_f.weight"]
    write_safetensors(self.path("fine/model.safetensors"),
                      {**tensors, "ln_f.weight": (kind, shape, b"\xff" * len(data))})
    kind, shape, data = tensors["h.0.ln_1.weight"]
    write_safetensors(self.path("bad/model.safetensors"),
                      {**tensors, "h.0.ln_1.weight": (kind, shape, b"\xff" * len(data))})
    self.ok("--diagnostics", name="fine", init="fine")  # it looks at the residual stream, before ln_f
    done = self.call("--diagnostics", name="bad", init="bad")
    self.assertEqual(done.returncode, 1)
    self.assertIn("the residual stream is not finite", done.stderr)

  def test_groups(self):
    changes = {"log__groups_every": 1, "checkpoint__every": 1, "checkpoint__keep": 4, "optimizer__weight_decay": 0,
               "attention__variant": "softplus_gated", "attention__scale": "ssmax"}
    self.ok(**changes)
    losses = {line["step"]: line for line in self.metrics(kind="train")}
    lines = self.metrics(kind="groups")
    self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
    groups = ["layernorm", "attn.q", "attn.k", "attn.v", "attn.c_gate", "other", "attn.c_proj", "mlp.c_fc",
              "mlp.c_proj"]
    self.assertEqual(list(lines[0]["norms"]),
                     ["wte", *(f"h.{l}.{name}" for l in (0, 1) for name in groups), "layernorm"])
    for line in lines:
      self.assertAlmostEqual(norm(g for g, _, _ in line["norms"].values()), losses[line["step"]]["grad_norm"],
                             delta=1e-5 * losses[line["step"]]["grad_norm"])
    now, before = ({name: list(floats(data)) for name, (_, _, data) in read_safetensors(self.model(step=step)).items()}
                   for step in (4, 3))
    columns = lambda row, part: row[16 * part:][:16]
    strip = lambda weights, part: [x for row in range(16) for x in columns(
        weights["h.1.attn.c_attn.weight"][48 * row:], part)] + columns(weights["h.1.attn.c_attn.bias"], part)
    both = lambda weights, name: weights[name + ".weight"] + weights[name + ".bias"]
    for name, of in (("wte", lambda w: w["wte.weight"]), ("h.1.attn.k", lambda w: strip(w, 1)),
                     ("h.1.attn.v", lambda w: strip(w, 2)), ("h.0.attn.c_gate", lambda w: both(w, "h.0.attn.c_gate")),
                     ("h.0.mlp.c_proj", lambda w: both(w, "h.0.mlp.c_proj")),
                     ("h.1.layernorm", lambda w: both(w, "h.1.ln_1") + both(w, "h.1.ln_2"))):
      _, weight, update = lines[-1]["norms"][name]
      self.assertAlmostEqual(weight, norm(of(now)), delta=1e-5 * weight)
      moved = norm(a - b for a, b in zip(of(now), of(before)))
      self.assertAlmostEqual(update * weight, moved, delta=1e-3 * moved)  # weights near 1 move by 1e-2, in float32
