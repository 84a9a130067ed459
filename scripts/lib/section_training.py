"""Sections of training: curves of losses and how soon they fall, speed, and stability."""
from __future__ import annotations
import statistics
from functools import cache, partial

from lib import drawing, metrics, tables
from lib.sections import Section, Text
from lib.tables import Column

SPEEDS = [Column("tokens/s", "tokens_per_s", "{:,.0f}"), Column("MFU", "mfu", "{:.1%}")]
SPIKES = [Column("loss spikes", "loss_spikes", "{:.2%}"), Column("norm spikes", "norm_spikes", "{:.2%}")]
DEVICE = Column("device", "device")
SAID = "device", "commit", "versions"  # by programs: another may have continued the run


def time_unit(view) -> str:
  return "hours" if view.training["hours"].max() >= 1 else "minutes"


def divergence(run: metrics.Run) -> str:
  skipped = skipped_steps(run)  # those without labels have no loss
  for row in run.lines:
    if row["type"] == "train" and row.get("loss", 0) is None and row["step"] not in skipped:
      return f"loss not finite at step {row['step']}"
  return metrics.judged(run) or "no"


def skipped_steps(run: metrics.Run) -> set[int]:
  return {row["step"] for row in run.lines if row["type"] == "skip"}


def share_of_spikes(values: list[float]) -> float | None:
  return (metrics.spike_score(values) or [None])[0]


@cache
def facts(view):
  """A DataFrame with a row for each run."""
  rows = []
  for run in view.runs:
    start = run.start
    said = {key: " and ".join(run.said(key)) or "-" for key in SAID}
    row = dict(view.marks[run], **said, step=run.step(),
               parameters=metrics.finite(start.get("parameters")),
               flops=metrics.finite(start.get("flops_per_token")))
    rows.append(row)
    if run.lines:
      mine = view.training[view.training["run"] == row["run"]]
      for key in ("tokens", "minutes", "hours", "tokens_per_s", "mfu", "ms"):
        values = mine[key].dropna().tolist() or [None]
        median = key in ("tokens_per_s", "mfu", "ms")
        row[key] = statistics.median_low(values) if median else values[-1]
      norms = [line["grad_norm"] for line in run.lines if line.get("grad_norm") is not None]
      losses = [loss for _, loss in run.train()]
      row.update(largest_norm=max(norms, default=None), norm_spikes=share_of_spikes(norms),
                 loss_spikes=share_of_spikes(losses), clipped=metrics.clipped(run),
                 skipped=len(skipped_steps(run)), diverged=divergence(run))
  return tables.frame(rows)


# ------------------------------------------------------------------------------------------- curves

