"""modeling_plusgpt.py with the operator in place of its formulas. Skipped as test_values and test_modeling are."""
import unittest
from unittest import mock

from pytorch.test_values import kinds, missing, torch
from scripts import test_modeling
from scripts.test_modeling import V, model_of

GATE = {"activation": "sigmoid", "granularity": "elementwise", "op": "multiply", "position": "value",
        "weight_init": "normal", "bias": True, "bias_init": 0}
CASES = {
    "rotated, a window, a sink": {"position": "rope", "window": 5, "sink_tokens": 2, "sink": "learned"},
    "softmax1, exclusive": {"sink": "one", "output": "exclusive", "output_norm": "rms"},
    "lssar": {"kind": "lssar", "power": 3, "offset_free_rows": 2, "qk_norm": "l2", "scale": "logd_logn"},
    "softmaxr": {"kind": "softmaxr", "power": 2, "offset": 0.5, "offset_free_rows": 2},
    "a formula, its number, logn": {"kind": "threshold", "threshold": 0.25, "qk_norm": "rms", "scale": "logn"},
    "the context": {"kind": "sigmoid"},
    "ssmax, gated values": {"scale": "ssmax", "gate": GATE},
    **{bias: {"bias": bias} for bias in ("alibi", "fox", "cable")},
    "documents": {"documents": "separate", "bias": "fox"},
}


@unittest.skipUnless(torch and test_modeling.torch, missing or "needs transformers")
class Model(unittest.TestCase):
  def test_kernels_for_formulas(self):
    """Logits and gradients in float32, beyond the trained length too."""
    from lib import modeling_plusgpt
    from plusgpt_attention import attention
    tokens = torch.randint(V, (2, 3 * test_modeling.T), generator=torch.Generator().manual_seed(1))
    bound = 2 * 2 * test_modeling.L * tokens.shape[1] * 2**-24  # float32 sums of both, in both passes of each layer
    for name, case in CASES.items():
      if case.get("kind", "softmax") not in kinds():
        continue
      with self.subTest(name):
        model = model_of(**{"position": "rope", **case})
        model.config.plusgpt["data"] = {"separator": 3}

        def results(kernels, **asked):
          model.zero_grad()
          with mock.patch.object(modeling_plusgpt, "kernels", kernels):
            out = model(tokens, labels=tokens, **asked)
          out.loss.backward()
          return [out.logits, *(x.grad for x in model.parameters() if x.grad is not None)]

        calls = mock.Mock(side_effect=attention)
        found, expected = results(calls), results(None)
        self.assertEqual(calls.call_count, test_modeling.L)
        self.assertEqual(len(found), len(expected))
        for x, y in zip(found, expected):
          self.assertLessEqual(float((x - y).detach().abs().max()), bound * float(y.detach().abs().max()))
        results(calls, output_attentions=True)
        self.assertEqual(calls.call_count, test_modeling.L)  # which kernels do not make
