#!/usr/bin/env python3
"""Does a model that reads orbits learn the force behind them? Makes the data, and judges the model's answers.

    python3 scripts/newton.py make       --size mini --out data/shards/newton --name mini
    python3 scripts/newton.py probe-data --size mini --out data/shards/newton --name mini_probe
    python3 scripts/newton.py judge   --truth data/shards/newton/mini_probe_truth.json --predictions pred.npy [--json F]
    python3 scripts/newton.py picture --truth ... --predictions ... --out newton.png

scripts/newton.sh does all of it for several variants and seeds. docs/results/newton.md says what the data are and how
answers are judged. Needs numpy, and matplotlib for the picture.
"""
import argparse
import itertools
import json
import os
import re
from types import SimpleNamespace

from lib import common
from lib.common import UserError

try:
  import numpy as np
except ImportError as error:
  common.stop(f"{error}; use the Python that scripts/install_deps.sh installed it for (/usr/bin/python3)")

from lib import drawing, shards, tables, variants

G = 39.4784176044  # AU^3 / (year^2 solar mass)
CHUNK, SHARD = 500, 50000  # systems that are computed together; systems of a full shard, a multiple of that
DAY = 0.0027  # of a year
SIZES = {  # offsets[body][channel]; first_label: the token of the first label, every fourth follows
    "mini": SimpleNamespace(elements=64, planets=1, bins=256, box=4, offsets=((0, 256), (512, 768)), framed=False,
                            context=128, vocab=1024, first_label=3, systems=20000, target="log", from_step=16),
    "full": SimpleNamespace(elements=999, planets=10, bins=7000, box=50, offsets=((0, 7000), (0, 7000)), framed=True,
                            context=2000, vocab=14003, first_label=2, systems=1000000, target="force", from_step=0),
}
TARGETS = "log", "force", "vector"
TIME_STEPS, END = (7 * DAY, 180 * DAY), 14002  # full: tokens 14000 and 14001 name them


# ------------------------------------------------------------------------------------------------------------ orbits

def eccentric_anomaly(mean, e):
  """E with E - e sin E = mean modulo 2 pi, within 1e-12; 0 <= e < 1. From the right of the root, Newton's iteration
  descends to it for every e, because the left side is convex between 0 and pi."""
  mean = (mean + np.pi) % (2 * np.pi) - np.pi
  wanted = np.abs(mean)
  E = np.minimum(wanted + e, np.pi)
  for _ in range(100):
    over = E - e * np.sin(E) - wanted
    if np.abs(over).max() < 1e-14:
      break
    E = E - over / (1 - e * np.cos(E))
  return np.copysign(E, mean)


def kepler(mu, a, e, angle, phase, t):
  """Position and velocity [..., 2] relative to the star at time t, for mu = G (m1 + m2); phase: mean anomaly at 0."""
  rate = np.sqrt(mu / a**3)
  E = eccentric_anomaly(rate * t + phase, e)
  minor, speed = np.sqrt(1 - e * e), rate * a / (1 - e * np.cos(E))
  turned = lambda x, y: np.stack([np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y], -1)
  return turned(a * (np.cos(E) - e), a * minor * np.sin(E)), turned(-speed * np.sin(E), speed * minor * np.cos(E))


def draw(name, rng, N, planets):
  """N systems: arrays [N, planets] of m1, a, e, angle, phase; [N] of n (planets that exist), m2, dt; com [N, 2]."""
  uniform = lambda low, high: rng.uniform(low, high, (N, planets))
  s = {"n": rng.integers(1, planets + 1, N), "angle": uniform(0, 2 * np.pi), "phase": uniform(0, 2 * np.pi)}
  if name == "mini":
    s.update(m2=0.5 * 4**rng.random(N), a=uniform(0.7, 2), e=uniform(0, 0.6), com=rng.uniform(-0.5, 0.5, (N, 2)),
             dt=np.full(N, 0.1))
    s["m1"] = s["m2"][:, None] * 10**uniform(-1, 0)
  else:
    s.update(m2=np.clip(-0.67937 + 1.62716 * np.exp(0.20045 * rng.normal(size=N)), 0.1, 5), a=uniform(0.3, 32),
             m1=np.clip(6e-8 + 1.1056e-3 * rng.gamma(0.3202, size=(N, planets)), 1e-9, 1e-3),
             e=rng.beta(0.867, 3.03, (N, planets)), com=rng.normal(size=(N, 2)), dt=rng.choice(TIME_STEPS, N))
  return s


