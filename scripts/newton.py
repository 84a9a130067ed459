#!/usr/bin/env python3
"""Does a model that reads orbits learn the force behind them? Makes data, and judges the answers.

    python3 scripts/newton.py make       --size mini --out data/shards/newton --name mini
    python3 scripts/newton.py probe-data --size mini --out data/shards/newton --name mini_probe
    python3 scripts/newton.py judge   --truth data/shards/newton/mini_probe_truth.json
                                      --predictions pred.npy [--json F]
    python3 scripts/newton.py picture --truth ... --predictions ... --out newton.png

scripts/newton.sh does all of it for several variants and seeds. docs/results/newton.md says what
the data are and how answers are judged. Needs numpy, and matplotlib for the picture.
"""
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
  common.stop(f"{error}; use the Python that scripts/install_deps.sh installed it for "
              "(/usr/bin/python3)")

from lib import drawing, shards, tables, variants

G = 39.4784176044  # AU^3 / (year^2 solar mass)
CHUNK, SHARD = 500, 50000  # systems that are computed together; of a full shard, a multiple of that
DAY = 0.0027  # of a year
SIZES = {  # offsets[body][channel]; first_label: the token of the first label, every fourth follows
    "mini": SimpleNamespace(
        elements=64, planets=1, bins=256, box=4, offsets=((0, 256), (512, 768)), framed=False,
        context=128, vocab=1024, first_label=3, systems=20000, target="log", from_step=16),
    "full": SimpleNamespace(
        elements=999, planets=10, bins=7000, box=50, offsets=((0, 7000), (0, 7000)), framed=True,
        context=2000, vocab=14003, first_label=2, systems=1000000, target="force", from_step=0),
}
TARGETS = "log", "force", "vector"
TIME_STEPS = 7 * DAY, 180 * DAY  # full: tokens 14000 and 14001 name them
END = 14002
EXPONENTS = "r", "m1", "m2"


# ----------------------------------------------------------------------- orbits

def eccentric_anomaly(mean, e):
  """E with E - e sin E = mean modulo 2 pi, within 1e-12; 0 <= e < 1. Newton's iteration descends to
  it from the right for every e, because the left side is convex between 0 and pi."""
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
  """Position, velocity [..., 2] from the star. mu: G (m1 + m2), phase: mean anomaly at time 0."""
  rate = np.sqrt(mu / a**3)
  E = eccentric_anomaly(rate * t + phase, e)
  minor = np.sqrt(1 - e * e)
  speed = rate * a / (1 - e * np.cos(E))
  cos, sin = np.cos(angle), np.sin(angle)

  def turned(x, y):
    return np.stack([cos * x - sin * y, sin * x + cos * y], -1)

  position = turned(a * (np.cos(E) - e), a * minor * np.sin(E))
  velocity = turned(-speed * np.sin(E), speed * minor * np.cos(E))
  return position, velocity


def draw(name, rng, N, planets):
  """N systems: arrays [N, planets] of m1, a, e, angle, phase; [N] of n (planets that exist), m2,
  dt; com [N, 2]."""
  each = N, planets
  s = {"n": rng.integers(1, planets + 1, N),
       "angle": rng.uniform(0, 2 * np.pi, each), "phase": rng.uniform(0, 2 * np.pi, each)}
  if name == "mini":
    s.update(m2=0.5 * 4**rng.random(N), a=rng.uniform(0.7, 2, each), e=rng.uniform(0, 0.6, each),
             com=rng.uniform(-0.5, 0.5, (N, 2)), dt=np.full(N, 0.1))
    s["m1"] = s["m2"][:, None] * 10**rng.uniform(-1, 0, each)
  else:
    s["m2"] = np.clip(-0.67937 + 1.62716 * np.exp(0.20045 * rng.normal(size=N)), 0.1, 5)
    s["a"] = rng.uniform(0.3, 32, each)
    s["m1"] = np.clip(6e-8 + 1.1056e-3 * rng.gamma(0.3202, size=each), 1e-9, 1e-3)
    s["e"] = rng.beta(0.867, 3.03, each)
    s.update(com=rng.normal(size=(N, 2)), dt=rng.choice(TIME_STEPS, N))
  return s


