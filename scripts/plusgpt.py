"""Runs as tables of pandas, for programs of your own (docs/comparing.md).

    from plusgpt import load  # with scripts/ in PYTHONPATH
    training, evaluations = load("runs/NAME")
    training.plot(x="tokens", y="loss")

half_width(values): of the 95% interval of their mean over seeds. paired(one, other): mean and standard error of the
difference of two evaluations of equal id over their windows.
"""
from lib.metrics import half_width, load, paired  # noqa: F401