def smooth(losses: list[float]) -> list[float]:
  """The mean over a window around each step, a fiftieth of the run wide; narrower at the start."""
  result, widest = [], max(1, len(losses) // 100)
  for i in range(len(losses)):
    before = min(i, widest)
    result.append(statistics.fmean(losses[i - before:i + before + 1]))
  return result


@cache
def smoothed(view):
  """The steps with a loss, smoothed."""
  rows = view.training.dropna(subset=["loss"]).copy()
  rows["loss"] = rows.groupby("run")["loss"].transform(lambda losses: smooth(losses.tolist()))
  return rows


def how_soon(view, unit):
  """When each variant's mean first reaches the last of the baseline's, as a Frame."""
  rows, curves, first, lines = smoothed(view), {}, {}, []
  for variant in view.looks:
    mine = rows[rows["variant"] == variant]
    curves[variant] = drawing.over_seeds(mine, "step", "loss")["mean"]
  if len(curves) < 2 or curves[view.base].empty:
    return None
  goal = curves[view.base].iloc[-1]
  for variant, curve in curves.items():
    step = min(curve.index[curve <= goal], default=-1)
    there = rows[(rows["variant"] == variant) & (rows["step"] == step)]
    first[variant] = there[["tokens", unit]].mean()
  for variant, curve in curves.items():
    line = [variant, "-" if curve.empty else "%.3f" % curve.iloc[-1]]
    for key, digits in (("tokens", "{:,.0f}"), (unit, "{:.3g}")):
      at, of_base = first[variant][key], first[view.base][key]
      line += [digits.format(at), "%.2f" % (of_base / at)] if at > 0 else ["not reached", "-"]
    lines.append(line)
  head = ["run", "last loss", "tokens to there", "tokens: times as fast", f"{unit} to there",
          f"{unit}: times as fast"]
  return tables.of_texts("how_soon", head, lines)


def draw_losses(view, axes, over="step"):
  """Training and validation losses. over: "step", "tokens", "minutes" or "hours"."""
  rows, val = smoothed(view), view.of_type("val")
  val = val[val["length"] == view.trained(val)]
  newest = val["step"] == val.groupby("run")["step"].transform("max")
  val = val[val["series"].isin(val[newest]["series"].head(1))].copy()  # a resumed run may have changed it
  if over != "step":
    places = view.training.set_index(["run", "step"])[over]
    val[over] = [places.get(at) if at[1] else 0.0 for at in zip(val["run"], val["step"])]
  for variant, look in view.looks.items():
    mine = view.training[view.training["variant"] == variant]
    if mine["run"].nunique() == 1:
      axes.plot(mine[over], mine["loss"], color=look["color"], alpha=0.18, linewidth=0.8)
    lines, dots = rows[rows["variant"] == variant], val[val["variant"] == variant]
    drawn = drawing.mean_line(axes, lines, "step", "loss", look, at=over, marker="", linewidth=1.6)
    drawing.mean_line(axes, dots, "step", "loss", look, at=over, linestyle="", markeredgewidth=0.6,
                      markeredgecolor="white", label=None if drawn else look["label"])
  title = "Training (line) and validation (dots)" if len(val) else "Training"
  axes.set(title=title, xlabel=over, ylabel="loss (nats per token)")
  if over != "step":
    axes.locator_params(axis="x", nbins=6)  # long numbers
  # The first steps fall from ln(vocabulary), which would squeeze everything after them.
  late = rows[rows["step"] > rows.groupby("run")["step"].transform("max") / 30]["loss"].tolist()
  late += val[val["step"] > 0]["loss"].tolist()
  if late:
    spread = max(late) - min(late) or 1.0
    axes.set_ylim(min(late) - 0.08 * spread, max(late) + 0.12 * spread)


def curves(view):
  if view.training["loss"].isna().all() and view.of_type("val").empty:
    return [], []
  unit = time_unit(view)
  table = how_soon(view, unit)
  said = Text(f"How soon each first reaches the last training loss of {view.base} (means over a "
              "window around the step, and over seeds):")
  panels = [partial(draw_losses, view, over=over) for over in ("tokens", unit)]
  return [said, table] if table else [], panels


# ------------------------------------------------------------------------------ speed and stability

def draw_field(view, key, title, unit, axes):
  rows = view.training.dropna(subset=[key])
  drawing.mean_lines(axes, view, rows, "step", key, linewidth=1.0, marker="")
  axes.set(title=title, xlabel="step", ylabel=unit, ylim=(0, None))


def field_panels(view, *fields):
  """fields: (key in the lines, title of the panel, label of its axis)."""
  return [partial(draw_field, view, *names) for names in fields if view.training[names[0]].notna().any()]


def speed(view):
  if view.training["tokens_per_s"].isna().all():
    return [], []
  said = Text("Medians over the steps of training. MFU is known only where the peak of the device is.")
  columns = [*SPEEDS, Column("ms a step", "ms", "{:.1f}"), DEVICE]
  return ([said, view.table("speed", facts(view), columns)],
          field_panels(view, ("tokens_per_s", "Speed", "tokens per second")))


def stability(view):
  if view.training.empty:
    return [], []
  columns = [*SPIKES, Column("largest norm", "largest_norm"), Column("clipped", "clipped", "{:.1%}"),
             Column("skipped updates", "skipped", "{:,.4g}"), Column("diverged", "diverged")]
  return ([Text(metrics.SPIKES), view.table("stability", facts(view), columns)],
          field_panels(view, ("grad_norm", "Gradient norm", "before clipping"), ("lr", "Learning rate", "")))


CURVES = Section("losses", "Training", ("train", "val"), "./train CONFIG.json", curves, "Training and "
                 "validation loss by tokens and by the time of training; of seeds mean and range.")
SPEED = Section("speed", "Speed", ("train",), "./train CONFIG.json", speed, "Speed by step.")
STABILITY = Section("stability", "Stability", ("train",), "./train CONFIG.json", stability,
                    "Gradient norm and learning rate.")
