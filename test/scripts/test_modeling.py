"""scripts/lib/modeling_plusgpt.py in transformers, with random weights; scripts/compare.py transformers compares it
with ./train. Skipped where torch or transformers is missing.
"""
import functools
import itertools
import os
import tempfile
import unittest
import unittest.mock
from types import SimpleNamespace

from support.scripts import ROOT, SCRIPTS  # noqa: F401: on the path
from support.workspace import TRAIN

from lib import common

try:
  import torch
  import torch.nn.functional as F
  import transformers
  import numpy  # noqa: F401: without it the next would end the tests
  from lib import compare_transformers
  from lib.modeling_plusgpt import FORMULAS, PlusGPTConfig, PlusGPTLMHeadModel, bias
  from lib import formula
  FORMULAS.update(formula.FORMULAS)  # the kinds of the tree
except ImportError:
  torch = None

L, H, C, T, V = 3, 2, 16, 12, 40
SIZES = {"n_layer": L, "n_head": H, "n_embd": C, "n_positions": T, "vocab_size": V, "bos_token_id": None,
         "eos_token_id": None}


@functools.cache
def softmax():
  return common.settings(TRAIN, os.path.join(ROOT, "configs", "quickstart.json"), "--set", "attention.variant=softmax")


def model_of(position="learned", outputs=0, **attention):
  settings = {"attention": {**softmax()["attention"], **attention},
              "model": {**softmax()["model"], "position": position, "head_dim": C // H, "kv_heads": H,
                        "head": {"outputs": outputs}}}
  torch.manual_seed(1)
  return PlusGPTLMHeadModel(PlusGPTConfig(settings, n_inner=4 * C, layer_norm_epsilon=1e-5,
                                          **SIZES)).eval()


