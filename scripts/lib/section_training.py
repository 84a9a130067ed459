"""Sections of training: curves of losses and how soon they fall, speed, and stability."""
from __future__ import annotations
import functools
import statistics

from lib import drawing, metrics, tables
from lib.sections import Section, Text
from lib.tables import Column

SPEEDS = [Column("tokens/s", "tokens_per_s", "{:,.0f}"), Column("MFU", "mfu", "{:.1%}")]
SPIKES = [Column("loss spikes", "loss_spikes", "{:.2%}"), Column("norm spikes", "norm_spikes", "{:.2%}")]
DEVICE = Column("device", "device")


def time_unit(view) -> str:
  return "hours" if view.training["hours"].max() >= 1 else "minutes"


def divergence(run: metrics.Run) -> str:
  skipped = {row["step"] for row in run.lines if row["type"] == "skip"}  # steps without labels have no loss
  for row in run.lines:
    if row["type"] == "train" and row.get("loss", 0) is None and row["step"] not in skipped:
      return f"loss not finite at step {row['step']}"
  return metrics.judged(run) or "no"


def share_of_spikes(values: list[float]) -> float | None:
  return found[0] if (found := metrics.spike_score(values)) else None


@functools.cache
def facts(view):
  """A DataFrame with a row for each run."""
  rows = []
  for run in view.runs:
    row = dict(view.marks[run], step=run.step(), device=str(run.start.get("device", "-")),
               commit=str(run.start.get("commit", "-")), parameters=metrics.finite(run.start.get("parameters")),
               flops=metrics.finite(run.start.get("flops_per_token")),
               versions=" ".join(f"{key} {value}" for key, value in
                                 metrics.section(run.start, "versions").items()))
    rows.append(row)
    if run.lines:
      mine = view.training[view.training["run"] == row["run"]]
      for key in ("tokens", "minutes", "hours"):
        row[key] = mine[key].dropna().iloc[-1] if mine[key].notna().any() else None
      for key in ("tokens_per_s", "mfu", "ms"):
        values = mine[key].dropna()
        row[key] = statistics.median_low(values) if len(values) else None  # one of the values
      norms = [norm for line in run.lines if (norm := line.get("grad_norm")) is not None]
      row.update(largest_norm=max(norms, default=None), norm_spikes=share_of_spikes(norms),
                 loss_spikes=share_of_spikes([loss for _, loss in run.train()]), clipped=metrics.clipped(run),
                 skipped=len({line["step"] for line in run.lines if line["type"] == "skip"}),
                 diverged=divergence(run))
  return view.frame(rows, [])


# --------------------------------------------------------------------------------------------------------------- curves

