"""scripts/newton.py: orbits obey Newton's law, the files have their formats, and the judge finds the law or another."""
import itertools
import json
import os
import re
import subprocess
import time
import unittest
from unittest import mock

from support.scripts import ScriptTest, start
from support.workspace import ROOT

try:
  import numpy as np
except ImportError:
  raise unittest.SkipTest("needs numpy")
import newton  # from SCRIPTS


class Orbits(unittest.TestCase):
  def setUp(self):
    random = np.random.default_rng(7)
    self.e = np.concatenate([random.beta(0.867, 3.03, 3000), [0, 0.9]])
    self.phase = random.uniform(-20, 20, self.e.size)
    self.a, self.mu, self.angle = 0.3 + 30 * random.random((3, self.e.size))

  def orbit(self, t, keep=slice(None)):
    return newton.kepler(*(x[keep] for x in (self.mu, self.a, self.e, self.angle, self.phase)), t)

  def test_kepler_equation(self):
    mean = np.concatenate([self.phase, [0, 1e-9, np.pi, 3, -3]])
    for e in (np.resize(self.e, mean.size), np.full(mean.size, 0.999999)):
      E = newton.eccentric_anomaly(mean, e)
      residual = E - e * np.sin(E) - mean
      self.assertLess(np.abs(residual - 2 * np.pi * np.round(residual / (2 * np.pi))).max(), 1e-12)

  def test_energy_and_angular_momentum_are_constant(self):
    for t in (0, 0.3, 7, 400):
      d, v = self.orbit(t)
      energy = (v**2).sum(1) / 2 - self.mu / np.hypot(*d.T)
      momentum = d[:, 0] * v[:, 1] - d[:, 1] * v[:, 0]
      self.assertLess(np.abs(energy / (-self.mu / (2 * self.a)) - 1).max(), 1e-9)
      self.assertLess(np.abs(momentum / np.sqrt(self.mu * self.a * (1 - self.e**2)) - 1).max(), 1e-9)

  def test_bodies_move_by_the_law_of_gravity(self):
    keep = self.e < 0.6  # h^2 / 6 times the third derivative, (1 - e)^-5 at most, is the difference's error: 4e-7
    h = 1e-4 * np.sqrt(self.a**3 / self.mu)[keep]
    (d, v), (before, slower), (after, faster) = (self.orbit(1 + shift, keep) for shift in (0, -h, h))
    for change, expected in ((after - before, v), (faster - slower, -(self.mu[keep] / np.hypot(*d.T)**3)[:, None] * d)):
      error = change / (2 * h)[:, None] - expected
      self.assertLess((np.hypot(*error.T) / np.hypot(*expected.T)).max(), 1e-6)
    self.assertAlmostEqual(newton.G, 4 * np.pi**2, places=9)  # the earth's year