def chunks(name, seed, stream, systems, planets=1):
  """The systems of a stream (0 and 1: make, 2 and 3: probe-data; training, validation), CHUNK at a time."""
  for number, first in enumerate(range(0, systems, CHUNK)):
    yield draw(name, np.random.default_rng([seed, stream, number]), min(CHUNK, systems - first), planets)


def relative(s, steps):
  """Position and velocity of the planets relative to the star at `steps` moments: [N, steps, planets, 2] both."""
  orbit = lambda key: s[key][:, None, :]
  t = (np.arange(steps) * s["dt"][:, None])[:, :, None]
  return kepler(G * (orbit("m1") + s["m2"][:, None, None]), orbit("a"), orbit("e"), orbit("angle"), orbit("phase"), t)


def elements(size, s):
  """[N, elements, 2]: the positions of all bodies in order. One planet and its star move about the centre of mass."""
  result = np.empty((len(s["n"]), size.elements, 2))
  for n in np.unique(s["n"]):
    rows = s["n"] == n
    of = {key: value[rows, :n] if value.ndim == 2 and key != "com" else value[rows] for key, value in s.items()}
    d, _ = relative(of, -(-size.elements // (n + 1)))
    share = of["m1"] / (of["m1"].sum(1) + of["m2"])[:, None] if n == 1 else np.zeros((len(d), n))
    star = of["com"][:, None, None] - d[:, :, :1] * share[:, None, :1, None]
    result[rows] = np.concatenate([star + d, star], 2).reshape(len(d), -1, 2)[:, :size.elements]
  return result


def bins(size, positions):
  """0 to size.bins - 1 of each coordinate; one outside the box gets the nearest."""
  return np.clip(np.floor((positions + size.box) / (2 * size.box) * size.bins), 0, size.bins - 1).astype(int)


def tokens(size, s, positions):
  """[N, context] of elements()."""
  body = np.arange(size.elements) % 2
  flat = (bins(size, positions) + np.array(size.offsets)[body]).reshape(len(positions), -1)
  if size.framed:
    step = 14000 + (s["dt"] == TIME_STEPS[1])
    flat = np.concatenate([step[:, None], flat, np.full((len(flat), 1), END)], 1)
  return flat.astype("<u2")


def label_places(size):
  return np.arange(size.first_label, size.context, 4)


def states(size, s):
  """Of two-body systems, at the places of labels: relative position, velocity [N, places, 2], r and F [N, places]."""
  d, v = (array[:, :, 0] for array in relative(s, len(label_places(size))))
  r = np.hypot(d[..., 0], d[..., 1])
  return d, v, r, G * (s["m1"][:, 0] * s["m2"])[:, None] / r**2


# -------------------------------------------------------------------------------------------------------------- data

def write_shards(folder, stem, systems, kind, rows, progress, columns=1):
  """rows: an iterator over the windows of each CHUNK systems, [N, T] or [N, T, K]. Writes shards of SHARD systems, each
  with one token more: another first one, or no label. kind, columns: as in shards.py."""
  for number, first in enumerate(range(0, systems, SHARD)):
    here = min(SHARD, systems - first)
    writer = shards.Writer(os.path.join(folder, f"{stem}_{number:06d}.bin"), kind, columns)
    for index, chunk in enumerate(itertools.islice(rows, -(-here // CHUNK))):
      if index == 0:
        last = chunk[0, 0]
      writer.write(chunk.tobytes())
      progress.add(chunk.nbytes)
    writer.write(last.tobytes())
    writer.close()


def of_name(args):
  return re.compile(rf"{re.escape(args.name)}_((labels_)?(train|val)_\d{{6}}\.(bin|json)|truth\.json)")


def report(args, stems, **model):
  """Prints the files and a configuration for them. stems: {key of data: what its files are called}."""
  for name in sorted(filter(of_name(args).fullmatch, os.listdir(args.out))):
    print(os.path.join(args.out, name))
  size = SIZES[args.size]
  configuration = {"data": {key: os.path.join(args.out, f"{args.name}_{stem}_*.bin") for key, stem in stems.items()},
                   "model": {"context": size.context, "vocab": size.vocab, **model}}
  print(f"for the configuration: {json.dumps(configuration)[1:-1]}")


def make(args):
  size = SIZES[args.size]
  outside = []  # the share of each chunk

  def windows(stream, systems):
    for s in chunks(args.size, args.seed, stream, systems, size.planets):
      positions = elements(size, s)
      outside.append((np.abs(positions) >= size.box).any(-1).mean())
      yield tokens(size, s, positions)

  with common.whole_files(args.out, of_name(args), args.overwrite) as folder:
    progress = common.Progress(2 * size.context * (args.systems + args.val_systems))
    for stream, (split, systems) in enumerate((("train", args.systems), ("val", args.val_systems))):
      write_shards(folder, f"{args.name}_{split}", systems, "tokens", windows(stream, systems), progress)
    progress.end()
    shards.warn_of_repeats(folder, args.name, size.context)
    shards.describe(folder, args.name, {"tokenizer": f"newton {args.size}"})
  print(f"{100 * np.mean(outside):.2g} % of the positions are outside the box and were moved to its edge")
  report(args, {"train": "train", "val": "val"})


def labels(size, target, s):
  """[N, places, K]"""
  d, _, r, force = states(size, s)
  if target == "vector":
    return -d * (force / r)[..., None]
  return (np.log(force) if target == "log" else force)[..., None]


def probe_data(args):
  size = SIZES[args.size]
  target = args.target or size.target
  split_chunks = {split: list(chunks(args.size, args.seed, stream, systems))
                  for stream, (split, systems) in enumerate((("train", args.systems), ("val", args.val_systems)), 2)}
  values = np.concatenate([labels(size, target, s) for s in split_chunks["train"]])
  mean, sd = 0, 1
  if not args.raw:
    mean = 0 if target == "vector" else values.mean()
    sd = np.sqrt(((values - mean)**2).mean())

  def rows(s):
    result = np.full((len(s["n"]), size.context, values.shape[2]), np.nan, "<f4")
    result[:, label_places(size)] = (labels(size, target, s) - mean) / sd
    return result

  with common.whole_files(args.out, of_name(args), args.overwrite) as folder:
    progress = common.Progress((2 + 4 * values.shape[2]) * size.context * (args.systems + args.val_systems))
    truth = {"size": args.size, "seed": args.seed, "target": target, "mean": float(mean), "sd": float(sd)}
    for split, parts in split_chunks.items():
      systems = sum(len(s["n"]) for s in parts)
      windows = (tokens(size, s, elements(size, s)) for s in parts)
      write_shards(folder, f"{args.name}_{split}", systems, "tokens", windows, progress)
      write_shards(folder, f"{args.name}_labels_{split}", systems, "values", map(rows, parts), progress,
                   values.shape[2])
      truth[split] = {key: np.concatenate([s[key] for s in parts]).tolist() for key in parts[0]}
    with open(os.path.join(folder, f"{args.name}_truth.json"), "w", encoding="utf-8") as file:
      json.dump(truth, file)
    progress.end()
    shards.warn_of_repeats(folder, args.name, size.context)
    shards.describe(folder, args.name, {"tokenizer": f"newton {args.size}"})
  report(args, {"train": "train", "val": "val", "labels": "labels_train", "val_labels": "labels_val"},
         head={"outputs": values.shape[2]})


# ------------------------------------------------------------------------------------------------------------- judge

def observer(size, s, masses):
  """The force [N, places] as far as the bins of a whole window show it: an ellipse with its focus in the star, Kepler's
  third law, and the planet's share of the total mass from the movement of the star. masses: those of other planets,
  whose geometric mean is the guess where the movement is within twice its standard error."""
  moments, column = size.elements // 2, lambda x: x[:, None]
  width = 2 * size.box / size.bins
  seen = (bins(size, elements(size, s))[:, :2 * moments] + 0.5) * width - size.box
  planet, star = np.moveaxis((seen[..., 0] + 1j * seen[..., 1]).reshape(-1, moments, 2), 2, 0)
  d = planet - star
  # r = p - k d, linear in p and in k, the vector of length e to the periapsis
  p, kx, ky = (np.linalg.pinv(np.stack([np.ones(d.shape), -d.real, -d.imag], 2)) @ np.abs(d)[..., None])[..., 0].T
  e, angle = np.hypot(kx, ky).clip(0, 0.99), np.arctan2(ky, kx)
  a = np.abs(p) / (1 - e * e)
  d = d * np.exp(-1j * column(angle)) / column(a)
  E = np.angle(d.real + column(e) + 1j * d.imag / np.sqrt(1 - column(e)**2))
  mean = E - column(e) * np.sin(E)
  # What the mean anomaly gains between moments: its mean at first, then the slope of a line, which is more precise.
  gain = np.angle(np.exp(1j * np.diff(mean)).mean(1)) % (2 * np.pi)
  t = np.arange(moments) - (moments - 1) / 2
  for _ in range(2):
    wave = np.exp(1j * (mean - column(gain) * t))
    phase = np.angle(wave.mean(1))
    gain = gain + np.angle(wave * np.exp(-1j * column(phase))) @ t / (t @ t)
  # There may have been whole turns as well: as many as bring the mass closest to the sun's.
  rates = (column(gain) + 2 * np.pi * np.arange(8)).clip(1e-9) / column(s["dt"])
  rate = np.take_along_axis(rates, column(np.abs(np.log(rates**2 * column(a)**3 / G)).argmin(1)), 1)[:, 0]
  mass, times = rate**2 * a**3 / G, np.arange(len(label_places(size))) - (moments - 1) / 2
  fitted, _ = kepler(*map(column, (G * mass, a, e, angle, phase)), times * column(s["dt"]))
  about = fitted[:, :moments] - fitted[:, :moments].mean(1, keepdims=True)
  square = (about**2).sum((1, 2))
  share = -(about[..., 0] * star.real + about[..., 1] * star.imag).sum(1) / square
  error = width / np.sqrt(12 * square)  # of a coordinate in a bin, carried on to share
  m1 = np.where(share > 2 * error, share * mass, np.exp(np.log(masses).mean())).clip(masses.min(), masses.max())
  return column(G * m1 * np.maximum(mass - m1, 1e-3)) / (fitted**2).sum(2)


def neighbours(size, train, val, asked):
  """The mean force of the two nearest of 2,000 states of training systems (relative position, velocity, masses,
  standardised) at the places `asked` of validation systems, a flat index."""
  def flat(s):
    d, v, _, force = states(size, s)
    masses = np.stack([s["m1"][:, 0], s["m2"]], -1)[:, None].repeat(d.shape[1], 1)
    return np.concatenate([d, v, masses], 2).reshape(-1, 6), force.reshape(-1)

  known, force = flat({key: value[:1000] for key, value in train.items()})
  some = np.random.default_rng(0).choice(len(known), min(2000, len(known)), replace=False)
  known, force = known[some], force[some]
  centre, scale = known.mean(0), known.std(0) + 1e-300
  x, y = (flat(val)[0][asked] - centre) / scale, (known - centre) / scale
  distances = (x**2).sum(1)[:, None] - 2 * x @ y.T + (y**2).sum(1)
  return force[np.argpartition(distances, 1, axis=1)[:, :2]].mean(1)


def measure(system, r, m1, m2, force, predicted):
  """All arguments are [points]. exponents: {name: [value, low, high]}, or none if the points do not tell them apart."""
  use = predicted > 0
  x = np.log(np.stack([np.full(use.sum(), np.e), r[use], m1[use], m2[use]], 1))
  middle = x.mean(0) * [0, 1, 1, 1] if len(x) else 0
  x, y, system = x - middle, np.log(predicted[use]), system[use]
  squares = lambda x: (x**2).sum()
  explained = lambda truth, guess: float(1 - squares(truth - guess) / max(squares(truth - truth.mean()), 1e-300))
  result = {"points": len(use), "positive": float(use.mean()), "exponents": None, "constant": None, "r2_log": None,
            "r2": explained(force, predicted), "median_error": float(np.median(np.abs(predicted / force - 1)))}
  if len(x):
    result["r2_log"] = explained(np.log(force[use]), y)
  if len(x) < 4 or np.linalg.matrix_rank(x) < 4:
    return result
  solution = np.linalg.lstsq(x, y, rcond=None)[0]
  _, system = np.unique(system, return_inverse=True)
  N = system.max() + 1
  sums = np.zeros((N, 4, 5))
  np.add.at(sums, system, x[:, :, None] * np.concatenate([x, y[:, None]], 1)[:, None])
  weights = np.random.default_rng(0).multinomial(N, np.full(N, 1 / N), 1000)
  sums = (weights @ sums.reshape(N, 20)).reshape(-1, 4, 5)
  drawn = (np.linalg.pinv(sums[:, :, :4]) @ sums[:, :, 4:])[..., 0]
  low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
  result["exponents"] = {name: [float(value[i]) for value in (solution, low, high)]
                         for i, name in enumerate(("r", "m1", "m2"), 1)}
  result["constant"] = float(np.exp(solution[0] - solution @ middle))
  return result


def read_truth(path):
  """The file's object, with arrays for both splits."""
  try:
    with open(path, "rb") as file:
      truth = common.parse_json(common.decoded(file.read(), path))
    for split in ("train", "val"):
      truth[split] = {key: np.array(truth[split][key])
                      for key in ("n", "m1", "m2", "a", "e", "angle", "phase", "com", "dt")}
      if len({len(value) for value in truth[split].values()}) != 1 or truth[split]["m1"].shape[1] != 1:
        raise ValueError("systems have several lengths")
    SIZES[truth["size"]], float(truth["mean"]), float(truth["sd"]), TARGETS.index(truth["target"])
  except OSError as error:
    raise UserError(f"--truth {path}: {error.strerror}; name the NAME_truth.json that probe-data wrote")
  except (ValueError, KeyError, TypeError, IndexError) as error:
    raise UserError(f"--truth {path} is not a NAME_truth.json of probe-data ({type(error).__name__}: {error}); "
                    "make it again")
  return truth


def read_forces(path, truth):
  """[N, places]: the force that the predictions mean."""
  size, N, K = SIZES[truth["size"]], len(truth["val"]["n"]), 2 if truth["target"] == "vector" else 1
  try:
    found = np.load(path, mmap_mode="r", allow_pickle=False)
    shape, kind = found.shape, found.dtype.kind
  except OSError as error:
    raise UserError(f"--predictions {path}: {error.strerror or error}; name a file that ./train --predict wrote")
  except (ValueError, EOFError, AttributeError) as error:
    raise UserError(f"--predictions {path} is not a .npy file of numbers ({error}); "
                    "name a file that ./train --predict wrote")
  if shape != (N, size.context, K) or kind != "f":
    raise UserError(f"--predictions {path}: {found.dtype} {list(shape)}; the systems of --truth need float32 [{N}, "
                    f"{size.context}, {K}] (windows, model.context, outputs); predict data.val of the same probe-data")
  values = found[:, label_places(size)].astype(float) * truth["sd"] + truth["mean"]
  if not np.isfinite(values).all():
    raise UserError(f"--predictions {path}: a prediction is not finite; the probe's training diverged, "
                    "lower optimizer.lr")
  if truth["target"] == "vector":
    return np.hypot(values[..., 0], values[..., 1])
  return np.exp(values[..., 0]) if truth["target"] == "log" else values[..., 0]


def judged(args):
  """The first step, and by name, of the predictions, then of what they are compared with: (points, forces) and
  measure() of these. points: system, r, m1, m2, F."""
  truth = read_truth(args.truth)
  size, val, train = SIZES[truth["size"]], truth["val"], truth["train"]
  places = len(label_places(size))
  first = size.from_step if args.from_step is None else args.from_step
  if not 0 <= first < places:
    raise UserError(f"--from-step {first} is not between 0 and {places - 1}, the last step of a {truth['size']} window")
  _, _, r, force = states(size, val)
  wide = lambda x: np.broadcast_to(x[:, None], r.shape)
  points = [wide(np.arange(len(r))), r, wide(val["m1"][:, 0]), wide(val["m2"]), force]
  points = np.stack(points)[:, :, first:].reshape(5, -1)
  flat = lambda forces: forces[:, first:].reshape(-1)
  results = {path: (points, flat(read_forces(path, truth))) for path in args.predictions}
  results["truth"] = points, points[4]
  results["observer"] = points, flat(observer(size, val, train["m1"]))
  some = np.random.default_rng(1).permutation(points.shape[1])[:5000]
  results["neighbours"] = points[:, some], neighbours(size, train, val, flat(np.arange(r.size).reshape(r.shape))[some])
  return first, results, {name: measure(*points, forces) for name, (points, forces) in results.items()}


def table(rows):
  number = lambda value: "-" if value is None else f"{value:.4g}"
  exponent = lambda found: "{:.3f} [{:.3f}, {:.3f}]".format(*found)
  return tables.markdown(
      ["", "points", "F > 0", "exponent of r", "of m1", "of m2", "constant", "R2 of F", "R2 of ln F", "median error"],
      [[name, str(row["points"]), f"{100 * row['positive']:.1f} %",
        *(exponent(row["exponents"][key]) if row["exponents"] else "-" for key in ("r", "m1", "m2")),
        *(number(row[key]) for key in ("constant", "r2", "r2_log")), f"{100 * row['median_error']:.2g} %"]
       for name, row in rows.items()])


def seeds(rows):
  """A table of the means and standard deviations of the rows NAME_1.npy, NAME_2.npy, ..., and what they are compared
  with; none if there are no such rows."""
  groups, lines = {}, []
  for name, row in rows.items():
    found = re.fullmatch(r"(.*)_\d+\.npy", name)
    if row["exponents"]:
      numbers = [*(row["exponents"][key][0] for key in ("r", "m1", "m2")), row["r2"], row["r2_log"]]
      groups.setdefault(found[1] if found else name, []).append(numbers)
  for name, values in groups.items():
    if len(values) > 1:
      spread = zip(np.mean(values, 0), np.std(values, 0, ddof=1))
      lines.append([os.path.basename(name), str(len(values)), *(f"{mean:.2f} ± {sd:.2f}" for mean, sd in spread)])
    elif name in ("observer", "neighbours"):
      lines.append([name, "-", *(f"{value:.2f}" for value in values[0])])
  if max(map(len, groups.values()), default=0) < 2:
    return []
  return [tables.markdown(["", "seeds", "exponent of r", "of m1", "of m2", "R2 of F", "R2 of ln F"], lines)]


def judge(args):
  first, _, rows = judged(args)
  if args.json:
    with open(args.json, "w", encoding="utf-8") as file:
      json.dump({"truth": args.truth, "from_step": first, "rows": rows}, file, indent=1)
      file.write("\n")
  print("\n\n".join([table(rows), *seeds(rows)]))


def picture(args):
  _, results, rows = judged(args)
  pyplot = drawing.load_pyplot()
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
  for number, (name, (points, forces)) in enumerate(results.items()):
    look = {"color": variants.COLOURS[number % len(variants.COLOURS)], "label": drawing.in_text(name)}
    some = np.random.default_rng(2).permutation(np.flatnonzero(forces > 0))[:2000]
    left.plot(points[4][some], forces[some], ".", markersize=2, alpha=0.5, **look)
    if rows[name]["exponents"]:
      value, low, high = np.transpose(list(rows[name]["exponents"].values()))
      right.errorbar(np.arange(3) + 0.1 * number, value, np.maximum([value - low, high - value], 0), fmt="o",
                     capsize=3, **look)
      drawing.legend(right, frameon=False)
  left.set(xscale="log", yscale="log", xlabel="force", ylabel="force by predictions")
  drawing.legend(left, frameon=False, markerscale=5)
  right.set(title="Exponents; the lines are Newton's law", ylabel="value and 95 % interval")
  right.set_xticks(range(3), ["r", "m1", "m2"])
  for value in (-2, 1):
    right.axhline(value, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
  try:
    figure.savefig(args.out, dpi=150)
  except ValueError as error:  # a name that ends in no kind of picture
    raise UserError(f"--out {args.out}: {error}")
  print(f"picture: {args.out}")


def parse_arguments():
  parser = common.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  commands = parser.add_subparsers(dest="command", required=True)
  sizes = lambda what: ", ".join(f"{name}: {what(size)}" for name, size in SIZES.items())
  made, judged_ones = (common.ArgumentParser(add_help=False) for _ in range(2))
  made.add_argument("--size", choices=SIZES, required=True)
  made.add_argument("--out", required=True, metavar="DIR", help="folder for the files")
  made.add_argument("--name", type=common.plain_name, required=True, help="files are NAME_train_000000.bin, ...")
  made.add_argument("--seed", type=int, default=1, help="[1]")
  made.add_argument("--overwrite", action="store_true", help="replace files of the same name")
  judged_ones.add_argument("--truth", required=True, metavar="FILE", help="NAME_truth.json of probe-data")
  judged_ones.add_argument("--predictions", required=True, nargs="+", metavar="FILE.npy",
                           help="float32 [windows, model.context, K] for data.val")
  first = sizes(lambda size: size.from_step)
  judged_ones.add_argument("--from-step", type=int, metavar="N",
                           help=f"judge from this moment on, where a model has seen some [{first}]")

  def add(name, action, parent, what):
    command = commands.add_parser(name, parents=[parent], help=what)
    command.set_defaults(action=action)
    return command

  command = add("make", make, made, "orbits to pretrain on")
  command.add_argument("--systems", type=int, metavar="N", help=f"for training [{sizes(lambda size: size.systems)}]")
  command.add_argument("--val-systems", type=int, metavar="N", default=300, help="for validation [300]")
  command = add("probe-data", probe_data, made, "orbits and forces for the probe")
  command.add_argument("--systems", type=int, metavar="N", default=9000, help="for training [9000]")
  command.add_argument("--val-systems", type=int, metavar="N", default=1000, help="for validation [1000]")
  command.add_argument("--target", choices=TARGETS, help=f"what labels are [{sizes(lambda size: size.target)}]")
  command.add_argument("--raw", action="store_true", help="do not standardise labels")
  command = add("judge", judge, judged_ones, "exponents of predicted forces as a table")
  command.add_argument("--json", metavar="FILE", help="write the table's numbers")
  command = add("picture", picture, judged_ones, "the same, drawn")
  command.add_argument("--out", required=True, metavar="FILE.png", help=".png, .pdf or .svg")
  args = parser.parse_args()
  if args.action in (make, probe_data):
    args.systems = SIZES[args.size].systems if args.systems is None else args.systems
    for flag, value, least in (("--systems", args.systems, 1), ("--val-systems", args.val_systems, 1),
                               ("--seed", args.seed, 0)):
      if not least <= value < 1 << 31:
        raise UserError(f"{flag} {value} is not between {least} and {(1 << 31) - 1}")
  else:
    if path := args.json if args.action is judge else args.out:
      common.check_output("--json" if args.action is judge else "--out", path, [args.truth, *args.predictions])
  return args


def main():
  args = parse_arguments()
  args.action(args)


if __name__ == "__main__":
  common.run(main, "nothing was written")
