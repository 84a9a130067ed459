"""The id of an evaluation: equal for what can be compared, of whatever weights, and another one for all else."""
import json

from data.test_labels import label_file
from support.workspace import TEXT, Workspace, shard

from lib import metrics  # from SCRIPTS

ASK = {"eval__every": 1, "train__steps": 1, "checkpoint__at_end": True, "eval__lengths": [16, 32]}


class Ids(Workspace):
  def ids(self, run="tiny", kind="eval"):
    rows = metrics.load(self.path("runs", run)).evaluations
    return rows[rows["type"] == kind]["id"].tolist()

  def asked(self, name, *flags, **changes):
    """Of an evaluation of the run's random weights."""
    self.ok("--eval", *flags, name=name, **{**ASK, **changes})
    return self.ids(name)

  def test_equal_where_losses_can_be_compared(self):
    self.ok(**ASK)
    self.ok("--eval", "--resume", **ASK)
    short, long = self.ids()
    self.assertNotEqual(short, long)
    self.assertEqual(self.ids(kind="val"), [short, long] * 2)
    for name, changes in (("kind", {"attention__variant": "lssar"}), ("seed", {"seed": 7}),
                          ("size", {"model__layers": 1, "model__channels": 32}),
                          ("separate", {"attention__documents": "separate", "data__separator": 32}),
                          ("batch", {"eval__batch": 1, "batch__micro": 1})):
      self.ok(name=name, **{**ASK, **changes})
      self.assertEqual(self.ids(name, "val"), [short, long] * 2, name)
    self.ok("--gpus", "2", name="ranks", **ASK)
    self.assertEqual(self.ids("ranks", "val"), [short, long] * 2)
    self.write("moved.bin", self.bytes_of("val.bin"))
    self.assertEqual(self.asked("moved", data__val="moved.bin"), [short, long])
    # Neither counts up to the trained length.
    self.assertEqual(self.asked("scaled", eval__rope_scaling="yarn")[0], short)
    self.assertEqual(self.asked("windowed", eval__window=8)[0], short)
    # What was evaluated counts, not what was asked for: here both are all of the data.
    self.assertEqual(*(self.asked(name, eval__tokens=tokens) for name, tokens in (("all", 10**6), ("more", 10**7))))

  def test_another_one_for_what_cannot(self):
    self.write("other.bin", shard(TEXT[29:] * 10))
    self.write("labels.bin", label_file([*(TEXT[30:] * 10)[1:], 0]))
    documents = {"eval__start": "document", "data__separator": 32, "eval__lengths": [2, 3]}
    cases = {"plain": {}, "data": {"data__val": "other.bin"}, "tokens": {"eval__tokens": 512},
             "mode": {"eval__mode": "suffix"}, "window": {"eval__window": 8},
             "sinks": {"eval__window": 8, "eval__sink_tokens": 2}, "scaling": {"eval__rope_scaling": "yarn"},
             "precision": {"precision": "bf16"}, "start": documents, "separator": {**documents, "data__separator": 101},
             "labels": {"data__val_labels": "labels.bin"},
             "sequence": {"data__val_labels": "labels.bin", "train__label_mean": "sequence"}}
    found = {name: self.asked(name, **changes) for name, changes in cases.items()}
    longest = [ids[-1] for ids in found.values()]
    self.assertEqual(len(set(longest)), len(cases), found)
    self.assertTrue(all(short != long for short, long in found.values()), found)  # the length
    series = {name: {*metrics.load(self.path("runs", name)).evaluations["series"]} for name in cases}
    self.assertEqual(({len(of_run) for of_run in series.values()}, len(set.union(*series.values()))), ({1}, len(cases)))

  def test_other_evaluations_have_one_too(self):
    for name, more in (("a", {}), ("b", {"seed": 7}), ("c", {"eval__lengths": [32], "eval__window": 8}),
                       ("d", {"diagnostics__tokens": 64})):
      self.ok("--diagnostics", name=name, **{**ASK, "eval__lengths": [32], **more})
      self.ok("--passkey", "--lengths", "100", name=name, passkey__form="compact", generate__tokenizer="bytes",
              passkey__trials=2 if name == "d" else 3, passkey__depths=2, **{**ASK, "eval__lengths": [32], **more})
    for kind in ("diagnostics", "passkey"):
      (a,), (b,), (c,), (d,) = (self.ids(name, kind) for name in "abcd")
      self.assertEqual((a == b, len({a, c, d})), (True, 3), kind)

  def test_rows_are_flat(self):
    self.ok(**ASK)
    self.ok("--eval", "--resume", **ASK)
    training, evaluations = metrics.load(self.path("runs/tiny"))
    self.assertEqual(training["step"].tolist(), [1])
    self.assertFalse([value for value in evaluations.values.ravel() if isinstance(value, dict)])
    row = evaluations.iloc[-1]
    self.assertEqual((row["weights.run"], row["of.precision"], row["of.data"][0]["name"]), ("tiny", "fp32", "val.bin"))
    checkpoint = [json.loads(line) for line in self.text_of("runs/tiny/metrics.jsonl").splitlines()
                  if '"start"' in line][-1]["identity"]["checkpoint"]
    self.assertEqual(row["weights.xxh64"], checkpoint)
