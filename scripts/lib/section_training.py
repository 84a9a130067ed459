"""Sections of training: curves of losses and how soon they fall, speed, and stability."""
from __future__ import annotations
import functools
import statistics

from lib import drawing, metrics, tables, variants
from lib.sections import Column, Section, Text, field, table


def each(lines: list[dict], key: str) -> list[float]:
  return [value for value in map(field(key), lines) if value is not None]


def middle(run: metrics.Run, key: str) -> float | None:
  values = each(run.lines, key)
  return statistics.median_low(values) if values else None  # one of the values


def last(run: metrics.Run, key: str) -> float | None:
  return next(iter(each(reversed(run.lines), key)), None)




def taken(run: metrics.Run, unit: str) -> float | None:
  """The time of its training."""
  return run.axis(unit)(run.lines[-1]["step"]) if run.lines else None


def time_unit(runs: list[metrics.Run]) -> str:
  return "hours" if any((taken(run, "hours") or 0) >= 1 for run in runs) else "minutes"


def cost(runs: list[metrics.Run]) -> list[Column]:
  unit = time_unit(runs)
  return [Column("tokens", lambda run: last(run, "tokens"), "{:,.0f}"),
          Column(unit, lambda run: taken(run, unit), "{:.3g}")]


SPEEDS = [Column("tokens/s", lambda run: middle(run, "tokens_per_s"), "{:,.0f}", max),
          Column("MFU", lambda run: middle(run, "mfu"), "{:.1%}", max)]
DEVICE = Column("device", lambda run: str(run.start.get("device", "-")))