def smooth(losses: list[float]) -> list[float]:
  """The mean over a window around each step, a fiftieth of the run wide; narrower where the loss falls at the
  start."""
  result, widest = [], max(1, len(losses) // 100)
  for i in range(len(losses)):
    before = min(i, widest)
    result.append(statistics.fmean(losses[i - before:i + before + 1]))
  return result


@functools.cache
def smoothed(view):
  """The steps with a loss, smoothed."""
  rows = view.training.dropna(subset=["loss"]).copy()
  rows["loss"] = rows.groupby("run")["loss"].transform(lambda losses: smooth(losses.tolist()))
  return rows


def how_soon(view, unit):
  """When each variant's mean first reaches the last of the baseline's, as a Frame."""
  rows, lines, first = smoothed(view), [], {}
  mine = {variant: drawing.over_seeds(rows[rows["variant"] == variant], "step", "loss") for variant in view.looks}
  if len(mine) < 2 or mine[view.base].empty:
    return None
  goal = mine[view.base]["mean"].iloc[-1]
  for variant, curve in mine.items():
    reached = curve.index[curve["mean"] <= goal]
    there = rows[(rows["variant"] == variant) & (rows["step"] == (reached[0] if len(reached) else -1))]
    first[variant] = there[["tokens", unit]].mean()
  for variant, curve in mine.items():
    line = [variant, "-" if curve.empty else "%.3f" % curve["mean"].iloc[-1]]
    for key, digits in (("tokens", "{:,.0f}"), (unit, "{:.3g}")):
      at = first[variant][key]
      line += [digits.format(at), "%.2f" % (first[view.base][key] / at)] if at > 0 else ["not reached", "-"]
    lines.append(line)
  return tables.of_texts("how_soon", ["run", "last loss", "tokens to there", "tokens: times as fast",
                                      f"{unit} to there", f"{unit}: times as fast"], lines)


def draw_losses(view, axes, over="step"):
  """Training and validation losses. over: "step", "tokens", "minutes" or "hours"."""
  rows, places = smoothed(view), view.training.set_index(["run", "step"])[over if over != "step" else "loss"]
  val = view.of_type("val")
  val = val[val["length"] == val["run"].map(lambda number: view.runs[number].context())].copy()
  val = val[val["series"] == val["series"].iloc[0]] if len(val) else val
  if over != "step":
    val[over] = [0.0 if step == 0 else places.get((run, step)) for run, step in zip(val["run"], val["step"])]
  for variant, look in view.looks.items():
    mine = view.training[view.training["variant"] == variant]
    if mine["run"].nunique() == 1:
      axes.plot(mine[over], mine["loss"], color=look["color"], alpha=0.18, linewidth=0.8)
    lines, dots = rows[rows["variant"] == variant], val[val["variant"] == variant]
    drawn = drawing.mean_line(axes, lines, "step", "loss", look, at=over, marker="", linewidth=1.6)
    drawing.mean_line(axes, dots, "step", "loss", look, at=over, linestyle="", markeredgewidth=0.6,
                      markeredgecolor="white", label=None if drawn else look["label"])
  axes.set(title="Training" + " (line) and validation (dots)" * (len(val) > 0), xlabel=over,
           ylabel="loss (nats per token)")
  if over != "step":
    axes.locator_params(axis="x", nbins=6)  # long numbers
  # The first steps fall from ln(vocabulary); on a linear axis they would squeeze everything after them.
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
  said = Text(f"How soon each first reaches the last training loss of {view.base} (means over a window around the "
              "step, and over seeds):")
  return ([said, table] if table else [],
          [functools.partial(draw_losses, view, over=over) for over in ("tokens", unit)])


# ------------------------------------------------------------------------------------------------- speed and stability

def draw_field(view, key, title, unit, axes):
  drawing.mean_lines(axes, view, view.training.dropna(subset=[key]), "step", key, linewidth=1.0, marker="")
  axes.set(title=title, xlabel="step", ylabel=unit, ylim=(0, None))


def field_panels(view, *fields):
  """fields: (key in the lines, title of the panel, label of its axis)."""
  return [functools.partial(draw_field, view, *names) for names in fields
          if view.training[names[0]].notna().any()]


def table_of_facts(name, view, columns):
  return tables.of_groups(name, facts(view), ["variant"], columns, ["run"])


def speed(view):
  if view.training["tokens_per_s"].isna().all():
    return [], []
  return ([Text("Medians over the steps of training. MFU is known only where the peak of the device is."),
           table_of_facts("speed", view, [*SPEEDS, Column("ms a step", "ms", "{:.1f}"), DEVICE])],
          field_panels(view, ("tokens_per_s", "Speed", "tokens per second")))


def stability(view):
  if view.training.empty:
    return [], []
  columns = [*SPIKES, Column("largest norm", "largest_norm"), Column("clipped", "clipped", "{:.1%}"),
             Column("skipped updates", "skipped", "{:,.4g}"), Column("diverged", "diverged")]
  return ([Text(metrics.SPIKES), table_of_facts("stability", view, columns)],
          field_panels(view, ("grad_norm", "Gradient norm", "before clipping"), ("lr", "Learning rate", "")))


CURVES = Section("losses", "Training", ("train", "val"), "./train CONFIG.json", curves,
                 "Training and validation loss by tokens and by the time of training; of seeds mean and range.")
SPEED = Section("speed", "Speed", ("train",), "./train CONFIG.json", speed, "Speed by step.")
STABILITY = Section("stability", "Stability", ("train",), "./train CONFIG.json", stability,
                    "Gradient norm and learning rate.")