class Files(ScriptTest):
  def newton(self, *args, code=0):
    self.run_module(newton, *args, code=code)

  def make(self, command, *args, size="mini", name="x", **options):
    self.newton(command, "--size", size, "--out", self.out, "--name", name, *args, **options)

  def windows(self, name, T):
    tokens = np.array(self.tokens(name))
    self.assertEqual(tokens.size % T, 1)
    return tokens[:-1].reshape(-1, T)

  def labels(self, name):
    data = self.bytes_of(self.out, name)
    header = np.frombuffer(data[:1024], "<i4")
    self.assertEqual((header[0], header[1], header[3]), (20261101, 1, 2))
    self.assertFalse(header[5:].any())
    return np.frombuffer(data[1024:], "<f4").reshape(header[2], header[4])

  def truth(self):
    return newton.read_truth(os.path.join(self.out, "x_truth.json"))

  def predict(self, forces, file="pred.npy"):
    """Writes what a model that knows these forces would answer; other tokens get a value that must not be read."""
    truth = self.truth()
    size = newton.SIZES[truth["size"]]
    values = np.log(forces) if truth["target"] == "log" else forces
    result = np.full((len(values), size.context, 2 if values.ndim == 3 else 1), np.nan, np.float32)
    result[:, size.first_label::4] = (values.reshape(*values.shape[:2], -1) - truth["mean"]) / truth["sd"]
    np.save(self.path(file), result)
    return self.path(file)

  def judge(self, *predictions):
    truth = os.path.join(self.out, "x_truth.json")
    self.newton("judge", "--truth", truth, "--predictions", *predictions, "--json", self.path("j"))
    rows = self.json_of("j")["rows"]
    self.assertEqual(len(self.output.splitlines()), 2 + len(rows))
    return rows

  def test_from_orbits_to_a_judgement(self):
    """The steps of scripts/newton.sh, with its configurations, for a few steps of training. Forces depend on the
    windows alone, so even these few show whether predictions belong to their systems."""
    self.out = self.path("data/shards/newton")
    os.makedirs(self.out)
    self.make("make", "--systems", 60, "--val-systems", 10, name="mini")
    self.make("probe-data", "--systems", 400, "--val-systems", 100, name="mini_probe")

    def steps(config, count, *settings):
      settings = f"train.steps={count}", "optimizer.warmup_steps=5", *settings
      flags = [part for setting in settings for part in ("--set", setting)]
      return self.train(os.path.join(ROOT, "configs", config + ".json"), *flags).stdout

    steps("newton_mini", 2)
    self.assertIn("new, from the seed: head.weight, head.bias", steps(
        "newton_mini_probe", 60, "init=runs/newton_mini/step_00000002", "eval.tokens=12800"))
    self.train("runs/newton_mini_probe", "--predict", "pred.npy")
    predicted = np.load(self.path("pred.npy"))
    self.assertEqual((predicted.shape, predicted.dtype), ((100, 128, 1), np.float32))
    lines = map(json.loads, self.text_of("runs/newton_mini_probe/metrics.jsonl").splitlines())
    last = [line for line in lines if line["type"] == "val"][-1]
    labels = self.labels("mini_probe_labels_val_000000.bin")[:-1].reshape(100, 128, 1)
    self.assertAlmostEqual(float(np.nanmean((predicted - labels)**2)), last["loss"], delta=1e-4)
    self.assertLess(last["loss"], 0.8)  # of 1
    self.newton("judge", "--truth", os.path.join(self.out, "mini_probe_truth.json"),
                "--predictions", self.path("pred.npy"), "--json", self.path("j"))
    rows = self.json_of("j")["rows"]
    self.assertGreater(rows[self.path("pred.npy")]["r2_log"], 0.2)

  def test_seeds(self):
    self.make("probe-data", "--systems", 30, "--val-systems", 40)
    values = np.exp(newton.labels(newton.SIZES["mini"], "log", self.truth()["val"])[..., 0])
    names = [self.predict(values ** power, name)
             for power, name in ((0.9, "a_1.npy"), (1.1, "a_2.npy"), (1, "b_1.npy"), (1, "c.npy"))]
    truth = os.path.join(self.out, "x_truth.json")
    self.newton("judge", "--truth", truth, "--predictions", *names)
    lines = self.output.split("\n\n")[1].splitlines()
    self.assertEqual([line.split(" | ")[0] for line in lines[2:]], ["| a", "| observer", "| neighbours"])
    self.assertRegex(lines[2], r"\| 2 \| -2.00 ± 0.28 \| 1.00 ± 0.14 \| 1.00 ± 0.14 \|")  # 0.1 x sqrt 2, and twice that
    self.newton("judge", "--truth", truth, "--predictions", *names[1:])
    self.assertNotIn("±", self.output)

  def exponents(self, row):
    return [row["exponents"][key][0] for key in ("r", "m1", "m2")]

  def test_mini_tokens_are_positions_in_bins(self):
    self.make("probe-data", "--systems", 5, "--val-systems", 30)
    windows, val = self.windows("x_val_000000.bin", 128).reshape(30, 32, 4), self.truth()["val"]
    np.testing.assert_array_equal(windows // 256, np.broadcast_to(np.arange(4), windows.shape))
    seen = (windows % 256 + 0.5) / 256 * 8 - 4
    d, _ = newton.relative(val, 32)
    share = val["m1"][:, :, None] / (val["m1"] + val["m2"][:, None])[:, :, None]
    com = val["com"][:, None]
    expected = np.concatenate([com + d[:, :, 0] * (1 - share), com - d[:, :, 0] * share], 2)
    self.assertLessEqual(np.abs(seen - expected).max(), 8 / 256 / 2)
    self.assertIn('"context": 128, "vocab": 1024', self.output)

  def test_full_tokens_have_time_step_bodies_in_order_and_end(self):
    self.make("make", "--systems", 60, "--val-systems", 3, size="full")
    windows = self.windows("x_train_000000.bin", 2000)
    s = newton.draw("full", np.random.default_rng([1, 0, 0]), 60, 10)
    np.testing.assert_array_equal(windows[:, 0], np.where(s["dt"] > 0.1, 14001, 14000))
    self.assertEqual(set(windows[:, -1]), {14002})
    x, y = windows[:, 1:-1:2], windows[:, 2:-1:2] - 7000
    self.assertTrue(((x >= 0) & (x < 7000) & (y >= 0) & (y < 7000)).all())
    for row, n in enumerate(s["n"]):
      star = (np.stack([x[row, n::n + 1], y[row, n::n + 1]], 1) + 0.5) / 70 - 50
      if n > 1:  # it stands still
        self.assertLessEqual(np.abs(star - s["com"][row]).max(), 0.5 / 70 + 1e-9)
    self.assertEqual(set(s["n"]), set(range(1, 11)))
    self.assertIn("0 % of the positions are outside", self.output)
    edges = newton.bins(newton.SIZES["full"], np.array([-60, -50, -49.98, 0, 49.98, 60]))
    self.assertEqual(edges.tolist(), [0, 0, 1, 3500, 6998, 6999])
    with mock.patch.object(newton.SIZES["full"], "box", 1):
      self.make("make", "--systems", 6, "--val-systems", 3, "--overwrite", size="full")
    self.assertRegex(self.output, r"[1-9][\d.]* % of the positions are outside")

  def test_full_distributions(self):
    s = newton.draw("full", np.random.default_rng(1), 20000, 1)
    self.assertAlmostEqual(np.median(s["m2"]), 0.95, delta=0.01)
    self.assertTrue(1e-9 <= s["m1"].min() and s["m1"].max() == 1e-3)
    self.assertAlmostEqual(np.median(s["m1"]), 9.7e-5, delta=5e-6)
    self.assertAlmostEqual(s["e"].mean(), 0.867 / (0.867 + 3.03), delta=0.01)  # a beta distribution; sd / sqrt(20000)

  def test_labels_are_standardised_forces_at_their_tokens(self):
    for size, T, first, target in (("mini", 128, 3, "log"), ("full", 2000, 2, "force"), ("mini", 128, 3, "vector")):
      with self.subTest(size=size, target=target):
        self.make("probe-data", "--systems", 60, "--val-systems", 7, "--overwrite", "--target", target, size=size)
        truth = self.truth()
        for split, N in (("train", 60), ("val", 7)):
          found = self.labels(f"x_labels_{split}_000000.bin")
          self.assertEqual(len(found), len(self.tokens(f"x_{split}_000000.bin")))
          self.assertTrue(np.isnan(found[-1]).all())
          found = found[:-1].reshape(N, T, -1)
          has = np.isfinite(found).all(2)
          self.assertTrue(has[:, first::4].all())
          self.assertEqual(has.sum(), has[:, first::4].size)
          # From the positions that are in the tokens before binning: planet, star, planet, ...
          s = truth[split]
          positions = newton.elements(newton.SIZES[size], s)
          planet, star = positions[:, ::2], positions[:, 1::2]
          steps = star.shape[1]
          d = planet[:, :steps] - star
          force = newton.G * (s["m1"][:, :1] * s["m2"][:, None])[..., None] / (d**2).sum(2, keepdims=True)
          value = {"log": np.log(force), "force": force,
                   "vector": -force * d / np.sqrt((d**2).sum(2, keepdims=True))}[target]
          values = found[:, first::4].astype(float)
          np.testing.assert_allclose(values[:, :steps], (value - truth["mean"]) / truth["sd"], rtol=1e-6, atol=1e-9)
          if split == "train":
            self.assertAlmostEqual((values**2).mean(), 1, places=5)
            if target == "vector":
              self.assertEqual(truth["mean"], 0)
            else:
              self.assertAlmostEqual(values.mean(), 0, places=5)

  def test_raw_labels(self):
    self.make("probe-data", "--systems", 6, "--val-systems", 2, "--raw", "--target", "force")
    self.assertEqual((self.truth()["mean"], self.truth()["sd"]), (0, 1))
    self.assertGreater(np.nanmin(self.labels("x_labels_train_000000.bin")), 0)

  def test_equal_seeds_give_equal_files_and_shards_hold_whole_windows(self):
    contents = {}
    with mock.patch.object(newton, "CHUNK", 4):
      for name, seed, shard in (("a", 1, 100), ("b", 1, 100), ("c", 0, 100), ("d", 1, 8)):
        with mock.patch.object(newton, "SHARD", shard):
          self.make("make", "--systems", 19, "--val-systems", 1, "--seed", seed, name=name)
        names = [file for file in self.files() if re.fullmatch(name + r"_train_\d+\.bin", file)]
        contents[name] = [self.windows(file, 128).tolist() for file in names]
      self.make("probe-data", "--systems", 19, "--val-systems", 19, name="p")
    self.assertEqual(contents["a"], contents["b"])
    self.assertNotEqual(contents["a"], contents["c"])
    self.assertEqual([len(windows) for windows in contents["d"]], [8, 8, 3])
    self.assertEqual(list(itertools.chain(*contents["d"])), contents["a"][0])
    windows = itertools.chain(contents["a"][0],
                              *(self.windows(f"p_{split}_000000.bin", 128).tolist() for split in ("train", "val")))
    self.assertEqual(len({*map(tuple, windows)}), 3 * 19)  # no system is in two files, or twice in one

  def test_judge_finds_the_law_that_the_predictions_follow(self):
    self.make("probe-data", "--systems", 300, "--val-systems", 200)
    val = self.truth()["val"]
    d, _ = newton.relative(val, 32)
    r = np.hypot(d[:, :, 0, 0], d[:, :, 0, 1])
    force = 39.4784176044 * val["m1"] * val["m2"][:, None] / r**2
    noise = 1 + 0.02 * np.random.default_rng(3).normal(size=r.shape)
    names = [self.predict(values, name) for name, values in (
        ("true.npy", force), ("noisy.npy", force * noise), ("cube.npy", force / r),
        ("m2.npy", force / val["m2"][:, None]**1.5))]
    rows = self.judge(*names)
    np.testing.assert_allclose(self.exponents(rows[names[0]]), [-2, 1, 1], atol=1e-6)
    np.testing.assert_allclose(rows[names[0]]["constant"], 39.4784176044, rtol=1e-6)
    self.assertGreater(rows[names[0]]["r2"], 1 - 1e-9)
    self.assertEqual(rows["truth"]["points"], 200 * 16)
    np.testing.assert_allclose(self.exponents(rows["truth"]), [-2, 1, 1], atol=1e-9)
    np.testing.assert_allclose(self.exponents(rows[names[1]]), [-2, 1, 1], atol=0.01)
    columns = np.broadcast_arrays(1, np.log(r), np.log(val["m1"]), np.log(val["m2"])[:, None])
    x = np.stack(columns, 2)[:, 16:].reshape(-1, 4)
    spread = 0.02 * np.sqrt(np.diag(np.linalg.inv(x.T @ x)))[1:]  # of independent noise
    for (value, low, high), error in zip(rows[names[1]]["exponents"].values(), spread):
      self.assertTrue(low < value < high)
      self.assertAlmostEqual((high - low) / (2 * 1.96 * error), 1, delta=0.25)  # 200 systems: 1 / sqrt(400) each way
    self.assertAlmostEqual(rows[names[1]]["median_error"], 0.02 * 0.6745, delta=0.002)
    np.testing.assert_allclose(self.exponents(rows[names[2]]), [-3, 1, 1], atol=1e-6)
    self.assertLess(rows[names[2]]["r2"], 0.9)
    np.testing.assert_allclose(self.exponents(rows[names[3]]), [-2, 1, -0.5], atol=1e-6)
    np.testing.assert_allclose(self.exponents(rows["observer"]), [-2, 1, 1], atol=0.02)
    self.assertGreater(rows["observer"]["r2_log"], 0.999)
    self.assertTrue(0.85 < rows["neighbours"]["r2_log"] < 0.99)

  def test_observer_guesses_masses_that_do_not_show(self):
    val, size = newton.draw("full", np.random.default_rng(4), 200, 1), newton.SIZES["full"]

    def masses(known):
      force = newton.observer(size, val, np.array(known))
      return np.percentile(force * newton.states(size, val)[2]**2 / newton.G / val["m2"][:, None], [5, 95])

    val["m1"] /= 1000
    np.testing.assert_allclose(masses([1e-6, 1e-4]), 1e-5, rtol=0.01)
    val["m1"][:], val["dt"][:] = 0.1, 0.486  # these show
    for a in (5, 0.5):  # the second goes round in less than dt
      val["a"][:] = a
      np.testing.assert_allclose(masses([1e-6, 1]), 0.1, rtol=0.05)

  def test_judge_of_forces_and_vectors(self):
    for target, sign in (("force", 1), ("force", -1), ("vector", 1)):
      self.make("probe-data", "--systems", 30, "--val-systems", 40, "--target", target, "--overwrite")
      values = newton.labels(newton.SIZES["mini"], target, self.truth()["val"])
      values[:20, :, :] *= sign
      row = next(iter(self.judge(self.predict(values if target == "vector" else values[..., 0])).values()))
      self.assertEqual(row["positive"], 1 if sign == 1 else 0.5)  # no logarithm of a negative force is taken
      np.testing.assert_allclose(self.exponents(row), [-2, 1, 1], atol=1e-5)

  def test_exponents_that_cannot_be_told_apart_are_not_given(self):
    self.make("probe-data", "--systems", 3, "--val-systems", 2)
    row = self.judge(self.predict(np.ones((2, 32))))["truth"]
    self.assertIsNone(row["exponents"])
    self.assertIn("| - | - | - | - |", self.output)

  def test_picture(self):
    try:
      import matplotlib  # noqa: F401
    except ImportError:
      self.skipTest("no matplotlib")
    self.make("probe-data", "--systems", 10, "--val-systems", 10)
    common_arguments = ["--truth", os.path.join(self.out, "x_truth.json"),
                        "--predictions", self.predict(np.ones((10, 32)))]
    self.newton("picture", *common_arguments, "--out", self.path("x.png"))
    self.assertEqual(self.bytes_of("x.png")[:4], b"\x89PNG")
    self.newton("picture", *common_arguments, "--out", self.path("x.what"), code=2)
    self.assert_error("x.what")

  def test_files_are_replaced_as_a_whole_or_not_at_all(self):
    self.make("probe-data", "--systems", 3, "--val-systems", 1)
    before = self.files()
    self.make("make", code=2)
    self.assert_error("x_labels_train_000000.bin exists", "--overwrite")
    with mock.patch.object(newton, "tokens", side_effect=OSError(28, "No space left on device")):
      self.make("make", "--overwrite", code=1)
    self.assertEqual(self.files(), before)
    self.make("make", "--overwrite", "--systems", 3, "--val-systems", 1)
    self.assertEqual(self.files(), ["x_train_000000.bin", "x_train_000000.json", "x_val_000000.bin",
                                    "x_val_000000.json"])  # labels of other systems are gone

  def test_nothing_is_left_when_it_is_stopped(self):
    process = start("newton.py", "make", "--size", "full", "--out", self.out, "--name", "x", stderr=subprocess.DEVNULL)
    while not self.files() and process.poll() is None:  # the temporary folder
      time.sleep(0.01)
    process.terminate()
    self.assertEqual(process.wait(60), 143)
    self.assertEqual(self.files(), [])

  def test_bad_input(self):
    self.make("probe-data", "--systems", 3, "--val-systems", 2)
    truth, good = os.path.join(self.out, "x_truth.json"), self.predict(np.ones((2, 32)))
    text = self.text_of(truth)
    nan, other = self.path("nan.npy"), self.path("other.npy")
    np.save(nan, np.full((2, 128, 1), np.nan, np.float32))
    np.save(other, np.zeros((3, 128, 1), np.float32))
    np.save(self.path("int.npy"), np.zeros((2, 128, 1), int))
    judge = lambda truth, predictions, *more: ["judge", "--truth", truth, "--predictions", predictions, *more]
    make = ["make", "--size", "mini", "--out", self.out, "--name"]
    for args, parts in (
        ([*make, "a/b"], ["--name: 'a/b': use letters"]),
        ([*make, "y", "--systems", 0], ["--systems 0", "between 1 and"]),
        ([*make, "y", "--seed", -1], ["--seed -1"]),
        (["make", "--size", "tiny"], ["invalid choice: 'tiny'", "mini", "full"]),
        (["make", "--size", "mini", "--name", "y", "--out", good], ["--out " + good]),
        (judge(self.path("none"), good), ["--truth", "No such file", "probe-data"]),
        (judge(self.write("empty.json", "{}"), good), ["empty.json is not a NAME_truth.json", "make it again"]),
        (judge(self.write("deep.json", "[" * 100000), good), ["deep.json is not a NAME_truth.json"]),
        (judge(self.write("t.json", text.replace('"dt"', '"d"')), good), ["t.json is not", "'dt'"]),
        (judge(truth, self.path("none.npy")), ["--predictions", "No such file", "--predict"]),
        (judge(truth, truth), ["not a .npy file"]),
        (judge(truth, other), ["float32 [3, 128, 1]", "need float32 [2, 128, 1]", "data.val"]),
        (judge(truth, self.path("int.npy")), ["int64 [2, 128, 1]"]),
        (judge(truth, nan), ["not finite", "optimizer.lr"]),
        (judge(truth, good, "--from-step", 32), ["--from-step 32", "between 0 and 31"]),
        (judge(truth, good, "--json", self.path("no/x.json")), ["there is no folder", "no"])):
      with self.subTest(args):
        before = self.files()
        self.newton(*args, code=2)
        self.assert_error(*parts)
        self.assertEqual(self.files(), before)