def chunks(name, seed, stream, systems, planets=1):
  """A stream's systems, CHUNK at a time; streams 0, 1: make's train, val; 2, 3: probe-data's."""
  for number, first in enumerate(range(0, systems, CHUNK)):
    rng = np.random.default_rng([seed, stream, number])
    yield draw(name, rng, min(CHUNK, systems - first), planets)


def relative(s, steps):
  """Positions and velocities [N, steps, planets, 2] of the planets relative to the star."""
  m1, a, e, angle, phase = (s[key][:, None, :] for key in ("m1", "a", "e", "angle", "phase"))
  t = np.arange(steps) * s["dt"][:, None]
  mu = G * (m1 + s["m2"][:, None, None])
  return kepler(mu, a, e, angle, phase, t[:, :, None])


def elements(size, s):
  """[N, elements, 2]: positions of all bodies in order. A star with one planet moves, too."""
  result = np.empty((len(s["n"]), size.elements, 2))
  for n in np.unique(s["n"]):
    rows = s["n"] == n
    of = {key: value[rows] for key, value in s.items()}
    of.update({key: of[key][:, :n] for key in ("m1", "a", "e", "angle", "phase")})
    d, _ = relative(of, -(-size.elements // (n + 1)))
    star = of["com"][:, None, None]
    if n == 1:
      share = of["m1"] / (of["m1"] + of["m2"][:, None])
      star = star - d * share[:, None, :, None]
    star = np.broadcast_to(star, d[:, :, :1].shape)
    bodies = np.concatenate([star + d, star], 2)
    result[rows] = bodies.reshape(len(d), -1, 2)[:, :size.elements]
  return result


def bins(size, positions):
  """0 to size.bins - 1 of each coordinate; one outside the box gets the nearest."""
  found = np.floor((positions + size.box) / (2 * size.box) * size.bins)
  return np.clip(found, 0, size.bins - 1).astype(int)


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
  """Of two bodies at labels: relative position, velocity [N, places, 2]; r, F [N, places]."""
  d, v = (array[:, :, 0] for array in relative(s, len(label_places(size))))
  r = np.hypot(d[..., 0], d[..., 1])
  return d, v, r, G * (s["m1"][:, 0] * s["m2"])[:, None] / r**2


# ------------------------------------------------------------------------- data

def write_shards(folder, stem, systems, kind, rows, progress, columns=1):
  """Writes shards of SHARD systems, each with one token more: another first one, or no label. rows:
  the windows of CHUNK systems each, [N, T] or [N, T, K]. kind, columns: as in shards.py."""
  for number, first in enumerate(range(0, systems, SHARD)):
    writer = shards.Writer(os.path.join(folder, f"{stem}_{number:06d}.bin"), kind, columns)
    here = min(SHARD, systems - first)
    last = None
    for chunk in itertools.islice(rows, -(-here // CHUNK)):
      last = chunk[0, 0] if last is None else last
      writer.write(chunk.tobytes())
      progress.add(chunk.nbytes)
    writer.write(last.tobytes())
    writer.close()


def of_name(args):
  name = re.escape(args.name)
  return re.compile(rf"{name}_((labels_)?(train|val)_\d{{6}}\.(bin|json)|truth\.json)")


def report(args, stems, **model):
  """Prints the files and a configuration for them. stems: {key of data: part of its files}."""
  for name in sorted(filter(of_name(args).fullmatch, os.listdir(args.out))):
    print(os.path.join(args.out, name))
  size = SIZES[args.size]
  data = {key: os.path.join(args.out, f"{args.name}_{stem}_*.bin") for key, stem in stems.items()}
  model = {"context": size.context, "vocab": size.vocab, **model}
  print(f"for the configuration: {json.dumps({'data': data, 'model': model})[1:-1]}")


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
      rows = windows(stream, systems)
      write_shards(folder, f"{args.name}_{split}", systems, "tokens", rows, progress)
    progress.end()
    shards.warn_of_repeats(folder, args.name, size.context)
    shards.describe(folder, args.name, {"tokenizer": f"newton {args.size}"})
  print(f"{100 * np.mean(outside):.2g} % of the positions are outside the box "
        "and were moved to its edge")
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
  parts = {"train": list(chunks(args.size, args.seed, 2, args.systems)),
           "val": list(chunks(args.size, args.seed, 3, args.val_systems))}
  values = np.concatenate([labels(size, target, s) for s in parts["train"]])
  outputs = values.shape[2]
  mean, sd = 0, 1
  if not args.raw:
    mean = 0 if target == "vector" else values.mean()
    sd = np.sqrt(((values - mean)**2).mean())

  def rows(s):
    result = np.full((len(s["n"]), size.context, outputs), np.nan, "<f4")
    result[:, label_places(size)] = (labels(size, target, s) - mean) / sd
    return result

  truth = {"size": args.size, "seed": args.seed, "target": target,
           "mean": float(mean), "sd": float(sd)}
  with common.whole_files(args.out, of_name(args), args.overwrite) as folder:
    window = (2 + 4 * outputs) * size.context  # bytes
    progress = common.Progress(window * (args.systems + args.val_systems))
    for split, part in parts.items():
      truth[split] = {key: np.concatenate([s[key] for s in part]).tolist() for key in part[0]}
      count = len(truth[split]["n"])
      windows = (tokens(size, s, elements(size, s)) for s in part)
      write_shards(folder, f"{args.name}_{split}", count, "tokens", windows, progress)
      stem = f"{args.name}_labels_{split}"
      write_shards(folder, stem, count, "values", map(rows, part), progress, outputs)
    with open(os.path.join(folder, f"{args.name}_truth.json"), "w") as file:
      json.dump(truth, file)
    progress.end()
    shards.warn_of_repeats(folder, args.name, size.context)
    shards.describe(folder, args.name, {"tokenizer": f"newton {args.size}"})
  stems = {"train": "train", "val": "val", "labels": "labels_train", "val_labels": "labels_val"}
  report(args, stems, head={"outputs": outputs})


# ------------------------------------------------------------------------ judge

def observer(size, s, masses):
  """The force [N, places] as far as the bins of a whole window show it: an ellipse with its focus
  in the star, Kepler's third law, and the planet's share of the mass by the star's movement; where
  that is within twice its standard error, the geometric mean of `masses`, other planets'."""
  moments = size.elements // 2
  column = lambda x: x[:, None]
  width = 2 * size.box / size.bins
  seen = (bins(size, elements(size, s))[:, :2 * moments] + 0.5) * width - size.box
  seen = (seen[..., 0] + 1j * seen[..., 1]).reshape(-1, moments, 2)
  planet, star = seen[..., 0], seen[..., 1]
  d = planet - star
  # r = p - k d, linear in p and in k, the vector of length e to the periapsis
  factors = np.stack([np.ones(d.shape), -d.real, -d.imag], 2)
  p, kx, ky = (np.linalg.pinv(factors) @ np.abs(d)[..., None])[..., 0].T
  e, angle = np.hypot(kx, ky).clip(0, 0.99), np.arctan2(ky, kx)
  a = np.abs(p) / (1 - e * e)
  d = d * np.exp(-1j * column(angle)) / column(a)
  E = np.angle(d.real + column(e) + 1j * d.imag / np.sqrt(1 - column(e)**2))
  mean = E - column(e) * np.sin(E)
  # What the mean anomaly gains between moments: first its mean, then, more precise, a line's slope.
  gain = np.angle(np.exp(1j * np.diff(mean)).mean(1)) % (2 * np.pi)
  t = np.arange(moments) - (moments - 1) / 2
  for _ in range(2):
    wave = np.exp(1j * (mean - column(gain) * t))
    phase = np.angle(wave.mean(1))
    gain = gain + np.angle(wave * np.exp(-1j * column(phase))) @ t / (t @ t)
  # There may have been whole turns as well: as many as bring the mass closest to the sun's.
  rates = (column(gain) + 2 * np.pi * np.arange(8)).clip(1e-9) / column(s["dt"])
  closest = np.abs(np.log(rates**2 * column(a)**3 / G)).argmin(1)
  rate = rates[np.arange(len(rates)), closest]
  mass = rate**2 * a**3 / G
  times = np.arange(len(label_places(size))) - (moments - 1) / 2
  fitted, _ = kepler(*map(column, (G * mass, a, e, angle, phase)), times * column(s["dt"]))
  about = fitted[:, :moments] - fitted[:, :moments].mean(1, keepdims=True)
  square = (about**2).sum((1, 2))
  share = -(about[..., 0] * star.real + about[..., 1] * star.imag).sum(1) / square
  error = width / np.sqrt(12 * square)  # of a coordinate in a bin, carried on to share
  m1 = np.where(share > 2 * error, share * mass, np.exp(np.log(masses).mean()))
  m1 = m1.clip(masses.min(), masses.max())
  return column(G * m1 * np.maximum(mass - m1, 1e-3)) / (fitted**2).sum(2)


def neighbours(size, train, val, asked):
  """The mean force of the two nearest of 2,000 states of training systems at the places `asked` of
  validation systems, a flat index. A state: relative position, velocity, masses, standardised."""
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


def explained(truth, guess):
  """R2."""
  rest = ((truth - guess)**2).sum()
  return float(1 - rest / max(((truth - truth.mean())**2).sum(), 1e-300))


def measure(system, r, m1, m2, force, predicted):
  """Of [points]. exponents: {name: [value, low, high]}; None if points do not tell them apart."""
  use = predicted > 0
  result = {"points": len(use), "positive": float(use.mean()), "exponents": None, "constant": None,
            "r2_log": None, "r2": explained(force, predicted),
            "median_error": float(np.median(np.abs(predicted / force - 1)))}
  if not use.any():
    return result
  x = np.log(np.stack([np.full(use.sum(), np.e), r[use], m1[use], m2[use]], 1))
  middle = x.mean(0) * [0, 1, 1, 1]
  x, y, system = x - middle, np.log(predicted[use]), system[use]
  result["r2_log"] = explained(np.log(force[use]), y)
  if len(x) < 4 or np.linalg.matrix_rank(x) < 4:
    return result
  solution = np.linalg.lstsq(x, y, rcond=None)[0]
  # The interval: of 1,000 draws of as many systems, each by sums over its points.
  _, system = np.unique(system, return_inverse=True)
  N = system.max() + 1
  sums = np.zeros((N, 4, 5))
  np.add.at(sums, system, x[:, :, None] * np.concatenate([x, y[:, None]], 1)[:, None])
  weights = np.random.default_rng(0).multinomial(N, np.full(N, 1 / N), 1000)
  sums = (weights @ sums.reshape(N, 20)).reshape(-1, 4, 5)
  drawn = (np.linalg.pinv(sums[:, :, :4]) @ sums[:, :, 4:])[..., 0]
  low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
  found = np.stack([solution, low, high], 1).tolist()
  result["exponents"] = dict(zip(EXPONENTS, found[1:]))
  result["constant"] = float(np.exp(solution[0] - solution @ middle))
  return result


def read_truth(path):
  """The file's object, with arrays for both splits."""
  keys = "n", "m1", "m2", "a", "e", "angle", "phase", "com", "dt"
  try:
    with open(path, "rb") as file:
      truth = common.parse_json(common.decoded(file.read(), path))
    for split in ("train", "val"):
      found = truth[split] = {key: np.array(truth[split][key]) for key in keys}
      if len({*map(len, found.values())}) != 1 or found["m1"].shape[1] != 1:
        raise ValueError("systems have several lengths")
    SIZES[truth["size"]], float(truth["mean"]), float(truth["sd"]), TARGETS.index(truth["target"])
  except OSError as error:
    raise UserError(f"--truth {path}: {error.strerror}; name the NAME_truth.json that probe-data wrote")
  except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
    raise UserError(f"--truth {path} is not a NAME_truth.json of probe-data "
                    f"({type(error).__name__}: {error}); make it again")
  return truth


def read_forces(path, truth):
  """[N, places]: the force that the predictions mean."""
  size, target = SIZES[truth["size"]], truth["target"]
  wanted = len(truth["val"]["n"]), size.context, 2 if target == "vector" else 1
  flag = f"--predictions {path}"
  try:
    found = np.load(path, mmap_mode="r", allow_pickle=False)
    shape, kind = found.shape, found.dtype.kind
  except OSError as error:
    raise UserError(f"{flag}: {error.strerror or error}; name a file that ./train --predict wrote")
  except (ValueError, EOFError, AttributeError) as error:
    raise UserError(f"{flag} is not a .npy file of numbers ({error}); "
                    "name a file that ./train --predict wrote")
  if shape != wanted or kind != "f":
    raise UserError(f"{flag}: {found.dtype} {[*shape]}; the systems of --truth need float32 {[*wanted]} "
                    "(windows, model.context, outputs); predict data.val of the same probe-data")
  values = found[:, label_places(size)].astype(float) * truth["sd"] + truth["mean"]
  if not np.isfinite(values).all():
    raise UserError(f"{flag}: a prediction is not finite; the probe's training diverged, "
                    "lower optimizer.lr")
  if target == "vector":
    return np.hypot(values[..., 0], values[..., 1])
  return np.exp(values[..., 0]) if target == "log" else values[..., 0]


def judged(args):
  """The first step, and by name, of the predictions, then of what they are compared with: (points,
  forces) and measure() of these. points: system, r, m1, m2, F."""
  truth = read_truth(args.truth)
  size, val, train = SIZES[truth["size"]], truth["val"], truth["train"]
  places = len(label_places(size))
  first = size.from_step if args.from_step is None else args.from_step
  if not 0 <= first < places:
    raise UserError(f"--from-step {first} is not between 0 and {places - 1}, "
                    f"the last step of a {truth['size']} window")

  def flat(values):
    return values[:, first:].reshape(-1)

  _, _, r, force = states(size, val)
  of_systems = [np.arange(len(r)), val["m1"][:, 0], val["m2"]]
  system, m1, m2 = (np.broadcast_to(values[:, None], r.shape) for values in of_systems)
  points = np.stack([*map(flat, (system, r, m1, m2, force))])
  results = {path: (points, flat(read_forces(path, truth))) for path in args.predictions}
  results["truth"] = points, points[4]
  results["observer"] = points, flat(observer(size, val, train["m1"]))
  some = np.random.default_rng(1).permutation(points.shape[1])[:5000]
  asked = flat(np.arange(r.size).reshape(r.shape))[some]
  results["neighbours"] = points[:, some], neighbours(size, train, val, asked)
  rows = {name: measure(*points, forces) for name, (points, forces) in results.items()}
  return first, results, rows


def table(rows):
  lines = []
  for name, row in rows.items():
    exponents = ["-"] * 3
    if row["exponents"]:
      exponents = ["{:.3f} [{:.3f}, {:.3f}]".format(*row["exponents"][key]) for key in EXPONENTS]
    found = [row[key] for key in ("constant", "r2", "r2_log")]
    found = ["-" if value is None else f"{value:.4g}" for value in found]
    lines.append([name, str(row["points"]), f"{100 * row['positive']:.1f} %", *exponents, *found,
                  f"{100 * row['median_error']:.2g} %"])
  return tables.markdown(["", "points", "F > 0", "exponent of r", "of m1", "of m2", "constant",
                          "R2 of F", "R2 of ln F", "median error"], lines)


def seeds(rows):
  """[a table] of means and deviations of rows NAME_1.npy, NAME_2.npy, ...; [] without any."""
  groups, lines = {}, []
  for name, row in rows.items():
    if row["exponents"]:
      numbers = [*(row["exponents"][key][0] for key in EXPONENTS), row["r2"], row["r2_log"]]
      groups.setdefault(re.sub(r"_\d+\.npy$", "", name), []).append(numbers)
  if max(map(len, groups.values()), default=0) < 2:
    return []
  for name, values in groups.items():
    if len(values) > 1:
      spread = zip(np.mean(values, 0), np.std(values, 0, ddof=1))
      cells = (f"{mean:.2f} ± {sd:.2f}" for mean, sd in spread)
      lines.append([os.path.basename(name), str(len(values)), *cells])
    elif name in ("observer", "neighbours"):
      lines.append([name, "-", *(f"{value:.2f}" for value in values[0])])
  columns = ["", "seeds", "exponent of r", "of m1", "of m2", "R2 of F", "R2 of ln F"]
  return [tables.markdown(columns, lines)]


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
    colour = variants.COLOURS[number % len(variants.COLOURS)]
    look = {"color": colour, "label": drawing.in_text(name)}
    some = np.random.default_rng(2).permutation(np.flatnonzero(forces > 0))[:2000]
    left.plot(points[4][some], forces[some], ".", markersize=2, alpha=0.5, **look)
    if rows[name]["exponents"]:
      value, low, high = np.transpose([*rows[name]["exponents"].values()])
      errors = np.maximum([value - low, high - value], 0)
      right.errorbar(np.arange(3) + 0.1 * number, value, errors, fmt="o", capsize=3, **look)
      drawing.legend(right, frameon=False)
  left.set(xscale="log", yscale="log", xlabel="force", ylabel="force by predictions")
  drawing.legend(left, frameon=False, markerscale=5)
  right.set(title="Exponents; the lines are Newton's law", ylabel="value and 95 % interval")
  right.set_xticks(range(3), EXPONENTS)
  for value in (-2, 1):
    right.axhline(value, color="#888888", linewidth=1, linestyle=(0, (4, 3)))
  try:
    figure.savefig(args.out, dpi=150)
  except ValueError as error:  # a name that ends in no kind of picture
    raise UserError(f"--out {args.out}: {error}")
  print(f"picture: {args.out}")


def of_sizes(key):
  return ", ".join(f"{name}: {getattr(size, key)}" for name, size in SIZES.items())


def parse_arguments():
  parser = common.ArgumentParser(description=__doc__)
  commands = parser.add_subparsers(dest="command", required=True)
  made, judges = (common.ArgumentParser(add_help=False) for _ in range(2))
  add = made.add_argument
  add("--size", choices=SIZES, required=True)
  add("--out", required=True, metavar="DIR", help="folder for the files")
  add("--name", type=common.plain_name, required=True, help="files are NAME_train_000000.bin, ...")
  add("--seed", type=int, default=1, help="[1]")
  add("--overwrite", action="store_true", help="replace files of the same name")
  add = judges.add_argument
  add("--truth", required=True, metavar="FILE", help="NAME_truth.json of probe-data")
  add("--predictions", required=True, nargs="+", metavar="FILE.npy",
      help="float32 [windows, model.context, K] for data.val")
  add("--from-step", type=int, metavar="N", help="judge from this moment on, where a model has "
      f"seen some [{of_sizes('from_step')}]")

  def command(name, action, parent, what):
    made = commands.add_parser(name, parents=[parent], help=what)
    made.set_defaults(action=action)
    return made.add_argument

  add = command("make", make, made, "orbits to pretrain on")
  add("--systems", type=int, metavar="N", help=f"for training [{of_sizes('systems')}]")
  add("--val-systems", type=int, metavar="N", default=300, help="for validation [300]")
  add = command("probe-data", probe_data, made, "orbits and forces for the probe")
  add("--systems", type=int, metavar="N", default=9000, help="for training [9000]")
  add("--val-systems", type=int, metavar="N", default=1000, help="for validation [1000]")
  add("--target", choices=TARGETS, help=f"what labels are [{of_sizes('target')}]")
  add("--raw", action="store_true", help="do not standardise labels")
  add = command("judge", judge, judges, "exponents of predicted forces as a table")
  add("--json", metavar="FILE", help="write the table's numbers")
  add = command("picture", picture, judges, "the same, drawn")
  add("--out", required=True, metavar="FILE.png", help=".png, .pdf or .svg")
  return parser.parse_args()


def check(args):
  if args.action in (make, probe_data):
    if args.systems is None:
      args.systems = SIZES[args.size].systems
    for flag, least in (("systems", 1), ("val_systems", 1), ("seed", 0)):
      value = getattr(args, flag)
      if not least <= value < 1 << 31:
        flag = flag.replace("_", "-")
        raise UserError(f"--{flag} {value} is not between {least} and {(1 << 31) - 1}")
  elif args.action is picture or args.json:
    flag = "out" if args.action is picture else "json"
    common.check_output("--" + flag, getattr(args, flag), [args.truth, *args.predictions])


def main():
  args = parse_arguments()
  check(args)
  args.action(args)


if __name__ == "__main__":
  common.run(main, "nothing was written")