def smooth(losses: list[float]) -> list[float]:
  """The mean over a window around each step, a fiftieth of the run wide; narrower where the loss falls at the start."""
  mean_of, result = metrics.window_means(losses), []
  for i in range(len(losses)):
    before = min(i, max(1, len(losses) // 100))
    after = min(before, len(losses) - 1 - i)
    result.append(mean_of(i - before, i + after + 1))
  return result


def smoothed(run: metrics.Run) -> list[tuple[int, float]]:
  points = run.train()
  return [(step, mean) for (step, _), mean in zip(points, smooth([loss for _, loss in points]))]


# --------------------------------------------------------------------------------------------------------------- curves

def curve_tables(view):
  """How soon each variant's mean reaches the last of the baseline's."""
  curves = {variant: variants.over_seeds([smoothed(run) for run in variant.runs]) for variant in view.variants}
  base = view.base()
  if not view.variants[1:] or not curves[base]:
    return []
  goal, unit = curves[base][-1][1], time_unit(view.runs)

  def reached(variant, over):
    step = next((step for step, loss, *_ in curves[variant] if loss <= goal), None)
    return None if step is None else metrics.mean([run.axis(over)(step) for run in variant.runs])
  rows = []
  for variant in view.variants:
    rows.append([variant.label, "%.3f" % curves[variant][-1][1] if curves[variant] else "-"])
    for over, digits in (("tokens", "{:,.0f}"), (unit, "{:.3g}")):
      mine = reached(variant, over)
      rows[-1] += [digits.format(mine), "%.2f" % (reached(base, over) / mine)] if mine else ["not reached", "-"]
  return [Text(f"How soon each first reaches the last training loss of {base.label} (means over a window around the "
               "step, and over seeds):"),
          tables.markdown(["run", "last loss", "tokens to there", "times as fast", f"{unit} to there", "times as fast"],
                          rows)]


def draw_losses(view, axes, over="step"):
  """Training and validation losses. over: "step", or what metrics.Run.axis() has."""
  for variant in view.variants:
    look, label = variant.look, drawing.in_text(variant.label)
    places = [run.axis(over) for run in variant.runs]
    at = lambda step: metrics.mean([place(step) for place in places])
    if len(variant.runs) == 1 and (train := variant.runs[0].train()):
      steps, losses = zip(*train)
      axes.plot([*map(at, steps)], losses, color=look["color"], alpha=0.18, linewidth=0.8)
    drawn = drawing.mean_line(axes, [*map(smoothed, variant.runs)], look, at, marker="", linewidth=1.6, label=label)
    inside, edge = (look["color"], "white")[::-1 if variant.of_other_data else 1]  # of other data: hollow
    drawing.mean_line(axes, [run.curve() for run in variant.runs], look, at, linestyle="", markeredgewidth=0.6,
                      label=None if drawn else look["label"], markerfacecolor=inside, markeredgecolor=edge)
  axes.set(title="Training" + (" (line) and validation (dots)" if any(run.curve() for run in view.runs) else ""),
           xlabel=over, ylabel="loss (nats per token)")
  if over != "step":
    axes.locator_params(axis="x", nbins=6)  # long numbers
  # The first steps fall from ln(vocabulary); on a linear axis they would squeeze everything after them.
  late = [loss for run in view.runs for _, loss in smoothed(run)[len(run.train()) // 30:]]
  late += [loss for run in view.runs for step, loss in run.curve() if step > 0]
  if late:
    spread = max(late) - min(late) or 1.0
    axes.set_ylim(min(late) - 0.08 * spread, max(late) + 0.12 * spread)


CURVES = Section("losses", "Training", lambda run: bool(run.train() or run.curve()), "./train CONFIG.json",
                 curve_tables,
                 lambda view: [functools.partial(draw_losses, view, over=over)
                               for over in ("tokens", time_unit(view.runs))],
                 "Training and validation loss by tokens and by the time of training; of several seeds mean and range.")


# ------------------------------------------------------------------------------------------------- speed and stability

def draw_field(view, key, title, unit, axes):
  points = lambda run: [(line["step"], value) for line in run.lines if (value := field(key)(line)) is not None]
  for variant in view.variants:
    drawing.mean_line(axes, [*filter(None, map(points, variant.runs))], variant.look, linewidth=1.0, marker="")
  axes.set(title=title, xlabel="step", ylabel=unit, ylim=(0, None))


def field_panels(*fields):
  """fields: (key in the lines, title of the panel, label of its axis)."""
  return lambda view: [functools.partial(draw_field, view, *names) for names in fields
                       if any(each(run.lines, names[0]) for run in view.runs)]


def speed_tables(view):
  columns = [*SPEEDS, Column("ms a step", lambda run: middle(run, "ms"), "{:.1f}"), DEVICE]
  return [Text("Medians over the steps of training. MFU is known only where the peak of the device is."),
          table(view.rows(SPEED.has), columns)]


SPEED = Section("speed", "Speed", lambda run: bool(each(run.lines, "tokens_per_s")), "./train CONFIG.json",
                speed_tables, field_panels(("tokens_per_s", "Speed", "tokens per second")), "Speed by step.")


def spike_share(values: list[float]) -> float | None:
  return found[0] if (found := metrics.spike_score(values)) else None


SPIKES = [Column("loss spikes", lambda run: spike_share([loss for _, loss in run.train()]), "{:.2%}"),
          Column("norm spikes", lambda run: spike_share(each(run.lines, "grad_norm")), "{:.2%}")]


def divergence(run: metrics.Run) -> str:
  skipped = {line["step"] for line in run.lines if line["type"] == "skip"}  # steps without labels have no loss either
  for line in run.lines:
    if line["type"] == "train" and line.get("loss", 0) is None and line["step"] not in skipped:
      return f"loss not finite at step {line['step']}"
  return metrics.judged(run) or "no"


def stability_tables(view):
  skipped = lambda run: len({line["step"] for line in run.lines if line["type"] == "skip"})
  columns = [*SPIKES, Column("largest norm", lambda run: max(each(run.lines, "grad_norm"), default=None)),
             Column("clipped", metrics.clipped, "{:.1%}"), Column("skipped updates", skipped, "{:,.4g}"),
             Column("diverged", divergence)]
  return [Text(metrics.SPIKES), table(view.rows(STABILITY.has), columns)]


STABILITY = Section("details", "Stability", lambda run: bool(run.lines), "./train CONFIG.json", stability_tables,
                    field_panels(("grad_norm", "Gradient norm", "before clipping"), ("lr", "Learning rate", "")),
                    "Gradient norm and learning rate.")