@unittest.skipUnless(torch, "needs torch and transformers")
class Modeling(unittest.TestCase):
  def setUp(self):
    self.tokens = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(1))

  def test_layers_that_differ(self):
    model = model_of(position="rope", layers=["relu", {"rotated": False, "window": 5}])
    said = [(block.attn.settings.kind, block.attn.settings.window, block.attn.rope_base) for block in model.h]
    self.assertEqual(said, [("relu", 0, 10000), ("softmax", 5, None), ("relu", 0, 10000)])

  def test_learned_numbers_are_in_the_order_of_the_kinds_file(self):
    """In which the kernels take them."""
    row = ("sum", (), {"slope": 0.2, "offset": 0.5}, lambda z: z)
    with unittest.mock.patch.dict(FORMULAS, two=row):
      self.assertEqual([*model_of(kind="two").h[0].attn.score], ["slope", "offset"])

  def test_an_output_of_a_newer_program_is_refused(self):
    with self.assertRaisesRegex(ValueError, "attention.output 'tanh' is of a newer program"):
      model_of(output="tanh")(self.tokens)

  def test_gpt2_gives_the_same_attentions_and_hidden_states(self):
    torch.manual_seed(2)
    config = transformers.GPT2Config(**SIZES, initializer_range=0.2, attn_implementation="eager")
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = model_of()
    ours.load_state_dict({name.removeprefix("transformer."): value for name, value in theirs.state_dict().items()
                          if name != "lm_head.weight"})
    for asked in ({"output_attentions": True}, {"output_hidden_states": True}, {}):
      with torch.no_grad():
        mine, other = ours(self.tokens, **asked), theirs(self.tokens, **asked, use_cache=False)
      torch.testing.assert_close(mine.logits, other.logits)
      for name, count in (("attentions", L), ("hidden_states", L + 1)):
        self.assertEqual(name in mine, name in other)
        if name in other:
          self.assertEqual(len(other[name]), count)
          torch.testing.assert_close(mine[name], other[name])
    self.assertEqual(len(ours(self.tokens, output_attentions=True, return_dict=False)[1]), L)

  def test_rows_of_weights(self):
    """They sum to 1 where the kind normalises them, a sink takes its part, and no row sees a later key."""
    cases = [(kind, {}, (0, 100) if row_weights == "none" else (1, 1)) for kind, (row_weights, *_) in FORMULAS.items()]
    cases += [("softmax", {}, (1, 1)), ("softmax", {"sink": "one"}, (0, 1 - 1e-3)), ("lssar", {"scale": 8.0}, (1, 1)),
              ("softmaxr", {"scale": 8.0}, (1, 1)),
              ("threshold", {"threshold": 0.5, "output_norm": "rms"}, (0, 100))]
    for kind, settings, (least, most) in cases:
      with torch.no_grad():
        layers = model_of("rope", kind=kind, **settings)(self.tokens, output_attentions=True).attentions
      for P in layers:
        self.assertEqual(P.shape, (2, H, T, T))
        self.assertEqual(P.triu(1).abs().max(), 0)
        sums = P.sum(-1)
        self.assertTrue(((sums > least - 1e-5) & (sums < most + 1e-5)).all() and sums.max() > 0, (kind, settings, sums))

  def test_rows_of_lssar_whose_scores_all_are_low(self):
    """The kernels' least mean weight is 2^-90, e^-62.4: a single key of less than 1e-3 of that has no weight, nor has
    one of less than the offset."""
    z = torch.tensor([-62.0, -63.0, -69.0, -70.0, -1000.0]).view(-1, 1, 1, 1)
    for offset, expected in ((0, [1, 1, 1, 0, 0]), (0.9, [1, 0, 0, 0, 0])):
      settings = SimpleNamespace(kind="lssar", sink="none", power=3, offset=offset, offset_free_rows=0)
      z.requires_grad_()
      P = formula.weights(z, settings, T)
      self.assertEqual(P.flatten().tolist(), expected)
      gradient, = torch.autograd.grad(P.sum(), z)
      self.assertTrue(gradient.isfinite().all())

  def test_a_formula_of_whole_rows(self):
    """The tests' mixture of two normalisers, beside each row by itself; with a window and two documents."""
    formula.add_file(os.path.join(ROOT, "test/attention/kinds/mixture.cuh"))
    self.addCleanup(formula.FORMULAS.pop, "mixture")
    z = 3 * torch.randn(1, H, T, T, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    share, starts = torch.tensor([0.2, 0.7]), torch.tensor([[0] * 5 + [5] * (T - 5)])
    settings = SimpleNamespace(kind="mixture", sink="none", fall=0.3, window=4, sink_tokens=0)
    P = formula.weights(z, settings, T, learned={"share": share}, starts=starts)
    for h, i in itertools.product(range(H), range(T)):
      j = torch.arange(max(starts[0, i].item(), i - 3), i + 1)
      row, s = z[0, h, i, j], torch.sigmoid(z[0, h, i, j])
      expected = torch.zeros(T, dtype=z.dtype)
      expected[j] = share[h] * (row - 0.3 * torch.log(1 + i - j)).softmax(0) + (1 - share[h]) * s / s.sum()
      torch.testing.assert_close(P[0, h, i], expected, rtol=1e-6, atol=1e-7)

  def test_learned_biases(self):
    """Score ij gets the sum of the logarithms of j + 1 to i, of each sequence and head."""
    decay = torch.randn(2, T, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for kind, sign in (("fox", 1), ("cable", -1)):
      c = bias(decay, kind, H, T)
      for i in range(T):
        for j in range(i + 1):
          expected = F.logsigmoid(sign * decay[:, j + 1:i + 1]).sum(1)
          torch.testing.assert_close(c[:, :, i] - c[:, :, j], expected)

  def test_the_losses_of_parts_add_up(self):
    """The Trainer's micro-batches with 1, T - 1, no and 5 labels, and all of them at once."""
    self.assertTrue(PlusGPTLMHeadModel.accepts_loss_kwargs)
    tokens = torch.randint(V, (4, T), generator=torch.Generator().manual_seed(2))
    words, values = tokens.clone(), torch.randn(4, T, 3, generator=torch.Generator().manual_seed(3))
    for row, count in enumerate((1, T - 1, 0, 5)):
      words[row, 1 + count:], values[row, count:] = -100, float("nan")
    for model, labels, count in ((model_of(), words, T + 5), (model_of(outputs=3), values, 3 * (T + 5))):
      whole = model(tokens, labels=labels).loss
      self.assertTrue(whole > 0.1)
      self.assertEqual(model(tokens[2:3], labels=labels[2:3]).loss, 0)
      for items in (count, torch.tensor(count)):
        parts = [model(tokens[row:row + 1], labels=labels[row:row + 1], num_items_in_batch=items).loss
                 for row in range(4)]
        torch.testing.assert_close(sum(parts), whole)
        self.assertEqual(parts[2], 0)
      self.assertEqual(model(tokens[2:3], labels=labels[2:3], num_items_in_batch=0).loss, 0)

  def test_arguments_that_it_does_not_take(self):
    model = model_of("rope")
    for name in ("position_ids", "inputs_embeds", "past_key_values", "output_attention"):
      with self.assertRaisesRegex(TypeError, name):
        model(self.tokens, **{name: self.tokens})
    with torch.no_grad():
      model(self.tokens, use_cache=True, past_key_values=None, inputs_embeds=None)

  def test_shapes_and_values_that_it_cannot_honour(self):
    model, regression = model_of("rope"), model_of("rope", outputs=3)
    whole, values = torch.ones(2, T), torch.zeros(2, T, 3)
    model(self.tokens, attention_mask=whole.bool(), labels=self.tokens), regression(self.tokens, labels=values)
    for which, name, wrong in ((model, "attention_mask", torch.ones(2, 1, T, T).bool()),
                               (model, "attention_mask", torch.ones(2, T, T)), (model, "attention_mask", whole[:, 1:]),
                               (model, "attention_mask", whole[:1]), (model, "attention_mask", whole - 1e9 * whole),
                               (model, "labels", self.tokens[:, 1:]),
                               (model, "labels", torch.ones(2 * T - 2, 2).long()),
                               (regression, "labels", values[0]), (regression, "labels", values[..., :1])):
      with self.assertRaisesRegex(ValueError, f"plusgpt takes .*{name} of"):
        which(self.tokens, **{name: wrong})
    for which, said, more in ((model, "position_ids", {"position_ids": torch.arange(4)[None]}),
                              (regression, "regression head", {})):
      with self.assertRaisesRegex(ValueError, said):
        which.generate(self.tokens[:, :4], max_new_tokens=2, pad_token_id=0, **more)

  def test_learned_numbers_begin_as_their_key_says(self):
    formula_of_z = "softmax", (), {"cap": 5.0}, lambda z, cap, **_: cap * torch.tanh(z / cap)
    with unittest.mock.patch.dict(FORMULAS, {"x": formula_of_z}):
      for settings, expected in (({}, 5), ({"cap_init": 7.5}, 7.5)):
        self.assertEqual(model_of("rope", kind="x", **settings).h[1].attn.score["cap"].tolist(), [expected] * H)

  def test_the_compared_formula_is_that_of_the_tree(self):
    with tempfile.TemporaryDirectory() as folder:
      carried = os.path.join(folder, "modeling_plusgpt.py")
      self.assertTrue(compare_transformers.take_formula(folder))  # transformers' own GPT-2
      self.assertEqual(os.listdir(folder), [])
      with open(carried, "w") as file:
        file.write("# of an older ./train\n")
      self.assertFalse(compare_transformers.take_formula(folder))
      with open(carried) as file:
        self.assertIn("class PlusGPTLMHeadModel", file.read())
      self.assertTrue(compare_transformers.take_formula(folder))
      with open(carried) as file:
        ours = file.read()
      entry = '  "x": ("none", (), {}, lambda z, i, j, n, head, heads: z),\n'
      own = ours.replace("FORMULAS = {\n", "FORMULAS = {\n" + entry)
      self.assertNotEqual(own, ours)
      for theirs, same in ((own, True), (own.replace("TINY", "SMALL"), False)):  # the formulas of files stay
        with open(carried, "w") as file:
          file.write(theirs)
        self.assertEqual(compare_transformers.take_formula(folder), same)
        with open(carried) as file:
          self.assertEqual(file.read(), own)

  def test_generation_gives_them_too(self):
    out = model_of("rope").generate(self.tokens[:, :4], attention_mask=torch.ones(2, 4), max_new_tokens=3,
                                    do_sample=False, pad_token_id=0, return_dict_in_generate=True,
                                    output_attentions=True, output_hidden_states=True)
    self.assertEqual([len(step) for step in out.attentions], [L] * 3)
    self.assertEqual([step[0].shape for step in out.hidden_states], [(2, n, C) for n in (4, 5, 6)])
